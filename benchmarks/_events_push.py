"""The same commands on stores that differ in one thing: who hears of their events.

Nobody; an observer that does nothing with them, which is what the kernel's telling costs and any
server pays, since it counts by events; an event log.

CPU time, because the machine has other users: of the loop's thread, which is what a caller pays,
and of the whole process, which has the event log's thread (and the journal's) in it.
"""

import asyncio
import os
import time
from array import array
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvloop

from benchmarks._measure import Figure, clock_ns, interleave
from penstock.events.log import EventLog
from penstock.events.reader import read_segment
from penstock.events.segment import sealed_in
from penstock.events.segments import Rules
from penstock.model.event import Event
from penstock.model.job import JobOptions, Run
from penstock.open import open_store
from penstock.stores.embedded import EmbeddedStore

SIZE: Final = 44  # bytes of a payload
OPTIONS: Final = (JobOptions(codec="bytes", task="welcome"),)
STORES: Final = ("memory", "sqlite")
BATCHES: Final = (1, 10, 100, 1_000)
OPERATIONS: Final = ("push", "cycle")
HEARD: Final = ("nobody", "observer", "log")
FLIGHT: Final = 64  # calls under way at a durable store
CLOCKS: Final = ("loop", "process", "wall")


@dataclass(frozen=True)
class Case:
    store: str
    batch: int
    operation: str

    @property
    def name(self) -> str:
        return f"{self.store} · {self.operation} by {self.batch:,}"

    @property
    def label(self) -> str:
        return "push+claim+ack" if self.operation == "cycle" else self.operation

    @property
    def commands(self) -> int:
        """Of a sample."""
        each = 2_000 if self.store == "memory" else 640
        return each if self.batch <= 100 else each // 4


def cases(stores: Sequence[str] = STORES) -> list[Case]:
    return [
        Case(store, batch, operation)
        for store in stores
        for operation in OPERATIONS
        for batch in BATCHES
    ]


class Nothing:
    """An observer that forgets what it is told."""

    def write(self, events: list[Event]) -> None:
        pass


class Subject:
    """A store, and what it is told."""

    def __init__(self, runner: asyncio.Runner, case: Case, directory: Path, heard: str) -> None:
        self._runner = runner
        self._case = case
        directory.mkdir()
        self.events = directory / "events"
        self._store = runner.run(self._open(directory, heard))
        ends = array("I", range(SIZE, SIZE * case.batch + 1, SIZE))
        data = os.urandom(SIZE * case.batch)
        self._run = Run(queue="work", data=data, ends=ends, options=OPTIONS)

    async def _open(self, directory: Path, heard: str) -> EmbeddedStore:
        store = self._case.store
        url = "memory://" if store == "memory" else f"{store}:///{directory}/store"
        log = EventLog(self.events, Rules(seal_s=3_600)) if heard == "log" else None
        observer = Nothing() if heard == "observer" else None
        opened = await open_store(url, events=log, observer=observer, share=False)
        assert isinstance(opened, EmbeddedStore)
        return opened

    async def _push(self) -> None:
        await self._store.push("default", [self._run])

    async def _cycle(self) -> None:
        await self._store.push("default", [self._run])
        lease = await self._store.claim("default", ["work"], self._case.batch, worker="w1")
        if lease is not None:
            await self._store.ack("default", lease.token)

    async def _all(self, call: Callable[[], Awaitable[None]], times: int) -> None:
        if self._case.store == "memory":
            for _ in range(times):
                await call()
            return
        left = times

        async def caller() -> None:
            nonlocal left
            while left:
                left -= 1
                await call()

        await asyncio.gather(*(caller() for _ in range(FLIGHT)))

    def take(self) -> Sequence[float]:
        """ns per call, by each clock; the queue is empty again afterwards."""
        case = self._case
        call = self._push if case.operation == "push" else self._cycle
        began = clock_ns(), time.process_time_ns(), time.perf_counter_ns()
        self._runner.run(self._all(call, case.commands))
        ended = clock_ns(), time.process_time_ns(), time.perf_counter_ns()
        self._runner.run(self._store.purge("default", "work"))
        return [(end - begin) / case.commands for begin, end in zip(began, ended, strict=True)]

    def close(self) -> None:
        self._runner.run(self._store.close())


def measure(chosen: Sequence[Case], directory: Path, rounds: int) -> list[Figure]:
    """ns per call of every case, whoever hears of it, in turn."""
    takes: dict[str, Callable[[], Sequence[float]]] = {}
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        for number, case in enumerate(chosen):
            for heard in HEARD:
                subject = Subject(runner, case, directory / f"{number}-{heard}", heard)
                stack.callback(subject.close)
                takes[_name(case, heard)] = subject.take
                subject.take()  # whatever is made once is made now
        taken = interleave(takes, rounds)
    figures = []
    for case in chosen:
        for heard in HEARD:
            samples = taken[_name(case, heard)]
            for at, clock in enumerate(CLOCKS):
                settings = {
                    "store": case.store,
                    "operation": case.operation,
                    "batch": case.batch,
                    "heard_by": heard,
                    "clock": clock,
                    "commands_a_sample": case.commands,
                    "payload_bytes": SIZE,
                    "in_flight": 1 if case.store == "memory" else FLIGHT,
                }
                values = tuple(sample[at] for sample in samples)
                figures.append(Figure(f"{_name(case, heard)} · {clock}", "ns", values, settings))
    return figures


def _name(case: Case, heard: str) -> str:
    return f"{case.name} · heard by {heard}"


def line_sizes(directory: Path, batch: int) -> dict[str, float]:
    """Bytes of an event line on the disk, by kind."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        subject = Subject(runner, Case("memory", batch, "cycle"), directory, "log")
        subject.take()
        subject.close()
    totals: dict[str, list[int]] = {}
    for place, path in sealed_in(subject.events):
        lines = path.read_bytes().splitlines(keepends=True)
        for line, text in zip(read_segment(place, path), lines, strict=True):
            totals.setdefault(line.kind, []).append(len(text))
    return {kind: sum(sizes) / len(sizes) for kind, sizes in totals.items()}
