"""SAQ: ten jobs at a time, none kept after it is done."""

import asyncio
from typing import Any, Final

import uvloop
from saq import Queue, Worker

from benchmarks._worker_adapter import PAYLOAD, Producer, Started

PACKAGES: Final = ("saq", "redis", "hiredis")
AT_ONCE: Final = 10


async def connect(url: str) -> Producer:
    queue = Queue.from_url(url)
    await queue.connect()

    async def push() -> None:
        await queue.enqueue("noop", text=PAYLOAD, ttl=-1)

    async def push_many(jobs: int) -> None:
        await asyncio.gather(*(push() for _ in range(jobs)))

    return Producer(push, push_many)


def work(url: str, started: Started) -> None:
    async def noop(context: dict[str, Any], *, text: str) -> None:
        started()

    async def run() -> None:
        queue = Queue.from_url(url)
        await queue.connect()
        await Worker(queue, [("noop", noop)], concurrency=AT_ONCE).start()

    uvloop.run(run())
