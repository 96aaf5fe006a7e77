"""arq: a hundred jobs at a time, no results kept, polling as often as it can bear."""

import asyncio
from typing import Any, Final

import uvloop
from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker, func

from benchmarks._worker_adapter import PAYLOAD, Producer, Started

PACKAGES: Final = ("arq", "redis", "hiredis")
AT_ONCE: Final = 100
POLL_S: Final = 0.001


async def connect(url: str) -> Producer:
    pool = await create_pool(RedisSettings.from_dsn(url))

    async def push() -> None:
        await pool.enqueue_job("noop", PAYLOAD)

    async def push_many(jobs: int) -> None:
        await asyncio.gather(*(push() for _ in range(jobs)))

    return Producer(push, push_many)


def work(url: str, started: Started) -> None:
    async def noop(context: dict[str, Any], text: str) -> None:
        started()

    async def run() -> None:
        worker = Worker(
            [func(noop, name="noop", keep_result=0)],
            redis_settings=RedisSettings.from_dsn(url),
            max_jobs=AT_ONCE,
            poll_delay=POLL_S,
            log_results=False,
        )
        await worker.main()

    uvloop.run(run())
