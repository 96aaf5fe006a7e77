"""RQ: SimpleWorker, which runs jobs in its own process instead of forking for each."""

from typing import Final

from redis import Redis
from rq import Queue, SimpleWorker

from benchmarks._worker_adapter import PAYLOAD, Producer, Started

PACKAGES: Final = ("rq", "redis", "hiredis")

_told: list[Started] = []  # RQ finds a job's function by its name alone


def noop(text: str) -> None:
    _told[0]()


async def connect(url: str) -> Producer:
    queue = Queue(connection=Redis.from_url(url))
    name = f"{__name__}.noop"

    async def push() -> None:
        queue.enqueue(name, PAYLOAD, result_ttl=0)

    async def push_many(jobs: int) -> None:
        queue.enqueue_many([Queue.prepare_data(name, (PAYLOAD,), result_ttl=0)] * jobs)

    return Producer(push, push_many)


def work(url: str, started: Started) -> None:
    _told.append(started)
    connection = Redis.from_url(url)
    worker = SimpleWorker([Queue(connection=connection)], connection=connection)
    worker.work(logging_level="ERROR")
