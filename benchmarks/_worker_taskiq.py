"""TaskIQ on a Redis stream: a hundred jobs at a time, parameters not validated, no results."""

import asyncio
from typing import Any, Final

import uvloop
from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

from benchmarks._worker_adapter import PAYLOAD, Producer, Started

PACKAGES: Final = ("taskiq", "taskiq-redis", "redis", "hiredis")
AT_ONCE: Final = 100


def _broker(url: str) -> Any:
    return RedisStreamBroker(url, consumer_id="0")  # the group also sees what came before it


async def connect(url: str) -> Producer:
    broker = _broker(url)

    async def noop(text: str) -> None: ...

    task = broker.task(task_name="noop")(noop)
    await broker.startup()

    async def push() -> None:
        await task.kiq(PAYLOAD)

    async def push_many(jobs: int) -> None:
        await asyncio.gather(*(push() for _ in range(jobs)))

    return Producer(push, push_many)


def work(url: str, started: Started) -> None:
    broker = _broker(url)

    async def noop(text: str) -> None:
        started()

    broker.task(task_name="noop")(noop)
    options = {"max_async_tasks": AT_ONCE, "max_prefetch": AT_ONCE, "validate_params": False}
    uvloop.run(run_receiver_task(broker, run_startup=True, **options))
