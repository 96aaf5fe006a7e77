"""A server and a worker under a steady load of everything: they do not grow, and nothing is left.

The load comes in spells. After each of them everybody comes to rest, and at rest both processes have
to be what they were at the first rest: as many sockets and as many tasks, each time. What may move,
memory, threads, descriptors of files and the files themselves, is sampled then; its median over the
last third of the time is held against that over the second. The first third is for warming up.

`make test` soaks each store for a few seconds, `make test-long` for fifteen minutes; SOAK_S says
otherwise. The figures are printed: -s shows them.
"""

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Final, NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.model.lifecycle import State
from penstock.model.policy import QueueConfig
from penstock.model.store import Store
from penstock.stores.journal.rocksdb import MEMTABLE, WAL_KEPT
from tests.faults import chores
from tests.faults.steady_load import ENDS, QUEUES, TENANT, SteadyLoad
from tests.faults.stores import LONG, each_store, in_both_runs, opened, url_of
from tests.server.client import Client as HttpClient
from tests.server.hostile.process import MIB, Proc, address
from tests.server.hostile.wire import Address
from tests.worker.harness import eventually, run
from tests.worker.spawned import PATIENCE_S, Spawned, reaching

SECONDS: Final = float(os.environ.get("SOAK_S", "900" if LONG else "4"))  # of each store
SHORT: Final = SECONDS < 60
SPELL_S: Final = min(SECONDS / 15, 5.0)
SPELLS: Final = 9  # at least, however slow the machine is
PASSING: Final = 3  # there is a passing worker in one of so many spells
CRON: Final = "cron"  # a queue that is never done
UNFINISHED: Final = (State.HELD, State.BLOCKED, State.SCHEDULED, State.READY, State.ACTIVE)

# The median of a third may be so much above that of the third before. The server remembers for a day
# who has pushed, and for a week the names of bulks, 1 KiB each: at this load half a MiB in a third of
# fifteen minutes. The rest is for the allocator, which may keep what a busy moment needed.
GROWTH: Final = (4 if SHORT else 8) * MIB
SHARE: Final = 0.0 if SHORT else 0.1
# RocksDB fills memtables and lets them go in its own time, which is no multiple of ours; in a few
# seconds it only fills them.
MEMTABLES: Final = {"sqlite": 0, "rocksdb": 4 * MIB if SHORT else 2 * MEMTABLE}
# All files together, whatever was pushed: of SQLite twice what its write-ahead file, its event log and
# the store itself come to here, of RocksDB what it keeps of its own log besides.
FILES: Final = {"sqlite": 96 * MIB, "rocksdb": 96 * MIB + WAL_KEPT}
# Threads that a pool has not needed before: of the server's loop up to six, of the worker four.
POOLED: Final = 4
# RocksDB has every table open that there is, and some dozens come together before it compacts them.
FILES_OPEN: Final = {"sqlite": 2, "rocksdb": 32}
EVENTS_KEPT: Final = 4 * MIB

RETAINED: Final = QueueConfig(retain_ms=1_000)
# A checkpoint often enough that each third has several.
STORE: Final = {"checkpoint_records": 250 if SHORT else 20_000, "events_seal_s": 1}

pytestmark = [*in_both_runs, pytest.mark.timeout(2 * SECONDS + 240)]


class AtRest(NamedTuple):
    """What a process has when nobody asks anything of it."""

    sockets: int
    tasks: int


class Sample(NamedTuple):
    memory: int  # bytes that are its own
    threads: int
    files: int  # of the store, that it has open
    descriptors: int  # all others


class Subject:
    """A process that is watched."""

    def __init__(self, name: str, process: Spawned, home: Path) -> None:
        self.name = name
        self.process = process
        self._home = home  # of the store
        self.samples: list[Sample] = []
        self._seen = Proc(process.process.pid)

    async def at_rest(self) -> AtRest:
        self.process.tell(signal.SIGUSR1)
        async with asyncio.timeout(PATIENCE_S):
            tasks = int(await asyncio.to_thread(self.process.line))
        return AtRest(self._seen.sockets(), tasks)

    def sample(self) -> None:
        seen, files = self._seen, self._seen.files_in(self._home)
        self.samples.append(Sample(seen.own(), seen.threads(), files, seen.descriptors() - files))

    async def end(self) -> None:
        self.process.tell(signal.SIGTERM)
        assert await self.process.end() == 0


class Server(Subject):
    def __init__(self, process: Spawned, home: Path) -> None:
        super().__init__("server", process, home)
        said = json.loads(process.line())
        self.url: Final = f"penstock://{said['tcp']}"
        self.tcp: Final[Address] = address(said["tcp"])
        self.http: Final[Address] = address(said["http"])


def command(*argv: str, log: Path) -> Spawned:
    return Spawned(*argv, "--log-level", "error", log=log, module="tests.faults.counted")


def worker(url: str, log: Path, queues: Iterable[str]) -> Spawned:
    """With few threads, so that those that it will ever have are soon there."""
    flags = ("--url", url, "-q", ",".join(queues), "-c", "4")
    return command("worker", "tests.faults.chores:app", *flags, log=log)


@contextmanager
def both(store: str, home: Path, log: Path) -> Iterator[tuple[Server, Subject]]:
    with ExitStack() as stack:
        ports = ("--port", "0", "--http-port", "0", "--json")
        serving = stack.enter_context(command("serve", "--url", store, *ports, log=log))
        server = Server(serving, home)
        lasting = [queue for queue in chores.app.queues if queue != chores.PASSING]
        process = stack.enter_context(worker(server.url, log, lasting))
        yield server, Subject("worker", process, home)


async def unfinished(store: Store) -> int:
    """The instants of the cron that are yet to come do not count."""
    infos = await store.queues(TENANT)
    return sum(info.counts[each] for info in infos if info.queue != CRON for each in UNFINISHED)


class Soak:
    def __init__(self, server: Server, lasting: Subject, store: Store, log: Path) -> None:
        self.server = server
        self.subjects = (server, lasting)
        self.store = store
        self.load = SteadyLoad(store, server.url, server.tcp, server.http)
        self._log = log
        self._first: tuple[AtRest, ...] = ()

    async def begin(self) -> None:
        """Everybody does everything once and comes to rest; that rest is the first."""
        for queue in QUEUES:
            await self.store.configure(TENANT, queue, RETAINED)
        await self.load.one_job()  # whoever does it is connected
        before = await self._at_rest()
        await self._spell(0, with_worker=True)
        await eventually(self._is_done)

        async def only_these_are_left() -> bool:
            self._first = await self._at_rest()
            pairs = zip(self._first, before, strict=True)
            return all(now.sockets == then.sockets for now, then in pairs)

        await eventually(only_these_are_left)

    async def go_on(self, seconds: float) -> None:
        began, spells = monotonic(), 0
        while monotonic() - began < seconds or spells < SPELLS:
            spells += 1
            await self._spell(SPELL_S, with_worker=spells % PASSING == 0)
            await self.rest()
            for subject in self.subjects:
                subject.sample()

    async def _spell(self, seconds: float, *, with_worker: bool) -> None:
        async with asyncio.TaskGroup() as side_by_side:
            side_by_side.create_task(self.load.spell(seconds))
            if with_worker:
                side_by_side.create_task(self._passing_worker())

    async def _passing_worker(self) -> None:
        """It comes, works beside the other one until it has done what only it does, and is ended."""
        with worker(self.server.url, self._log, chores.app.queues) as process:
            await self.load.one_passing_job()
            process.tell(signal.SIGTERM)
            assert await process.end() == 0

    async def rest(self) -> None:
        """Until everything is done and nothing is left of whoever came."""
        try:
            await eventually(self._is_done)
            await eventually(self._is_as_at_first)
        except TimeoutError:
            now = await self._at_rest()
            left = await unfinished(self.store)
            raise AssertionError(
                f"{left} jobs are left; at first {self._first}, now {now}"
            ) from None

    async def _is_done(self) -> bool:
        return await unfinished(self.store) == 0

    async def _is_as_at_first(self) -> bool:
        """Not more, that is; the cron may be at work in one of the two."""
        pairs = zip(await self._at_rest(), self._first, strict=True)
        return all(
            now.sockets <= first.sockets and now.tasks <= first.tasks for now, first in pairs
        )

    async def _at_rest(self) -> tuple[AtRest, ...]:
        return tuple([await subject.at_rest() for subject in self.subjects])


def assert_flat(subject: Subject, scheme: str) -> None:
    """Its last third against the second."""
    third = len(subject.samples) // 3
    before, now = (
        Sample(*(int(median(values)) for values in zip(*samples, strict=True)))
        for samples in (subject.samples[third:-third], subject.samples[-third:])
    )
    print(
        f"{subject.name}: {before.memory / MIB:.1f} MiB, then {now.memory / MIB:.1f};"
        f" {before.threads} threads, then {now.threads};"
        f" {before.files} files, then {now.files};"
        f" {before.descriptors} other descriptors, then {now.descriptors}"
    )
    growth = max(GROWTH, SHARE * before.memory) + MEMTABLES[scheme]
    assert now.memory <= before.memory + growth
    assert now.threads <= before.threads + POOLED
    assert now.files <= before.files + FILES_OPEN[scheme]
    assert now.descriptors <= before.descriptors


async def counted(http: Address) -> dict[str, Counter[str]]:
    """What the server has counted of each queue's jobs, by what happened to them."""
    async with await HttpClient.to(http) as client:
        text = (await client.get("/metrics")).body.decode()
    found: dict[str, Counter[str]] = {queue: Counter() for queue in QUEUES}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("penstock_jobs_"):
                kind = sample.name.removeprefix("penstock_jobs_").removesuffix("_total")
                found[sample.labels["queue"]][kind] += int(sample.value)
    return found


async def assert_every_job_ended_as_it_should(soak: Soak) -> None:
    load, happened = soak.load, await counted(soak.server.http)
    # Of the cron an instant may come between two looks.
    assert 0 < happened[CRON]["completed"] <= happened[CRON]["pushed"]
    for info in await soak.store.queues(TENANT, [queue for queue in QUEUES if queue != CRON]):
        queue, of = info.queue, happened[info.queue]
        end = ENDS.get(queue, "completed")
        assert of["pushed"] == load.pushed[queue] > 0, queue
        assert of["pushed"] + of["redriven"] == of[end], (queue, of)
        assert all(of[other] == 0 for other in {"completed", *ENDS.values()} - {end}), (queue, of)
        assert of["redriven"] == load.redriven[queue], queue
        assert info.counts[State.DEAD] == of["dead"] - of["redriven"] - load.purged[queue], queue


async def standing(store: Store) -> dict[str, int]:
    """The dead letters of each queue, which nobody forgets by the way."""
    return {info.queue: info.counts[State.DEAD] for info in await store.queues(TENANT)}


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


@each_store
def test_nothing_grows_and_nothing_is_left_under_a_steady_load(scheme: str, tmp_path: Path) -> None:
    home, log = tmp_path / "store", tmp_path / "log"
    home.mkdir()
    events = {"events": home / "events", "events_keep_bytes": EVENTS_KEPT}
    url = url_of(scheme, home, **STORE, **events)

    async def case() -> dict[str, int]:
        with both(url, home, log) as (server, lasting):
            async with reaching(server.url, chores.app):
                soak = Soak(server, lasting, await chores.app.store(), log)
                await soak.begin()
                await soak.go_on(SECONDS)
                print(f"\n{scheme}: {soak.load.pushed.total()} jobs, {size_of(home) / MIB:.1f} MiB")
                for subject in soak.subjects:
                    assert_flat(subject, scheme)
                assert size_of(home) < FILES[scheme]
                await assert_every_job_ended_as_it_should(soak)
                await lasting.end()
                left = await standing(soak.store)
            await server.end()
        return left

    async def kept() -> dict[str, int]:
        store = await opened(url)
        try:
            assert await unfinished(store) == 0
            return await standing(store)
        finally:
            await store.close()

    assert run(case, patience_s=2 * SECONDS + 200) == run(kept)
    errors = [line for line in log.read_text().splitlines() if chores.DOOMED not in line]
    assert errors == []
