"""Dramatiq on Redis: sixteen threads, only the middleware that a no-op could need."""

import threading
from typing import Any, Final

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import Retries

from benchmarks._worker_adapter import PAYLOAD, Producer, Started

PACKAGES: Final = ("dramatiq", "redis", "hiredis")
THREADS: Final = 16


def _broker(url: str) -> Any:
    return RedisBroker(url=url, middleware=[Retries()])


async def connect(url: str) -> Producer:
    def noop(text: str) -> None: ...

    actor = dramatiq.actor(noop, actor_name="noop", broker=_broker(url))

    async def push() -> None:
        actor.send(PAYLOAD)

    return Producer(push)


def work(url: str, started: Started) -> None:
    broker = _broker(url)

    def noop(text: str) -> None:
        started()

    dramatiq.actor(noop, actor_name="noop", broker=broker)
    dramatiq.Worker(broker, worker_threads=THREADS).start()
    threading.Event().wait()
