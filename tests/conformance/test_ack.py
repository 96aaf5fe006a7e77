"""Ack: completes exactly what its lease still holds, once."""

import asyncio

import pytest

from penstock.model.answers import Acked
from penstock.model.errors import Invalid, LeaseLost
from penstock.model.lifecycle import State
from tests.conformance.harness import AT_ONCE, BLOCK, Harness, after, many_jobs


async def test_an_acked_job_is_completed(h: Harness) -> None:
    job_id = await h.push("q")
    lease = await h.lease("q", worker="w1")
    h.clock.advance(70)
    answer = await h.ack(lease)
    assert (list(answer.acked), list(answer.lost)) == ([job_id], [])
    job = await h.job(job_id)
    assert (job.state, job.finished_at, job.started_at) == (State.COMPLETED, h.now, h.now - 70)
    assert (job.attempt, job.worker, job.lease_expires_at) == (1, "w1", None)


@many_jobs
async def test_an_ack_without_ids_completes_everything_still_held(h: Harness) -> None:
    ids = await h.push_alike("q", BLOCK + 1_000)
    lease = await h.lease("q", 10_000)
    assert sorted((await h.ack(lease)).acked) == ids
    assert await h.counts("q") == {"completed": len(ids)}


async def test_a_partial_ack_leaves_the_rest_leased(h: Harness) -> None:
    ids = await h.push_alike("q", 5)
    lease = await h.lease("q", 5)
    assert sorted((await h.ack(lease, [ids[1], ids[3]])).acked) == [ids[1], ids[3]]
    assert await h.counts("q") == {"active": 3, "completed": 2}
    assert sorted((await h.ack(lease)).acked) == [ids[0], ids[2], ids[4]]
    assert await h.counts("q") == {"completed": 5}


@pytest.mark.parametrize("first", [0, 1])
async def test_an_ack_after_a_partial_one_completes_the_job_that_is_left(
    h: Harness, first: int
) -> None:
    """Jobs of two priorities, so that they do not lie side by side in the lease either."""
    low, _, high = await h.push("q"), await h.push("q"), await h.push("q", priority=1)
    lease = await h.lease("q", 2)
    assert lease.ids == [high, low]
    rest = [low, high][first]
    assert list((await h.ack(lease, [lease.ids[first]])).acked) == [lease.ids[first]]
    assert list((await h.ack(lease)).acked) == [rest]
    assert await h.counts("q") == {"ready": 1, "completed": 2}


@many_jobs
async def test_one_job_of_each_of_two_blocks_may_be_acked_by_itself(h: Harness) -> None:
    ids = await h.push_alike("q", BLOCK + 1)
    await h.ack(await h.lease("q", BLOCK - 1))
    lease = await h.lease("q", 2)
    assert list((await h.ack(lease, ids[-2:-1])).acked) == ids[-2:-1]
    assert list((await h.ack(lease)).acked) == ids[-1:]


@many_jobs
async def test_every_second_job_of_several_blocks_may_be_acked_by_itself(h: Harness) -> None:
    ids = await h.push_alike("q", BLOCK + 1_000)
    lease = await h.lease("q", 10_000)
    assert sorted((await h.ack(lease, ids[::2])).acked) == ids[::2]
    assert await h.states(ids[::2]) == {"completed": len(ids[::2])}
    assert await h.states(ids[1::2]) == {"active": len(ids[1::2])}
    assert sorted((await h.ack(lease)).acked) == ids[1::2]


async def test_jobs_may_be_acked_one_by_one_in_any_order(h: Harness) -> None:
    ids = await h.push_alike("q", 60)
    lease = await h.lease("q", 60)
    for step, job_id in enumerate(ids[30:] + ids[:30][::-1]):
        h.clock.advance(1)
        assert list((await h.ack(lease, [job_id])).acked) == [job_id]
        assert (await h.counts("q")).get("active", 0) == 59 - step
    with pytest.raises(LeaseLost):
        await h.ack(lease)


@many_jobs
async def test_ids_may_be_named_in_any_order(h: Harness) -> None:
    ids = await h.push_alike("q", 5_000)
    lease = await h.lease("q", 5_000)
    named = ids[4_500:] + ids[10:5:-1] + ids[:3]
    answer = await h.ack(lease, iter(named))
    assert sorted(answer.acked) == sorted(named)
    assert not list(answer.lost)
    assert await h.counts("q") == {"active": 5_000 - len(named), "completed": len(named)}


async def test_ids_named_twice_count_once(h: Harness) -> None:
    ids = await h.push_alike("q", 3)
    lease = await h.lease("q", 3)
    answer = await h.ack(lease, [ids[0], ids[2], ids[0], ids[0], ids[2]])
    assert sorted(answer.acked) == [ids[0], ids[2]]
    assert list(answer.lost) == []
    assert await h.counts("q") == {"active": 1, "completed": 2}


async def test_named_ids_that_are_not_held_are_lost_in_the_order_named(h: Harness) -> None:
    ids = await h.push_alike("q", 6)
    lease = await h.lease("q", 3)
    answer = await h.ack(lease, [ids[5], ids[1], ids[3], ids[5], ids[4]])
    assert list(answer.acked) == [ids[1]]
    assert list(answer.lost) == [ids[5], ids[3], ids[4]]
    assert await h.counts("q") == {"active": 2, "ready": 3, "completed": 1}


async def test_ids_that_do_not_exist_are_lost(h: Harness) -> None:
    job_id = await h.push("q")
    lease = await h.lease("q")
    answer = await h.ack(lease, [job_id + 1_000_000, job_id])
    assert (list(answer.acked), list(answer.lost)) == ([job_id], [job_id + 1_000_000])


async def test_an_ack_of_nothing_held_changes_nothing(h: Harness) -> None:
    ids = await h.push_alike("q", 4)
    lease = await h.lease("q", 2)
    with pytest.raises(LeaseLost):
        await h.ack(lease, ids[2:])
    assert await h.counts("q") == {"active": 2, "ready": 2}
    assert sorted((await h.ack(lease)).acked) == ids[:2]


async def test_an_ack_that_names_no_job_is_refused(h: Harness) -> None:
    await h.push("q")
    lease = await h.lease("q")
    with pytest.raises(Invalid):
        await h.ack(lease, [])
    assert await h.counts("q") == {"active": 1}


async def test_the_second_ack_is_refused(h: Harness) -> None:
    job_id = await h.push("q")
    lease = await h.lease("q")
    await h.ack(lease, results={job_id: b'"first"'})
    h.clock.advance(5)
    for ids in (None, [job_id]):
        with pytest.raises(LeaseLost):
            await h.ack(lease, ids)
    job = await h.job(job_id)
    assert (job.state, job.result, job.finished_at) == (State.COMPLETED, b'"first"', h.now - 5)


async def test_of_two_acks_at_once_exactly_one_succeeds(h: Harness) -> None:
    ids = await h.push_alike("q", 10)
    lease = await h.lease("q", 10)
    calls = [h.ack(lease), h.ack(lease, ids), h.ack(lease)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert sorted(isinstance(answer, LeaseLost) for answer in answers) == [False, True, True]
    assert await h.counts("q") == {"completed": 10}


async def test_of_an_ack_and_a_failure_at_once_exactly_one_succeeds(h: Harness) -> None:
    for order in (0, 1):
        job_id = await h.push("q", backoff=after(60_000))
        lease = await h.lease("q")
        calls = [h.ack(lease), h.fail(lease)]
        answers = await asyncio.gather(*calls[:: 1 - 2 * order], return_exceptions=True)
        assert sum(isinstance(answer, LeaseLost) for answer in answers) == 1
        job = await h.job(job_id)
        won = next(answer for answer in answers if not isinstance(answer, BaseException))
        assert job.state == (State.COMPLETED if isinstance(won, Acked) else State.SCHEDULED)
        assert len(job.errors) == (0 if isinstance(won, Acked) else 1)


async def test_the_second_ack_of_part_of_a_lease_answers_lost(h: Harness) -> None:
    ids = await h.push_alike("q", 5)
    lease = await h.lease("q", 5)
    await h.ack(lease, ids[:2])
    answer = await h.ack(lease, ids[:3])
    assert (list(answer.acked), list(answer.lost)) == ([ids[2]], ids[:2])
    with pytest.raises(LeaseLost):
        await h.ack(lease, ids[:3])


async def test_an_unknown_lease_acks_nothing(h: Harness) -> None:
    job_id = await h.push("q")
    lease = await h.lease("q")
    for token in ("no-such-lease", lease.token[:-1], lease.token + "0", lease.token[::-1] + "x"):
        with pytest.raises(LeaseLost):
            await h.ack(token)
        with pytest.raises(LeaseLost):
            await h.ack(token, [job_id])
    assert await h.state(job_id) == State.ACTIVE


async def test_a_lease_does_not_ack_what_another_holds(h: Harness) -> None:
    ids = await h.push_alike("q", 4)
    one, two = await h.lease("q", 2), await h.lease("q", 2)
    with pytest.raises(LeaseLost):
        await h.ack(one, two.ids)
    answer = await h.ack(one, ids)
    assert (sorted(answer.acked), list(answer.lost)) == (ids[:2], ids[2:])
    assert await h.states(ids[2:]) == {"active": 2}


async def test_a_lease_does_not_ack_what_another_holds_in_another_queue(h: Harness) -> None:
    (a,), (b,) = await h.push_alike("a", 1), await h.push_alike("b", 1)
    in_a, in_b = await h.lease("a"), await h.lease("b")
    answer = await h.ack(in_a, [b, a])
    assert (list(answer.acked), list(answer.lost)) == ([a], [b])
    assert list((await h.ack(in_b)).acked) == [b]


async def test_an_expired_lease_is_refused_before_any_sweep(h: Harness) -> None:
    ids = await h.push_alike("q", 3, backoff=after(60_000))
    lease = await h.lease("q", 3, lease_ms=1_000)
    h.clock.advance(1_000)
    with pytest.raises(LeaseLost):
        await h.ack(lease)
    assert await h.states(ids) == {"scheduled": 3}


async def test_an_ack_in_the_last_instant_wins_over_the_expiry(h: Harness) -> None:
    job_id = await h.push("q", backoff=AT_ONCE)
    lease = await h.lease("q", lease_ms=1_000)
    h.clock.advance(999)
    await h.ack(lease)
    await h.advance(1)
    await h.advance(60_000)
    job = await h.job(job_id)
    assert (job.state, job.errors, job.attempt) == (State.COMPLETED, (), 1)
    assert await h.claim("q") is None


async def test_an_expiry_wins_over_an_ack_that_comes_in_its_instant(h: Harness) -> None:
    job_id = await h.push("q", backoff=AT_ONCE)
    lease = await h.lease("q", lease_ms=1_000)
    h.clock.advance(1_000)
    with pytest.raises(LeaseLost):
        await h.ack(lease, [job_id])
    job = await h.job(job_id)
    assert (job.state, [error.kind for error in job.errors]) == (State.READY, ["lease_expired"])
    assert await h.claimed("q") == [job_id]


@many_jobs
async def test_a_partial_ack_in_the_middle_then_expiry_retries_the_rest_only(h: Harness) -> None:
    ids = await h.push_alike("q", BLOCK + 904, backoff=after(500))
    lease = await h.lease("q", 10_000, lease_ms=1_000)
    h.clock.advance(10)
    done = ids[1_000:4_500:3] + ids[4_600:4_700]
    await h.ack(lease, done)
    await h.advance(990)
    rest = sorted(set(ids) - set(done))
    assert await h.states(done) == {"completed": len(done)}
    assert await h.states(rest) == {"scheduled": len(rest)}
    assert await h.counts("q") == {"completed": len(done), "scheduled": len(rest)}
    for job_id in (ids[0], ids[1_001], ids[4_599], ids[-1]):
        assert [error.kind for error in (await h.job(job_id)).errors] == ["lease_expired"]
    assert (await h.job(ids[1_000])).errors == ()
    await h.advance(500)
    assert await h.claimed("q", 10_000) == rest


async def test_a_job_active_under_another_lease_is_not_taken_by_the_first_ack(h: Harness) -> None:
    ids = await h.push_alike("q", 10, backoff=AT_ONCE)
    first = await h.lease("q", 10)
    await h.fail(first, ids[2:4])
    await h.release(first, ids[7:8])
    second = await h.lease("q", 10)
    assert sorted(second.ids) == [ids[2], ids[3], ids[7]]
    answer = await h.ack(first, [ids[1], ids[2], ids[7]])
    assert (list(answer.acked), list(answer.lost)) == ([ids[1]], [ids[2], ids[7]])
    assert sorted((await h.ack(first)).acked) == [ids[0], *ids[4:7], *ids[8:]]
    assert await h.states(second.ids) == {"active": 3}
    assert sorted((await h.ack(second)).acked) == sorted(second.ids)


async def test_a_job_that_comes_back_to_its_own_worker_belongs_to_the_new_lease(
    h: Harness,
) -> None:
    ids = await h.push_alike("q", 3)
    first = await h.lease("q", 3, worker="w1")
    await h.release(first, ids[1:2])
    second = await h.lease("q", 3, worker="w1")
    assert second.ids == ids[1:2]
    with pytest.raises(LeaseLost):
        await h.ack(first, ids[1:2])
    await h.ack(second)
    assert await h.counts("q") == {"active": 2, "completed": 1}


@many_jobs
async def test_what_was_cancelled_inside_a_lease_is_not_acked(h: Harness) -> None:
    ids = await h.push_alike("q", BLOCK + 100)
    lease = await h.lease("q", 10_000)
    gone = [ids[0], *ids[2_000:2_010], ids[BLOCK], ids[-1]]
    await h.cancel(*gone)
    answer = await h.ack(lease, [ids[2_005], ids[1_999], ids[0]])
    assert (list(answer.acked), list(answer.lost)) == ([ids[1_999]], [ids[2_005], ids[0]])
    assert sorted((await h.ack(lease)).acked) == sorted(set(ids) - set(gone) - {ids[1_999]})
    assert await h.states(gone) == {"cancelled": len(gone)}


async def test_a_result_for_a_held_job_that_the_call_does_not_name_is_refused(h: Harness) -> None:
    ids = await h.push_alike("q", 3)
    lease = await h.lease("q", 3)
    with pytest.raises(Invalid):
        await h.ack(lease, ids[:1], results={ids[0]: b"0", ids[1]: b"1"})
    assert await h.counts("q") == {"active": 3}
    assert (await h.job(ids[0])).result is None


@pytest.mark.parametrize("named", [True, False], ids=["named", "not named"])
async def test_a_result_for_a_job_no_longer_held_is_lost_with_it(h: Harness, named: bool) -> None:
    gone, kept, other = await h.push_alike("q", 3)
    lease = await h.lease("q", 2)
    await h.cancel(gone)
    results = {gone: b"1", kept: b"2", other: b"3"}
    answer = await h.ack(lease, [kept, other, gone] if named else None, results=results)
    assert list(answer.acked) == [kept]
    assert sorted(answer.lost) == [gone, other]
    assert (await h.result(kept)).value == b"2"
    assert (await h.job(gone)).result is None
    assert await h.counts("q") == {"cancelled": 1, "completed": 1, "ready": 1}


async def test_results_for_lost_jobs_alone_ack_what_the_call_means(h: Harness) -> None:
    gone, kept = await h.push_alike("q", 2)
    lease = await h.lease("q", 2)
    await h.cancel(gone)
    with pytest.raises(LeaseLost):
        await h.ack(lease, [gone], results={gone: b"1"})
    answer = await h.ack(lease, results={gone: b"1"})
    assert (list(answer.acked), list(answer.lost)) == ([kept], [gone])


@many_jobs
async def test_two_leases_of_two_queues_are_acked_each_for_itself(h: Harness) -> None:
    in_a, in_b = await h.push_alike("a", 3_000), await h.push_alike("b", 3_000)
    a, b = await h.lease("a", 3_000), await h.lease("b", 3_000)
    await h.ack(b, in_b[:1_000])
    await h.ack(a, in_a[1_000:])
    assert await h.counts("a") == {"active": 1_000, "completed": 2_000}
    assert await h.counts("b") == {"active": 2_000, "completed": 1_000}


async def test_a_lease_with_nothing_left_is_gone(h: Harness) -> None:
    ids = await h.push_alike("q", 3)
    lease = await h.lease("q", 3)
    await h.ack(lease, ids[:1])
    await h.fail(lease, ids[1:2])
    await h.release(lease, ids[2:])
    for call in (h.ack, h.release, h.fail, h.extend):
        with pytest.raises(LeaseLost):
            await call(lease)


@many_jobs
async def test_a_lease_of_many_blocks_survives_hundreds_of_small_acks(h: Harness) -> None:
    ids = await h.push_alike("q", 9_000)
    lease = await h.lease("q", 9_000)
    for begin in range(0, 9_000, 45):
        await h.ack(lease, ids[begin : begin + 30])
    left = [job_id for index, job_id in enumerate(ids) if index % 45 >= 30]
    assert await h.counts("q") == {"active": 3_000, "completed": 6_000}
    assert await h.states(left) == {"active": 3_000}
    assert sorted((await h.ack(lease)).acked) == left


@many_jobs
async def test_jobs_of_several_pushes_and_priorities_are_acked_under_one_lease(
    h: Harness,
) -> None:
    specs = [{"priority": index % 3} for index in range(600)]
    ids = (await h.push_many("q", specs)).ids
    h.clock.advance(1)
    ids.append(await h.push("q", priority=9))
    await h.push_alike("between", 5_000)
    ids += await h.push_alike("q", 4_000)
    lease = await h.lease("q", 10_000)
    assert sorted((await h.ack(lease, ids[100:650])).acked) == ids[100:650]
    assert sorted((await h.ack(lease)).acked) == ids[:100] + ids[650:]
