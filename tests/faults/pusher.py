"""One push at a time until the store is gone, in a process whose syncs can be made to fail.

    python -m tests.faults.pusher URL

Prints the id of each push once it is answered, then what every other call says, then closes.
"""

import asyncio
import sys
from collections.abc import Awaitable
from typing import Any

from penstock.model.errors import PenstockError, Unavailable
from penstock.model.job import Run
from tests.faults.stores import opened

PUSHES = 500
T = "default"


async def main(url: str) -> None:
    store = await opened(url)
    await store.push(T, [Run.pack("q", [b"0", b"0"])])
    lease = await store.claim(T, ["q"], 1, lease_ms=3_600_000)
    assert lease is not None
    waiting = asyncio.create_task(store.claim(T, ["other"], wait_ms=60_000))
    try:
        for number in range(PUSHES):
            pushed = await store.push(T, [Run.pack("q", [b"%d" % number])])
            print("pushed", pushed.ids[0], number, flush=True)
    except Unavailable as error:
        print("refused push", error.code, flush=True)
    calls: dict[str, Awaitable[Any]] = {
        "waiting": waiting,
        "push": store.push(T, [Run.pack("q", [b"0"])]),
        "claim": store.claim(T, ["q"]),
        "ack": store.ack(T, lease.token),
        "get": store.get(T, list(lease.ids)),
        "health": store.health(),
    }
    for name, call in calls.items():
        try:
            await call
            print("answered", name, flush=True)
        except PenstockError as error:
            print("refused", name, error.code, flush=True)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
