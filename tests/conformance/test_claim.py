"""Claim: one lease with up to n jobs of one queue, each counted, none held twice."""

import asyncio
from itertools import pairwise

import pytest

from penstock.model.errors import BatchTooLarge, Invalid, LeaseLost
from penstock.model.job import JobSpec
from penstock.model.lifecycle import DeadReason, State
from tests.conformance.harness import AT_ONCE, BLOCK, Harness, after, many_jobs


async def test_a_claim_of_an_empty_or_unknown_queue_gives_nothing(h: Harness) -> None:
    assert await h.claim("never-heard-of") is None
    await h.finish("q")
    assert await h.claim("q", 10) is None


async def test_a_claim_takes_at_most_n(h: Harness) -> None:
    ids = await h.push_alike("q", 5)
    lease = await h.lease("q", 3)
    assert (lease.queue, lease.ids, len(lease)) == ("q", ids[:3], 3)


async def test_a_claim_takes_what_there_is(h: Harness) -> None:
    ids = await h.push_alike("q", 5)
    assert await h.claimed("q", 100) == ids


async def test_a_claim_of_nothing_said_takes_one(h: Harness) -> None:
    ids = await h.push_alike("q", 5)
    lease = await h.store.claim(h.name, ["q"])
    assert lease is not None
    assert lease.ids == ids[:1]


async def test_a_claimed_job_is_active_under_its_worker(h: Harness) -> None:
    job_id = await h.push("q")
    h.clock.advance(40)
    lease = await h.lease("q", worker="w1", lease_ms=5_000)
    job = await h.job(job_id)
    assert (job.state, job.worker, job.attempt) == (State.ACTIVE, "w1", 1)
    assert (job.started_at, job.last_heartbeat) == (h.now, h.now)
    assert job.lease_expires_at == lease.expires_at == h.now + 5_000
    assert job.created_at == h.now - 40


async def test_a_claimed_job_is_not_given_again(h: Harness) -> None:
    await h.push("q")
    await h.lease("q")
    assert await h.claim("q") is None


@many_jobs
async def test_no_two_leases_hold_one_job(h: Harness) -> None:
    ids = await h.push_alike("q", 10_000)
    taken = [job_id for _ in range(20) for job_id in await h.claimed("q", 701)]
    assert taken == ids


async def test_claims_at_once_share_nothing(h: Harness) -> None:
    ids = await h.push_alike("q", 100)
    taken = await asyncio.gather(*[h.claimed("q", 7) for _ in range(20)])
    assert sorted(job_id for part in taken for job_id in part) == ids


async def test_every_lease_has_a_token_of_its_own_that_cannot_be_guessed(h: Harness) -> None:
    await h.push_alike("q", 200)
    tokens = [(await h.lease("q")).token for _ in range(200)]
    assert len(set(tokens)) == 200
    assert min(map(len, tokens)) >= 16
    for token, following in pairwise(tokens):
        alike = sum(a == b for a, b in zip(token, following, strict=False))
        assert alike < len(token) - 6, "a neighbour's token differs in more than a counter"


async def test_a_claim_takes_from_the_first_queue_that_has_work(h: Harness) -> None:
    await h.push("c")
    in_b = await h.push_alike("b", 2)
    lease = await h.lease(["a", "b", "c"], 10)
    assert (lease.queue, lease.ids) == ("b", in_b)


async def test_the_list_of_queues_decides_and_not_the_age_of_the_work(h: Harness) -> None:
    await h.push("a", priority=9)
    h.clock.advance(5)
    in_b = await h.push("b")
    assert await h.claimed(["b", "a"]) == [in_b]


async def test_a_lease_holds_jobs_of_one_queue_even_if_it_has_room(h: Harness) -> None:
    in_a = await h.push_alike("a", 2)
    in_b = await h.push_alike("b", 2)
    assert await h.claimed(["a", "b"], 4) == in_a
    assert await h.claimed(["a", "b"], 4) == in_b


async def test_a_queue_whose_work_is_not_due_is_passed_over(h: Harness) -> None:
    await h.push("a", delay_ms=10)
    in_b = await h.push("b")
    assert await h.claimed(["a", "b"]) == [in_b]


async def test_the_attempt_is_counted_at_the_claim(h: Harness) -> None:
    job_id = await h.push("q")
    lease = await h.lease("q")
    assert [job.attempt for job in lease.jobs] == [1]
    assert (await h.job(job_id)).attempt == 1


async def test_redelivered_means_a_later_attempt(h: Harness) -> None:
    job_id = await h.push("q", backoff=AT_ONCE)
    lease = await h.lease("q")
    assert not lease.jobs[0].redelivered
    await h.fail(lease)
    assert not (await h.job(job_id)).redelivered
    again = await h.lease("q")
    assert (again.jobs[0].attempt, again.jobs[0].redelivered) == (2, True)


async def test_a_job_that_kills_its_worker_reaches_the_dead_letters(h: Harness) -> None:
    job_id = await h.push("q", backoff=AT_ONCE, max_attempts=3)
    for attempt in (1, 2, 3):
        lease = await h.lease("q", worker=f"w{attempt}", lease_ms=100)
        assert lease.jobs[0].attempt == attempt
        await h.advance(100)
    job = await h.job(job_id)
    assert (job.state, job.dead_reason) == (State.DEAD, DeadReason.MAX_ATTEMPTS)
    assert [(error.kind, error.worker, error.attempt) for error in job.errors] == [
        ("lease_expired", "w1", 1),
        ("lease_expired", "w2", 2),
        ("lease_expired", "w3", 3),
    ]


async def test_a_lease_lasts_thirty_seconds_unless_told(h: Harness) -> None:
    job_id = await h.push("q", backoff=after(50))
    lease = await h.lease("q")
    assert lease.expires_at == h.now + 30_000
    h.clock.advance(29_999)
    assert await h.state(job_id) == State.ACTIVE
    h.clock.advance(1)
    assert await h.state(job_id) == State.SCHEDULED


@pytest.mark.parametrize("lease_ms", [50, 24 * 3_600_000])
async def test_the_shortest_and_the_longest_lease_are_granted(h: Harness, lease_ms: int) -> None:
    job_id = await h.push("q", backoff=after(50))
    assert (await h.lease("q", lease_ms=lease_ms)).expires_at == h.now + lease_ms
    await h.advance(lease_ms - 1)
    assert await h.state(job_id) == State.ACTIVE
    await h.advance(1)
    assert await h.state(job_id) == State.SCHEDULED


@pytest.mark.parametrize("lease_ms", [49, 24 * 3_600_000 + 1, 0, -1])
async def test_a_lease_outside_the_bounds_is_refused(h: Harness, lease_ms: int) -> None:
    job_id = await h.push("q")
    with pytest.raises(Invalid) as caught:
        await h.claim("q", lease_ms=lease_ms)
    assert "lease_ms" in caught.value.field
    assert await h.state(job_id) == State.READY


async def test_a_job_may_ask_for_the_lease_it_needs(h: Harness) -> None:
    await h.push("q", lease_ms=5_000)
    assert (await h.lease("q")).expires_at == h.now + 5_000


async def test_the_claims_lease_wins_over_the_jobs(h: Harness) -> None:
    await h.push_many("q", [{"lease_ms": 60_000}, {"lease_ms": 500}])
    assert (await h.lease("q", 2, lease_ms=7_000)).expires_at == h.now + 7_000


@pytest.mark.parametrize(
    ("asked", "granted"),
    [
        ([5_000, 60_000, 700], 60_000),
        ([5_000, 700], 5_000),
        ([5_000, None], 30_000),
        ([60_000, None], 60_000),
        ([None, None], 30_000),
    ],
)
async def test_jobs_that_ask_for_different_leases_get_the_largest(
    h: Harness, asked: list[int | None], granted: int
) -> None:
    await h.push_many("q", [{"lease_ms": lease_ms} for lease_ms in asked])
    assert (await h.lease("q", 10)).expires_at == h.now + granted


@many_jobs
async def test_the_largest_lease_is_that_of_the_claimed_jobs_not_of_the_queue(h: Harness) -> None:
    jobs = [{"lease_ms": 60_000 if index == 5_000 else 2_000} for index in range(5_001)]
    await h.push_many("q", jobs)
    assert (await h.lease("q", 5_000)).expires_at == h.now + 2_000
    assert (await h.lease("q", 5_000)).expires_at == h.now + 60_000


async def test_ten_thousand_is_a_claim_and_one_more_is_an_error(h: Harness) -> None:
    ids = await h.push_alike("q", 3)
    with pytest.raises(BatchTooLarge):
        await h.claim("q", 10_001)
    assert await h.counts("q") == {"ready": 3}
    assert await h.claimed("q", 10_000) == ids


@many_jobs
async def test_a_full_claim_takes_ten_thousand_jobs(h: Harness) -> None:
    ids = await h.push_alike("q", 10_000)
    await h.push("q")
    assert await h.claimed("q", 10_000) == ids


@pytest.mark.parametrize("n", [0, -1])
async def test_a_claim_of_no_jobs_is_refused(h: Harness, n: int) -> None:
    job_id = await h.push("q")
    with pytest.raises(Invalid):
        await h.claim("q", n)
    assert await h.state(job_id) == State.READY


@many_jobs
async def test_retries_within_a_claim_carry_their_own_attempt(h: Harness) -> None:
    ids = await h.push_alike("q", BLOCK + 200, backoff=AT_ONCE, max_attempts=10)
    often = ids[4_090:4_100]
    lease = await h.lease("q", 10_000)
    await h.fail(lease, often)
    await h.release(lease)
    lease = await h.lease("q", 10_000)
    await h.fail(lease, often[::2])
    await h.release(lease)
    expected = dict.fromkeys(ids, 1) | dict.fromkeys(often, 2) | dict.fromkeys(often[::2], 3)
    lease = await h.lease("q", 10_000)
    assert {job.id: job.attempt for job in lease.jobs} == expected
    known = await h.store.get(h.name, ids)
    assert {job.id: job.attempt for job in known if job} == expected


async def test_a_claimed_job_looks_as_it_does_to_everyone_else(h: Harness) -> None:
    specs = [
        JobSpec(payload=b"%d" % n, priority=n % 3, task=f"t{n % 4}", key=f"k{n}" if n % 5 else None)
        for n in range(60)
    ]
    for part in (specs[:20], specs[20:21], specs[21:]):
        await h.push_many("q", part)
        h.clock.advance(3)
    jobs = (await h.lease("q", 60)).jobs
    for claimed in jobs:
        known = await h.job(claimed.id)
        for name in ("queue", "payload", "options", "attempt", "created_at", "run_at", "key"):
            assert getattr(claimed, name) == getattr(known, name), name
        assert (claimed.state, claimed.priority) == (known.state, known.priority)
    assert len({job.created_at for job in jobs}) == 3


async def test_only_ready_jobs_are_claimed(h: Harness) -> None:
    ready = await h.push("q")
    await h.push("q", delay_ms=10)
    await h.push("q", depends_on=(await h.push("other", delay_ms=10),))
    await h.store.open_bulk(h.name, "b")
    await h.push_many("q", [{}], bulk="b")
    cancelled = await h.push("q")
    await h.cancel(cancelled)
    assert await h.counts("q") == {
        "ready": 1,
        "scheduled": 1,
        "blocked": 1,
        "held": 1,
        "cancelled": 1,
    }
    assert await h.claimed("q", 10) == [ready]


async def test_a_lease_that_expired_does_not_hold_what_another_claimed(h: Harness) -> None:
    ids = await h.push_alike("q", 3, backoff=AT_ONCE)
    first = await h.lease("q", 3, lease_ms=100)
    h.clock.advance(100)
    second = await h.lease("q", 3, worker="w2")
    assert second.ids == ids
    with pytest.raises(LeaseLost):
        await h.ack(first)
    assert await h.counts("q") == {"active": 3}
    assert sorted((await h.ack(second)).acked) == ids


@many_jobs
async def test_leases_survive_a_restart(h: Harness) -> None:
    ids = await h.push_alike("q", BLOCK + 10, backoff=AT_ONCE)
    first = await h.lease("q", 4_000, worker="w1")
    h.clock.advance(1_000)
    second = await h.lease("q", 10_000, worker="w2", lease_ms=60_000)
    await h.ack(second, second.ids[5:])
    await h.restart()
    assert await h.claim("q") is None
    assert (await h.job(ids[0])).worker == "w1"
    assert sorted((await h.ack(first, ids[:10])).acked) == ids[:10]
    await h.advance(29_000)
    with pytest.raises(LeaseLost):
        await h.ack(first)
    assert await h.counts("q") == {"active": 5, "completed": 10 + 101, "ready": 3_990}
    assert sorted((await h.ack(second)).acked) == second.ids[:5]
