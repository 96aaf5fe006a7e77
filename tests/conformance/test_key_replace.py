"""`on_conflict="replace"`: what counts as identical, and what becomes of the version replaced."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.model.errors import LeaseLost
from penstock.model.job import JobSpec, Lease
from penstock.model.lifecycle import DeadReason, State
from penstock.model.policy import Backoff
from tests.conformance.endings import LEASE_MS, SLOW, TIMEOUT_MS
from tests.conformance.harness import Harness

HOUR = 3_600_000


async def put(h: Harness, payload: bytes = b"1", queue: str = "q", **spec: Any) -> tuple[int, str]:
    """Push a job under the key `k`, replacing what stands there; (id, outcome)."""
    job = JobSpec(payload=payload, key="k", on_conflict="replace", **spec)
    (answer,) = (await h.push_many(queue, [job])).jobs
    return answer


# -- identical -------------------------------------------------------------------------------------

RUN_AT = 1_700_000_600_000


@pytest.mark.parametrize(
    "version",
    [
        {},
        {"run_at": RUN_AT},
        {"run_at": 1_600_000_000_000},
        {"group": "g", "tags": ("a", "b"), "headers": {"a": "1", "b": "2"}, "priority": 3},
        {"ttl_ms": 5_000},
        {"codec": "bytes"},
    ],
    ids=str,
)
async def test_an_identical_version_is_ignored_and_changes_nothing(
    h: Harness, version: dict[str, Any]
) -> None:
    job_id, outcome = await put(h, **version)
    assert outcome == "created"
    before = await h.job(job_id)
    await h.advance(10)
    assert await put(h, **version) == (job_id, "ignored")
    assert await h.job(job_id) == before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({}, {"payload": b"2"}),
        ({}, {"codec": "bytes"}),
        ({}, {"priority": 1}),
        ({}, {"group": "g"}),
        ({"group": "g"}, {"group": "h"}),
        ({}, {"headers": {"a": "1"}}),
        ({"headers": {"a": "1"}}, {"headers": {"a": "2"}}),
        ({}, {"tags": ("a",)}),
        ({}, {"max_attempts": 9}),
        ({}, {"backoff": SLOW}),
        ({}, {"keep_key": "retained"}),
        ({}, {"task": "t"}),
        ({}, {"run_at": RUN_AT}),
        ({"run_at": RUN_AT}, {}),
        ({"run_at": RUN_AT}, {"run_at": RUN_AT + 1}),
        ({}, {"delay_ms": 0}),
        ({"delay_ms": 0}, {}),
        ({"delay_ms": 0}, {"delay_ms": 0}),
        ({"delay_ms": HOUR}, {"delay_ms": HOUR}),
        ({"delay_ms": HOUR}, {"run_at": 1_700_003_600_000}),
    ],
    ids=str,
)
async def test_any_difference_and_any_relative_delay_makes_an_update(
    h: Harness, old: dict[str, Any], new: dict[str, Any]
) -> None:
    job_id, _ = await put(h, **old)
    assert await put(h, **new) == (job_id, "updated")
    assert (await h.job(job_id)).payload == new.get("payload", b"1")
    assert (await h.job(job_id)).group == new.get("group")
    assert (await h.job(job_id)).headers == new.get("headers")


async def test_another_dependency_makes_an_update(h: Harness) -> None:
    first, second = (await h.push_many("d", [{}, {}])).ids
    job_id, _ = await put(h, depends_on=(first,))
    assert await put(h, depends_on=(first,)) == (job_id, "ignored")
    assert await put(h, depends_on=(second,)) == (job_id, "updated")
    assert (await h.job(job_id)).depends_on == (second,)


async def test_an_identical_version_does_not_disturb_a_backoff(h: Harness) -> None:
    job_id, _ = await put(h, backoff=SLOW)
    await h.fail(await h.lease("q"))
    before = await h.job(job_id)
    assert await put(h, backoff=SLOW) == (job_id, "ignored")
    assert await h.job(job_id) == before
    assert before.state == State.SCHEDULED
    assert before.attempt == 1


# -- replacing a job that is not active ------------------------------------------------------------


async def test_a_replaced_job_begins_afresh_under_the_same_id(h: Harness) -> None:
    job_id, _ = await put(h, b"1", backoff=SLOW)
    lease = await h.lease("q", worker="w")
    await h.report(lease, job_id, progress=50, message="half")
    await h.fail(lease)
    await h.advance(700)
    assert await put(h, b"2", priority=4) == (job_id, "updated")
    job = await h.job(job_id)
    assert (job.state, job.payload, job.attempt, job.errors) == (State.READY, b"2", 0, ())
    assert (job.progress, job.progress_message, job.result) == (None, None, None)
    assert (job.created_at, job.priority, job.options.priority) == (h.now, 4, 4)
    (again,) = (await h.lease("q")).jobs
    assert (again.id, again.payload, again.attempt) == (job_id, b"2", 1)


async def test_a_replaced_job_has_all_its_attempts_and_its_first_backoff_again(h: Harness) -> None:
    waits = Backoff(kind="linear", base_ms=1_000, jitter="none")
    job_id, _ = await put(h, b"1", backoff=waits, max_attempts=2)
    await h.fail(await h.lease("q"))
    await put(h, b"2", backoff=waits, max_attempts=2)
    failed = await h.fail(await h.lease("q"))
    assert [(job.state, job.run_at) for job in failed.jobs] == [(State.SCHEDULED, h.now + 1_000)]
    await h.advance(1_000)
    await h.fail(await h.lease("q"))
    assert await h.state(job_id) == State.DEAD


async def test_a_replaced_job_takes_the_place_in_line_of_a_new_push(h: Harness) -> None:
    first, _ = await put(h, b"1")
    await h.advance(1)
    second = await h.push("q")
    await h.advance(1)
    await put(h, b"2")
    await h.advance(1)
    third = await h.push("q")
    assert await h.claimed("q", 3) == [second, first, third]


async def test_a_job_replaced_at_the_instant_of_its_push_keeps_its_place(h: Harness) -> None:
    first, _ = await put(h, b"1")
    second = await h.push("q")
    await put(h, b"2")
    assert await h.claimed("q", 3) == [first, second]


async def test_the_ttl_of_a_replaced_job_counts_from_the_replace(h: Harness) -> None:
    job_id, _ = await put(h, b"1", ttl_ms=1_000)
    await h.advance(900)
    await put(h, b"2", ttl_ms=1_000)
    await h.advance(999)
    assert await h.state(job_id) == State.READY
    await h.advance(1)
    assert await h.state(job_id) == State.EXPIRED


async def test_the_ttl_of_the_old_version_is_gone(h: Harness) -> None:
    job_id, _ = await put(h, b"1", ttl_ms=1_000)
    await put(h, b"2")
    await h.advance(2_000)
    assert await h.state(job_id) == State.READY


async def test_a_delayed_message_is_rescheduled(h: Harness) -> None:
    job_id, _ = await put(h, delay_ms=1_000)
    await h.advance(600)
    assert await put(h, delay_ms=1_000) == (job_id, "updated")
    await h.advance(999)
    assert await h.claimed("q") == []
    await h.advance(1)
    assert await h.claimed("q", 5) == [job_id]


async def test_a_delayed_job_is_hastened_and_a_ready_one_delayed(h: Harness) -> None:
    job_id, _ = await put(h, delay_ms=HOUR)
    await put(h, b"2")
    assert await h.state(job_id) == State.READY
    await put(h, b"3", run_at=h.now + 500)
    assert await h.state(job_id) == State.SCHEDULED
    assert await h.claimed("q") == []
    await h.advance(500)
    assert await h.claimed("q") == [job_id]


async def test_a_blocked_job_replaced_without_dependencies_no_longer_cares_for_them(
    h: Harness,
) -> None:
    dependency = await h.push("d")
    job_id, _ = await put(h, b"1", depends_on=(dependency,))
    await put(h, b"2")
    assert await h.state(job_id) == State.READY
    await h.cancel(dependency)
    assert await h.state(job_id) == State.READY


async def test_a_ready_job_replaced_with_a_dependency_waits_for_it(h: Harness) -> None:
    dependency = await h.push("d")
    job_id, _ = await put(h, b"1")
    await put(h, b"2", depends_on=(dependency,))
    assert await h.state(job_id) == State.BLOCKED
    assert await h.claimed("q") == []
    await h.ack(await h.lease("d"))
    assert await h.claimed("q") == [job_id]


async def test_a_replaced_job_moves_to_its_new_group(h: Harness) -> None:
    await h.push("q", group="busy")
    await h.lease("q")
    job_id, _ = await put(h, b"1", group="busy")
    assert await h.claimed("q") == []
    await put(h, b"2", group="free")
    assert await h.claimed("q") == [job_id]


async def test_dependants_wait_for_the_version_that_replaced(h: Harness) -> None:
    job_id, _ = await put(h, b"1")
    dependant = await h.push("d", depends_on=(job_id,))
    await put(h, b"2")
    assert await h.state(dependant) == State.BLOCKED
    await h.ack(await h.lease("q"))
    assert await h.state(dependant) == State.READY


async def test_the_known_job_is_updated_in_the_middle_of_a_mixed_batch(h: Harness) -> None:
    job_id, _ = await put(h, b"1")
    jobs = (
        await h.push_many(
            "q",
            [
                {"payload": b"10"},
                {"payload": b"2", "key": "k", "on_conflict": "replace"},
                {"payload": b"11", "group": "g"},
                {"payload": b"3", "key": "k", "on_conflict": "replace"},
                {"payload": b"12", "key": "other"},
            ],
        )
    ).jobs
    assert [outcome for _, outcome in jobs] == [
        "created", "updated", "created", "updated", "created",
    ]  # fmt: skip
    assert [jobs[0][0], jobs[2][0], jobs[4][0]] == [job_id + 1, job_id + 2, job_id + 3]
    assert (await h.job(job_id)).payload == b"3"


# -- replacing an active job -----------------------------------------------------------------------

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
