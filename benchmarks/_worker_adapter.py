"""One process of a subject: it pushes as it is told, or it works.

    python -m benchmarks._worker_adapter SUBJECT work URL STAMPS JOBS
    python -m benchmarks._worker_adapter SUBJECT produce URL STAMPS

This runs in the environment of the subject, which has neither Penstock nor its dependencies: the
standard library and uvloop are all it may import. SUBJECT is a module, or one and a name in it, that
says how to push and how to work, see `Subject`; what is measured, and with which clock, is here and
so the same for all. STAMPS is a FIFO through which the worker tells the producer when a job started; CLOCK_MONOTONIC is one clock
for all processes of a machine.
"""

import asyncio
import json
import os
import random
import select
import struct
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from importlib.metadata import version
from itertools import count
from statistics import quantiles
from typing import Any, Final, NamedTuple, Protocol, cast

import uvloop

PAYLOAD: Final = '{"to":"somebody","text":"some words or so"}.'  # 44 bytes
STAMP: Final = struct.Struct("dd")
PATIENCE_S: Final = 60.0
PAUSE_S: Final = (0.002, 0.005)  # after a start: the worker acknowledges and is idle again


class Started(Protocol):
    def __call__(self, jobs: int = 1, /) -> None: ...


class Producer(NamedTuple):
    push: Callable[[], Awaitable[object]]
    # Jobs in one call, or in one sweep of calls, of what the subject offers; None if nothing.
    push_many: Callable[[int], Awaitable[object]] | None = None


class Subject(Protocol):
    """What a module `_worker_<subject>`, or an object in it, has."""

    PACKAGES: Sequence[str]  # whose versions belong beside the figures

    async def connect(self, url: str) -> Producer: ...

    def work(self, url: str, started: Started) -> None:
        """Run a worker that calls `started` first thing in each job; never returns."""


# -- the worker's side -----------------------------------------------------------------------------


class Stamps:
    """Counts starts; from the last of the expected ones on, tells when the first was and this.

    What a worker fetches before its first start is not on this clock, so the expected jobs have to
    be many times what it fetches at once.
    """

    def __init__(self, path: str, jobs: int) -> None:
        self._fd = os.open(path, os.O_WRONLY)
        self._numbers = count()  # atomic: some subjects run jobs in threads
        self._last = jobs - 1
        self._first = 0.0

    def started(self, jobs: int = 1, /) -> None:
        now = time.monotonic()
        number = next(self._numbers)
        if jobs > 1:  # a batch, of which one at a time begins
            self._numbers = count(number + jobs)
        if number == 0:
            self._first = now
        if number + jobs > self._last:
            os.write(self._fd, STAMP.pack(self._first, now))


# -- the producer's side ---------------------------------------------------------------------------


class Told:
    """Answers what the benchmark asks, one line of JSON for each."""

    def __init__(self, producer: Producer, stamps: int) -> None:
        self._producer = producer
        self._stamps = stamps

    async def push(self, jobs: int) -> dict[str, float]:
        """Jobs one by one, each waiting for its answer."""
        push, took = self._producer.push, []
        began = then = time.monotonic()
        for _ in range(jobs):
            await push()
            now = time.monotonic()
            took.append(now - then)
            then = now
        return {"rate": jobs / (then - began), **percentiles(took)}

    async def push_many(self, jobs: int, by: int) -> dict[str, float]:
        push_many = self._producer.push_many
        assert push_many is not None
        began = time.monotonic()
        for _ in range(jobs // by):
            await push_many(by)
        return {"rate": jobs / (time.monotonic() - began)}

    async def drained(self, jobs: int) -> dict[str, float]:
        first, last = self._stamp()
        return {"rate": (jobs - 1) / (last - first)}

    async def starts(self, jobs: int, seed: int) -> dict[str, list[float]]:
        """From before a push to the start of its job on a worker with nothing else to do.

        Pauses vary, lest they keep step with a worker that polls.
        """
        push, took, pauses = self._producer.push, [], random.Random(seed)
        for _ in range(jobs):
            time.sleep(pauses.uniform(*PAUSE_S))  # noqa: ASYNC251 nobody else is on this loop
            began = time.monotonic()
            await push()
            took.append(self._stamp()[1] - began)
        return {"took": took}

    def _stamp(self) -> tuple[float, float]:
        ready, _, _ = select.select([self._stamps], [], [], PATIENCE_S)
        if not ready:
            raise TimeoutError(f"no job started within {PATIENCE_S:.0f} s")
        first, last = STAMP.unpack(os.read(self._stamps, STAMP.size))
        return first, last


def percentiles(took: list[float]) -> dict[str, float]:
    """In milliseconds, of seconds."""
    cut = quantiles(took, n=100, method="inclusive")
    return {"p50": cut[49] * 1000, "p99": cut[98] * 1000}


async def _produce(subject: Subject, url: str, path: str) -> None:
    # For both directions: opening does not wait for a worker, and none that leaves is an end.
    stamps = os.open(path, os.O_RDWR)
    told = Told(await subject.connect(url), stamps)
    _answer({package: version(package) for package in subject.PACKAGES})
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        asked: dict[str, Any] = json.loads(line)
        _answer(await getattr(told, asked.pop("what"))(**asked))


def _answer(said: object) -> None:
    print(json.dumps(said), flush=True)


def main() -> None:
    where, role, url, path, *jobs = sys.argv[1:]
    module, _, name = where.partition(":")
    found: Any = import_module(f"benchmarks.{module}")
    subject = cast(Subject, getattr(found, name) if name else found)
    if role == "work":
        subject.work(url, Stamps(path, int(jobs[0])).started)
    else:
        uvloop.run(_produce(subject, url, path))


if __name__ == "__main__":
    main()
