"""Huey on Redis: one thread that blocks on the list, no results, no scheduler's errands."""

from typing import Any, Final

from huey import RedisHuey

from benchmarks._worker_adapter import PAYLOAD, Producer, Started

PACKAGES: Final = ("huey", "redis", "hiredis")


def _huey(url: str) -> Any:
    return RedisHuey("benchmark", url=url, results=False)


async def connect(url: str) -> Producer:
    def noop(text: str) -> None: ...

    task = _huey(url).task(name="noop")(noop)

    async def push() -> None:
        task(PAYLOAD)

    return Producer(push)


def work(url: str, started: Started) -> None:
    huey = _huey(url)

    def noop(text: str) -> None:
        started()

    huey.task(name="noop")(noop)
    huey.create_consumer(workers=1, periodic=False, check_worker_health=False).run()
