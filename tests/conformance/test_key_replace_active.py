"""Replacing a job while it runs: the attempt goes on, and its end starts the new version."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.model.errors import LeaseLost
from penstock.model.job import Lease
from penstock.model.lifecycle import DeadReason, State
from tests.conformance.endings import LEASE_MS, TIMEOUT_MS
from tests.conformance.harness import Harness
from tests.conformance.test_key_replace import put

HOUR = 3_600_000

End = Callable[[Harness, Lease], Awaitable[object]]


async def fail_dead(h: Harness, lease: Lease) -> None:
    await h.fail(lease, dead=True)


async def expire(h: Harness, lease: Lease) -> None:
    await h.advance(LEASE_MS)


async def time_out(h: Harness, lease: Lease) -> None:
    await h.advance(TIMEOUT_MS)


async def ack_with_result(h: Harness, lease: Lease) -> None:
    await h.ack(lease, results={lease.ids[0]: b'"old"'})


ENDS: list[tuple[str, dict[str, Any], End]] = [
    ("ack", {}, ack_with_result),
    ("fail", {}, lambda h, lease: h.fail(lease)),
    ("fail, last attempt", {"max_attempts": 1}, lambda h, lease: h.fail(lease)),
    ("rejected", {}, fail_dead),
    ("expiry", {}, expire),
    ("expiry, last attempt", {"max_attempts": 1}, expire),
    ("timeout", {"timeout_ms": TIMEOUT_MS}, time_out),
    ("timeout, last attempt", {"timeout_ms": TIMEOUT_MS, "max_attempts": 1}, time_out),
    ("release", {}, lambda h, lease: h.release(lease)),
]
each_end = pytest.mark.parametrize(
    ("spec", "end"), [end[1:] for end in ENDS], ids=[end[0] for end in ENDS]
)


@each_end
async def test_any_end_of_the_running_attempt_starts_the_new_version(
    h: Harness, spec: dict[str, Any], end: End
) -> None:
    job_id, _ = await put(h, b"1", **spec)
    lease = await h.lease("q", worker="old")
    dependant = await h.push("d", depends_on=(job_id,))
    await h.advance(10)
    assert await put(h, b"2", priority=7, max_attempts=5) == (job_id, "updated")
    assert await h.state(job_id) == State.ACTIVE
    assert await h.claimed("q") == []

    waiter = await h.start(h.result(job_id, wait_ms=HOUR))
    await h.advance(10)
    before = h.now
    await end(h, lease)
    job = await h.job(job_id)
    assert (job.state, job.payload, job.attempt, job.errors) == (State.READY, b"2", 0, ())
    assert (job.result, job.dead_reason, job.priority) == (None, None, 7)
    assert (job.options.max_attempts, job.options.timeout_ms) == (5, None)
    assert before <= job.run_at <= h.now
    assert await h.store.by_key(h.name, "q", "k") == job_id
    assert await h.counts("q") == {"ready": 1}
    assert await h.state(dependant) == State.BLOCKED
    await h.settle()
    assert not waiter.done()

    with pytest.raises(LeaseLost):
        await h.ack(lease)
    fresh = await h.lease("q", worker="new")
    assert [(got.id, got.payload, got.attempt) for got in fresh.jobs] == [(job_id, b"2", 1)]
    with pytest.raises(LeaseLost):
        await h.ack(lease, [job_id])
    assert await h.state(job_id) == State.ACTIVE
    await h.ack(fresh, results={job_id: b'"new"'})
    assert (await h.told(waiter)).value == b'"new"'
    assert await h.state(dependant) == State.READY


async def test_the_new_version_is_ready_since_the_end_of_the_old_not_since_the_replace(
    h: Harness,
) -> None:
    job_id, _ = await put(h, b"1")
    lease = await h.lease("q")
    await h.advance(1)
    await put(h, b"2")
    await h.advance(1)
    between = await h.push("q")
    await h.advance(1)
    await h.release(lease)
    assert (await h.job(job_id)).run_at == h.now
    assert await h.claimed("q", 2) == [between, job_id]


async def test_a_lease_that_ended_unnoticed_started_the_new_version_when_it_ended(
    h: Harness,
) -> None:
    job_id, _ = await put(h, b"1")
    await h.lease("q")
    due = h.now + LEASE_MS
    await put(h, b"2")
    h.clock.advance(LEASE_MS + 300)
    assert (await h.job(job_id)).run_at == due


async def test_cancel_ends_both_versions(h: Harness) -> None:
    job_id, _ = await put(h, b"1")
    lease = await h.lease("q")
    await put(h, b"2")
    waiter = await h.start(h.result(job_id, wait_ms=HOUR))
    assert list((await h.cancel(job_id)).acked) == [job_id]
    assert await h.state(job_id) == State.CANCELLED
    assert (await h.told(waiter)).state == State.CANCELLED
    assert await h.store.by_key(h.name, "q", "k") is None
    with pytest.raises(LeaseLost):
        await h.ack(lease)
    await h.advance(HOUR // 2)
    assert await h.claimed("q") == []


async def test_an_operators_discard_ends_both_versions(h: Harness) -> None:
    job_id, _ = await put(h, b"1")
    await h.lease("q")
    await put(h, b"2")
    await h.cancel(job_id, discard=True)
    job = await h.job(job_id)
    assert (job.state, job.dead_reason) == (State.DEAD, DeadReason.DISCARDED)
    assert await h.store.by_key(h.name, "q", "k") is None


async def test_purge_forgets_both_versions(h: Harness) -> None:
    job_id, _ = await put(h, b"1")
    lease = await h.lease("q")
    await put(h, b"2")
    assert await h.store.purge(h.name, "q") == 1
    with pytest.raises(LeaseLost):
        await h.ack(lease)
    assert await h.get(job_id) is None
    assert await h.store.by_key(h.name, "q", "k") is None


async def test_a_further_replace_replaces_the_waiting_version(h: Harness) -> None:
    job_id, _ = await put(h, b"1")
    lease = await h.lease("q")
    assert await put(h, b"2") == (job_id, "updated")
    assert await put(h, b"2") == (job_id, "ignored")
    assert await put(h, b"3") == (job_id, "updated")
    await h.ack(lease)
    assert [job.payload for job in (await h.lease("q", 5)).jobs] == [b"3"]


async def test_a_version_identical_to_the_running_one_is_ignored(h: Harness) -> None:
    job_id, _ = await put(h, b"1")
    lease = await h.lease("q")
    assert await put(h, b"1") == (job_id, "ignored")
    await h.ack(lease)
    assert await h.state(job_id) == State.COMPLETED


async def test_the_running_version_can_be_put_back_in_place_of_the_waiting_one(
    h: Harness,
) -> None:
    job_id, _ = await put(h, b"1")
    lease = await h.lease("q")
    await put(h, b"2")
    assert await put(h, b"1") == (job_id, "updated")
    await h.ack(lease)
    assert [job.payload for job in (await h.lease("q")).jobs] == [b"1"]


async def test_the_relative_delay_of_the_new_version_counts_from_the_replace(h: Harness) -> None:
    for queue, runs_for in (("short", 3_000), ("long", 12_000)):
        job_id, _ = await put(h, b"1", queue)
        lease = await h.lease(queue)
        await put(h, b"2", queue, delay_ms=10_000)
        due = h.now + max(10_000, runs_for)
        await h.advance(runs_for)
        await h.ack(lease)
        assert (await h.job(job_id)).run_at == due
        assert await h.state(job_id) == (State.READY if due == h.now else State.SCHEDULED)


async def test_the_new_version_waits_for_its_run_at(h: Harness) -> None:
    job_id, _ = await put(h, b"1")
    lease = await h.lease("q")
    due = h.now + 5_000
    await put(h, b"2", run_at=due)
    await h.advance(1_000)
    await h.fail(lease)
    assert await h.state(job_id) == State.SCHEDULED
    await h.advance(3_999)
    assert await h.claimed("q") == []
    await h.advance(1)
    assert await h.claimed("q") == [job_id]


async def test_the_ttl_of_the_new_version_counts_from_the_end_of_the_old(h: Harness) -> None:
    job_id, _ = await put(h, b"1")
    lease = await h.lease("q")
    await put(h, b"2", ttl_ms=1_000)
    await h.advance(20_000)
    await h.ack(lease)
    await h.advance(999)
    assert await h.state(job_id) == State.READY
    await h.advance(1)
    assert await h.state(job_id) == State.EXPIRED


@pytest.mark.parametrize("met", [False, True])
async def test_the_new_version_waits_for_its_dependencies(h: Harness, met: bool) -> None:
    dependency = await h.push("d")
    job_id, _ = await put(h, b"1")
    lease = await h.lease("q")
    await put(h, b"2", depends_on=(dependency,))
    await h.advance(1)
    if met:
        await h.ack(await h.lease("d"))
    await h.ack(lease)
    assert await h.state(job_id) == (State.READY if met else State.BLOCKED)
    if not met:
        await h.ack(await h.lease("d"))
        assert await h.claimed("q") == [job_id]


async def test_the_new_version_fails_with_a_dependency_that_failed_meanwhile(h: Harness) -> None:
    dependency = await h.push("d")
    job_id, _ = await put(h, b"1")
    lease = await h.lease("q")
    await put(h, b"2", depends_on=(dependency,))
    await h.cancel(dependency)
    assert await h.state(job_id) == State.ACTIVE
    await h.ack(lease)
    job = await h.job(job_id)
    assert (job.state, job.dead_reason) == (State.DEAD, DeadReason.DEPENDENCY_FAILED)


async def test_a_failure_tells_the_run_at_of_the_version_that_starts(h: Harness) -> None:
    job_id = await h.push("q", b"1", key="k")
    await h.push("q", b"0")
    lease = await h.lease("q")
    await h.jump(-60_000)
    await h.push("q", b"2", key="k", on_conflict="replace")
    (failed,) = (await h.fail(lease)).jobs
    assert (failed.state, failed.run_at) == (State.READY, h.now)
    assert (await h.job(job_id)).run_at == h.now


async def test_the_running_attempt_keeps_its_own_rules(h: Harness) -> None:
    """Its timeout and its group are those it was claimed with, until it ends."""
    job_id, _ = await put(h, b"1", group="old")
    lease = await h.lease("q")
    await put(h, b"2", group="new", timeout_ms=1_000)
    waiting_old = await h.push("q", group="old")
    await h.advance(5_000)
    assert (await h.extend(lease)).lost.runs == ()
    assert await h.claimed("q") == []
    await h.ack(lease)
    assert set(await h.claimed("q", 5)) == {waiting_old, job_id}


async def test_a_keys_duration_counts_from_the_replace(h: Harness) -> None:
    job_id, _ = await put(h, b"1", keep_key=5_000)
    lease = await h.lease("q", lease_ms=HOUR)
    await h.advance(3_000)
    await put(h, b"2", keep_key=5_000)
    await h.advance(1_000)
    await h.ack(lease)
    await h.advance(3_999)
    assert await h.store.by_key(h.name, "q", "k") == job_id
    await h.advance(1)
    assert await h.store.by_key(h.name, "q", "k") is None


async def test_only_the_replaced_job_of_a_lease_starts_again(h: Harness) -> None:
    plain = await h.push("q")
    job_id, _ = await put(h, b"1")
    lease = await h.lease("q", 2)
    await put(h, b"2")
    assert sorted((await h.ack(lease)).acked) == [plain, job_id]
    assert await h.state(plain) == State.COMPLETED
    assert await h.state(job_id) == State.READY


async def test_a_waiting_version_survives_a_restart(h: Harness) -> None:
    job_id, _ = await put(h, b"1")
    lease = await h.lease("q")
    await put(h, b"2", priority=3)
    await h.restart()
    await h.ack(lease)
    job = await h.job(job_id)
    assert (job.state, job.payload, job.priority) == (State.READY, b"2", 3)


async def test_return_and_match_look_at_the_waiting_version(h: Harness) -> None:
    job_id, _ = await put(h, b"1")
    await h.lease("q")
    await put(h, b"2")
    pushed = await h.push_many("q", [{"payload": b"2", "key": "k", "on_conflict": "match"}])
    assert pushed.jobs == [(job_id, "ignored")]


@pytest.mark.parametrize("retain_dead_ms", [0, 500])
async def test_the_new_version_may_be_over_as_soon_as_it_starts(
    h: Harness, retain_dead_ms: int
) -> None:
    failed = await h.push("d")
    await h.cancel(failed)
    job_id, _ = await put(h, b"1")
    lease = await h.lease("q")
    await put(h, b"2", depends_on=(failed,), retain_dead_ms=retain_dead_ms)
    await h.fail(lease)
    assert await h.state(job_id) == (State.DEAD if retain_dead_ms else None)
    assert await h.store.by_key(h.name, "q", "k") is None


async def test_a_dependency_is_kept_for_the_version_that_waits(h: Harness) -> None:
    dependency = await h.push("d", retain_ms=0)
    job_id, _ = await put(h, b"1")
    lease = await h.lease("q")
    await put(h, b"2", depends_on=(dependency,))
    await h.cancel(dependency)
    await h.ack(lease)
    assert (await h.job(job_id)).dead_reason == DeadReason.DEPENDENCY_FAILED
