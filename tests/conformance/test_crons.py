"""Crons: their instants as keyed jobs, installed ahead, each fired once, replaced and removed."""

from typing import Any

import msgspec
import pytest

from penstock.model.answers import CronInfo
from penstock.model.errors import NotFound
from penstock.model.job import JobOptions
from penstock.model.lifecycle import State
from penstock.model.policy import Backoff
from penstock.model.schedule import (
    Cron,
    CronSpec,
    Daily,
    Every,
    config_hash,
    instant_key,
    instants,
    parse_key,
)
from tests.conformance.harness import Harness, after

MINUTE = 60_000
DAY = 86_400_000
START = 1_700_000_000_000  # what the clock shows at the beginning of every case
FIRST = START + 40_000  # the first full minute after it


def minutely(name: str = "c", **more: Any) -> CronSpec:
    said: dict[str, Any] = {"name": name, "queue": "q", "schedule": Every(every_ms=MINUTE)}
    return CronSpec(**(said | more))


async def put(h: Harness, spec: CronSpec) -> CronInfo:
    return await h.store.put_cron(h.name, spec)


async def fired(h: Harness, queue: str = "q") -> list[int]:
    """The instants whose jobs can be claimed now, in order; their jobs are done then."""
    lease = await h.claim(queue, 1_000)
    if lease is None:
        return []
    await h.ack(lease)
    return [parse_key(job.key or "")[2] for job in lease.jobs]


async def live_instants(h: Harness, name: str, queue: str = "q") -> list[int]:
    """The instants of a cron that are scheduled or ready."""
    keys = [
        parse_key(job.key)
        for job in await h.scan(queue)
        if job.key is not None and job.state in (State.SCHEDULED, State.READY)
    ]
    return sorted(instant for cron, _, instant in keys if cron == name)


# -- installing ------------------------------------------------------------------------------------


async def test_the_next_four_instants_are_installed_as_keyed_jobs(h: Harness) -> None:
    options = JobOptions(priority=4, task="report", tags=("nightly",))
    spec = minutely(payload=b'{"a": 1}', options=options)
    info = await put(h, spec)
    ahead = [FIRST + n * MINUTE for n in range(4)]
    assert (info.spec, info.config_hash) == (spec, config_hash(spec))
    assert (list(info.pending), info.installed_until, info.executions) == (ahead, ahead[-1], 0)
    assert await h.store.crons(h.name) == [info]
    jobs = await h.scan("q")
    assert [(job.state, job.run_at) for job in jobs] == [(State.SCHEDULED, at) for at in ahead]
    for job in jobs:
        key = instant_key("c", config_hash(spec), job.run_at)
        assert job.key == key
        assert await h.store.by_key(h.name, "q", key) == job.id
        assert (job.payload, job.priority) == (b'{"a": 1}', 4)
        assert (job.options.task, job.options.tags) == ("report", ("nightly",))


@pytest.mark.parametrize(
    "schedule",
    [
        Every(every_ms=7_777),
        Cron(expression="*/20 * * * *"),
        Cron(expression="30 2 * * MON", tz="Europe/Berlin"),
        Daily(at=("02:30", "14:00"), tz="America/New_York"),
    ],
    ids=str,
)
async def test_every_kind_of_schedule_has_its_own_instants(
    h: Harness, schedule: Every | Cron | Daily
) -> None:
    info = await put(h, minutely(schedule=schedule))
    assert list(info.pending)[:4] == instants(schedule, h.now, 4)
    assert [job.run_at for job in await h.scan("q")] == list(info.pending)


async def test_an_instant_fires_when_it_comes_and_not_before(h: Harness) -> None:
    await put(h, minutely())
    await h.advance(39_999)
    assert await fired(h) == []
    await h.advance(1)
    lease = await h.lease("q")
    assert [(job.run_at, job.attempt) for job in lease.jobs] == [(FIRST, 1)]
    (info,) = await h.store.crons(h.name)
    assert (info.executions, info.pending[0]) == (1, FIRST + MINUTE)


async def test_putting_the_same_cron_again_installs_only_what_is_missing(h: Harness) -> None:
    spec = minutely()
    first = await put(h, spec)
    assert await put(h, spec) == first
    assert await h.counts("q") == {"scheduled": 4}
    await h.advance(40_000)
    await h.advance(30_000)
    again = await put(h, spec)
    assert list(again.pending) == [FIRST + n * MINUTE for n in range(1, 5)]
    assert await live_instants(h, "c") == [FIRST + n * MINUTE for n in range(5)]


async def test_every_instant_fires_once_however_often_it_is_refreshed(h: Harness) -> None:
    spec = minutely(options=JobOptions(retain_ms=0))
    seen: list[int] = []
    for step in (15_000, 1, 14_999, 30_000, 10_000, 20_000) * 7:
        await put(h, spec)
        await h.advance(step)
        await put(h, spec)
        seen += await fired(h)
    assert seen == [FIRST + n * MINUTE for n in range(len(seen))]
    assert seen[-1] == (h.now // MINUTE) * MINUTE


async def test_a_scheduler_whose_clock_lags_fires_nothing_twice(h: Harness) -> None:
    spec = minutely(options=JobOptions(retain_ms=0))
    await put(h, spec)
    await h.advance(40_000)
    assert await fired(h) == [FIRST]
    await h.advance(MINUTE)
    assert await fired(h) == [FIRST + MINUTE]
    await h.jump(-90_000)  # half a minute before the first instant
    info = await put(h, spec)
    assert info.pending[0] == FIRST + 2 * MINUTE
    for _ in range(3):
        await h.advance(30_000)
        await put(h, spec)
        assert await fired(h) == []
    await h.advance(MINUTE)
    assert await fired(h) == [FIRST + 2 * MINUTE]


async def test_a_fired_instant_is_not_fired_again_by_a_cron_dropped_and_put_back(
    h: Harness,
) -> None:
    spec = minutely(options=JobOptions(retain_ms=0))
    await put(h, spec)
    await h.advance(40_000)
    assert await fired(h) == [FIRST]
    await h.jump(-10_000)
    await h.store.drop_cron(h.name, "c")
    await put(h, spec)
    await h.advance(10_000)
    assert await fired(h) == []
    await h.advance(MINUTE)
    assert await fired(h) == [FIRST + MINUTE]


async def test_the_key_of_an_instant_is_kept_until_a_day_after_it(h: Harness) -> None:
    spec = minutely(schedule=Every(every_ms=DAY), options=JobOptions(retain_ms=0))
    info = await put(h, spec)
    first = info.pending[0]
    key = instant_key("c", info.config_hash, first)
    job_id = await h.store.by_key(h.name, "q", key)
    assert job_id is not None
    await h.advance(first - h.now)
    assert await fired(h) == [first]
    assert await h.get(job_id) is None
    await h.advance(DAY - 1)
    assert await h.store.by_key(h.name, "q", key) == job_id
    await h.advance(1)
    assert await h.store.by_key(h.name, "q", key) is None


async def test_crons_survive_a_restart(h: Harness) -> None:
    spec = minutely()
    await put(h, spec)
    await h.advance(40_000)
    assert await fired(h) == [FIRST]
    before = await h.store.crons(h.name)
    await h.restart()
    assert await h.store.crons(h.name) == before
    await put(h, spec)
    await h.advance(MINUTE)
    assert await fired(h) == [FIRST + MINUTE]


# -- changing and removing -------------------------------------------------------------------------


async def test_a_changed_config_replaces_the_instants_that_have_not_started(h: Harness) -> None:
    old = minutely(payload=b"1")
    await put(h, old)
    await h.advance(40_000)
    running = await h.lease("q", lease_ms=DAY)
    await h.advance(MINUTE)
    assert (await h.counts("q"))["ready"] == 1  # due, but not started
    new = minutely(payload=b"2")
    info = await put(h, new)
    assert info.config_hash == config_hash(new) != config_hash(old)
    assert list(info.pending) == [FIRST + n * MINUTE for n in range(2, 6)]
    assert [spec.spec for spec in await h.store.crons(h.name)] == [new]
    live = [job for job in await h.scan("q") if job.state in (State.SCHEDULED, State.READY)]
    assert [(job.payload, job.run_at) for job in live] == [(b"2", at) for at in info.pending]
    await h.ack(running)
    await h.advance(MINUTE)
    assert [job.payload for job in (await h.lease("q", 5)).jobs] == [b"2"]


async def test_a_changed_queue_moves_the_instants_there(h: Harness) -> None:
    await put(h, minutely())
    await put(h, minutely(queue="r"))
    assert await live_instants(h, "c") == []
    assert await live_instants(h, "c", "r") == [FIRST + n * MINUTE for n in range(4)]


async def test_a_config_changed_there_and_back_fires_every_instant_once(h: Harness) -> None:
    one, two = minutely(payload=b"1"), minutely(payload=b"2")
    for spec in (one, two, one, two):
        await put(h, spec)
    info = await put(h, one)
    assert list(info.pending) == [FIRST + n * MINUTE for n in range(4)]
    assert await live_instants(h, "c") == list(info.pending)
    await h.advance(40_000)
    assert [job.payload for job in (await h.lease("q", 5)).jobs] == [b"1"]


async def test_a_refresh_installs_what_is_missing(h: Harness) -> None:
    spec = minutely()
    first = await put(h, spec)
    assert await h.store.put_cron(h.name, spec, refresh=True) == first
    await h.advance(40_000)
    again = await h.store.put_cron(h.name, spec, refresh=True)
    assert list(again.pending) == [FIRST + n * MINUTE for n in range(1, 5)]


async def test_a_refresh_undoes_no_change_and_brings_nothing_back(h: Harness) -> None:
    old, new = minutely(), minutely(payload=b'"new"')
    with pytest.raises(NotFound):
        await h.store.put_cron(h.name, old, refresh=True)
    await put(h, old)
    changed = await put(h, new)
    with pytest.raises(NotFound):
        await h.store.put_cron(h.name, old, refresh=True)
    assert await h.store.crons(h.name) == [changed]
    await h.store.drop_cron(h.name, "c")
    with pytest.raises(NotFound):
        await h.store.put_cron(h.name, new, refresh=True)
    assert await h.store.crons(h.name) == []
    assert await h.counts("q") == {}


async def test_a_dropped_cron_takes_its_instants_with_it(h: Harness) -> None:
    await put(h, minutely())
    await h.advance(40_000)
    running = await h.lease("q", lease_ms=DAY)
    await h.advance(MINUTE)
    assert await h.store.drop_cron(h.name, "c") is True
    assert await h.store.drop_cron(h.name, "c") is False
    assert await h.store.crons(h.name) == []
    assert await live_instants(h, "c") == []
    assert list((await h.ack(running)).acked) == running.ids
    await h.advance(10 * MINUTE)
    assert await fired(h) == []


async def test_dropping_what_was_never_put_is_false(h: Harness) -> None:
    assert await h.store.drop_cron(h.name, "c") is False


async def test_a_cron_dropped_and_put_back_fires_its_instants(h: Harness) -> None:
    spec = minutely()
    await put(h, spec)
    await h.store.drop_cron(h.name, "c")
    info = await put(h, spec)
    assert list(info.pending) == [FIRST + n * MINUTE for n in range(4)]
    await h.advance(40_000)
    assert await fired(h) == [FIRST]


NAMES = [
    "a",
    "a_b",
    "axb",
    "a%b",
    "a%",
    "a/b",
    "a/",
    "*",
    "a?b",
    "a[xy]b",
    "~1",
    "a~1b",
    "ä",
    "A_B",
]


@pytest.mark.parametrize("touched", ["a_b", "a%", "a/", "a", "*", "a[xy]b", "~1"])
async def test_names_are_literal_when_a_cron_is_dropped_or_changed(
    h: Harness, touched: str
) -> None:
    for name in NAMES:
        await put(h, minutely(name))
    manual = await h.push("q", key=f"{touched}/0123456789abcdef/7", delay_ms=DAY)
    assert {info.spec.name for info in await h.store.crons(h.name)} == set(NAMES)
    ahead = [FIRST + n * MINUTE for n in range(4)]
    await put(h, minutely(touched, payload=b"2"))
    for name in NAMES:
        assert await live_instants_of(h, name) == ahead, name
    await h.store.drop_cron(h.name, touched)
    for name in NAMES:
        assert await live_instants_of(h, name) == ([] if name == touched else ahead), name
    assert await h.state(manual) == State.SCHEDULED


async def live_instants_of(h: Harness, name: str) -> list[int]:
    """As `live_instants`, but by the exact keys, whichever config they carry."""
    found = []
    for payload in (b"null", b"2"):
        mark = config_hash(minutely(name, payload=payload))
        for n in range(4):
            at = FIRST + n * MINUTE
            job_id = await h.store.by_key(h.name, "q", instant_key(name, mark, at))
            if job_id is not None and await h.state(job_id) == State.SCHEDULED:
                found.append(at)
    return sorted(found)


# -- overlap, missed, limit ------------------------------------------------------------------------


async def test_a_redriven_instant_is_no_longer_its_crons(h: Harness) -> None:
    spec = minutely(overlap="skip", missed="all")
    await put(h, spec)
    await h.advance(40_000)
    lease = await h.lease("q")
    await h.fail(lease, dead=True)
    assert (await h.store.redrive(h.name, "q")).ids == tuple(lease.ids)
    await h.advance(MINUTE)  # the redriven one is ready, and hinders no later instant
    assert await h.counts("q") == {"ready": 2, "scheduled": 2}
    await h.store.drop_cron(h.name, "c")
    assert await h.claimed("q", 9) == lease.ids


async def test_overlap_skip_cancels_an_instant_while_an_earlier_one_lives(h: Harness) -> None:
    backoff = Backoff(kind="fixed", base_ms=90_000, jitter="none")
    spec = minutely(overlap="skip", options=JobOptions(backoff=backoff))
    await put(h, spec)
    await h.advance(40_000)
    (first,) = [job.id for job in await h.scan("q") if job.state == State.READY]
    await h.advance(MINUTE)  # while it is ready
    await put(h, spec)
    lease = await h.lease("q", 5, lease_ms=DAY)
    assert lease.ids == [first]
    await h.advance(MINUTE)  # while it is active
    await put(h, spec)
    await h.fail(lease)
    await h.advance(MINUTE)  # while it is in backoff
    await put(h, spec)
    assert await fired(h) == []
    await h.advance(MINUTE)  # while it is ready for its second attempt
    await put(h, spec)
    assert await h.counts("q") == {"cancelled": 4, "ready": 1, "scheduled": 4}
    assert await fired(h) == [FIRST]
    await h.advance(MINUTE)
    assert await fired(h) == [FIRST + 5 * MINUTE]
    (info,) = await h.store.crons(h.name)
    assert info.executions == 6


async def test_overlap_allow_lets_instants_pile_up(h: Harness) -> None:
    await put(h, minutely())
    await h.advance(40_000)
    await h.lease("q", lease_ms=DAY)
    await h.advance(MINUTE)
    await h.advance(MINUTE)
    assert await fired(h) == [FIRST + MINUTE, FIRST + 2 * MINUTE]


async def test_overlap_looks_at_the_crons_own_instants_only(h: Harness) -> None:
    await put(h, minutely("c", overlap="skip"))
    await put(h, minutely("c_", overlap="skip"))
    await h.push("q", key="c/x/1")
    await h.lease("q", lease_ms=DAY)
    await h.advance(40_000)
    assert len((await h.lease("q", 5)).ids) == 2


async def test_overlap_counts_an_instant_that_runs_from_before_a_change(h: Harness) -> None:
    await put(h, minutely(overlap="skip", payload=b"1"))
    await h.advance(40_000)
    running = await h.lease("q", lease_ms=DAY)
    await put(h, minutely(overlap="skip", payload=b"2"))
    await h.advance(MINUTE)
    assert await fired(h) == []
    await h.ack(running)
    await h.advance(MINUTE)
    assert await fired(h) == [FIRST + 2 * MINUTE]


async def test_overlap_counts_an_instant_that_runs_in_the_queue_from_before_a_move(
    h: Harness,
) -> None:
    await put(h, minutely(overlap="skip"))
    await h.advance(40_000)
    await h.lease("q", lease_ms=DAY)
    await put(h, msgspec.structs.replace(minutely(overlap="skip"), queue="elsewhere"))
    await h.advance(MINUTE)
    assert (await h.counts("elsewhere"))["cancelled"] == 1
    assert await h.claim("elsewhere") is None


@pytest.mark.parametrize(
    ("missed", "late", "expected"),
    [
        ("last", 200_000, [FIRST + 2 * MINUTE]),
        ("all", 200_000, [FIRST, FIRST + MINUTE, FIRST + 2 * MINUTE]),
        ("none", 200_000, [FIRST + 2 * MINUTE]),
        ("none", 160_000, [FIRST + MINUTE, FIRST + 2 * MINUTE]),
        ("none", 160_001, [FIRST + 2 * MINUTE]),
        ("last", 40_000, [FIRST]),
        ("none", 100_000, [FIRST, FIRST + MINUTE]),
    ],
)
async def test_installed_instants_that_come_due_at_once(
    h: Harness, missed: str, late: int, expected: list[int]
) -> None:
    await put(h, minutely(missed=missed))
    h.clock.advance(late)
    assert await fired(h) == expected
    due = 1 + (late - 40_000) // MINUTE
    assert (await h.counts("q")).get("cancelled", 0) == due - len(expected)
    (info,) = await h.store.crons(h.name)
    assert info.executions == due


async def test_missed_none_gives_up_what_was_missed_while_nobody_was_there(h: Harness) -> None:
    spec = minutely(missed="none")
    await put(h, spec)
    h.clock.advance(600_000)
    info = await put(h, spec)
    assert await fired(h) == []
    assert list(info.pending) == [START + 640_000 + n * MINUTE for n in range(4)]


async def test_missed_all_makes_up_for_every_instant_once(h: Harness) -> None:
    spec = minutely(missed="all")
    await put(h, spec)
    h.clock.advance(600_000)
    await put(h, spec)
    await put(h, spec)
    assert sorted(await fired(h)) == [FIRST + n * MINUTE for n in range(10)]
    await h.advance(40_000)
    assert await fired(h) == [FIRST + 10 * MINUTE]


async def test_a_cron_is_dropped_after_its_limit_of_instants(h: Harness) -> None:
    spec = minutely(limit=2, options=JobOptions(backoff=after(0)))
    info = await put(h, spec)
    assert list(info.pending) == [FIRST, FIRST + MINUTE]
    await h.advance(40_000)
    assert await fired(h) == [FIRST]
    assert [cron.executions for cron in await h.store.crons(h.name)] == [1]
    await h.advance(MINUTE)
    assert await fired(h) == [FIRST + MINUTE]
    assert await h.store.crons(h.name) == []
    await h.advance(5 * MINUTE)
    assert await fired(h) == []
    assert await h.counts("q") == {"completed": 2}


async def test_a_limit_above_four_is_reached_by_refreshing(h: Harness) -> None:
    spec = minutely(limit=6)
    seen: list[int] = []
    for _ in range(12):
        if await h.store.crons(h.name) or not seen:
            await put(h, spec)
        await h.advance(MINUTE)
        seen += await fired(h)
    assert seen == [FIRST + n * MINUTE for n in range(6)]
