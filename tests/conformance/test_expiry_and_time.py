"""What happens by itself: leases, timeouts and ttls end, delays pass, and clocks jump."""

import asyncio

import pytest

from penstock.model.errors import Invalid, LeaseLost
from penstock.model.lifecycle import DeadReason, State
from tests.conformance.harness import AT_ONCE, BLOCK, Harness, after, many_jobs

HOUR = 3_600_000

# -- leases --------------------------------------------------------------------------------------


async def test_a_lease_that_expires_fails_each_job_it_still_held(h: Harness) -> None:
    ids = await h.push_alike("q", 3, backoff=after(500))
    await h.lease("q", 3, worker="w1", lease_ms=1_000)
    due = h.now + 1_000
    await h.advance(1_000)
    for job_id in ids:
        job = await h.job(job_id)
        assert (job.state, job.run_at, job.attempt) == (State.SCHEDULED, due + 500, 1)
        (error,) = job.errors
        assert (error.kind, error.worker, error.at, error.attempt) == (
            "lease_expired",
            "w1",
            due,
            1,
        )
        assert job.lease_expires_at is None


async def test_an_expiry_takes_effect_at_its_own_instant_however_late_it_is_noticed(
    h: Harness,
) -> None:
    job_id = await h.push("q", backoff=after(500))
    await h.lease("q", lease_ms=1_000)
    due = h.now + 1_000
    h.clock.advance(1_300)
    job = await h.job(job_id)
    assert (job.errors[0].at, job.run_at) == (due, due + 500)
    h.clock.advance(200)
    assert await h.claimed("q") == [job_id]


async def test_an_expiry_and_the_retry_after_it_may_be_noticed_together(h: Harness) -> None:
    job_id = await h.push("q", backoff=after(500))
    await h.lease("q", lease_ms=1_000)
    due = h.now + 1_500
    h.clock.advance(10_000)
    job = await h.job(job_id)
    assert (job.state, job.run_at, len(job.errors)) == (State.READY, due, 1)


async def test_the_expiry_of_the_last_attempt_makes_the_job_dead(h: Harness) -> None:
    job_id = await h.push("q", max_attempts=1)
    await h.lease("q", lease_ms=1_000)
    due = h.now + 1_000
    h.clock.advance(1_200)
    job = await h.job(job_id)
    assert (job.state, job.dead_reason) == (State.DEAD, DeadReason.MAX_ATTEMPTS)
    assert (job.finished_at, job.errors[0].kind) == (due, "lease_expired")


async def test_an_expiry_is_seen_by_every_call_that_looks_before_any_sweep(h: Harness) -> None:
    for look in ("get", "counts", "find", "claim", "explain"):
        job_id = await h.push(look, backoff=AT_ONCE)
        await h.lease(look, lease_ms=100)
        h.clock.advance(100)
        if look == "get":
            assert await h.state(job_id) == State.READY
        elif look == "counts":
            assert await h.counts(look) == {"ready": 1}
        elif look == "find":
            page = await h.store.find(h.name, look, state=State.READY)
            assert [job.id for job in page.jobs] == [job_id]
        elif look == "claim":
            assert await h.claimed(look) == [job_id]
        else:
            assert (await h.store.explain(h.name, job_id)).state == State.READY


async def test_each_lease_expires_at_its_own_instant(h: Harness) -> None:
    ids = await h.push_alike("q", 50, backoff=after(9_000))
    lengths = {job_id: 100 + (job_id * 37) % 50 * 10 for job_id in ids}
    for job_id in ids:
        assert (await h.lease("q", lease_ms=lengths[job_id])).ids == [job_id]
    for passed in range(1, 60):
        await h.advance(10)
        expired = sum(length <= passed * 10 for length in lengths.values())
        assert (await h.counts("q")).get("active", 0) == 50 - expired


async def test_jobs_whose_leases_ended_in_turn_are_ready_in_that_turn(h: Harness) -> None:
    ids = await h.push_alike("q", 3, backoff=AT_ONCE)
    for lease_ms in (3_000, 1_000, 2_000):
        await h.lease("q", lease_ms=lease_ms)
    h.clock.advance(5_000)
    assert await h.claimed("q", 3) == [ids[1], ids[2], ids[0]]


@many_jobs
async def test_ten_thousand_jobs_of_one_lease_expire_together(h: Harness) -> None:
    ids = await h.push_alike("q", 10_000, backoff=AT_ONCE)
    await h.lease("q", 10_000, lease_ms=1_000)
    h.clock.advance(1_000)
    assert await h.counts("q") == {"ready": 10_000}
    assert await h.claimed("q", 10_000) == ids


@many_jobs
async def test_two_thousand_leases_expire_together(h: Harness) -> None:
    ids = await h.push_alike("q", 2_000, backoff=AT_ONCE)
    for _ in ids:
        await h.lease("q", lease_ms=1_000)
    h.clock.advance(999)
    assert await h.counts("q") == {"active": 2_000}
    h.clock.advance(1)
    assert await h.counts("q") == {"ready": 2_000}
    assert await h.claimed("q", 10_000) == ids


@many_jobs
async def test_others_have_their_turn_while_thousands_of_leases_expire(h: Harness) -> None:
    await h.push_alike("q", 3_000)
    for _ in range(3_000):
        await h.lease("q", lease_ms=1_000)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    bystander = await h.start(other())
    before = turns
    await h.advance(1_000)
    assert turns > before
    bystander.cancel()
    assert "active" not in await h.counts("q")


async def test_an_expired_lease_does_not_fail_what_was_claimed_again(h: Harness) -> None:
    ids = await h.push_alike("q", 100, backoff=AT_ONCE)
    first = await h.lease("q", 100, lease_ms=1_000)
    h.clock.advance(400)
    await h.fail(first, ids[30:60])
    second = await h.lease("q", 100, lease_ms=1_000)
    assert second.ids == ids[30:60]
    h.clock.advance(600)
    assert await h.counts("q") == {"ready": 70, "active": 30}
    h.clock.advance(400)
    assert await h.counts("q") == {"ready": 100}
    jobs = await h.store.get(h.name, ids)
    kinds = [[error.kind for error in job.errors] for job in jobs if job]
    assert kinds[:30] + kinds[60:] == [["lease_expired"]] * 70
    assert kinds[30:60] == [["Boom", "lease_expired"]] * 30


# -- timeouts ------------------------------------------------------------------------------------


async def test_an_attempt_that_runs_too_long_has_failed_however_alive_its_heartbeat(
    h: Harness,
) -> None:
    job_id = await h.push("q", timeout_ms=1_000, backoff=after(300))
    lease = await h.lease("q", worker="w1", lease_ms=600)
    due = h.now + 1_000
    for _ in range(2):
        h.clock.advance(450)
        await h.extend(lease)
    h.clock.advance(99)
    assert await h.state(job_id) == State.ACTIVE
    h.clock.advance(1)
    with pytest.raises(LeaseLost):
        await h.ack(lease)
    job = await h.job(job_id)
    (error,) = job.errors
    assert (error.kind, error.at, error.worker, error.attempt) == ("timeout", due, "w1", 1)
    assert (job.state, job.run_at) == (State.SCHEDULED, due + 300)


@many_jobs
async def test_a_timeout_in_the_middle_of_a_lease_leaves_the_rest_leased(h: Harness) -> None:
    specs = [
        {"timeout_ms": 500 if n % 7 == 3 else None, "backoff": after(50)}
        for n in range(BLOCK + 200)
    ]
    ids = (await h.push_many("q", specs)).ids
    lease = await h.lease("q", 10_000)
    h.clock.advance(500)
    late = ids[3::7]
    assert await h.states(late) == {"scheduled": len(late)}
    answer = await h.ack(lease, ids[:10])
    assert list(answer.lost) == [ids[3]]
    rest = [job_id for job_id in ids[10:] if job_id not in set(late)]
    assert sorted((await h.ack(lease)).acked) == rest


async def test_a_timeout_and_a_lease_that_end_together_are_a_timeout(h: Harness) -> None:
    timed, untimed = (await h.push_many("q", [{"timeout_ms": 1_000}, {}])).ids
    await h.lease("q", 2, lease_ms=1_000)
    await h.advance(1_000)
    assert [error.kind for error in (await h.job(timed)).errors] == ["timeout"]
    assert [error.kind for error in (await h.job(untimed)).errors] == ["lease_expired"]


async def test_a_timeout_of_the_last_attempt_makes_the_job_dead(h: Harness) -> None:
    job_id = await h.push("q", timeout_ms=1_000, max_attempts=1)
    await h.lease("q")
    await h.advance(1_000)
    job = await h.job(job_id)
    assert (job.state, job.dead_reason) == (State.DEAD, DeadReason.MAX_ATTEMPTS)


async def test_every_attempt_has_its_own_timeout(h: Harness) -> None:
    job_id = await h.push("q", timeout_ms=4_000, backoff=AT_ONCE)
    await h.lease("q", lease_ms=3_000)
    await h.advance(3_000)
    await h.lease("q", lease_ms=60_000)
    await h.advance(3_999)
    assert await h.state(job_id) == State.ACTIVE
    await h.advance(1)
    assert [error.kind for error in (await h.job(job_id)).errors] == ["lease_expired", "timeout"]


async def test_an_acked_job_does_not_time_out(h: Harness) -> None:
    ids = await h.push_alike("q", 5, timeout_ms=1_000, backoff=after(50))
    lease = await h.lease("q", 5)
    await h.ack(lease, ids[1:4])
    await h.advance(1_000)
    assert await h.states(ids) == {"completed": 3, "scheduled": 2}


# -- ttl -----------------------------------------------------------------------------------------


async def test_a_job_never_claimed_within_its_ttl_is_expired(h: Harness) -> None:
    job_id = await h.push("q", ttl_ms=1_000)
    due = h.now + 1_000
    h.clock.advance(999)
    assert await h.state(job_id) == State.READY
    h.clock.advance(201)
    assert await h.claim("q") is None
    job = await h.job(job_id)
    assert (job.state, job.finished_at, job.attempt) == (State.EXPIRED, due, 0)


async def test_a_ttl_counts_from_the_push_and_not_from_the_delay(h: Harness) -> None:
    job_id = await h.push("q", delay_ms=600, ttl_ms=1_000)
    await h.advance(600)
    assert await h.state(job_id) == State.READY
    await h.advance(400)
    assert await h.state(job_id) == State.EXPIRED


@pytest.mark.parametrize("ttl_ms", [1, 499, 500])
async def test_a_ttl_that_ends_before_the_delay_is_refused(h: Harness, ttl_ms: int) -> None:
    with pytest.raises(Invalid) as caught:
        await h.push("q", delay_ms=500, ttl_ms=ttl_ms)
    assert "ttl" in caught.value.field
    assert await h.counts("q") == {}


async def test_a_claimed_job_outlives_its_ttl(h: Harness) -> None:
    job_id = await h.push("q", ttl_ms=1_000, backoff=after(2_000))
    lease = await h.lease("q")
    await h.advance(1_500)
    assert await h.state(job_id) == State.ACTIVE
    await h.fail(lease)
    await h.advance(1_999)
    assert await h.state(job_id) == State.SCHEDULED
    await h.advance(1)
    assert await h.claimed("q") == [job_id]


async def test_a_ttl_goes_on_while_the_queue_is_paused(h: Harness) -> None:
    await h.configure("q", paused=True)
    job_id = await h.push("q", ttl_ms=1_000)
    await h.advance(1_000)
    assert await h.state(job_id) == State.EXPIRED


@many_jobs
async def test_ttls_within_a_batch_are_each_jobs_own(h: Harness) -> None:
    ttls = (None, 1_000, 2_000)
    specs = [{"ttl_ms": ttls[n % 3], "priority": n % 2} for n in range(BLOCK + 203)]
    ids = (await h.push_many("q", specs)).ids
    h.clock.advance(1_000)
    one, two = len(ids[1::3]), len(ids[2::3])
    assert await h.counts("q") == {"ready": len(ids) - one, "expired": one}
    await h.advance(1_000)
    assert await h.counts("q") == {"ready": len(ids) - one - two, "expired": one + two}
    left = ids[::3]
    expected = [i for i in left if (i - ids[0]) % 2] + [i for i in left if not (i - ids[0]) % 2]
    assert await h.claimed("q", 10_000) == expected


@many_jobs
async def test_a_batch_with_one_ttl_expires_but_for_what_was_claimed(h: Harness) -> None:
    ids = await h.push_alike("q", BLOCK + 500, ttl_ms=1_000)
    lease = await h.lease("q", 3_000)
    await h.release(lease, ids[1_000:2_000])
    await h.advance(1_000)
    assert await h.counts("q") == {"active": 2_000, "ready": 1_000, "expired": len(ids) - 3_000}
    assert await h.claimed("q", 10_000) == ids[1_000:2_000]


# -- clocks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("hour", [HOUR, -HOUR])
async def test_a_jump_of_the_wall_clock_neither_expires_nor_prolongs_a_lease(
    h: Harness, hour: int
) -> None:
    job_id = await h.push("q", timeout_ms=5_000, backoff=after(500))
    lease = await h.lease("q", lease_ms=1_000)
    await h.jump(hour)
    h.clock.advance(999)
    assert await h.state(job_id) == State.ACTIVE
    h.clock.advance(1)
    with pytest.raises(LeaseLost):
        await h.ack(lease)
    job = await h.job(job_id)
    assert (job.errors[0].kind, job.errors[0].at) == ("lease_expired", h.now)
    assert job.run_at == h.now + 500


@pytest.mark.parametrize("hour", [HOUR, -HOUR])
async def test_a_jump_of_the_wall_clock_does_not_revive_a_lease(h: Harness, hour: int) -> None:
    await h.push("q", backoff=after(500))
    lease = await h.lease("q", lease_ms=1_000)
    h.clock.advance(1_000)
    h.clock.jump(hour)
    for call in (h.extend, h.ack, h.release):
        with pytest.raises(LeaseLost):
            await call(lease)


@pytest.mark.parametrize("hour", [HOUR, -HOUR])
async def test_a_jump_of_the_wall_clock_does_not_move_a_timeout(h: Harness, hour: int) -> None:
    job_id = await h.push("q", timeout_ms=1_000)
    await h.lease("q")
    await h.jump(hour)
    await h.advance(999)
    assert await h.state(job_id) == State.ACTIVE
    await h.advance(1)
    assert [error.kind for error in (await h.job(job_id)).errors] == ["timeout"]


async def test_an_expiry_noticed_after_a_jump_is_told_in_the_new_wall_time(h: Harness) -> None:
    job_id = await h.push("q", backoff=after(500))
    await h.lease("q", lease_ms=1_000)
    h.clock.advance(1_300)
    h.clock.jump(HOUR)
    job = await h.job(job_id)
    assert (job.errors[0].at, job.run_at) == (h.now - 300, h.now + 200)


async def test_a_delay_follows_the_wall_clock_forward(h: Harness) -> None:
    job_id = await h.push("q", delay_ms=HOUR)
    await h.jump(HOUR - 1)
    assert await h.claim("q") is None
    await h.jump(1)
    assert await h.claimed("q") == [job_id]


async def test_a_delay_is_never_early_by_a_wall_clock_that_went_back(h: Harness) -> None:
    job_id = await h.push("q", delay_ms=1_000)
    await h.jump(-HOUR)
    await h.advance(HOUR + 999)
    assert await h.claim("q") is None
    await h.advance(1)
    assert await h.claimed("q") == [job_id]


async def test_a_ttl_follows_the_wall_clock(h: Harness) -> None:
    forward = await h.push("q", ttl_ms=HOUR)
    await h.jump(-HOUR)
    await h.advance(HOUR)
    assert await h.state(forward) == State.READY
    await h.jump(HOUR)
    assert await h.state(forward) == State.EXPIRED


async def test_what_became_ready_stays_ready_when_the_clock_goes_back(h: Harness) -> None:
    due = await h.push("q", delay_ms=100)
    gone = await h.push("q", ttl_ms=50)
    await h.advance(100)
    await h.jump(-HOUR)
    assert (await h.state(due), await h.state(gone)) == (State.READY, State.EXPIRED)
    assert await h.claimed("q", 2) == [due]


async def test_pushes_keep_their_order_over_a_clock_that_goes_back(h: Harness) -> None:
    ids = await h.push_alike("q", 3)
    await h.jump(-HOUR)
    ids += await h.push_alike("q", 3)
    h.clock.advance(5)
    ids.append(await h.push("q"))
    await h.jump(2 * HOUR)
    ids.append(await h.push("q"))
    assert await h.claimed("q", 10) == ids


async def test_lifo_pushes_keep_their_order_over_a_clock_that_goes_back(h: Harness) -> None:
    old = await h.push("q", lifo=True)
    await h.jump(-HOUR)
    new = await h.push("q", lifo=True)
    assert await h.claimed("q", 2) == [new, old]


async def test_a_delayed_push_does_not_hold_back_those_after_the_clock_went_back(
    h: Harness,
) -> None:
    await h.push("q", delay_ms=2 * HOUR)
    await h.jump(-HOUR)
    delayed = await h.push("q", delay_ms=10)
    ready = await h.push("q")
    await h.advance(10)
    assert await h.claimed("q", 3) == [ready, delayed]


async def test_a_retry_waits_by_the_wall_clock(h: Harness) -> None:
    job_id = await h.push("q", backoff=after(HOUR))
    await h.fail(await h.lease("q"))
    await h.jump(HOUR - 1)
    assert await h.claim("q") is None
    await h.jump(1)
    assert await h.claimed("q") == [job_id]


async def test_time_goes_on_over_a_restart(h: Harness) -> None:
    leased = await h.push("q", backoff=AT_ONCE)
    await h.lease("q", lease_ms=1_000)
    timed = await h.push("t", timeout_ms=1_500, backoff=AT_ONCE)
    await h.lease("t")
    delayed = await h.push("q", delay_ms=1_200)
    fleeting = await h.push("q", delay_ms=1, ttl_ms=700)
    await h.advance(600)
    await h.restart()
    await h.advance(99)
    assert await h.state(fleeting) == State.READY
    await h.advance(1)
    assert await h.state(fleeting) == State.EXPIRED
    await h.advance(299)
    assert await h.state(leased) == State.ACTIVE
    await h.advance(1)
    assert await h.state(leased) == State.READY
    await h.advance(200)
    assert await h.claimed("q", 5) == [leased, delayed]
    await h.advance(299)
    assert await h.state(timed) == State.ACTIVE
    await h.advance(1)
    assert await h.state(timed) == State.READY


# -- unasked -------------------------------------------------------------------------------------


async def test_expiry_timeout_and_ttl_take_effect_without_any_call(live: Harness) -> None:
    late = []
    for turn in range(3):
        async with live.watch(kinds=["retried", "dead", "expired"]) as watcher:
            await live.push(f"a{turn}", backoff=after(60_000))
            await live.lease(f"a{turn}", lease_ms=60)
            await live.push(f"b{turn}", timeout_ms=60, max_attempts=1)
            await live.lease(f"b{turn}")
            await live.push(f"c{turn}", ttl_ms=60)
            events = await watcher.upto(3)
            late.append(live.now - max(event.at for event in events))
        assert sorted(event.kind for event in events) == ["dead", "expired", "retried"]
    assert min(late) <= 500
