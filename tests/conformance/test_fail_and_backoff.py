"""Fail: an attempt that did not work, the wait before the next one, and the last one's end."""

import pytest

from penstock.model.answers import FailedJob
from penstock.model.errors import Invalid, LeaseLost
from penstock.model.job import JobError
from penstock.model.lifecycle import DeadReason, State
from penstock.model.policy import Backoff, Jitter
from tests.conformance.harness import AT_ONCE, BLOCK, BOOM, Harness, after, many_jobs

FOREVER = 0


async def waits(h: Harness, count: int, backoff: Backoff) -> list[int]:
    """How long a job that fails `count` times waits after each failure."""
    job_id = await h.push("waits", backoff=backoff, max_attempts=FOREVER)
    found = []
    for _ in range(count):
        lease = await h.lease("waits")
        h.clock.advance(3)
        (failed,) = (await h.fail(lease)).jobs
        assert failed.id == job_id
        assert failed.run_at is not None
        wait = failed.run_at - h.now
        if wait:
            assert failed.state == State.SCHEDULED
            h.clock.advance(wait - 1)
            assert await h.claim("waits") is None, "never early"
            h.clock.advance(1)
        else:
            assert failed.state == State.READY
        found.append(wait)
    return found


async def test_a_failed_job_waits_for_its_next_attempt(h: Harness) -> None:
    job_id = await h.push("q", backoff=after(400))
    lease = await h.lease("q", worker="w1")
    h.clock.advance(30)
    failed = await h.fail(lease)
    assert failed.jobs == (FailedJob(job_id, State.SCHEDULED, h.now + 400),)
    assert list(failed.lost) == []
    job = await h.job(job_id)
    assert (job.state, job.run_at, job.attempt) == (State.SCHEDULED, h.now + 400, 1)
    assert (job.worker, job.lease_expires_at, job.finished_at) == ("w1", None, None)
    await h.advance(400)
    (again,) = (await h.lease("q")).jobs
    assert (again.id, again.attempt, again.run_at) == (job_id, 2, h.now)


async def test_exponential_backoff_waits_one_base_then_two_then_four(h: Harness) -> None:
    backoff = Backoff(kind="exponential", base_ms=1_000, jitter="none")
    assert await waits(h, 5, backoff) == [1_000, 2_000, 4_000, 8_000, 16_000]


async def test_backoff_never_waits_longer_than_its_cap(h: Harness) -> None:
    backoff = Backoff(kind="exponential", base_ms=100, cap_ms=350, jitter="none")
    assert await waits(h, 6, backoff) == [100, 200, 350, 350, 350, 350]
    await h.store.purge(h.name, "waits")
    assert (
        await waits(h, 2, Backoff(kind="fixed", base_ms=100, cap_ms=60, jitter="none")) == [60] * 2
    )


async def test_backoff_stays_at_its_cap_after_hundreds_of_failures(h: Harness) -> None:
    backoff = Backoff(kind="exponential", base_ms=7, cap_ms=900, jitter="none")
    assert await waits(h, 200, backoff) == [7, 14, 28, 56, 112, 224, 448, 896] + [900] * 192


async def test_linear_backoff_grows_by_one_base(h: Harness) -> None:
    backoff = Backoff(kind="linear", base_ms=250, cap_ms=900, jitter="none")
    assert await waits(h, 5, backoff) == [250, 500, 750, 900, 900]


async def test_fixed_backoff_waits_the_same_every_time(h: Harness) -> None:
    assert await waits(h, 4, after(120)) == [120] * 4


async def test_a_list_of_waits_is_followed_and_its_last_repeats(h: Harness) -> None:
    backoff = Backoff(kind="list", list_ms=(50, 10, 300), jitter="none")
    assert await waits(h, 5, backoff) == [50, 10, 300, 300, 300]


async def test_no_backoff_is_ready_at_once(h: Harness) -> None:
    assert await waits(h, 3, AT_ONCE) == [0, 0, 0]


@pytest.mark.parametrize(("jitter", "least"), [("full", 0), ("equal", 500)])
async def test_jitter_spreads_the_waits_within_its_bounds(
    h: Harness, jitter: Jitter, least: int
) -> None:
    await h.push_alike("q", 400, backoff=Backoff(kind="fixed", base_ms=1_000, jitter=jitter))
    failed = (await h.fail(await h.lease("q", 400))).jobs
    found = [job.run_at - h.now for job in failed if job.run_at is not None]
    assert len(found) == 400
    assert least <= min(found) < least + (1_000 - least) // 10
    assert 1_000 - (1_000 - least) // 10 < max(found) <= 1_000
    assert len(set(found)) > 100


async def test_unless_told_a_job_waits_up_to_a_second_then_two(h: Harness) -> None:
    await h.push_alike("q", 200)
    for most in (1_000, 2_000):
        failed = (await h.fail(await h.lease("q", 200))).jobs
        found = [job.run_at - h.now for job in failed if job.run_at is not None]
        assert (len(found), min(found) >= 0) == (200, True)
        assert most // 2 < max(found) <= most
        await h.advance(most)


async def test_the_wait_that_was_answered_is_the_wait_that_is_kept(h: Harness) -> None:
    await h.push_alike("q", 300)
    failed = (await h.fail(await h.lease("q", 300))).jobs
    due = {job.id: job.run_at for job in failed if job.run_at is not None}
    await h.restart()
    for instant in sorted(set(due.values())):
        h.clock.advance(instant - h.now)
        assert await h.claimed("q", 300) == sorted(i for i in due if due[i] == instant)


async def test_the_last_failure_makes_the_job_dead(h: Harness) -> None:
    job_id = await h.push("q", max_attempts=2, backoff=AT_ONCE)
    assert [job.state for job in (await h.fail(await h.lease("q"))).jobs] == [State.READY]
    lease = await h.lease("q")
    h.clock.advance(5)
    assert (await h.fail(lease)).jobs == (FailedJob(job_id, State.DEAD, None),)
    job = await h.job(job_id)
    assert (job.state, job.dead_reason) == (State.DEAD, DeadReason.MAX_ATTEMPTS)
    assert (job.attempt, job.finished_at) == (2, h.now)
    assert await h.claim("q") is None


async def test_unless_told_a_job_has_three_attempts(h: Harness) -> None:
    job_id = await h.push("q", backoff=AT_ONCE)
    states = [(await h.fail(await h.lease("q"))).jobs[0].state for _ in range(3)]
    assert states == [State.READY, State.READY, State.DEAD]
    assert (await h.job(job_id)).attempt == 3


async def test_a_job_of_one_attempt_dies_of_its_first_failure(h: Harness) -> None:
    job_id = await h.push("q", max_attempts=1)
    await h.fail(await h.lease("q"))
    assert await h.state(job_id) == State.DEAD


async def test_no_maximum_means_attempts_without_end(h: Harness) -> None:
    job_id = await h.push("q", max_attempts=FOREVER, backoff=AT_ONCE)
    for attempt in range(1, 41):
        lease = await h.lease("q")
        assert lease.jobs[0].attempt == attempt
        await h.fail(lease)
    assert await h.state(job_id) == State.READY


async def test_a_dead_job_keeps_the_error_of_every_attempt(h: Harness) -> None:
    job_id = await h.push("q", backoff=AT_ONCE)
    told = []
    for attempt in (1, 2, 3):
        lease = await h.lease("q", worker=f"w{attempt}")
        h.clock.advance(attempt * 10)
        await h.fail(
            lease, error=JobError(kind=f"E{attempt}", message=f"m{attempt}", trace=f"t{attempt}")
        )
        told.append((f"E{attempt}", f"m{attempt}", f"t{attempt}", f"w{attempt}", h.now, attempt))
    errors = (await h.job(job_id)).errors
    assert [(e.kind, e.message, e.trace, e.worker, e.at, e.attempt) for e in errors] == told


async def test_the_store_says_when_who_and_which_attempt_whatever_the_worker_says(
    h: Harness,
) -> None:
    job_id = await h.push("q")
    lease = await h.lease("q", worker="w1")
    h.clock.advance(5)
    await h.fail(lease, error=JobError(kind="E", at=1, worker="liar", attempt=99))
    (error,) = (await h.job(job_id)).errors
    assert (error.at, error.worker, error.attempt) == (h.now, "w1", 1)


async def test_the_last_ten_errors_are_kept(h: Harness) -> None:
    job_id = await h.push("q", max_attempts=FOREVER, backoff=AT_ONCE)
    for attempt in range(1, 15):
        await h.fail(await h.lease("q"), error=JobError(message=f"failure {attempt}"))
        h.clock.advance(1)
    errors = (await h.job(job_id)).errors
    assert [error.message for error in errors] == [f"failure {n}" for n in range(5, 15)]
    assert [error.attempt for error in errors] == list(range(5, 15))


@pytest.mark.parametrize("letter", ["x", "ü", "€", "🜁"])
async def test_a_trace_is_cut_to_sixteen_kibibytes(h: Harness, letter: str) -> None:
    job_id = await h.push("q")
    await h.fail(await h.lease("q"), error=JobError(trace=letter * 20_000))
    (error,) = (await h.job(job_id)).errors
    size = len(error.trace.encode())
    assert set(error.trace) == {letter}
    assert 16 * 1024 - 4 < size <= 16 * 1024


async def test_a_worker_may_end_a_job_whatever_attempts_are_left(h: Harness) -> None:
    job_id = await h.push("q", max_attempts=FOREVER)
    lease = await h.lease("q")
    h.clock.advance(1)
    failed = await h.fail(lease, dead=True)
    assert failed.jobs == (FailedJob(job_id, State.DEAD, None),)
    job = await h.job(job_id)
    assert (job.state, job.dead_reason, job.finished_at) == (
        State.DEAD,
        DeadReason.REJECTED,
        h.now,
    )
    assert [(error.kind, error.message) for error in job.errors] == [(BOOM.kind, BOOM.message)]


async def test_a_worker_may_say_when_to_try_again(h: Harness) -> None:
    job_id = await h.push("q", backoff=after(10))
    failed = await h.fail(await h.lease("q"), retry_in_ms=777)
    assert failed.jobs == (FailedJob(job_id, State.SCHEDULED, h.now + 777),)
    await h.advance(776)
    assert await h.claim("q") is None
    await h.advance(1)
    assert await h.claimed("q") == [job_id]


async def test_to_try_again_in_no_time_is_ready_at_once(h: Harness) -> None:
    job_id = await h.push("q", backoff=after(10_000))
    failed = await h.fail(await h.lease("q"), retry_in_ms=0)
    assert failed.jobs == (FailedJob(job_id, State.READY, h.now),)
    assert await h.claimed("q") == [job_id]


async def test_to_say_when_to_try_again_adds_no_attempt(h: Harness) -> None:
    job_id = await h.push("q", max_attempts=2)
    await h.fail(await h.lease("q"), retry_in_ms=0)
    await h.fail(await h.lease("q"), retry_in_ms=0)
    assert await h.state(job_id) == State.DEAD


async def test_a_wait_said_by_the_worker_counts_as_a_failure_for_the_next_backoff(
    h: Harness,
) -> None:
    await h.push("q", backoff=Backoff(kind="linear", base_ms=100, jitter="none"))
    await h.fail(await h.lease("q"), retry_in_ms=0)
    (failed,) = (await h.fail(await h.lease("q"))).jobs
    assert failed.run_at == h.now + 200


async def test_a_release_does_not_count_as_a_failure_for_the_backoff(h: Harness) -> None:
    await h.push("q", backoff=Backoff(kind="linear", base_ms=100, jitter="none"))
    for _ in range(3):
        await h.release(await h.lease("q"))
    (failed,) = (await h.fail(await h.lease("q"))).jobs
    assert failed.run_at == h.now + 100


@many_jobs
async def test_a_failure_of_part_leaves_the_rest_leased(h: Harness) -> None:
    ids = await h.push_alike("q", BLOCK + 500, backoff=after(100))
    lease = await h.lease("q", 10_000)
    part = ids[4_000:4_200] + ids[5:6]
    failed = await h.fail(lease, part)
    assert sorted(job.id for job in failed.jobs) == sorted(part)
    assert await h.counts("q") == {"active": len(ids) - 201, "scheduled": 201}
    assert sorted((await h.ack(lease)).acked) == sorted(set(ids) - set(part))
    await h.advance(100)
    assert await h.claimed("q", 10_000) == sorted(part)


async def test_named_ids_of_a_failure_are_deduplicated_and_the_unheld_lost(h: Harness) -> None:
    ids = await h.push_alike("q", 4)
    lease = await h.lease("q", 3)
    failed = await h.fail(lease, [ids[3], ids[1], ids[1], ids[3]])
    assert ([job.id for job in failed.jobs], list(failed.lost)) == ([ids[1]], [ids[3]])
    assert (await h.job(ids[1])).attempt == 1
    assert len((await h.job(ids[1])).errors) == 1
    assert await h.state(ids[3]) == State.READY


async def test_a_failure_under_a_lease_that_holds_none_of_the_jobs_changes_nothing(
    h: Harness,
) -> None:
    ids = await h.push_alike("q", 4)
    one, two = await h.lease("q", 2), await h.lease("q", 2)
    for token, named in ((one, two.ids), ("unknown", None), ("unknown", ids)):
        with pytest.raises(LeaseLost):
            await h.fail(token, named)
    with pytest.raises(Invalid):
        await h.fail(one, [])
    assert await h.counts("q") == {"active": 4}
    assert (await h.job(ids[2])).errors == ()


async def test_a_job_fails_or_is_acked_but_not_both(h: Harness) -> None:
    failing, working = await h.push_alike("q", 2, backoff=after(50))
    lease = await h.lease("q", 2)
    await h.fail(lease, [failing])
    await h.ack(lease, [working])
    for call in (h.ack, h.fail):
        with pytest.raises(LeaseLost):
            await call(lease, [failing, working])
    assert (await h.state(failing), await h.state(working)) == (State.SCHEDULED, State.COMPLETED)
    assert len((await h.job(failing)).errors) == 1


async def test_a_failure_after_expiry_is_refused_before_any_sweep(h: Harness) -> None:
    job_id = await h.push("q", max_attempts=2, backoff=after(50))
    lease = await h.lease("q", lease_ms=100)
    h.clock.advance(100)
    with pytest.raises(LeaseLost):
        await h.fail(lease, dead=True)
    job = await h.job(job_id)
    assert [error.kind for error in job.errors] == ["lease_expired"]
    assert job.state == State.SCHEDULED


@many_jobs
async def test_jobs_of_one_batch_retry_or_die_each_by_its_own_options(h: Harness) -> None:
    backoffs = (after(100), after(300), AT_ONCE)
    specs = [{"max_attempts": 1 + n % 2, "backoff": backoffs[n % 3]} for n in range(BLOCK + 104)]
    ids = (await h.push_many("q", specs)).ids
    failed = {job.id: job for job in (await h.fail(await h.lease("q", 10_000))).jobs}
    assert sorted(failed) == ids
    for n, job_id in enumerate(ids):
        if n % 2 == 0:
            assert failed[job_id] == FailedJob(job_id, State.DEAD, None)
        else:
            wait = (100, 300, 0)[n % 3]
            state = State.SCHEDULED if wait else State.READY
            assert failed[job_id] == FailedJob(job_id, state, h.now + wait)
    again = [ids[n] for n in range(len(ids)) if n % 2]
    by_wait = {
        wait: [i for i in again if (i - ids[0]) % 3 == rest]
        for rest, wait in ((2, 0), (0, 100), (1, 300))
    }
    assert await h.claimed("q", 10_000) == by_wait[0]
    await h.advance(100)
    assert await h.claimed("q", 10_000) == by_wait[100]
    await h.advance(200)
    assert await h.claimed("q", 10_000) == by_wait[300]


async def test_a_retry_is_the_same_job(h: Harness) -> None:
    pushed = await h.push_many(
        "q",
        [
            {"payload": b'"a"'},
            {
                "payload": b'"b"',
                "priority": 4,
                "headers": {"x": "y"},
                "key": "k",
                "task": "t",
                "backoff": AT_ONCE,
            },
            {"payload": b'"c"'},
        ],
    )
    job_id = pushed.ids[1]
    before = await h.job(job_id)
    await h.fail(await h.lease("q"))
    (again,) = (await h.lease("q")).jobs
    for name in ("id", "payload", "options", "priority", "headers", "key", "created_at"):
        assert getattr(again, name) == getattr(before, name), name
    assert again.attempt == 2


async def test_failures_and_their_errors_survive_a_restart(h: Harness) -> None:
    ids = await h.push_alike("q", 3, backoff=after(500), max_attempts=2)
    lease = await h.lease("q", 3, worker="w1")
    await h.fail(lease, ids[:1], dead=True)
    await h.fail(lease, ids[1:2])
    before = [await h.job(job_id) for job_id in ids]
    await h.restart()
    assert [await h.job(job_id) for job_id in ids] == before
    await h.advance(500)
    again = await h.lease("q", 3)
    assert [(job.id, job.attempt) for job in again.jobs] == [(ids[1], 2)]
    await h.fail(again)
    assert [error.attempt for error in (await h.job(ids[1])).errors] == [1, 2]
