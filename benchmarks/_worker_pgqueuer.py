"""PgQueuer on asyncpg: five hundred jobs a fetch, no limit to how many run."""

from typing import Any, Final

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

from benchmarks._worker_adapter import PAYLOAD, Producer, Started

PACKAGES: Final = ("pgqueuer", "asyncpg")
BATCH: Final = 500


async def connect(url: str) -> Producer:
    queries = Queries(AsyncpgDriver(await asyncpg.connect(url)))
    if await queries.schema_is_installed():
        await queries.uninstall()
    await queries.install()
    payload = PAYLOAD.encode()

    async def push() -> None:
        await queries.enqueue("noop", payload)

    async def push_many(jobs: int) -> None:
        await queries.enqueue(["noop"] * jobs, [payload] * jobs, [0] * jobs)

    return Producer(push, push_many)


def work(url: str, started: Started) -> None:
    async def noop(job: Any) -> None:
        started()

    async def run() -> None:
        queue = PgQueuer(AsyncpgDriver(await asyncpg.connect(url)))
        queue.entrypoint("noop")(noop)
        await queue.run(batch_size=BATCH)

    uvloop.run(run())
