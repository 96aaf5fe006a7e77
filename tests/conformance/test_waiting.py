"""Waiting claims: told when there is work, served in the order in which they came."""

import asyncio

import pytest

from penstock.model.errors import Unavailable
from penstock.model.lifecycle import State
from tests.conformance.harness import AT_ONCE, Harness, after

LONG = 3_600_000


async def test_a_waiting_claim_is_told_of_a_push(h: Harness) -> None:
    waiter = await h.start(h.claimed("q", wait_ms=LONG))
    assert not waiter.done()
    job_id = await h.push("q")
    assert await h.told(waiter) == [job_id]


async def test_a_claim_that_finds_work_does_not_wait(h: Harness) -> None:
    job_id = await h.push("q")
    assert await h.claimed("q", wait_ms=LONG) == [job_id]


async def test_a_claim_waits_no_longer_than_it_said(h: Harness) -> None:
    waiter = await h.start(h.claim("q", wait_ms=1_000))
    await h.advance(999)
    await h.settle()
    assert not waiter.done()
    await h.advance(1)
    assert await h.told(waiter) is None
    job_id = await h.push("q")
    assert await h.state(job_id) == State.READY


async def test_a_jump_of_the_wall_clock_does_not_end_the_wait(h: Harness) -> None:
    waiter = await h.start(h.claimed("q", wait_ms=1_000))
    await h.jump(3_600_000)
    await h.settle()
    assert not waiter.done()
    job_id = await h.push("q")
    assert await h.told(waiter) == [job_id]


async def test_idle_claimers_are_served_in_the_order_they_came(h: Harness) -> None:
    waiters = [await h.start(h.claimed("q", wait_ms=LONG)) for _ in range(5)]
    for waiter in waiters:
        h.clock.advance(1)
        job_id = await h.push("q")
        assert await h.told(waiter) == [job_id]


async def test_newcomers_do_not_overtake_the_waiting(h: Harness) -> None:
    waiter = await h.start(h.claimed("q", wait_ms=LONG))
    job_id = await h.push("q")
    assert await h.claim("q") is None
    assert await h.told(waiter) == [job_id]


async def test_one_push_serves_as_many_waiting_claims_as_it_has_work_for(h: Harness) -> None:
    sizes = (2, 1, 5, 3)
    waiters = [await h.start(h.claimed("q", n, wait_ms=LONG)) for n in sizes]
    ids = await h.push_alike("q", 6)
    assert await h.told(waiters[0]) == ids[:2]
    assert await h.told(waiters[1]) == ids[2:3]
    assert await h.told(waiters[2]) == ids[3:]
    assert not waiters[3].done()
    last = await h.push("q")
    assert await h.told(waiters[3]) == [last]


async def test_a_hundred_waiting_claims_share_one_batch(h: Harness) -> None:
    waiters = [await h.start(h.claimed("q", wait_ms=LONG)) for _ in range(100)]
    ids = await h.push_alike("q", 100)
    assert [await h.told(waiter) for waiter in waiters] == [[job_id] for job_id in ids]


async def test_a_waiting_claim_takes_the_first_job_and_waits_for_no_more(h: Harness) -> None:
    waiter = await h.start(h.claimed("q", 10, wait_ms=LONG))
    job_id = await h.push("q")
    assert await h.told(waiter) == [job_id]
    assert await h.counts("q") == {"active": 1}


async def test_a_waiting_claim_over_several_queues_takes_what_comes_first(h: Harness) -> None:
    waiter = await h.start(h.claimed(["a", "b", "c"], wait_ms=LONG))
    in_b = await h.push("b")
    assert await h.told(waiter) == [in_b]
    in_a = await h.push("a")
    assert await h.state(in_a) == State.READY


async def test_a_waiting_claim_is_passed_over_for_work_that_it_does_not_want(h: Harness) -> None:
    only_a = await h.start(h.claimed("a", wait_ms=LONG))
    both = await h.start(h.claimed(["a", "b"], wait_ms=LONG))
    in_b = await h.push("b")
    assert await h.told(both) == [in_b]
    in_a = await h.push("a")
    assert await h.told(only_a) == [in_a]


async def test_a_waiting_claim_is_served_when_a_delay_ends(h: Harness) -> None:
    job_id = await h.push("q", delay_ms=100)
    waiter = await h.start(h.claimed("q", wait_ms=LONG))
    await h.advance(99)
    await h.settle()
    assert not waiter.done()
    await h.advance(1)
    assert await h.told(waiter) == [job_id]


async def test_a_waiting_claim_is_served_when_a_job_is_released(h: Harness) -> None:
    job_id = await h.push("q")
    lease = await h.lease("q")
    waiter = await h.start(h.claimed("q", wait_ms=LONG))
    await h.release(lease)
    assert await h.told(waiter) == [job_id]


async def test_a_waiting_claim_is_served_when_a_job_fails_and_may_retry_at_once(
    h: Harness,
) -> None:
    job_id = await h.push("q", backoff=AT_ONCE)
    lease = await h.lease("q")
    waiter = await h.start(h.claimed("q", wait_ms=LONG))
    await h.fail(lease)
    assert await h.told(waiter) == [job_id]


async def test_a_waiting_claim_is_served_when_a_backoff_ends(h: Harness) -> None:
    job_id = await h.push("q", backoff=after(500))
    lease = await h.lease("q")
    waiter = await h.start(h.claimed("q", wait_ms=LONG))
    await h.fail(lease)
    await h.advance(499)
    await h.settle()
    assert not waiter.done()
    await h.advance(1)
    assert await h.told(waiter) == [job_id]


async def test_a_waiting_claim_is_served_when_a_lease_expires(h: Harness) -> None:
    job_id = await h.push("q", backoff=AT_ONCE)
    await h.lease("q", lease_ms=1_000)
    waiter = await h.start(h.claimed("q", wait_ms=LONG))
    await h.advance(1_000)
    assert await h.told(waiter) == [job_id]


async def test_a_waiting_claim_is_served_when_another_call_finds_a_lease_expired(
    h: Harness,
) -> None:
    job_id = await h.push("q", backoff=AT_ONCE)
    await h.lease("q", lease_ms=1_000)
    waiter = await h.start(h.claimed("q", wait_ms=LONG))
    h.clock.advance(1_000)
    assert await h.claim("q") is None
    assert await h.told(waiter) == [job_id]


async def test_a_waiting_claim_is_served_when_its_queue_is_resumed(h: Harness) -> None:
    await h.configure("q", paused=True)
    job_id = await h.push("q")
    waiter = await h.start(h.claimed("q", wait_ms=LONG))
    assert not waiter.done()
    await h.configure("q", paused=False)
    assert await h.told(waiter) == [job_id]


async def test_a_waiting_claim_is_served_when_a_job_is_promoted(h: Harness) -> None:
    job_id = await h.push("q", delay_ms=LONG)
    waiter = await h.start(h.claimed("q", wait_ms=LONG))
    await h.store.edit(h.name, job_id, delay_ms=0)
    assert await h.told(waiter) == [job_id]


async def test_a_waiting_claim_is_served_when_a_dependency_completes(h: Harness) -> None:
    parent = await h.push("parents")
    child = await h.push("q", depends_on=(parent,))
    lease = await h.lease("parents")
    waiter = await h.start(h.claimed("q", wait_ms=LONG))
    await h.ack(lease)
    assert await h.told(waiter) == [child]


async def test_a_waiting_claim_is_served_when_a_bulk_is_committed(h: Harness) -> None:
    await h.store.open_bulk(h.name, "b")
    (job_id,) = (await h.push_many("q", [{}], bulk="b")).ids
    waiter = await h.start(h.claimed("q", wait_ms=LONG))
    assert not waiter.done()
    await h.store.commit_bulk(h.name, "b")
    assert await h.told(waiter) == [job_id]


async def test_a_waiting_claim_is_served_when_a_dead_job_is_redriven(h: Harness) -> None:
    job_id = await h.push("q")
    await h.fail(await h.lease("q"), dead=True)
    waiter = await h.start(h.claimed("q", wait_ms=LONG))
    await h.store.redrive(h.name, "q")
    assert await h.told(waiter) == [job_id]


async def test_a_claim_is_served_by_what_came_due_before_its_wait_is_seen_to_be_over(
    h: Harness,
) -> None:
    due = await h.push("q", delay_ms=100)
    first = await h.start(h.claimed("q", wait_ms=150))
    second = await h.start(h.claimed("q", wait_ms=150))
    await h.advance(1_000)  # nobody looked in between
    assert await h.told(first) == [due]
    assert await h.told(second) == []


async def test_a_lease_begins_when_the_job_is_handed_over(h: Harness) -> None:
    waiter = await h.start(h.lease("q", wait_ms=LONG, lease_ms=1_000))
    await h.advance(700)
    job_id = await h.push("q")
    lease = await h.told(waiter)
    assert lease.expires_at == h.now + 1_000
    h.clock.advance(999)
    assert await h.state(job_id) == State.ACTIVE


async def test_a_claim_that_was_given_up_takes_nothing(h: Harness) -> None:
    gone = await h.start(h.claimed("q", wait_ms=LONG))
    next_in_line = await h.start(h.claimed("q", wait_ms=LONG))
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    job_id = await h.push("q")
    assert await h.told(next_in_line) == [job_id]


async def test_a_job_handed_to_a_caller_that_is_gone_is_released(h: Harness) -> None:
    for turns in range(12):
        waiter = await h.start(h.lease("q", wait_ms=LONG))
        push = asyncio.ensure_future(h.push("q"))
        for _ in range(turns):
            await asyncio.sleep(0)
        waiter.cancel()
        (lease,) = await asyncio.gather(waiter, return_exceptions=True)
        job_id = await push
        await h.settle()
        if isinstance(lease, BaseException):
            assert isinstance(lease, asyncio.CancelledError)
            job = await h.job(job_id)
            assert (job.state, job.attempt) == (State.READY, 0)
            lease = await h.lease("q")
        assert lease.ids == [job_id]
        assert lease.jobs[0].attempt == 1
        await h.ack(lease)


async def test_a_job_released_by_a_caller_that_is_gone_goes_to_the_next_in_line(
    h: Harness,
) -> None:
    for turns in range(12):
        gone = await h.start(h.lease("q", wait_ms=LONG))
        behind = await h.start(h.lease("q", wait_ms=LONG))
        push = asyncio.ensure_future(h.push("q"))
        for _ in range(turns):
            await asyncio.sleep(0)
        gone.cancel()
        (first,) = await asyncio.gather(gone, return_exceptions=True)
        job_id = await push
        if not isinstance(first, BaseException):
            await h.release(first)
        lease = await h.told(behind)
        assert (lease.ids, lease.jobs[0].attempt) == ([job_id], 1)
        await h.ack(lease)


async def test_closing_the_store_answers_the_waiting(h: Harness) -> None:
    claim = await h.start(h.claim("q", wait_ms=LONG))
    result = await h.start(h.result(await h.push("other"), wait_ms=LONG))
    await h.close()
    for waiter in (claim, result):
        with pytest.raises(Unavailable):
            await h.told(waiter)
    await h.open()


async def test_a_due_job_is_seen_within_ten_milliseconds(live: Harness) -> None:
    late = []
    for _ in range(10):
        run_at = live.now + 20
        job_id = await live.push("q", run_at=run_at)
        assert await live.claimed("q", wait_ms=10_000) == [job_id]
        late.append(live.now - run_at)
    assert min(late) >= 0, "never early"
    assert sorted(late)[2] <= 10, "a busy machine may hold some of them up, not nearly all"


async def test_a_wait_ends_by_itself(live: Harness) -> None:
    begin = live.now
    assert await live.claim("q", wait_ms=30) is None
    assert live.now - begin >= 29
