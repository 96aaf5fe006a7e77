"""Penstock: `penstock worker` on `penstock serve`, with the kinds of handler that there are.

A worker is the command itself, with the app that it is told to load; results are off, as they are
for everybody here.
"""

import sys
from collections.abc import Sequence
from typing import Any, Final

from benchmarks._worker_adapter import PAYLOAD, Producer, Started
from penstock import Penstock
from penstock.cli.main import main as penstock

BATCH: Final = 1_000
AT_ONCE: Final = "100"


class Kind:
    """A subject: one kind of handler. It is found by its name in this module."""

    PACKAGES: Sequence[str] = ("penstock", "msgspec", "uvloop")

    def __init__(self, name: str, room: int) -> None:
        self._where = f"{__name__}:{name}.app"
        self._text = PAYLOAD.replace('"', "'")[:room]  # what is left of 44 bytes of JSON
        self.app: Penstock | None = None  # made for a URL, by whichever process this is

    async def connect(self, url: str) -> Producer:
        task = self.declare(Penstock(url), lambda jobs=1: None)
        text = self._text
        payload = task.arguments.encode("json", (text,), {})
        assert len(payload) == len(PAYLOAD), payload
        # Of a batch task each job is an item, of the others the arguments of a call.
        job = text if task.batch else (text,)

        async def push() -> None:
            await task.apush(text)

        async def push_many(jobs: int) -> None:
            await task.apush_many([job] * jobs)

        return Producer(push, push_many)

    def work(self, url: str, started: Started) -> None:
        self.app = Penstock(url)
        self.declare(self.app, started)
        flags = ("--concurrency", AT_ONCE, "--log-level", "warning")
        sys.argv = ["penstock", "worker", self._where, *flags]
        penstock()

    def declare(self, app: Penstock, started: Started) -> Any:
        async def noop(text: str) -> None:
            started()

        return app.task(name="noop", result=False)(noop)


class Threads(Kind):
    def declare(self, app: Penstock, started: Started) -> Any:
        def noop(text: str) -> None:
            started()

        return app.task(name="noop", result=False)(noop)


class Batch(Kind):
    def declare(self, app: Penstock, started: Started) -> Any:
        async def noop(texts: list[str]) -> None:
            started(len(texts))

        return app.task(name="noop", result=False, batch=BATCH)(noop)


ASYNC: Final = Kind("ASYNC", 33)
THREADS: Final = Threads("THREADS", 33)
BATCHES: Final = Batch("BATCHES", 42)
