"""A store that was not closed: how much of its log is replayed, and what happens meanwhile."""

import asyncio
import logging
import re
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import pytest

from penstock.model.duration import about_ms, duration_ms
from penstock.model.job import JobError, JobOptions, JobSpec, Run
from penstock.model.lifecycle import State
from penstock.model.schedule import CronSpec, Every
from penstock.open import JOURNALS, open_store
from penstock.stores import engine, keeper
from penstock.stores.clock import ManualClock
from penstock.stores.embedded import EmbeddedStore
from penstock.stores.journal import checkpointer, points, recovery, replaying
from penstock.stores.journal.base import Batch, Full
from penstock.stores.journal.checkpointer import Checkpointer
from penstock.stores.keeper import Keeper
from tests.durable import crash, replayed_digest

T = "acme"
DONE = "checkpoint done"  # reached on the loop
MS = 0.001  # that every command takes here
RUN = Run.pack("q", [b"1"], JobOptions(codec="bytes"))


@pytest.fixture(params=sorted(JOURNALS))
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{request.param}:///{tmp_path}/store"


async def opened(url: str, **options: Any) -> EmbeddedStore:
    store = await open_store(url, **options, share=False)
    assert isinstance(store, EmbeddedStore)
    return store


def keeper_of(store: EmbeddedStore) -> Keeper:
    assert store.engine.keeper is not None
    return store.engine.keeper


async def calm(store: EmbeddedStore) -> None:
    while not keeper_of(store).idle:
        await keeper_of(store).turn()


async def fill(url: str, records: int, **options: Any) -> EmbeddedStore:
    """A store whose log has so many pushes, that crashed."""
    store = await opened(url, **options)
    for _ in range(records // 50):
        await asyncio.gather(*(store.push(T, [RUN]) for _ in range(50)))
    await crash(store)
    return store


@pytest.fixture
def a_millisecond_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands take as long, however slow the machine is; checkpoints cost nothing."""
    ticks = count()
    for module in (engine, keeper):
        monkeypatch.setattr(module, "perf_counter", lambda: next(ticks) * MS)
    monkeypatch.setattr(checkpointer, "SHARE", 1.0)


@pytest.fixture
def a_second_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay looks at the clock and finds that a second has passed, every time."""
    ticks = count()
    for module in (recovery, replaying):
        monkeypatch.setattr(module, "perf_counter", lambda: float(next(ticks)))


# -- how much is replayed --------------------------------------------------------------------------


@pytest.mark.usefixtures("a_millisecond_each")
def test_the_log_is_as_long_as_its_replay_may_take(url: str) -> None:
    async def scenario() -> None:
        store = await opened(f"{url}?checkpoint_replay_s=0.1")
        for _ in range(500):
            await store.push(T, [RUN])
            lease = await store.claim(T, ["q"])
            assert lease is not None
            await store.ack(T, lease.token)
        await calm(store)
        found = keeper_of(store)
        assert found.checkpointer.last.number >= 10, "of 1,500 records, at 100 each"
        health = await store.health()
        assert 0 < health.detail["replay_s"] < 0.1
        assert health.detail["replay_s"] == pytest.approx(health.detail["log_records"] * MS)
        await crash(store)
        store = await opened(url)
        assert keeper_of(store).recovered.replayed < 100
        await store.close()

    asyncio.run(scenario())


@pytest.mark.usefixtures("a_millisecond_each")
def test_a_checkpoint_that_had_to_wait_begins_though_nobody_calls(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        store = await opened(f"{url}?checkpoint_replay_s=0.02")
        subject = keeper_of(store).checkpointer
        done = asyncio.Event()
        subject._rested = monotonic() + 0.05
        await asyncio.gather(*(store.push(T, [RUN]) for _ in range(30)))
        monkeypatch.setattr(points, "hook", lambda at: done.set() if at == DONE else None)
        async with asyncio.timeout(30):
            await done.wait()
        assert subject.last.number == 1
        await store.close()

    asyncio.run(scenario())


def test_a_long_replay_is_followed_by_a_checkpoint_before_anything_else(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        await fill(url, 200)
        monkeypatch.setattr(replaying.Replaying, "since_s", 3.0)  # seconds that it took
        store = await opened(url)
        found = keeper_of(store)
        assert found.recovered.replayed >= 200
        await calm(store)
        assert found.checkpointer.last.number == 1
        await crash(store)
        monkeypatch.undo()
        store = await opened(url)
        assert keeper_of(store).recovered.replayed < 5
        (info,) = await store.queues(T, ["q"])
        assert info.counts[State.READY] == 200
        await store.close()

    asyncio.run(scenario())


# -- what is said ----------------------------------------------------------------------------------


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "penstock.store"]


@pytest.mark.usefixtures("a_second_each")
@pytest.mark.parametrize("mode", ["rw", "ro"])
def test_a_long_replay_says_how_far_it_is(
    url: str, mode: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaying, "KEEP_S", float("inf"))

    async def scenario() -> None:
        await fill(url, 50)
        caplog.set_level(logging.INFO)
        caplog.clear()
        store = await opened(f"{url}?mode={mode}")
        await store.close()

    asyncio.run(scenario())
    lines = [line for line in said(caplog) if " of 51 records replayed in " in line]
    assert len(lines) > 10
    assert lines == sorted(lines, key=lambda line: float(line.split()[-2]))
    assert all(line.startswith(f"{url.partition('///')[2]}: ") for line in lines)


def test_a_short_replay_says_nothing_of_that(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        await fill(url, 50)
        caplog.set_level(logging.INFO)
        caplog.clear()
        store = await opened(url)
        await store.close()

    asyncio.run(scenario())
    assert not [line for line in said(caplog) if "records replayed in " in line and " of " in line]


# -- told to end -----------------------------------------------------------------------------------


class Standstill:
    """A replay that stops behind its first record until whoever opens the store is cancelled."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = threading.Event()
        self.go_on = threading.Event()
        apply = recovery._apply

        def waiting(*given: Any) -> None:
            apply(*given)
            self.begun.set()
            assert self.go_on.wait(30)

        monkeypatch.setattr(recovery, "_apply", waiting)


def test_an_opening_that_is_cancelled_ends_in_the_midst_of_its_replay(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(replaying, "LOOK_S", 0.0)

    async def scenario() -> None:
        await fill(url, 200)
        caplog.set_level(logging.INFO)
        caplog.clear()
        with monkeypatch.context() as patched:
            still = Standstill(patched)
            opening = asyncio.ensure_future(opened(url))
            await asyncio.to_thread(still.begun.wait, 30)
            opening.cancel()
            await asyncio.sleep(0)  # it has heard
            still.go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await opening
        (line,) = said(caplog)
        assert "not opened: told to end, 1 of 201 records replayed in" in line
        store = await opened(url)  # the path is free, and nothing is lost
        (info,) = await store.queues(T, ["q"])
        assert info.counts[State.READY] == 200
        await store.close()

    asyncio.run(scenario())


# -- killed again and again ------------------------------------------------------------------------


class Killed(Exception):
    pass


def killer(point: str, nth: int) -> Callable[[str], None]:
    left = nth

    def hook(reached: str) -> None:
        nonlocal left
        if reached == point:
            left -= 1
            if not left:
                raise Killed

    return hook


@pytest.mark.usefixtures("a_second_each")
def test_a_store_that_is_killed_in_every_replay_opens_at_last(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process lives to write one checkpoint of what it has replayed."""
    clock = ManualClock()

    async def scenario() -> None:
        live = (await fill(f"{url}?commit_max=1", 1_000, clock=clock)).kernel
        kills = 0
        while True:
            monkeypatch.setattr(points, "hook", killer(DONE, 1))
            try:
                store = await opened(url, clock=clock)
            except Exception:  # noqa: BLE001 -- of whatever it died
                kills += 1
                assert kills < 100
                continue
            break
        assert kills > 2
        assert keeper_of(store).recovered.replayed < 1_000
        await crash(store)
        monkeypatch.undo()
        assert await replayed_digest(url, store.kernel, clock) == store.kernel.digest()
        before, after = (each.tenants[T].queues["q"] for each in (live, store.kernel))
        assert before.counts == after.counts

    asyncio.run(scenario())


@pytest.mark.usefixtures("a_second_each")
@pytest.mark.parametrize("point", points.POINTS[4:])
@pytest.mark.parametrize("nth", [1, 2])
def test_killed_at_any_step_of_a_checkpoint_within_a_replay(
    url: str, point: str, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()

    async def scenario() -> None:
        await fill(url, 600, clock=clock)
        with monkeypatch.context() as patched:
            patched.setattr(points, "hook", killer(point, nth))
            with pytest.raises(Exception, match="Killed"):
                await opened(url, clock=clock)
        store = await opened(url, clock=clock)
        (info,) = await store.queues(T, ["q"])
        assert info.counts[State.READY] == 600
        taken = 0
        while (lease := await store.claim(T, ["q"], 100)) is not None:
            assert {job.payload for job in lease.jobs} == {b"1"}
            taken += len(lease)
            await store.ack(T, lease.token)
        assert taken == 600
        await calm(store)
        await crash(store)
        assert await replayed_digest(url, store.kernel, clock) == store.kernel.digest()

    asyncio.run(scenario())


@pytest.mark.usefixtures("a_second_each")
def test_chunks_that_a_crash_left_are_found_by_the_opening_after_a_killed_one(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint within a replay says nothing of chunks that are still to be dropped."""

    async def scenario() -> None:
        store = await opened(url)
        for _ in range(5):
            await store.push(T, [RUN])
        journal = keeper_of(store).journal
        write = journal.write

        def without_drops(batch: Batch, ready: Callable[[], None]) -> bool:
            batch.dropped = []
            return write(batch, ready)

        with monkeypatch.context() as patched:
            patched.setattr(journal, "write", without_drops)
            assert await store.drain(T, "q") == 5
            for _ in range(200):
                await store.push(T, [RUN])
            await crash(store)
        assert len(store.kernel.chunks) == 200
        with monkeypatch.context() as patched:
            patched.setattr(points, "hook", killer("truncation slice", 3))
            with pytest.raises(Exception, match="Killed"):
                await opened(url)
        store = await opened(url)
        found = keeper_of(store)
        assert found.recovered.orphans == [1, 2, 3, 4, 5]
        await calm(store)
        assert set(found.journal.chunk_ids(0)) == set(store.kernel.chunks)
        await store.close()

    asyncio.run(scenario())


@pytest.mark.usefixtures("a_second_each")
def test_a_full_disk_does_not_keep_a_store_from_being_opened(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        await fill(url, 600)
        made = type(keeper_of(await closed(url)).journal)
        write = made.write

        def full(self: Any, batch: Batch) -> bool:
            if batch.rows:
                raise Full("no space left")
            return write(self, batch)

        with monkeypatch.context() as patched:
            patched.setattr(made, "write", full)
            patched.setattr(Checkpointer, "due", False)
            store = await opened(url)
            assert keeper_of(store).checkpointer.last.number == 0
            await crash(store)
        assert any("no checkpoint of what has been replayed" in line for line in said(caplog))
        store = await opened(url)
        (info,) = await store.queues(T, ["q"])
        assert info.counts[State.READY] == 600
        await store.close()

    async def closed(url: str) -> EmbeddedStore:
        with monkeypatch.context() as patched:
            patched.setattr(replaying, "KEEP_S", float("inf"))
            patched.setattr(Checkpointer, "due", False)
            store = await opened(url)
            await crash(store)
        return store

    asyncio.run(scenario())


# -- what an opening says --------------------------------------------------------------------------

OPENED = re.compile(
    r"(?P<path>.*): (?P<jobs>.*); (?P<crons>\d+) crons; (?P<records>\d+) records replayed"
    r" in (?P<took>[^;]+)(?P<how>; it had not been closed)?"
)
LASTING = JobSpec(retain_ms=3_600_000, retain_dead_ms=3_600_000)


def told(caplog: pytest.LogCaptureFixture) -> re.Match[str]:
    """The one line since it was last asked for."""
    (line,) = said(caplog)
    caplog.clear()
    found = OPENED.fullmatch(line)
    assert found is not None, line
    return found


async def of_every_state(store: EmbeddedStore, clock: ManualClock) -> None:
    """So many jobs of each, in two queues of two tenants, and two crons."""
    late = msgspec.structs.replace(LASTING, delay_ms=3_600_000)
    brief = msgspec.structs.replace(LASTING, ttl_ms=1)
    for tenant in (T, "other"):
        await store.push_jobs(tenant, "brief", [brief] * 3)
        clock.advance(5)
        await store.push_jobs(tenant, "done", [LASTING] * 9)
        lease = await store.claim(tenant, ["done"], 9, lease_ms=3_600_000)
        assert lease is not None
        await store.ack(tenant, lease.token, lease.ids[:4])
        error = JobError(message="no")
        await store.fail(tenant, lease.token, lease.ids[4:7], error=error, dead=True)
        pushed = await store.push_jobs(tenant, "later", [late] * 5)
        after = msgspec.structs.replace(LASTING, depends_on=(pushed.ids[0],))
        await store.push_jobs(tenant, "later", [after] * 7)
        bulk = await store.open_bulk(tenant)
        await store.push(tenant, [Run.of("later", [LASTING] * 6)], bulk=bulk.bulk)
        pushed = await store.push_jobs(tenant, "now", [LASTING] * 11)
        await store.cancel(tenant, pushed.ids[:1])
        spec = CronSpec(name="often", queue="crons", schedule=Every(every_ms=3_600_000))
        await store.put_cron(tenant, spec)


def test_an_opening_says_what_there_is_and_what_it_took(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = (
        "4 active, 14 blocked, 2 cancelled, 8 completed, 6 dead, 6 expired, 12 held,"
        " 20 ready, 18 scheduled"  # four of each cron among them
    )

    async def scenario() -> None:
        clock = ManualClock()
        store = await opened(url, clock=clock)
        assert not said(caplog)  # there was nothing
        await of_every_state(store, clock)
        position = store.kernel.position
        await crash(store)
        began = monotonic()
        store = await opened(url, clock=clock)
        took_s = monotonic() - began
        found = told(caplog)
        assert (found["path"], found["jobs"], found["crons"]) == (
            url.partition("///")[2],
            jobs,
            "2",
        )
        assert int(found["records"]) == position
        assert 0 < duration_ms(found["took"], "took") <= took_s * 1_000
        assert found["how"]
        assert (await store.health()).detail["replayed"] == position
        assert found["took"] == about_ms(keeper_of(store).recovered.seconds * 1_000)
        position = store.kernel.position  # each opening has a record of its own
        await store.close()
        store = await opened(url, clock=clock)
        found = told(caplog)
        assert (found["jobs"], found["crons"], found["how"]) == (jobs, "2", None)
        assert int(found["records"]) == position
        await store.close()

    with caplog.at_level(logging.INFO, "penstock.store"):
        asyncio.run(scenario())


def test_an_opening_of_a_store_without_jobs_says_so(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        for _ in range(2):
            await (await opened(url)).close()
        assert told(caplog)["jobs"] == "no jobs"

    with caplog.at_level(logging.INFO, "penstock.store"):
        asyncio.run(scenario())
