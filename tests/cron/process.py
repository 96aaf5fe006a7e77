"""A process that does nothing but schedule, for tests that stop and kill it: its argument is a url."""

import asyncio
import sys

from penstock.cron.scheduler import Scheduler
from penstock.open import open_store


async def main(url: str) -> None:
    store = await open_store(url)
    try:
        print("ready", flush=True)
        await Scheduler(store, ["default"]).run()
    finally:
        await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
