"""Schedulers side by side, late, stopped, ill-informed: every instant fires once."""

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.cron.scheduler import LONGEST_MS, LOOK_MS, Scheduler
from penstock.model.answers import CronInfo
from penstock.model.errors import Forbidden, PenstockError, Unauthenticated, Unavailable
from penstock.model.job import JobOptions
from penstock.model.lifecycle import State
from penstock.model.schedule import Cron, CronSpec, Daily, Every, instants, parse_key
from penstock.model.store import Store
from penstock.model.wrapper import Call, Wrapper
from tests.conformance.harness import PATIENCE_S, Harness

MINUTE = 60_000
HOUR = 60 * MINUTE

# Some hours before two o'clock comes twice in Berlin, and does not come at all.
BACK = datetime(2026, 10, 24, 22, 10, tzinfo=UTC)
FORTH = datetime(2026, 3, 28, 22, 10, tzinfo=UTC)


def spec(name: str = "c", **more: Any) -> CronSpec:
    said: dict[str, Any] = {"name": name, "queue": "q", "schedule": Every(every_ms=MINUTE)}
    return CronSpec(**(said | more))


def scheduler(h: Harness, *specs: CronSpec, store: Store | None = None) -> Scheduler:
    return Scheduler(store or h.store, [h.name], specs, clock=h.clock)


async def fired(h: Harness) -> list[int]:
    """The instants that can be claimed now; their jobs are done then."""
    lease = await h.claim("q", 1_000)
    if lease is None:
        return []
    await h.ack(lease)
    return [parse_key(job.key or "")[2] for job in lease.jobs]


async def at(h: Harness, when: datetime) -> None:
    await h.advance(int(when.timestamp() * 1_000) - h.now)


class Faulty(Wrapper):
    """A store whose calls about crons can be held up, or fail."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.may_put = asyncio.Event()
        self.may_put.set()
        self.error: Exception | None = None
        self.puts = 0
        self.put = asyncio.Event()

    @property
    def inner(self) -> Store:
        return self._store

    async def put_cron(self, tenant: str, spec: CronSpec, *, refresh: bool = False) -> CronInfo:
        self.puts += 1
        await self.may_put.wait()
        if self.error is not None:
            raise self.error
        info = await self._store.put_cron(tenant, spec, refresh=refresh)
        self.put.set()
        return info

    def crons(self, tenant: str) -> Call[list[CronInfo]]:
        if self.error is not None:
            raise self.error
        return self._store.crons(tenant)


# -- keeping instants installed --------------------------------------------------------------------


async def test_an_apps_crons_are_put_and_kept_going(h: Harness) -> None:
    one = scheduler(h, spec())
    assert await one.turn() == LOOK_MS
    seen = []
    begin = h.now
    for _ in range(60):
        await h.advance(15_000)
        await one.turn()
        seen += await fired(h)
    assert seen == instants(Every(every_ms=MINUTE), begin, 15)


async def test_crons_that_others_put_are_kept_going_too(h: Harness) -> None:
    one = scheduler(h)
    await one.turn()
    await h.store.put_cron(h.name, spec(schedule=Every(every_ms=100)))
    begin, seen = h.now, []
    for _ in range(20):
        await h.advance(1_000)
        seen += await fired(h)
        await one.turn()
    # `missed="last"`: of ten that came due at once, one runs; none is missing among the last ones.
    assert seen == instants(Every(every_ms=1_000), begin, 20)
    (info,) = await h.store.crons(h.name)
    assert len(info.pending) == 20


async def test_a_cron_is_written_only_when_an_instant_has_passed(h: Harness) -> None:
    store = Faulty(h.store)
    one = scheduler(h, spec(), store=store)
    for _ in range(12):
        await one.turn()
        await h.advance(10_000)
    assert store.puts == 1 + 2  # the app's own, and one for each full minute of the two


async def test_a_cron_with_nothing_to_install_is_left_alone(h: Harness) -> None:
    """Its limit is near: fewer than four instants are all that there will be."""
    store = Faulty(h.store)
    one = scheduler(h, spec(limit=2, schedule=Every(every_ms=HOUR)), store=store)
    for _ in range(60):
        await one.turn()
        await h.advance(1_000)
    assert store.puts == 2


async def test_a_changed_config_replaces_the_old_one(h: Harness) -> None:
    await scheduler(h, spec()).turn()
    await scheduler(h, spec(payload=b'"new"')).turn()
    await h.advance(MINUTE)
    lease = await h.lease("q", 10)
    assert [job.payload for job in lease.jobs] == [b'"new"']


async def test_an_older_version_of_an_app_that_runs_on_changes_nothing_back(h: Harness) -> None:
    old, new = scheduler(h, spec()), scheduler(h, spec(payload=b'"new"'))
    await old.turn()
    await new.turn()
    for _ in range(8):
        await h.advance(MINUTE)
        await old.turn()
        lease = await h.lease("q", 10)
        await h.ack(lease)
        assert [job.payload for job in lease.jobs] == [b'"new"']


async def test_every_tenant_has_its_own(h: Harness) -> None:
    other = h.tenant("acme")
    await Scheduler(h.store, [h.name, "acme", h.name], [spec()], clock=h.clock).turn()
    await h.advance(MINUTE)
    assert len(await fired(h)) == len(await fired(other)) == 1


# -- side by side ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("begin", "schedule", "count"),
    [
        (BACK, Cron(expression="30 2 * * *", tz="Europe/Berlin"), 1),
        (FORTH, Cron(expression="30 2 * * *", tz="Europe/Berlin"), 1),
        (BACK, Cron(expression="*/20 * * * *", tz="Europe/Berlin"), 24),
        (FORTH, Daily(at=("02:15", "03:00"), tz="Europe/Berlin"), 1),
    ],
    ids=["back", "forth", "back, every hour", "forth, daily"],
)
async def test_over_a_change_of_the_clocks_each_instant_fires_once(
    h: Harness, begin: datetime, schedule: Cron | Daily, count: int
) -> None:
    """Two schedulers; one is stopped for four minutes in the middle of each of its turns."""
    await at(h, begin)
    first = h.now
    stopped = Faulty(h.store)
    one = scheduler(h, spec(schedule=schedule), store=stopped)
    two = scheduler(h, spec(schedule=schedule))
    await one.turn()
    seen = []
    for _ in range(60):
        stopped.may_put.clear()
        turn = await h.start(one.turn())
        await h.advance(4 * MINUTE)
        seen += await fired(h)
        await two.turn()
        stopped.may_put.set()
        await h.told(turn)
        await h.advance(4 * MINUTE)
        seen += await fired(h)
    assert seen == [each for each in instants(schedule, first, 100) if each <= h.now]
    assert len(seen) == count


async def test_a_scheduler_that_slept_undoes_no_change(h: Harness) -> None:
    """It read the cron, slept while somebody changed it, and goes on with what it had read."""
    store = Faulty(h.store)
    one = scheduler(h, spec(), spec("d"), store=store)
    await one.turn()
    await h.advance(MINUTE)
    store.may_put.clear()
    turn = await h.start(one.turn())
    changed = await h.store.put_cron(h.name, spec(payload=b'"new"'))
    await h.store.drop_cron(h.name, "d")
    store.may_put.set()
    await h.told(turn)
    assert await h.store.crons(h.name) == [changed]


async def test_a_clock_that_jumps_fires_nothing_twice_and_nothing_early(h: Harness) -> None:
    one = scheduler(h, spec())
    await one.turn()
    seen: list[int] = []
    for jump in (0, HOUR, -2 * HOUR, 0, 90_000, HOUR):
        await h.jump(jump)
        for _ in range(6):
            await one.turn()
            now = await fired(h)
            assert all(instant <= h.now for instant in now)
            seen += now
            await h.advance(20_000)
    assert len(seen) == len(set(seen))
    assert seen[-1] > h.now - 2 * MINUTE


# -- overlap and missed ----------------------------------------------------------------------------


@pytest.mark.parametrize(("overlap", "waiting"), [("allow", 60), ("skip", 1)])
async def test_instants_pile_up_while_nobody_runs_them_unless_they_are_skipped(
    h: Harness, overlap: str, waiting: int
) -> None:
    """Whatever `missed` says: they were there in time."""
    one = scheduler(h, spec(overlap=overlap, missed="none"))
    await one.turn()
    for _ in range(60):
        await h.advance(MINUTE)
        await one.turn()
    assert len(await fired(h)) == waiting


async def test_overlap_skip_runs_one_at_a_time(h: Harness) -> None:
    one = scheduler(h, spec(overlap="skip"))
    await one.turn()
    await h.advance(MINUTE)
    running = await h.lease("q", lease_ms=HOUR)
    for _ in range(3):
        await one.turn()
        await h.advance(MINUTE)
        assert await fired(h) == []
    await h.ack(running)
    await one.turn()
    await h.advance(MINUTE)
    assert len(await fired(h)) == 1


@pytest.mark.parametrize(("missed", "made_up"), [("last", 1), ("all", 120), ("none", 0)])
async def test_two_hours_without_a_scheduler(h: Harness, missed: Any, made_up: int) -> None:
    options = JobOptions(retain_ms=0)
    one = scheduler(h, spec(missed=missed, options=options))
    await one.turn()
    # Everything comes due while nobody looks: installed instants first, then those that were not.
    h.clock.advance(2 * HOUR)
    await one.turn()
    seen = await fired(h)
    if missed == "last":  # of those installed, and of those that were not
        assert seen == sorted(set(seen))
        assert len(seen) <= 2
        assert seen[-1] == h.now // MINUTE * MINUTE
    else:
        assert len(seen) == made_up
    assert await fired(h) == []


# -- trouble ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Unavailable, Unauthenticated])
async def test_a_store_that_does_not_answer_is_asked_again(
    h: Harness, caplog: pytest.LogCaptureFixture, kind: type[PenstockError]
) -> None:
    """One that does not let us in, too: a token that was taken away may be put back."""
    store = Faulty(h.store)
    store.error = kind("gone")
    one = scheduler(h, spec(), store=store)
    with caplog.at_level(logging.INFO, "penstock.cron"):
        waits = [await one.turn() for _ in range(8)]
        store.error = None
        assert await one.turn() == LOOK_MS
    assert waits == [1_000, 2_000, 4_000, 8_000, 16_000, *[LONGEST_MS] * 3]
    assert [record.getMessage() for record in caplog.records] == [
        "crons cannot be scheduled, trying again: gone",
        "crons are scheduled again",
    ]
    assert [info.spec.name for info in await h.store.crons(h.name)] == ["c"]


async def test_what_is_refused_is_said_once_and_hinders_nothing_else(
    h: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    await h.store.put_cron(h.name, spec("theirs"))

    class Reached(Faulty):
        async def put_cron(self, tenant: str, spec: CronSpec, *, refresh: bool = False) -> CronInfo:
            if spec.name == "theirs":
                raise Forbidden("not yours")
            return await super().put_cron(tenant, spec, refresh=refresh)

    one = scheduler(h, spec("mine"), store=Reached(h.store))
    with caplog.at_level(logging.WARNING, "penstock.cron"):
        for _ in range(5):
            await h.advance(5_000)
            await one.turn()
        await h.advance(MINUTE)
        await one.turn()
        await one.turn()
    said = [record.getMessage() for record in caplog.records]
    assert said == ["cron 'theirs' is not refreshed from here: not yours"]
    infos = {info.spec.name: info for info in await h.store.crons(h.name)}
    assert len(infos["mine"].pending) == 4


async def test_crons_that_the_app_does_not_declare_are_named_and_stay(
    h: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    await h.store.put_cron(h.name, spec("old"))
    one = scheduler(h, spec("new"))
    with caplog.at_level(logging.INFO, "penstock.cron"):
        await one.turn()
        await one.turn()
    (record,) = caplog.records
    assert "'old'" in record.getMessage()
    assert "penstock cron rm" in record.getMessage()
    assert {info.spec.name for info in await h.store.crons(h.name)} == {"new", "old"}


async def test_it_runs_until_it_is_cancelled(h: Harness) -> None:
    store = Faulty(h.store)
    running = asyncio.ensure_future(scheduler(h, spec(), store=store).run())
    await asyncio.wait_for(store.put.wait(), PATIENCE_S)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await h.counts("q"))[State.SCHEDULED] == 4
