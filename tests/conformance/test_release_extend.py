"""Release gives jobs back unspent; extend keeps a lease alive and says what it lost."""

import pytest

from penstock.model.errors import Invalid, LeaseLost
from penstock.model.lifecycle import State
from tests.conformance.harness import AT_ONCE, BLOCK, Harness, after, many_jobs

# -- release -------------------------------------------------------------------------------------


async def test_a_released_job_is_ready_again_and_its_attempt_unspent(h: Harness) -> None:
    job_id = await h.push("q", max_attempts=1)
    for _ in range(5):
        lease = await h.lease("q")
        assert (lease.jobs[0].attempt, lease.jobs[0].redelivered) == (1, False)
        h.clock.advance(10)
        answer = await h.release(lease)
        assert (list(answer.released), list(answer.lost)) == ([job_id], [])
        job = await h.job(job_id)
        assert (job.state, job.attempt, job.errors) == (State.READY, 0, ())
        assert job.lease_expires_at is None


async def test_a_released_retry_keeps_the_attempts_that_failed(h: Harness) -> None:
    job_id = await h.push("q", backoff=AT_ONCE)
    await h.fail(await h.lease("q"))
    lease = await h.lease("q")
    assert lease.jobs[0].attempt == 2
    await h.release(lease)
    job = await h.job(job_id)
    assert (job.attempt, len(job.errors)) == (1, 1)
    assert (await h.lease("q")).jobs[0].attempt == 2


@many_jobs
async def test_a_release_without_ids_gives_back_everything_still_held(h: Harness) -> None:
    ids = await h.push_alike("q", BLOCK + 300)
    lease = await h.lease("q", 10_000)
    done = ids[100:200] + ids[4_000:4_200]
    await h.ack(lease, done)
    rest = sorted(set(ids) - set(done))
    assert sorted((await h.release(lease)).released) == rest
    assert await h.counts("q") == {"ready": len(rest), "completed": len(done)}
    assert await h.claimed("q", 10_000) == rest


@many_jobs
async def test_a_release_of_part_leaves_the_rest_leased(h: Harness) -> None:
    ids = await h.push_alike("q", BLOCK + 300)
    lease = await h.lease("q", 10_000)
    part = ids[4_090:4_100]
    await h.release(lease, part)
    other = await h.lease("q", 10_000)
    assert other.ids == part
    assert sorted((await h.ack(lease)).acked) == sorted(set(ids) - set(part))
    assert sorted((await h.ack(other)).acked) == part


async def test_a_released_job_is_no_longer_its_old_leases(h: Harness) -> None:
    ids = await h.push_alike("q", 3)
    lease = await h.lease("q", 3)
    await h.release(lease, ids[:1])
    for call in (h.ack, h.fail, h.release):
        with pytest.raises(LeaseLost):
            await call(lease, ids[:1])
    assert await h.counts("q") == {"active": 2, "ready": 1}


async def test_named_ids_of_a_release_are_deduplicated_and_the_unheld_lost(h: Harness) -> None:
    ids = await h.push_alike("q", 4)
    lease = await h.lease("q", 3)
    answer = await h.release(lease, [ids[3], ids[2], ids[2], ids[0], ids[3]])
    assert (sorted(answer.released), list(answer.lost)) == ([ids[0], ids[2]], [ids[3]])
    assert await h.claimed("q", 10) == [ids[0], ids[2], ids[3]]
    with pytest.raises(Invalid):
        await h.release(lease, [])


async def test_an_expired_or_unknown_lease_releases_nothing(h: Harness) -> None:
    job_id = await h.push("q", backoff=after(5_000))
    lease = await h.lease("q", lease_ms=100)
    with pytest.raises(LeaseLost):
        await h.release("unknown")
    h.clock.advance(100)
    with pytest.raises(LeaseLost):
        await h.release(lease)
    job = await h.job(job_id)
    assert (job.state, job.attempt) == (State.SCHEDULED, 1)


async def test_a_release_counts_as_claimed_for_the_ttl(h: Harness) -> None:
    released, untouched = await h.push_alike("q", 2, ttl_ms=1_000)
    await h.release(await h.lease("q"))
    await h.advance(1_000)
    assert await h.state(released) == State.READY
    assert await h.state(untouched) == State.EXPIRED


async def test_a_release_stops_the_timeout_of_its_attempt(h: Harness) -> None:
    job_id = await h.push("q", timeout_ms=1_000)
    await h.release(await h.lease("q"))
    await h.advance(1_000)
    assert (await h.job(job_id)).errors == ()
    await h.lease("q")
    await h.advance(999)
    assert await h.state(job_id) == State.ACTIVE
    await h.advance(1)
    assert [error.kind for error in (await h.job(job_id)).errors] == ["timeout"]


async def test_a_lease_that_gave_everything_back_does_not_expire_it_later(h: Harness) -> None:
    ids = await h.push_alike("q", 10, backoff=AT_ONCE)
    first = await h.lease("q", 10, lease_ms=1_000)
    await h.release(first, ids[5:])
    h.clock.advance(10)
    second = await h.lease("q", 10, lease_ms=60_000)
    await h.release(first)
    await h.advance(990)
    assert await h.states(second.ids) == {"active": 5}
    jobs = await h.store.get(h.name, ids)
    assert [job.errors for job in jobs if job] == [()] * 10


# -- extend --------------------------------------------------------------------------------------


async def test_a_heartbeat_gives_the_lease_its_original_length_anew(h: Harness) -> None:
    job_id = await h.push("q", backoff=after(50))
    lease = await h.lease("q", lease_ms=4_000)
    h.clock.advance(3_999)
    answer = await h.extend(lease)
    assert (answer.expires_at, list(answer.lost)) == (h.now + 4_000, [])
    job = await h.job(job_id)
    assert (job.lease_expires_at, job.last_heartbeat) == (h.now + 4_000, h.now)
    assert job.started_at == h.now - 3_999
    await h.advance(3_999)
    assert await h.state(job_id) == State.ACTIVE
    await h.advance(1)
    assert await h.state(job_id) == State.SCHEDULED


async def test_a_heartbeat_may_say_how_long(h: Harness) -> None:
    job_id = await h.push("q", backoff=after(50))
    lease = await h.lease("q")
    h.clock.advance(1_000)
    assert (await h.extend(lease, 90_000)).expires_at == h.now + 90_000
    await h.advance(89_999)
    assert await h.state(job_id) == State.ACTIVE
    await h.advance(1)
    assert await h.state(job_id) == State.SCHEDULED


async def test_what_a_heartbeat_said_does_not_change_the_original_length(h: Harness) -> None:
    await h.push("q")
    lease = await h.lease("q", lease_ms=4_000)
    await h.extend(lease, 90_000)
    h.clock.advance(10)
    assert (await h.extend(lease)).expires_at == h.now + 4_000


async def test_a_lease_may_be_shortened(h: Harness) -> None:
    job_id = await h.push("q")
    lease = await h.lease("q", lease_ms=30_000)
    assert (await h.extend(lease, 100)).expires_at == h.now + 100
    h.clock.advance(100)
    with pytest.raises(LeaseLost):
        await h.ack(lease)
    assert (await h.job(job_id)).errors[0].at == h.now


@many_jobs
async def test_a_lease_kept_alive_by_heartbeats_outlives_its_first_length(h: Harness) -> None:
    ids = await h.push_alike("q", BLOCK + 100)
    lease = await h.lease("q", 10_000, lease_ms=1_000)
    for _ in range(20):
        await h.advance(900)
        await h.extend(lease)
    assert sorted((await h.ack(lease)).acked) == ids


@pytest.mark.parametrize("lease_ms", [49, 24 * 3_600_000 + 1, 0, -5])
async def test_a_heartbeat_outside_the_bounds_of_a_lease_is_refused(
    h: Harness, lease_ms: int
) -> None:
    job_id = await h.push("q")
    lease = await h.lease("q")
    with pytest.raises(Invalid):
        await h.extend(lease, lease_ms)
    assert (await h.job(job_id)).lease_expires_at == lease.expires_at


async def test_an_expired_or_unknown_lease_cannot_be_extended(h: Harness) -> None:
    job_id = await h.push("q", backoff=after(5_000))
    lease = await h.lease("q", lease_ms=100)
    with pytest.raises(LeaseLost):
        await h.extend("unknown")
    h.clock.advance(100)
    with pytest.raises(LeaseLost):
        await h.extend(lease)
    assert await h.state(job_id) == State.SCHEDULED


@many_jobs
async def test_a_heartbeat_names_the_jobs_that_were_cancelled_each_time_anew(h: Harness) -> None:
    ids = await h.push_alike("q", BLOCK + 100)
    lease = await h.lease("q", 10_000)
    gone = [ids[3], *ids[4_094:4_098]]
    await h.cancel(*gone)
    for _ in range(2):
        h.clock.advance(10)
        assert sorted((await h.extend(lease)).lost) == gone


async def test_a_heartbeat_does_not_name_what_its_holder_let_go(h: Harness) -> None:
    ids = await h.push_alike("q", 8)
    lease = await h.lease("q", 8)
    await h.ack(lease, ids[0:1])
    await h.fail(lease, ids[1:2])
    await h.fail(lease, ids[2:3], dead=True)
    await h.release(lease, ids[3:4])
    await h.cancel(ids[4])
    assert list((await h.extend(lease)).lost) == ids[4:5]


async def test_a_heartbeat_does_not_name_what_was_cancelled_after_it_was_let_go(
    h: Harness,
) -> None:
    ids = await h.push_alike("q", 3)
    lease = await h.lease("q", 3)
    await h.release(lease, ids[:1])
    await h.cancel(ids[0])
    assert list((await h.extend(lease)).lost) == []


async def test_a_heartbeat_names_the_jobs_that_timed_out(h: Harness) -> None:
    ids = (await h.push_many("q", [{"timeout_ms": 500 if n == 1 else None} for n in range(3)])).ids
    lease = await h.lease("q", 3)
    await h.advance(500)
    assert list((await h.extend(lease)).lost) == [ids[1]]
    assert sorted((await h.ack(lease)).acked) == [ids[0], ids[2]]


async def test_a_heartbeat_names_the_jobs_that_were_discarded(h: Harness) -> None:
    ids = await h.push_alike("q", 3)
    lease = await h.lease("q", 3)
    await h.cancel(ids[1], discard=True)
    assert list((await h.extend(lease)).lost) == [ids[1]]


async def test_a_lease_from_which_everything_was_taken_is_lost(h: Harness) -> None:
    ids = await h.push_alike("q", 3)
    lease = await h.lease("q", 3)
    await h.ack(lease, ids[:1])
    await h.cancel(*ids[1:])
    for call in (h.extend, h.ack, h.fail, h.release):
        with pytest.raises(LeaseLost):
            await call(lease)


async def test_a_lease_of_a_purged_queue_is_lost(h: Harness) -> None:
    await h.push_alike("q", 3)
    lease = await h.lease("q", 3)
    await h.store.purge(h.name, "q")
    for call in (h.extend, h.ack, h.fail, h.release):
        with pytest.raises(LeaseLost):
            await call(lease)


async def test_an_extended_lease_and_what_it_lost_survive_a_restart(h: Harness) -> None:
    ids = await h.push_alike("q", 4)
    lease = await h.lease("q", 4, lease_ms=2_000)
    await h.extend(lease, 50_000)
    await h.cancel(ids[2])
    await h.restart()
    await h.advance(40_000)
    answer = await h.extend(lease)
    assert (answer.expires_at, list(answer.lost)) == (h.now + 2_000, [ids[2]])
    assert sorted((await h.ack(lease)).acked) == [ids[0], ids[1], ids[3]]
