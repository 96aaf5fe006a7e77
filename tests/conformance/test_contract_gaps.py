"""Cases for clauses of the contract that no other file has a case for.

`docs/reference/contract.md` says which clause each of them proves.
"""

import random
from contextlib import suppress
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from penstock.model.errors import Conflict, Invalid, Overloaded, PenstockError, by_code
from penstock.model.job import JobSpec
from penstock.model.lifecycle import TRANSITIONS, State
from penstock.model.policy import Bounds, Limits, Rate
from penstock.model.schedule import CronSpec, Daily, Every
from tests.conformance.harness import AT_ONCE, Harness, after, many_jobs

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR


async def answer(h: Harness, queue: str, payload: bytes, **spec: Any) -> tuple[int, str]:
    (only,) = (await h.push_many(queue, [{"payload": payload, **spec}])).jobs
    return only


# -- keys, by the need they serve ----------------------------------------------------------------


async def test_a_unique_job_is_refused_while_another_lives(h: Harness) -> None:
    unique: dict[str, Any] = {"key": "report", "on_conflict": "reject"}
    await h.push("q", **unique)
    with pytest.raises(Conflict):
        await h.push("q", **unique)
    await h.ack(await h.lease("q"))
    assert (await answer(h, "q", b"1", **unique))[1] == "created"


async def test_a_custom_id_means_its_job_for_as_long_as_the_job_is_known(h: Harness) -> None:
    custom = {"key": "order-17", "keep_key": "retained"}
    job_id = await h.finish("q", **custom)
    assert await answer(h, "q", b"2", **custom) == (job_id, "ignored")
    await h.advance(HOUR)
    assert (await answer(h, "q", b"2", **custom))[1] == "created"


async def test_an_idempotent_request_is_answered_alike_for_a_day(h: Harness) -> None:
    request = {"key": "r1", "on_conflict": "match", "keep_key": DAY}
    job_id = await h.finish("q", payload=b"1", retain_ms=0, **request)
    await h.advance(DAY - 1)
    assert await answer(h, "q", b"1", retain_ms=0, **request) == (job_id, "ignored")
    with pytest.raises(Conflict):
        await h.push("q", b"2", **request)
    await h.advance(1)
    assert (await answer(h, "q", b"2", **request))[1] == "created"


async def test_a_debounced_push_is_ignored_for_its_five_seconds(h: Harness) -> None:
    debounced = {"key": "search", "keep_key": 5_000}
    job_id = await h.finish("q", **debounced)
    await h.advance(4_999)
    assert await answer(h, "q", b"2", **debounced) == (job_id, "ignored")
    await h.advance(1)
    assert (await answer(h, "q", b"2", **debounced))[1] == "created"


async def test_a_delayed_message_is_rescheduled_under_its_key(h: Harness) -> None:
    job_id = await h.push("q", b"1", key="m", on_conflict="replace", delay_ms=1_000)
    again = await answer(h, "q", b"2", key="m", on_conflict="replace", delay_ms=5_000)
    assert again == (job_id, "updated")
    await h.advance(4_999)
    assert await h.claim("q") is None
    await h.advance(1)
    assert [(job.id, job.payload) for job in (await h.lease("q")).jobs] == [(job_id, b"2")]


@pytest.mark.parametrize("ways", [1, 2], ids=["one call", "two calls"])
async def test_duplicates_of_a_known_job_count_alike_in_one_batch_and_in_two(
    h: Harness, ways: int
) -> None:
    keyed = {"key": "k", "on_conflict": "replace"}
    job_id = await h.push("q", b'"a"', **keyed)
    batch = [
        {"payload": b'"b"', **keyed},
        {"payload": b'"b"', "key": "k", "on_conflict": "match"},
        {"payload": b'"a"', **keyed},
        {"payload": b'"a"', **keyed},
    ]
    if ways == 1:
        answers = (await h.push_many("q", batch)).jobs
    else:
        answers = [(await h.push_many("q", [spec])).jobs[0] for spec in batch]
    outcomes = ("updated", "ignored", "updated", "ignored")
    assert answers == [(job_id, outcome) for outcome in outcomes]
    assert (await h.job(job_id)).payload == b'"a"'


# -- payloads, times -----------------------------------------------------------------------------


async def test_a_payload_outlives_a_neighbour_that_its_push_finds_forgotten(h: Harness) -> None:
    await h.finish("q", payload=b'"old"')
    h.clock.advance(HOUR)
    job_id = await h.push("q", b'"new"')
    assert (await h.job(job_id)).payload == b'"new"'
    assert (await h.lease("q")).jobs[0].payload == b'"new"'


async def test_a_result_outlives_another_that_its_ack_finds_forgotten(h: Harness) -> None:
    old = await h.push("q", retain_ms=1_000)
    await h.ack(await h.lease("q"), results={old: b'"old"'})
    new = await h.push("q")
    lease = await h.lease("q")
    h.clock.advance(1_000)
    await h.ack(lease, results={new: b'"new"'})
    assert (await h.result(new)).value == b'"new"'


async def test_a_ttl_that_is_over_by_the_run_at_is_refused_in_a_queue_with_jobs(
    h: Harness,
) -> None:
    await h.push("q")
    with pytest.raises(Invalid) as caught:
        await h.push("q", ttl_ms=1_000, run_at=h.now + 1_000)
    assert caught.value.field == "ttl_ms"
    assert await h.counts("q") == {"ready": 1}


async def test_what_fell_due_unnoticed_takes_effect_in_the_order_of_its_instants(
    h: Harness,
) -> None:
    """An expiry, then a timeout, noticed together: their dependants line up in that order."""
    timed = await h.push("t", max_attempts=1, timeout_ms=200)
    leased = await h.push("l", max_attempts=1)
    second = await h.push("d", depends_on=(timed,), on_dependency_failure="ignore")
    first = await h.push("d", depends_on=(leased,), on_dependency_failure="ignore")
    await h.lease("t", lease_ms=HOUR)
    await h.lease("l", lease_ms=100)
    h.clock.advance(300)
    assert await h.claimed("d", 2) == [first, second]


async def test_a_newcomer_does_not_take_the_token_that_a_waiting_claim_waits_for(
    h: Harness,
) -> None:
    await h.configure("q", limits=Limits(rate=Rate(tokens=1, per_ms=1_000)))
    ids = await h.push_alike("q", 3)
    assert await h.claimed("q") == ids[:1]
    waiting = await h.start(h.lease("q", wait_ms=HOUR))
    h.clock.advance(1_000)
    assert await h.claim("q") is None
    assert (await h.told(waiting)).ids == ids[1:2]


@many_jobs
async def test_more_than_a_thousand_queues_survive_a_restart(h: Harness) -> None:
    ids = [await h.push(f"q{n}") for n in range(1_100)]
    await h.restart()
    assert [info.queue for info in await h.store.queues(h.name)] == sorted(
        f"q{n}" for n in range(1_100)
    )
    assert await h.states(ids) == {"ready": 1_100}
    assert await h.claimed("q7") == ids[7:8]


# -- bounds --------------------------------------------------------------------------------------


async def test_there_are_no_more_kept_keys_than_the_cap(h: Harness) -> None:
    await h.reopen(kept_keys=2)
    for key in ("a", "b"):
        await h.finish("q", key=key, keep_key=1_000, retain_ms=0)
    with pytest.raises(Overloaded):
        await h.push("q", key="c", keep_key=1_000)
    await h.push("q", key="c")
    await h.advance(1_000)
    await h.push("q", key="d", keep_key=1_000)


async def test_a_bulk_keeps_no_more_keys_than_the_cap_either(h: Harness) -> None:
    await h.reopen(kept_keys=2)
    await h.store.open_bulk(h.name, "b")
    with pytest.raises(Overloaded):
        keyed = [{"key": str(n), "keep_key": 1_000} for n in range(3)]
        await h.push_many("q", keyed, bulk="b")
        await h.store.commit_bulk(h.name, "b")


async def test_there_are_no_more_callers_waiting_for_results_than_the_cap(h: Harness) -> None:
    await h.reopen(waiters=1)
    job_id = await h.push("q")
    waiter = await h.start(h.result(job_id, wait_ms=HOUR))
    with pytest.raises(Overloaded):
        await h.result(job_id, wait_ms=HOUR)
    await h.ack(await h.lease("q"))
    assert (await h.told(waiter)).state == State.COMPLETED


# -- ends ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("alone", [0, 2, 4], ids=["first", "middle", "last"])
async def test_jobs_acked_in_two_steps_are_all_forgotten_in_their_time(
    h: Harness, alone: int
) -> None:
    ids = await h.push_alike("q", 5)
    lease = await h.lease("q", 5)
    await h.ack(lease, [ids[alone]])
    await h.advance(10)
    await h.ack(lease)
    assert (await h.job(ids[alone])).finished_at == h.now - 10
    await h.advance(HOUR - 10)
    assert await h.states(ids) == {"forgotten": 1, "completed": 4}
    await h.advance(10)
    assert await h.states(ids) == {"forgotten": 5}


async def test_a_purge_takes_what_was_kept_for_a_dependant_of_the_same_queue(h: Harness) -> None:
    kept = await h.push("q", retain_ms=0)
    dependant = await h.push("q", depends_on=(kept,))
    await h.ack(await h.lease("q"))
    assert await h.states([kept, dependant]) == {"completed": 1, "ready": 1}
    assert await h.store.purge(h.name, "q") == 2
    assert await h.states([kept, dependant]) == {"forgotten": 2}


async def test_a_dependant_pushed_meanwhile_changes_nothing_about_a_running_job(
    h: Harness,
) -> None:
    job_id = await h.push("q", max_attempts=2, backoff=AT_ONCE, ttl_ms=1_000)
    lease = await h.lease("q")
    await h.push("d", depends_on=(job_id,))
    assert (await h.job(job_id)).attempt == 1
    await h.fail(lease)
    await h.advance(1_000)
    again = await h.lease("q")
    assert [(job.attempt, job.redelivered) for job in again.jobs] == [(2, True)]
    await h.fail(again)
    job = await h.job(job_id)
    assert (job.state, [error.attempt for error in job.errors]) == (State.DEAD, [1, 2])


async def test_a_dependant_pushed_later_changes_nothing_about_a_completed_job(h: Harness) -> None:
    job_id = await h.push("q")
    await h.ack(await h.lease("q", worker="w"))
    before = await h.job(job_id)
    dependant = await h.push("d", depends_on=(job_id,))
    after_ = await h.job(job_id)
    assert (after_.attempt, after_.worker, after_.finished_at) == (1, "w", before.finished_at)
    assert after_.dependants == (dependant,)


async def test_a_dependency_is_kept_for_a_dependant_that_is_still_held(h: Harness) -> None:
    dependency = await h.push("q", retain_ms=0)
    await h.store.open_bulk(h.name, "b")
    (held,) = (await h.push_many("d", [{"depends_on": (dependency,)}], bulk="b")).ids
    await h.cancel(dependency)
    assert await h.state(dependency) == State.CANCELLED
    await h.store.commit_bulk(h.name, "b")
    assert await h.state(held) == State.DEAD
    assert await h.state(dependency) is None


# -- crons ---------------------------------------------------------------------------------------

BERLIN = ZoneInfo("Europe/Berlin")


async def fired_at(h: Harness, name: str, until: datetime) -> list[str]:
    """The instants at which a cron's jobs can be claimed, looking every quarter of an hour."""
    spec = CronSpec(
        name=name, queue="q", schedule=Daily(at=("02:30",), tz="Europe/Berlin"), missed="all"
    )
    seen = []
    while h.now < until.timestamp() * 1_000:
        await h.store.put_cron(h.name, spec)
        await h.advance(15 * MINUTE)
        lease = await h.claim("q", 10)
        if lease is not None:
            await h.ack(lease)
            seen += [datetime.fromtimestamp(h.now / 1_000, BERLIN).isoformat()] * len(lease)
    return seen


async def test_an_hour_that_does_not_exist_fires_at_the_next_valid_instant(h: Harness) -> None:
    begin = datetime(2024, 3, 30, 20, tzinfo=BERLIN)
    await h.jump(int(begin.timestamp() * 1_000) - h.now)
    assert await fired_at(h, "spring", datetime(2024, 4, 1, 12, tzinfo=BERLIN)) == [
        "2024-03-31T03:00:00+02:00",
        "2024-04-01T02:30:00+02:00",
    ]


async def test_an_hour_that_exists_twice_fires_once(h: Harness) -> None:
    begin = datetime(2024, 10, 26, 20, tzinfo=BERLIN)
    await h.jump(int(begin.timestamp() * 1_000) - h.now)
    assert await fired_at(h, "autumn", datetime(2024, 10, 28, 12, tzinfo=BERLIN)) == [
        "2024-10-27T02:30:00+02:00",
        "2024-10-28T02:30:00+01:00",
    ]


def minutely(**more: Any) -> CronSpec:
    return CronSpec(name="c", queue="q", schedule=Every(every_ms=MINUTE), **more)


async def test_a_cron_that_is_refused_leaves_the_known_one_as_it_was(h: Harness) -> None:
    await h.store.put_cron(h.name, minutely())
    await h.push("q", delay_ms=DAY)
    await h.configure("q", bounds=Bounds(jobs=4))
    before = await h.store.crons(h.name), await h.counts("q")
    with pytest.raises(Overloaded):
        await h.store.put_cron(h.name, minutely(payload=b"2"))
    assert (await h.store.crons(h.name), await h.counts("q")) == before


async def test_a_cron_that_is_refused_at_first_is_not_there(h: Harness) -> None:
    await h.configure("q", bounds=Bounds(jobs=3))
    with pytest.raises(Overloaded):
        await h.store.put_cron(h.name, minutely())
    assert (await h.store.crons(h.name), await h.counts("q")) == ([], {})


async def test_a_purge_of_its_queue_does_not_stop_a_cron_that_skips_overlaps(h: Harness) -> None:
    spec = minutely(overlap="skip")
    await h.store.put_cron(h.name, spec)
    await h.advance(MINUTE)
    await h.lease("q")
    await h.store.purge(h.name, "q")
    fired = 0
    for _ in range(8):
        await h.store.put_cron(h.name, spec)
        await h.advance(MINUTE)
        lease = await h.claim("q")
        if lease is not None:
            await h.ack(lease)
            fired += 1
    assert fired >= 4


async def test_an_instant_that_is_skipped_unnoticed_was_skipped_at_that_instant(
    h: Harness,
) -> None:
    await h.store.put_cron(h.name, minutely(missed="last"))
    h.clock.advance(3 * MINUTE)
    skipped = [job for job in await h.scan("q") if job.state == State.CANCELLED]
    assert len(skipped) == 2
    assert [job.finished_at for job in skipped] == [job.run_at for job in skipped]


# -- the lifecycle -------------------------------------------------------------------------------

EDGES = {(before, after_) for (before, _), after_ in TRANSITIONS.items()}


async def test_every_step_of_every_job_is_in_the_table_of_transitions(h: Harness) -> None:
    draw = random.Random(11)
    known: dict[int, State] = {}
    seen: set[tuple[State, State]] = set()
    leases: list[Any] = []
    bulks = 0

    async def look() -> None:
        now = {job.id: job.state for job in await h.scan("q")}
        for job_id, state in now.items():
            before = known.get(job_id)
            if before is not None and before != state:
                assert (before, state) in EDGES, f"job {job_id}: {before} to {state}"
                seen.add((before, state))
        known.clear()
        known.update(now)

    def spec() -> JobSpec:
        return JobSpec(
            payload=b"%d" % draw.randrange(1_000),
            delay_ms=draw.choice((None, None, None, 7, 30)),
            ttl_ms=draw.choice((None, None, 12)),
            timeout_ms=draw.choice((None, None, 55)),
            max_attempts=draw.choice((1, 2, 3)),
            backoff=draw.choice((AT_ONCE, after(9))),
            key=draw.choice((None, "a", "b")),
            on_conflict="replace",
            group=draw.choice((None, None, "g")),
            depends_on=tuple(
                draw.sample(sorted(known), min(len(known), draw.choice((0, 0, 1, 2))))
            ),
            on_dependency_failure=draw.choice(("fail", "ignore")),
        )

    for turn in range(400):
        act = draw.randrange(12)
        job_id = draw.choice(sorted(known)) if known else 1
        with suppress(PenstockError):
            if act <= 2:
                await h.push_many("q", [spec()])
            elif act <= 4:
                lease = await h.claim("q", draw.choice((1, 3)), lease_ms=50)
                leases += [lease] if lease is not None else []
            elif act == 5 and leases:
                lease = draw.choice(leases)
                await draw.choice((h.ack, h.ack, h.fail, h.release))(lease)
            elif act == 6:
                await h.cancel(job_id, discard=draw.random() < 0.5)
            elif act == 7:
                await h.store.edit(h.name, job_id, delay_ms=draw.choice((0, 20)))
            elif act == 8:
                await h.store.redrive(h.name, "q", limit=2)
            elif act == 9:
                bulks += 1
                await h.store.open_bulk(h.name, f"b{bulks}")
                await h.push_many("q", [spec(), spec()], bulk=f"b{bulks}")
            elif act == 10 and bulks:
                await h.store.commit_bulk(h.name, f"b{bulks}")
        await look()
        if turn % 40 == 39:
            h.clock.advance(HOUR)  # old ends are forgotten
            await h.store.tick()
            known.clear()
            await look()
        await h.advance(1)
        await look()
    assert {before for before, _ in seen} == set(State) - {
        State.COMPLETED,
        State.CANCELLED,
        State.EXPIRED,
    }
    assert {after_ for _, after_ in seen} == set(State) - {State.HELD}


# -- words ---------------------------------------------------------------------------------------


async def test_health_says_how_durable_the_store_is(h: Harness) -> None:
    health = await h.store.health()
    assert health.ok
    assert health.durability in ("fsync", "os", "memory")
    if h.url in ("memory://", "oracle://"):
        assert health.durability == "memory"


def test_every_error_has_its_wire_code() -> None:
    assert set(by_code()) == {
        "invalid",
        "payload_too_large",
        "batch_too_large",
        "conflict",
        "not_found",
        "lease_lost",
        "unauthenticated",
        "forbidden",
        "rate_limited",
        "overloaded",
        "storage_full",
        "unavailable",
        "deadline",
    }
    assert all(issubclass(error, PenstockError) for error in by_code().values())
