"""Flows, when things go wrong: failed dependencies, forgotten ones, and results kept for others."""

from typing import Any

import pytest

from penstock.model.errors import NotFound
from penstock.model.job import JobSpec
from penstock.model.lifecycle import DeadReason, State
from tests.conformance.harness import Harness, after

HOUR = 3_600_000

HOW_TO_FAIL = ["cancel", "discard", "reject", "last attempt", "expire", "drain", "purge"]


async def push_failing(h: Harness, how: str) -> int:
    """A job of the queue `d`, which has no other, that is to fail in this way."""
    if how == "expire":
        return await h.push("d", ttl_ms=100)
    return await h.push("d", max_attempts=1 if how == "last attempt" else 3)


async def make_fail(h: Harness, how: str, job_id: int) -> None:
    if how in ("cancel", "discard"):
        await h.cancel(job_id, discard=how == "discard")
    elif how == "reject":
        await h.fail(await h.lease("d"), dead=True)
    elif how == "last attempt":
        await h.fail(await h.lease("d"))
    elif how == "expire":
        await h.advance(100)
    else:
        await getattr(h.store, how)(h.name, "d")


@pytest.mark.parametrize("how", HOW_TO_FAIL)
async def test_a_failed_dependency_fails_its_dependants_and_so_on_down(
    h: Harness, how: str
) -> None:
    dependency = await push_failing(h, how)
    child = await h.push("q", depends_on=(dependency,))
    grandchild = await h.push("q", depends_on=(child,))
    ignores = await h.push("q", depends_on=(grandchild,), on_dependency_failure="ignore")
    await make_fail(h, how, dependency)
    for job_id, cause in ((child, dependency), (grandchild, child)):
        job = await h.job(job_id)
        assert (job.state, job.dead_reason) == (State.DEAD, DeadReason.DEPENDENCY_FAILED)
        assert (job.attempt, job.errors[-1].kind) == (0, "dependency_failed")
        assert str(cause) in job.errors[-1].message
        result = await h.result(job_id)
        assert (result.state, result.dead_reason) == (State.DEAD, DeadReason.DEPENDENCY_FAILED)
    assert await h.claimed("q", 5) == [ignores]


@pytest.mark.parametrize("how", HOW_TO_FAIL)
async def test_a_job_that_ignores_failures_waits_for_all_the_same(h: Harness, how: str) -> None:
    dependency = await push_failing(h, how)
    other = await h.push("e")
    job_id = await h.push("q", depends_on=(dependency, other), on_dependency_failure="ignore")
    await make_fail(h, how, dependency)
    assert await h.state(job_id) == State.BLOCKED
    await h.ack(await h.lease("e"))
    assert await h.claimed("q") == [job_id]


@pytest.mark.parametrize("how", ["cancel", "discard", "reject", "last attempt", "expire"])
async def test_a_dependency_that_has_failed_already_fails_the_dependant_at_its_push(
    h: Harness, how: str
) -> None:
    dependency = await push_failing(h, how)
    await make_fail(h, how, dependency)
    jobs = (
        await h.push_many(
            "q",
            [
                {"depends_on": (dependency,), "key": "k"},
                {"depends_on": (dependency,), "on_dependency_failure": "ignore"},
                {"depends_on": (-1,)},
                {},
            ],
        )
    ).jobs
    assert [outcome for _, outcome in jobs] == ["created"] * 4
    states = [await h.state(job_id) for job_id, _ in jobs]
    assert states == [State.DEAD, State.READY, State.DEAD, State.READY]
    assert (await h.job(jobs[0][0])).dead_reason == DeadReason.DEPENDENCY_FAILED
    assert await h.store.by_key(h.name, "q", "k") is None


async def test_a_dead_dependant_keeps_its_payload_and_can_be_redriven(h: Harness) -> None:
    dependency = await h.push("d")
    job_id = await h.push("q", b'"work"', depends_on=(dependency,), retain_dead_ms=HOUR)
    await h.cancel(dependency)
    assert (await h.store.redrive(h.name, "q")).ids == (job_id,)
    (job,) = (await h.lease("q")).jobs
    assert (job.id, job.payload, job.attempt) == (job_id, b'"work"', 1)


async def test_one_failed_dependency_of_many_is_enough(h: Harness) -> None:
    ids = await h.push_alike("d", 5)
    job_id = await h.push("q", depends_on=tuple(ids))
    lease = await h.lease("d", 5)
    await h.ack(lease, ids[:2])
    await h.fail(lease, [ids[2]], dead=True)
    assert await h.state(job_id) == State.DEAD
    await h.ack(lease)
    assert await h.state(job_id) == State.DEAD


async def test_a_blocked_job_that_expires_or_is_cancelled_fails_its_dependants(h: Harness) -> None:
    dependency = await h.push("d")
    expires = await h.push("q", depends_on=(dependency,), ttl_ms=500)
    cancelled = await h.push("q", depends_on=(dependency,))
    on_expires = await h.push("q", depends_on=(expires,))
    on_cancelled = await h.push("q", depends_on=(cancelled,))
    await h.cancel(cancelled)
    assert await h.state(on_cancelled) == State.DEAD
    await h.advance(500)
    assert await h.state(expires) == State.EXPIRED
    assert await h.state(on_expires) == State.DEAD


async def test_a_long_chain_fails_to_its_end(h: Harness) -> None:
    specs = [JobSpec(depends_on=() if n == 0 else (-n,)) for n in range(400)]
    ids = (await h.push_many("q", specs)).ids
    await h.cancel(ids[0])
    assert await h.counts("q") == {"cancelled": 1, "dead": 399}
    assert (await h.job(ids[-1])).dead_reason == DeadReason.DEPENDENCY_FAILED


async def test_a_diamond_fails_each_job_once(h: Harness) -> None:
    depends_on = [(), (-1,), (-1,), (-2, -3)]
    specs = [JobSpec(depends_on=each) for each in depends_on]
    ids = (await h.push_many("q", specs)).ids
    async with h.watch(kinds=["dead"]) as watcher:
        await h.cancel(ids[0])
        died = [job_id for event in await watcher.events() for job_id in event.ids]
    assert sorted(died) == ids[1:]
    assert len((await h.job(ids[3])).errors) == 1


async def test_a_failed_dependency_that_runs_again_by_redrive_revives_nothing(h: Harness) -> None:
    dependency = await h.push("d")
    job_id = await h.push("q", depends_on=(dependency,))
    await h.fail(await h.lease("d"), dead=True)
    await h.store.redrive(h.name, "d")
    await h.ack(await h.lease("d"))
    assert await h.state(job_id) == State.DEAD


async def test_a_redriven_dependency_does_not_count_for_another(h: Harness) -> None:
    failed, open_ = (await h.push_many("d", [{"priority": 1}, {}])).ids
    await h.fail(await h.lease("d"), dead=True)
    job_id = await h.push("q", depends_on=(failed, open_), on_dependency_failure="ignore")
    assert await h.state(job_id) == State.BLOCKED
    await h.store.redrive(h.name, "d")
    lease = await h.lease("d")
    assert lease.ids == [failed]
    await h.ack(lease)
    assert await h.state(job_id) == State.BLOCKED
    await h.ack(await h.lease("d"))
    assert await h.state(job_id) == State.READY


async def test_a_key_of_a_job_that_is_dead_at_its_push_is_free_for_the_next_of_the_batch(
    h: Harness,
) -> None:
    failed = await h.push("d")
    await h.cancel(failed)
    jobs = (
        await h.push_many(
            "q", [{"key": "k", "depends_on": (failed,)}, {"key": "k", "on_conflict": "reject"}]
        )
    ).jobs
    assert [outcome for _, outcome in jobs] == ["created", "created"]
    assert [await h.state(job_id) for job_id, _ in jobs] == [State.DEAD, State.READY]
    assert await h.store.by_key(h.name, "q", "k") == jobs[1][0]


@pytest.mark.parametrize("replaces", [False, True], ids=["pushed", "replaced"])
async def test_a_job_that_is_dead_at_once_shows_the_run_at_that_was_said(
    h: Harness, replaces: bool
) -> None:
    failed = await h.push("d")
    await h.cancel(failed)
    for times, ahead in (({"run_at": h.now + 500}, 500), ({"delay_ms": 70}, 70), ({}, 0)):
        if replaces:
            await h.push("q", key="k")
        keyed: dict[str, Any] = {"key": "k", "on_conflict": "replace", **times}
        job_id = await h.push("q", depends_on=(failed,), **keyed)
        job = await h.job(job_id)
        assert (job.state, job.run_at) == (State.DEAD, h.now + ahead)


async def test_a_replaced_job_without_delay_is_ready_as_soon_as_it_is_unblocked(
    h: Harness,
) -> None:
    first = await h.push("d")
    keyed: dict[str, Any] = {"key": "k", "on_conflict": "replace"}
    await h.push("q", delay_ms=50, **keyed)
    job_id = await h.push("q", depends_on=(first,), **keyed)
    await h.jump(-3_600_000)
    await h.ack(await h.lease("d"))
    assert await h.state(job_id) == State.READY


async def test_a_key_of_a_job_that_dies_of_its_replacement_is_free_for_the_next_of_the_batch(
    h: Harness,
) -> None:
    failed = await h.push("d")
    await h.cancel(failed)
    live = await h.push("q", key="k")
    child = await h.push("q", key="c", depends_on=(live,))
    jobs = (
        await h.push_many(
            "q",
            [
                {"key": "k", "on_conflict": "replace", "depends_on": (failed,)},
                {"key": "k"},
                {"key": "c"},
            ],
        )
    ).jobs
    assert jobs == [(live, "updated"), (child + 1, "created"), (child + 2, "created")]
    assert await h.states([live, child]) == {"dead": 2}
    assert await h.store.by_key(h.name, "q", "k") == child + 1
    assert await h.store.by_key(h.name, "q", "c") == child + 2


async def test_an_active_job_lives_on_when_its_next_version_has_failed_already(h: Harness) -> None:
    failed = await h.push("d")
    await h.cancel(failed)
    live = await h.push("q", key="k")
    lease = await h.lease("q")
    doomed = {"key": "k", "on_conflict": "replace", "depends_on": (failed,)}
    pushed = await h.push_many("q", [doomed, {"key": "k"}])
    assert pushed.jobs == [(live, "updated"), (live, "ignored")]
    await h.ack(lease)
    assert await h.state(live) == State.DEAD
    assert await h.store.by_key(h.name, "q", "k") is None


async def test_a_key_of_a_job_that_is_dead_at_its_commit_is_free_for_the_next(h: Harness) -> None:
    failed = await h.push("d")
    await h.cancel(failed)
    bulk = (await h.store.open_bulk(h.name)).bulk
    dead, live = (
        await h.push_many(
            "q", [{"key": "k", "depends_on": (failed,)}, {"key": "k"}, {"key": "k"}], bulk=bulk
        )
    ).ids[:2]
    committed = await h.store.commit_bulk(h.name, bulk)
    assert (committed.jobs, committed.dropped) == (2, 1)
    assert [await h.state(job_id) for job_id in (dead, live)] == [State.DEAD, State.READY]
    assert await h.store.by_key(h.name, "q", "k") == live


# -- forgotten dependencies ------------------------------------------------------------------------


async def test_a_dependency_that_is_dead_at_its_push_is_kept_for_the_rest_of_the_batch(
    h: Harness,
) -> None:
    failed = await h.push("d")
    await h.cancel(failed)
    dead, waiting = (
        await h.push_many(
            "q",
            [
                {"depends_on": (failed,), "retain_dead_ms": 0},
                {"depends_on": (-1,), "on_dependency_failure": "ignore"},
            ],
        )
    ).ids
    assert [await h.state(job_id) for job_id in (dead, waiting)] == [State.DEAD, State.READY]
    assert (await h.job(failed)).dependants == (dead,)
    assert (await h.job(dead)).dependants == (waiting,)
    await h.ack(await h.lease("q"))
    assert await h.get(dead) is None
    assert (await h.job(failed)).dependants == ()


async def test_a_dependency_forgotten_on_completion_does_not_strand_its_dependants(
    h: Harness,
) -> None:
    first, second = (await h.push_many("d", [{"retain_ms": 0}, {"retain_ms": 0}])).ids
    job_id = await h.push("q", depends_on=(first, second))
    await h.ack(await h.lease("d"))
    await h.ack(await h.lease("d"))
    assert await h.claimed("q") == [job_id]


async def test_a_dependency_forgotten_before_the_push_counts_as_completed(h: Harness) -> None:
    forgotten = await h.finish("d", retain_ms=0)
    assert await h.get(forgotten) is None
    assert await h.state(await h.push("q", depends_on=(forgotten,))) == State.READY


async def test_the_result_of_a_dependency_stays_until_its_dependants_ended(h: Harness) -> None:
    dependency = await h.push("d", retain_ms=0)
    first, second = (await h.push_many("q", [{"depends_on": (dependency,)}] * 2)).ids
    await h.ack(await h.lease("d"), results={dependency: b'"kept"'})
    lease = await h.lease("q", 2)
    assert lease.ids == [first, second]
    assert (await h.result(dependency)).value == b'"kept"'
    await h.advance(20_000)
    await h.ack(lease, [first])
    await h.advance(5_000)
    assert (await h.result(dependency)).value == b'"kept"'
    await h.ack(lease, [second])
    await h.advance(1)
    assert await h.get(dependency) is None
    with pytest.raises(NotFound):
        await h.result(dependency)


async def test_the_result_of_a_dependency_outlives_a_retry_of_its_dependant(h: Harness) -> None:
    dependency = await h.push("d", retain_ms=100)
    job_id = await h.push("q", depends_on=(dependency,), backoff=after(1_000))
    await h.ack(await h.lease("d"), results={dependency: b"7"})
    await h.fail(await h.lease("q"))
    await h.advance(1_000)
    retry = await h.lease("q")
    assert retry.ids == [job_id]
    assert (await h.result(dependency)).value == b"7"
    await h.ack(retry)
    await h.advance(1)
    assert await h.get(dependency) is None


async def test_a_dependency_beyond_the_retained_count_is_kept_for_its_dependant(
    h: Harness,
) -> None:
    await h.configure("d", retain_count=1)
    kept = await h.push("d")
    waits = await h.push("q", depends_on=(kept,), delay_ms=1_000)
    await h.ack(await h.lease("d"), results={kept: b"1"})
    for _ in range(3):
        await h.advance(1)
        await h.finish("d")
    assert (await h.result(kept)).value == b"1"
    await h.advance(1_000)
    lease = await h.lease("q")
    assert lease.ids == [waits]
    await h.ack(lease)
    await h.advance(1)
    assert await h.get(kept) is None


async def test_what_is_kept_for_a_dependant_alone_does_not_count_as_retained(h: Harness) -> None:
    await h.configure("d", retain_count=2)
    needed = await h.push("d")
    await h.push("q", depends_on=(needed,))
    await h.push("q", depends_on=(needed,), delay_ms=60_000)
    await h.ack(await h.lease("d"))
    first, second = await h.finish("d"), await h.finish("d")
    assert await h.states([needed, first, second]) == {"completed": 3}
    third = await h.finish("d")
    assert await h.states([needed, second, third]) == {"completed": 3}
    assert await h.get(first) is None


async def test_retention_that_is_over_stays_over_when_the_clock_goes_back(h: Harness) -> None:
    needed = await h.push("d", retain_ms=1_000)
    dependant = await h.push("q", depends_on=(needed,))
    await h.ack(await h.lease("d"))
    await h.advance(1_000)
    assert await h.state(needed) == State.COMPLETED
    await h.jump(-HOUR)
    await h.cancel(dependant)
    assert await h.get(needed) is None


async def test_a_failed_dependency_is_kept_for_a_dependant_that_ignores_it(h: Harness) -> None:
    dependency = await h.push("d", retain_dead_ms=0)
    job_id = await h.push("q", depends_on=(dependency,), on_dependency_failure="ignore")
    await h.fail(await h.lease("d"), dead=True)
    lease = await h.lease("q")
    assert lease.ids == [job_id]
    assert await h.state(dependency) == State.DEAD
    await h.ack(lease)
    await h.advance(1)
    assert await h.get(dependency) is None


@pytest.mark.parametrize("how", ["drain", "purge", "purge_dead"])
async def test_what_an_operator_throws_away_is_gone_whoever_depends_on_it(
    h: Harness, how: str
) -> None:
    dependency = await h.push("d")
    job_id = await h.push(
        "q", depends_on=(dependency,), on_dependency_failure="ignore", delay_ms=HOUR
    )
    if how == "purge_dead":
        await h.cancel(dependency, discard=True)
    assert await getattr(h.store, how)(h.name, "d") == 1
    assert await h.get(dependency) is None
    assert await h.counts("d") == {}
    assert await h.state(job_id) == State.SCHEDULED


async def test_a_job_kept_for_its_dependant_keeps_when_and_by_whom_it_was_done(h: Harness) -> None:
    ids = await h.push_alike("d", 3)
    await h.ack(await h.lease("d", 3, worker="w"))
    before = await h.job(ids[1])
    await h.push("q", depends_on=(ids[1],), delay_ms=2 * HOUR)
    await h.advance(HOUR)
    after = await h.job(ids[1])
    assert (after.worker, after.started_at, after.finished_at) == (
        "w",
        before.started_at,
        h.now - HOUR,
    )
    assert await h.get(ids[0]) is None
    assert await h.get(ids[2]) is None
