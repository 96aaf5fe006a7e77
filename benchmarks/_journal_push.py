"""Durable pushes beside the raw limit of the same bytes, in turn, on the same medium.

So many pushes are in flight all the time, on the kind of loop that servers and apps run a store on.
The bare engines get the bytes of as many pushes in one commit: the log records and payloads that
the journal was given for one push, times that number.
"""

import asyncio
import os
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvloop

from benchmarks._journal_raw import BareFile, BareRocks, BareSqlite, Raw
from benchmarks._measure import Figure, interleave
from penstock.model.job import JobOptions, Run
from penstock.open import open_store
from penstock.stores.embedded import EmbeddedStore
from penstock.stores.journal.base import Batch, nothing
from penstock.stores.keeper import Keeper

SIZE: Final = 44  # bytes of a payload
OPTIONS: Final = (JobOptions(codec="bytes"),)
STORES: Final = ("sqlite", "rocksdb")
PAGES: Final = (4, 32, 64)  # KiB that a page of the bare SQLite has: the best one counts
RAW: Final[dict[str, Callable[[Path], Raw]]] = {
    **{
        f"bare sqlite, {page} KiB": lambda path, page=page: BareSqlite(path, page << 10)  # type: ignore[misc]
        for page in PAGES
    },
    "bare rocksdb": BareRocks,
    "fdatasync": BareFile,
}
SUBJECTS: Final = (*STORES, *RAW)


@dataclass(frozen=True)
class Case:
    name: str
    batch: int  # jobs in a push
    flight: int  # pushes in flight

    @property
    def pushes(self) -> int:
        """Of one sample: about a quarter of a second, on a disk that syncs in a millisecond."""
        return min(max(200, 50 * self.flight), 800_000 // self.batch)


def url(kind: str, path: Path, **settings: object) -> str:
    said = "&".join(f"{name}={value}" for name, value in settings.items())
    return f"{kind}:///{path}?{said}" if said else f"{kind}:///{path}"


def keeper_of(store: EmbeddedStore) -> Keeper:
    keeper = store.engine.keeper
    assert keeper is not None
    return keeper


async def open_settled(at: str) -> EmbeddedStore:
    """A store that has nothing of its own to write any more."""
    store = await open_store(at, share=False)
    assert isinstance(store, EmbeddedStore)
    keeper = keeper_of(store)
    while not keeper.idle:
        await keeper.turn()
    return store


def run_of(batch: int) -> Run:
    ends = array("I", range(SIZE, SIZE * batch + 1, SIZE))
    return Run(queue="work", data=os.urandom(SIZE * batch), ends=ends, options=OPTIONS)


async def push_all(store: EmbeddedStore, run: Callable[[], Run], pushes: int, flight: int) -> None:
    left = pushes

    async def producer() -> None:
        nonlocal left
        while left:
            left -= 1
            await store.push("default", [run()])

    await asyncio.gather(*(producer() for _ in range(flight)))


class Ours:
    """A store, and what it is told."""

    def __init__(self, runner: asyncio.Runner, kind: str, path: Path, case: Case) -> None:
        self._runner = runner
        self._case = case
        run = run_of(case.batch)
        self._run = lambda: run
        self.store = runner.run(open_settled(url(kind, path)))

    def take(self) -> Sequence[float]:
        """Pushes a second, and fsyncs a push."""
        writer, pushes = keeper_of(self.store).writer, self._case.pushes
        synced, began = writer.syncs, time.perf_counter()
        self._runner.run(push_all(self.store, self._run, pushes, self._case.flight))
        return pushes / (time.perf_counter() - began), (writer.syncs - synced) / pushes

    def bytes_of_a_push(self) -> bytes:
        """What the journal is given to write for one: log records and payloads."""
        journal = keeper_of(self.store).journal
        write, given = journal.write, bytearray()

        def tapped(batch: Batch, ready: Callable[[], None] = nothing) -> bool:
            assert batch.group is not None
            given.extend(batch.group.data)
            for _, data in batch.chunks:
                given.extend(data)
            return write(batch, ready)

        journal.write = tapped  # type: ignore[method-assign]
        self._runner.run(push_all(self.store, self._run, 1, 1))
        journal.write = write  # type: ignore[method-assign]
        return bytes(given)

    def close(self) -> None:
        self._runner.run(self.store.close())


def _raw_take(raw: Raw, data: bytes, case: Case) -> Sequence[float]:
    commits = case.pushes // case.flight
    began = time.perf_counter()
    for _ in range(commits):
        raw.commit(data)
    return commits * case.flight / (time.perf_counter() - began), 1 / case.flight


def measure(cases: Sequence[Case], directory: Path, rounds: int) -> list[Figure]:
    """Jobs a second and fsyncs a push of every subject, the cases taken in turn as well."""
    takes: dict[str, Callable[[], Sequence[float]]] = {}
    sizes: dict[str, int] = {}
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        for number, case in enumerate(cases):
            data = b""
            for kind in STORES:
                ours = Ours(runner, kind, directory / f"{kind}-{number}", case)
                stack.callback(ours.close)
                data = ours.bytes_of_a_push()
                takes[_name(kind, case)] = ours.take
            sizes[_name("", case)] = len(data)
            for name, make in RAW.items():
                raw = make(directory / f"{name}-{number}")
                stack.callback(raw.close)
                takes[_name(name, case)] = lambda raw=raw, whole=data * case.flight, case=case: (  # type: ignore[misc]
                    _raw_take(raw, whole, case)
                )
        for take in takes.values():  # whatever is made once is made now
            take()
        taken = interleave(takes, rounds)
    figures = []
    for case in cases:
        for subject in SUBJECTS:
            samples = taken[_name(subject, case)]
            settings = {
                "subject": subject,
                "case": case.name,
                "batch": case.batch,
                "in_flight": case.flight,
                "pushes_a_sample": case.pushes,
                "bytes_a_push": sizes[_name("", case)],
                "payload_bytes": SIZE,
            }
            for at, (what, unit, scale) in enumerate(
                (("jobs", "jobs/s", case.batch), ("fsyncs a push", "", 1))
            ):
                figures.append(
                    Figure(
                        f"{_name(subject, case)} · {what}",
                        unit,
                        tuple(sample[at] * scale for sample in samples),
                        {**settings, "what": what},
                    )
                )
    return figures


def _name(subject: str, case: Case) -> str:
    return f"{subject} · {case.name}"
