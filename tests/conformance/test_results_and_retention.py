"""Results, and how long ended jobs are known."""

import pytest

from penstock.model.errors import Deadline, NotFound, PayloadTooLarge
from penstock.model.lifecycle import DeadReason, State
from penstock.model.policy import HOUR_MS
from tests.conformance.harness import AT_ONCE, BLOCK, BOOM, Harness, many_jobs

DAY_MS = 24 * HOUR_MS
LONG = 3_600_000

# -- results -------------------------------------------------------------------------------------


async def test_a_result_is_what_the_ack_said(h: Harness) -> None:
    job_id = await h.push("q")
    await h.ack(await h.lease("q"), results={job_id: b'{"sum": 3}'})
    result = await h.result(job_id)
    assert (result.state, result.value, result.codec) == (State.COMPLETED, b'{"sum": 3}', "json")
    assert (result.error, result.dead_reason) == (None, None)
    job = await h.job(job_id)
    assert (job.result, job.result_codec) == (b'{"sum": 3}', "json")


async def test_a_job_acked_without_a_result_completed_with_none(h: Harness) -> None:
    job_id = await h.finish("q")
    result = await h.result(job_id)
    assert (result.state, result.value, result.error) == (State.COMPLETED, None, None)


@pytest.mark.parametrize("codec", ["json", "msgpack", "bytes"])
async def test_a_result_has_a_codec_of_its_own(h: Harness, codec: str) -> None:
    job_id = await h.push("q", b"\x00", codec="bytes")
    value = b"[1]" if codec == "json" else b"\x91\x01"
    await h.ack(await h.lease("q"), results={job_id: value}, codec=codec)  # type: ignore[arg-type]
    result = await h.result(job_id)
    assert (result.value, result.codec) == (value, codec)


@many_jobs
async def test_every_job_of_a_batch_has_its_own_result_or_none(h: Harness) -> None:
    ids = await h.push_alike("q", BLOCK + 300)
    lease = await h.lease("q", 10_000)
    await h.ack(lease, ids[:2_000], results={i: b"%d" % i for i in ids[:2_000:2]})
    await h.ack(lease, results={i: b"%d" % -i for i in ids[2_000::3]})
    jobs = await h.store.get(h.name, ids)
    expected = [b"%d" % i if n % 2 == 0 else None for n, i in enumerate(ids[:2_000])]
    expected += [b"%d" % -i if n % 3 == 0 else None for n, i in enumerate(ids[2_000:])]
    assert [job.result for job in jobs if job] == expected


async def test_a_result_of_more_than_ten_mebibytes_is_refused(h: Harness) -> None:
    job_id = await h.push("q")
    lease = await h.lease("q")
    most = b"x" * (10 * 1024 * 1024)
    with pytest.raises(PayloadTooLarge):
        await h.ack(lease, results={job_id: most + b"x"}, codec="bytes")
    assert await h.state(job_id) == State.ACTIVE
    await h.ack(lease, results={job_id: most}, codec="bytes")
    assert (await h.result(job_id)).value == most


async def test_the_result_of_a_failed_job_is_its_error_and_never_success(h: Harness) -> None:
    job_id = await h.push("q", max_attempts=1)
    await h.fail(await h.lease("q", worker="w1"))
    result = await h.result(job_id)
    assert (result.state, result.value) == (State.DEAD, None)
    assert result.dead_reason == DeadReason.MAX_ATTEMPTS
    assert result.error is not None
    assert (result.error.kind, result.error.message) == (BOOM.kind, BOOM.message)


async def test_the_result_of_a_job_that_failed_often_is_its_last_error(h: Harness) -> None:
    job_id = await h.push("q", max_attempts=2, backoff=AT_ONCE)
    await h.fail(await h.lease("q"))
    await h.lease("q", lease_ms=100)
    await h.advance(100)
    result = await h.result(job_id)
    assert result.error is not None
    assert (result.error.kind, result.error.attempt) == ("lease_expired", 2)


async def test_the_result_of_a_cancelled_or_expired_job_is_no_success(h: Harness) -> None:
    cancelled = await h.push("q")
    expired = await h.push("q", ttl_ms=10)
    await h.cancel(cancelled)
    h.clock.advance(10)
    assert ((await h.result(cancelled)).state, (await h.result(cancelled)).value) == (
        State.CANCELLED,
        None,
    )
    assert (await h.result(expired)).state == State.EXPIRED


async def test_a_job_that_still_runs_has_no_result_yet(h: Harness) -> None:
    job_id = await h.push("q")
    with pytest.raises(Deadline):
        await h.result(job_id)
    await h.lease("q")
    with pytest.raises(Deadline):
        await h.result(job_id)


async def test_an_unknown_job_has_no_result(h: Harness) -> None:
    with pytest.raises(NotFound):
        await h.result(123_456)
    with pytest.raises(NotFound):
        await h.result(123_456, wait_ms=LONG)


async def test_whoever_waits_for_a_result_wakes_at_once(h: Harness) -> None:
    job_id = await h.push("q")
    waiters = [await h.start(h.result(job_id, wait_ms=LONG)) for _ in range(3)]
    lease = await h.lease("q")
    await h.settle()
    assert not any(waiter.done() for waiter in waiters)
    await h.ack(lease, results={job_id: b"42"})
    assert [(await h.told(waiter)).value for waiter in waiters] == [b"42"] * 3


async def test_whoever_waits_for_a_result_learns_of_the_last_failure_only(h: Harness) -> None:
    job_id = await h.push("q", max_attempts=2, backoff=AT_ONCE)
    waiter = await h.start(h.result(job_id, wait_ms=LONG))
    await h.fail(await h.lease("q"))
    await h.settle()
    assert not waiter.done()
    await h.fail(await h.lease("q"))
    result = await h.told(waiter)
    assert (result.state, result.value) == (State.DEAD, None)


async def test_whoever_waits_for_a_result_learns_of_cancel_and_expiry(h: Harness) -> None:
    cancelled = await h.push("q")
    expired = await h.push("q", ttl_ms=500)
    dead = await h.push("urgent", max_attempts=1)
    await h.lease("urgent", lease_ms=400)
    waiters = [await h.start(h.result(i, wait_ms=LONG)) for i in (cancelled, expired, dead)]
    await h.cancel(cancelled)
    assert (await h.told(waiters[0])).state == State.CANCELLED
    await h.advance(400)
    assert (await h.told(waiters[2])).state == State.DEAD
    await h.advance(100)
    assert (await h.told(waiters[1])).state == State.EXPIRED


async def test_a_wait_for_a_result_times_out(h: Harness) -> None:
    waiter = await h.start(h.result(await h.push("q"), wait_ms=1_000))
    await h.advance(999)
    await h.settle()
    assert not waiter.done()
    await h.advance(1)
    with pytest.raises(Deadline):
        await h.told(waiter)


async def test_whoever_waits_gets_the_result_of_a_job_that_is_forgotten_at_once(
    h: Harness,
) -> None:
    job_id = await h.push("q", retain_ms=0)
    waiter = await h.start(h.result(job_id, wait_ms=LONG))
    await h.ack(await h.lease("q"), results={job_id: b"42"})
    assert (await h.told(waiter)).value == b"42"
    with pytest.raises(NotFound):
        await h.result(job_id)


async def test_whoever_waits_gets_the_failure_of_a_job_that_is_forgotten_at_once(
    h: Harness,
) -> None:
    job_id = await h.push("q", retain_dead_ms=0)
    waiter = await h.start(h.result(job_id, wait_ms=LONG))
    await h.fail(await h.lease("q"), dead=True)
    result = await h.told(waiter)
    assert (result.state, result.dead_reason) == (State.DEAD, DeadReason.REJECTED)
    assert await h.get(job_id) is None


async def test_whoever_waits_for_a_job_that_is_purged_learns_that_it_is_gone(h: Harness) -> None:
    waiter = await h.start(h.result(await h.push("q"), wait_ms=LONG))
    await h.store.purge(h.name, "q")
    with pytest.raises(NotFound):
        await h.told(waiter)


# -- retention by age ----------------------------------------------------------------------------


async def test_a_completed_job_and_its_result_are_known_for_an_hour(h: Harness) -> None:
    job_id = await h.push("q")
    h.clock.advance(1_000)
    await h.ack(await h.lease("q"), results={job_id: b"1"})
    h.clock.advance(HOUR_MS - 1)
    assert (await h.result(job_id)).value == b"1"
    h.clock.advance(1)
    assert await h.get(job_id) is None
    with pytest.raises(NotFound):
        await h.result(job_id)


async def test_cancelled_and_expired_jobs_are_known_for_an_hour(h: Harness) -> None:
    cancelled = await h.push("q")
    expired = await h.push("q", ttl_ms=500)
    await h.cancel(cancelled)
    await h.advance(HOUR_MS - 1)
    assert await h.counts("q") == {"cancelled": 1, "expired": 1}
    await h.advance(1)
    assert await h.counts("q") == {"expired": 1}
    await h.advance(499)
    assert await h.state(expired) == State.EXPIRED
    await h.advance(1)
    assert await h.get(expired) is None


async def test_a_dead_job_is_known_for_thirty_days(h: Harness) -> None:
    job_id = await h.push("q")
    await h.fail(await h.lease("q"), dead=True)
    h.clock.advance(30 * DAY_MS - 1)
    assert await h.state(job_id) == State.DEAD
    h.clock.advance(1)
    assert await h.get(job_id) is None
    assert await h.counts("q") == {}


async def test_a_job_may_say_how_long_it_is_kept(h: Harness) -> None:
    short = await h.finish("q", retain_ms=100)
    long = await h.finish("q", retain_ms=3 * HOUR_MS)
    dead = await h.push("q", retain_dead_ms=200, retain_ms=1)
    await h.fail(await h.lease("q"), dead=True)
    h.clock.advance(99)
    assert await h.states([short, long, dead]) == {"completed": 2, "dead": 1}
    h.clock.advance(1)
    assert await h.states([short, long, dead]) == {"forgotten": 1, "completed": 1, "dead": 1}
    h.clock.advance(100)
    assert await h.states([dead]) == {"forgotten": 1}
    h.clock.advance(3 * HOUR_MS - 201)
    assert await h.state(long) == State.COMPLETED
    h.clock.advance(1)
    assert await h.get(long) is None


async def test_to_keep_for_no_time_forgets_at_once(h: Harness) -> None:
    completed = await h.finish("q", retain_ms=0)
    dead = await h.push("q", retain_dead_ms=0)
    await h.fail(await h.lease("q"), dead=True)
    cancelled = await h.push("q", retain_ms=0)
    await h.cancel(cancelled)
    expired = await h.push("q", retain_ms=0, ttl_ms=5)
    h.clock.advance(5)
    assert await h.states([completed, dead, cancelled, expired]) == {"forgotten": 4}
    assert await h.counts("q") == {}


async def test_a_queue_may_say_how_long_its_jobs_are_kept(h: Harness) -> None:
    await h.configure("q", retain_ms=100, retain_dead_ms=200)
    completed = await h.finish("q")
    own = await h.finish("q", retain_ms=300)
    dead = await h.push("q")
    await h.fail(await h.lease("q"), dead=True)
    h.clock.advance(100)
    assert await h.states([completed, own, dead]) == {"forgotten": 1, "completed": 1, "dead": 1}
    h.clock.advance(100)
    assert await h.states([own, dead]) == {"forgotten": 1, "completed": 1}
    h.clock.advance(100)
    assert await h.get(own) is None


async def test_retention_counts_from_the_end_and_not_from_the_push(h: Harness) -> None:
    job_id = await h.push("q", retain_ms=1_000)
    h.clock.advance(5_000)
    lease = await h.lease("q")
    h.clock.advance(5_000)
    await h.ack(lease)
    h.clock.advance(999)
    assert await h.state(job_id) == State.COMPLETED
    h.clock.advance(1)
    assert await h.get(job_id) is None


async def test_retention_follows_the_wall_clock(h: Harness) -> None:
    job_id = await h.finish("q", retain_ms=HOUR_MS)
    await h.jump(-HOUR_MS)
    await h.advance(2 * HOUR_MS - 1)
    assert await h.state(job_id) == State.COMPLETED
    await h.jump(1)
    assert await h.get(job_id) is None


async def test_a_job_that_ended_after_the_clock_went_back_is_kept_no_longer_than_others(
    h: Harness,
) -> None:
    before = await h.finish("q")
    dead_before = await h.push("q")
    await h.fail(await h.lease("q"), dead=True)
    await h.jump(-HOUR_MS)
    behind = await h.finish("q")
    dead_behind = await h.push("q")
    await h.fail(await h.lease("q"), dead=True)
    await h.advance(HOUR_MS - 1)
    assert await h.states([before, behind]) == {"completed": 2}
    await h.advance(1)
    assert (await h.state(before), await h.state(behind)) == (State.COMPLETED, None)
    await h.advance(30 * DAY_MS - HOUR_MS)
    assert (await h.state(dead_before), await h.state(dead_behind)) == (State.DEAD, None)
    await h.advance(HOUR_MS)
    assert await h.get(dead_before) is None


@many_jobs
async def test_what_is_left_of_a_block_is_whole_after_the_rest_is_forgotten(h: Harness) -> None:
    ids = await h.push_alike("q", BLOCK + 900, retain_ms=0)
    lease = await h.lease("q", 10_000)
    kept = ids[::100]
    await h.ack(lease, [job_id for job_id in ids if job_id not in set(kept)])
    assert await h.counts("q") == {"active": len(kept)}
    jobs = await h.store.get(h.name, kept)
    assert [job.payload for job in jobs if job] == [b"%d" % (i - ids[0]) for i in kept]
    await h.restart()
    await h.release(lease)
    again = await h.lease("q", 10_000)
    assert [(job.id, job.payload) for job in again.jobs] == [
        (i, b"%d" % (i - ids[0])) for i in kept
    ]


@many_jobs
async def test_jobs_of_one_batch_are_forgotten_each_by_its_own_retention(h: Harness) -> None:
    retain = (None, 0, 1_000, 2 * HOUR_MS)
    specs = [{"retain_ms": retain[n % 4]} for n in range(BLOCK + 204)]
    ids = (await h.push_many("q", specs)).ids
    await h.ack(await h.lease("q", 10_000))
    quarter = len(ids) // 4
    assert await h.counts("q") == {"completed": 3 * quarter}
    assert await h.states(ids[1::4]) == {"forgotten": quarter}
    h.clock.advance(1_000)
    assert await h.states(ids[2::4]) == {"forgotten": quarter}
    assert await h.counts("q") == {"completed": 2 * quarter}
    h.clock.advance(HOUR_MS - 1_000)
    assert await h.states(ids[0::4]) == {"forgotten": quarter}
    assert await h.counts("q") == {"completed": quarter}
    h.clock.advance(HOUR_MS)
    assert await h.counts("q") == {}


async def test_a_forgotten_job_is_known_to_nobody(h: Harness) -> None:
    job_id = await h.finish("q", retain_ms=0, key="k")
    other = await h.push("q")
    assert await h.get(job_id) is None
    assert [job.id for job in await h.scan("q")] == [other]
    assert list((await h.cancel(job_id)).lost) == [job_id]
    assert await h.store.by_key(h.name, "q", "k") is None
    for call in (h.store.explain, h.store.logs):
        with pytest.raises(NotFound):
            await call(h.name, job_id)


async def test_a_dependency_forgotten_on_completion_does_not_strand_its_dependants(
    h: Harness,
) -> None:
    parent = await h.push("parents", retain_ms=0)
    child = await h.push("q", depends_on=(parent,))
    await h.ack(await h.lease("parents"), results={parent: b'"for my child"'})
    assert await h.claimed("q") == [child]


async def test_the_result_of_a_dependency_stays_until_its_dependants_ended(h: Harness) -> None:
    parent = await h.push("parents", retain_ms=0)
    children = (await h.push_many("q", [{"depends_on": (parent,)}] * 2)).ids
    await h.ack(await h.lease("parents"), results={parent: b'"for my children"'})
    lease = await h.lease("q", 2)
    assert (await h.result(parent)).value == b'"for my children"'
    await h.ack(lease, children[:1])
    await h.advance(5)
    assert (await h.result(parent)).value == b'"for my children"'
    await h.ack(lease)
    assert await h.get(parent) is None


# -- retention by count --------------------------------------------------------------------------


@many_jobs
async def test_ten_thousand_ended_jobs_are_known_and_the_oldest_end_goes_first(h: Harness) -> None:
    first, second = await h.push_alike("q", 9_000), await h.push_alike("q", 2_000)
    one, two = await h.lease("q", 9_000), await h.lease("q", 2_000)
    await h.ack(two)
    h.clock.advance(1)
    await h.ack(one, first[4_000:])
    h.clock.advance(1)
    assert await h.counts("q") == {"active": 4_000, "completed": 7_000}
    await h.ack(one, first[:3_500])
    assert await h.counts("q") == {"active": 500, "completed": 10_000}
    assert await h.states(first) == {"completed": 8_500, "active": 500}
    assert await h.states(second) == {"completed": 1_500, "forgotten": 500}


@pytest.mark.parametrize("how", ["ack", "cancel"])
async def test_of_jobs_that_one_call_ends_the_lowest_ids_are_forgotten_first(
    h: Harness, how: str
) -> None:
    await h.configure("q", retain_count=2)
    ids = await h.push_alike("q", 4)
    lease = await h.lease("q", 4)
    named = [ids[3], ids[0], ids[2], ids[1]]
    answer = await (h.ack(lease, named) if how == "ack" else h.cancel(*named))
    assert list(answer.acked) == named
    assert [job.id for job in await h.scan("q")] == ids[2:]
    (last,) = await h.push_alike("q", 1)
    await h.cancel(last)
    assert [job.id for job in await h.scan("q")] == [ids[3], last]


async def test_completed_cancelled_and_expired_jobs_are_counted_together(h: Harness) -> None:
    await h.configure("q", retain_count=3)
    completed = await h.finish("q")
    h.clock.advance(1)
    cancelled = await h.push("q")
    await h.cancel(cancelled)
    h.clock.advance(1)
    expired = await h.push("q", ttl_ms=5)
    await h.advance(5)
    assert await h.states([completed, cancelled, expired]) == {
        "completed": 1,
        "cancelled": 1,
        "expired": 1,
    }
    newer = await h.finish("q")
    assert await h.states([completed, newer]) == {"forgotten": 1, "completed": 1}
    h.clock.advance(1)
    await h.finish("q")
    assert await h.states([cancelled, expired]) == {"forgotten": 1, "expired": 1}


async def test_dead_jobs_and_jobs_with_a_retention_of_their_own_are_not_counted(
    h: Harness,
) -> None:
    await h.configure("q", retain_count=2)
    own = [await h.finish("q", retain_ms=HOUR_MS) for _ in range(4)]
    dead = await h.push_alike("q", 4)
    await h.fail(await h.lease("q", 4), dead=True)
    counted = []
    for _ in range(4):
        h.clock.advance(1)
        counted.append(await h.finish("q"))
    assert await h.states(own) == {"completed": 4}
    assert await h.states(dead) == {"dead": 4}
    assert await h.states(counted[:2]) == {"forgotten": 2}
    assert await h.states(counted[2:]) == {"completed": 2}


@many_jobs
async def test_jobs_in_the_middle_of_a_batch_leave_by_count_in_the_order_of_their_ends(
    h: Harness,
) -> None:
    await h.configure("q", retain_count=1_000)
    ids = await h.push_alike("q", BLOCK + 1_000)
    lease = await h.lease("q", 10_000)
    for part in (ids[4_000:4_600], ids[100:500], ids[2_000:2_300], ids[4_800:4_900]):
        await h.ack(lease, part)
        h.clock.advance(1)
    assert await h.states(ids[4_000:4_600]) == {"forgotten": 400, "completed": 200}
    for part in (ids[100:500], ids[2_000:2_300], ids[4_800:4_900]):
        assert await h.states(part) == {"completed": len(part)}
    assert await h.counts("q") == {"active": len(ids) - 1_400, "completed": 1_000}
    assert len((await h.ack(lease)).acked) == len(ids) - 1_400
    assert await h.counts("q") == {"completed": 1_000}


async def test_a_count_of_none_keeps_none(h: Harness) -> None:
    await h.configure("q", retain_count=0)
    job_id = await h.finish("q")
    assert await h.get(job_id) is None


async def test_each_queue_counts_its_own(h: Harness) -> None:
    await h.configure("a", retain_count=1)
    in_a = [await h.finish("a") for _ in range(3)]
    in_b = [await h.finish("b") for _ in range(3)]
    assert await h.states(in_a) == {"forgotten": 2, "completed": 1}
    assert await h.states(in_b) == {"completed": 3}


# -- queues --------------------------------------------------------------------------------------


async def test_an_empty_queue_without_config_is_forgotten(h: Harness) -> None:
    await h.finish("q")
    assert [info.queue for info in await h.store.queues(h.name)] == ["q"]
    h.clock.advance(HOUR_MS)
    assert await h.store.queues(h.name) == []


async def test_an_empty_queue_with_config_is_kept(h: Harness) -> None:
    await h.configure("q", paused=True)
    assert [info.queue for info in await h.store.queues(h.name)] == ["q"]
    await h.configure("q")
    assert await h.store.queues(h.name) == []


async def test_retention_and_results_survive_a_restart(h: Harness) -> None:
    ids = await h.push_alike("q", 6)
    lease = await h.lease("q", 6)
    await h.ack(lease, ids[:3], results={ids[1]: b"1"})
    h.clock.advance(1_000)
    await h.ack(lease, results={ids[4]: b"4"})
    await h.restart()
    assert [(await h.job(i)).result for i in ids] == [None, b"1", None, None, b"4", None]
    await h.configure("q", retain_count=5)
    await h.advance(HOUR_MS - 1_000)
    assert await h.states(ids) == {"forgotten": 3, "completed": 3}
    await h.advance(1_000)
    assert await h.states(ids) == {"forgotten": 6}
