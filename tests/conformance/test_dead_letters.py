"""Dead letters: why jobs died, redriving them, purging them, and their keys meanwhile."""

from typing import Any

import pytest

from penstock.model.errors import Conflict, Deadline
from penstock.model.fingerprint import fingerprint
from penstock.model.job import JobError, JobSpec
from penstock.model.lifecycle import DeadReason, State
from penstock.model.policy import Backoff
from tests.conformance.blocks import fill_block
from tests.conformance.harness import Harness, after

HOUR = 3_600_000
DAY = 24 * HOUR


async def push_dead(
    h: Harness, queue: str = "q", error: JobError | None = None, **spec: Any
) -> int:
    """A dead job, rejected by its worker."""
    job_id = await h.push(queue, **spec)
    lease = await h.lease(queue)
    assert lease.ids == [job_id]
    await h.fail(lease, error=error or JobError(kind="Boom", message="it broke"), dead=True)
    await h.advance(1)
    return job_id


async def test_every_way_to_die_has_its_reason(h: Harness) -> None:
    exhausted = await h.push("q", max_attempts=1)
    await h.fail(await h.lease("q"))
    rejected = await push_dead(h)
    discarded = await h.push("q")
    await h.cancel(discarded, discard=True)
    orphan = await h.push("q", depends_on=(discarded,))
    reasons = [(await h.job(i)).dead_reason for i in (exhausted, rejected, discarded, orphan)]
    assert reasons == [
        DeadReason.MAX_ATTEMPTS,
        DeadReason.REJECTED,
        DeadReason.DISCARDED,
        DeadReason.DEPENDENCY_FAILED,
    ]
    assert await h.counts("q") == {"dead": 4}


# -- redrive ---------------------------------------------------------------------------------------


async def test_a_redriven_job_is_ready_again_with_all_its_attempts(h: Harness) -> None:
    backoff = Backoff(kind="exponential", base_ms=1_000, jitter="none")
    job_id = await h.push("q", b'"work"', max_attempts=2, backoff=backoff)
    await h.fail(await h.lease("q"))
    await h.advance(1_000)
    await h.fail(await h.lease("q"))
    assert await h.state(job_id) == State.DEAD
    await h.advance(5)
    answer = await h.store.redrive(h.name, "q")
    assert (answer.ids, answer.conflicts) == ((job_id,), ())
    job = await h.job(job_id)
    assert (job.state, job.attempt, job.dead_reason) == (State.READY, 0, None)
    assert (job.finished_at, job.payload) == (None, b'"work"')
    with pytest.raises(Deadline):
        await h.result(job_id)
    lease = await h.lease("q")
    assert [(got.id, got.attempt) for got in lease.jobs] == [(job_id, 1)]
    failed = await h.fail(lease)
    assert [(one.state, one.run_at) for one in failed.jobs] == [(State.SCHEDULED, h.now + 1_000)]
    await h.advance(1_000)
    await h.ack(await h.lease("q"), results={job_id: b"1"})
    assert (await h.result(job_id)).value == b"1"


async def test_a_redriven_job_has_no_ttl_any_more(h: Harness) -> None:
    orphan_of = await h.push("d", ttl_ms=500)
    job_id = await h.push("q", depends_on=(orphan_of,), ttl_ms=1_000)
    await h.advance(500)
    assert await h.state(job_id) == State.DEAD
    await h.store.redrive(h.name, "q")
    await h.advance(10_000)
    assert await h.state(job_id) == State.READY


async def test_a_redriven_job_goes_to_the_back_of_the_line(h: Harness) -> None:
    dead = await push_dead(h)
    waiting = await h.push("q")
    await h.advance(1)
    await h.store.redrive(h.name, "q")
    await h.advance(1)
    later = await h.push("q")
    assert await h.claimed("q", 5) == [waiting, dead, later]


async def test_redrive_takes_the_oldest_up_to_its_limit(h: Harness) -> None:
    ids = [await push_dead(h) for _ in range(4)]
    assert (await h.store.redrive(h.name, "q", limit=2)).ids == tuple(ids[:2])
    assert await h.counts("q") == {"dead": 2, "ready": 2}
    assert (await h.store.redrive(h.name, "q", limit=100)).ids == tuple(ids[2:])
    assert (await h.store.redrive(h.name, "q")).ids == ()


async def test_redrive_of_named_jobs_takes_those_that_are_dead_in_this_queue(h: Harness) -> None:
    done = await h.finish("q")
    dead = [await push_dead(h) for _ in range(3)]
    elsewhere = await push_dead(h, "r")
    ready = await h.push("q")
    named = [dead[2], done, ready, elsewhere, dead[0], 10**9, dead[0]]
    answer = await h.store.redrive(h.name, "q", ids=named)
    assert sorted(answer.ids) == [dead[0], dead[2]]
    assert answer.conflicts == ()
    assert await h.state(done) == State.COMPLETED
    assert await h.state(elsewhere) == State.DEAD
    assert await h.counts("q") == {"completed": 1, "dead": 1, "ready": 3}


async def test_redrive_serves_a_claim_that_waits(h: Harness) -> None:
    dead = await push_dead(h)
    waiting = await h.start(h.lease("q", wait_ms=60_000))
    await h.store.redrive(h.name, "q")
    assert (await h.told(waiting)).ids == [dead]


async def test_redrive_by_fingerprint_takes_the_same_error_whatever_its_numbers(
    h: Harness,
) -> None:
    lost = [
        await push_dead(h, error=JobError(kind="Lost", message=f"row {n} at 0x{n:08x} of 'a{n}'"))
        for n in (1, 22, 333)
    ]
    other_kind = await push_dead(h, error=JobError(kind="Other", message="row 1 at 0x1 of 'a'"))
    other_text = await push_dead(h, error=JobError(kind="Lost", message="no rows"))
    mark = fingerprint((await h.job(lost[0])).errors[-1])
    assert (await h.store.redrive(h.name, "q", fingerprint=mark, limit=2)).ids == tuple(lost[:2])
    assert (await h.store.redrive(h.name, "q", fingerprint=mark)).ids == tuple(lost[2:])
    assert (await h.store.redrive(h.name, "q", fingerprint="0" * 16)).ids == ()
    assert await h.states([other_kind, other_text]) == {"dead": 2}


async def test_the_fingerprint_is_that_of_the_last_error(h: Harness) -> None:
    job_id = await h.push("q", backoff=after(0), max_attempts=2)
    first = JobError(kind="First", message="at first")
    last = JobError(kind="Last", message="at last")
    await h.fail(await h.lease("q"), error=first)
    await h.fail(await h.lease("q"), error=last)
    assert (await h.store.redrive(h.name, "q", fingerprint=fingerprint(first))).ids == ()
    assert (await h.store.redrive(h.name, "q", fingerprint=fingerprint(last))).ids == (job_id,)


async def test_what_died_unheard_of_is_found_by_its_fingerprint_too(h: Harness) -> None:
    expired = await h.push("q", max_attempts=1)
    timed_out = await h.push("q", max_attempts=1, timeout_ms=1_000)
    orphan = await h.push("q", depends_on=(expired,))
    await h.lease("q", 2, lease_ms=5_000)
    await h.advance(5_000)
    discarded = await h.push("q")
    await h.cancel(discarded, discard=True)
    assert await h.counts("q") == {"dead": 4}
    kinds = {}
    for job_id in (expired, timed_out, orphan):
        error = (await h.job(job_id)).errors[-1]
        kinds[job_id] = error.kind
        answer = await h.store.redrive(h.name, "q", fingerprint=fingerprint(error))
        assert answer.ids == (job_id,)
    assert list(kinds.values()) == ["lease_expired", "timeout", "dependency_failed"]
    assert await h.state(discarded) == State.DEAD


async def test_redrive_across_a_block_boundary_picks_every_second_job(h: Harness) -> None:
    await fill_block(h, "q", room=15)
    specs = [
        JobSpec(key=f"k{n}" if n % 3 == 0 else None, group="g" if n % 4 == 3 else None)
        for n in range(40)
    ]
    ids = (await h.push_many("q", specs)).ids
    while (lease := await h.claim("q", 100)) is not None:
        for job_id in lease.ids:
            kind = "Even" if (job_id - ids[0]) % 2 == 0 else "Odd"
            await h.fail(lease, [job_id], error=JobError(kind=kind), dead=True)
    assert (await h.counts("q"))["dead"] == 40
    even = fingerprint(JobError(kind="Even"))
    assert sorted((await h.store.redrive(h.name, "q", fingerprint=even)).ids) == ids[::2]
    assert await h.states(ids[::2]) == {"ready": 20}
    assert await h.states(ids[1::2]) == {"dead": 20}


async def test_redriven_jobs_survive_a_restart(h: Harness) -> None:
    job_id = await push_dead(h, ttl_ms=1_000, key="k")
    await h.store.redrive(h.name, "q")
    await h.restart()
    await h.advance(5_000)
    assert await h.store.by_key(h.name, "q", "k") == job_id
    assert await h.claimed("q") == [job_id]


# -- keys of dead jobs -----------------------------------------------------------------------------


@pytest.mark.parametrize("keep_key", ["live", "started"])
async def test_a_redrive_takes_the_key_back(h: Harness, keep_key: str) -> None:
    job_id = await push_dead(h, key="k", keep_key=keep_key)
    assert await h.store.by_key(h.name, "q", "k") is None
    await h.store.redrive(h.name, "q")
    assert await h.store.by_key(h.name, "q", "k") == job_id
    with pytest.raises(Conflict):
        await h.push("q", key="k", on_conflict="reject")
    await h.lease("q")
    kept = None if keep_key == "started" else job_id
    assert await h.store.by_key(h.name, "q", "k") == kept


@pytest.mark.parametrize("keep_key", ["live", "started", "retained", 500])
async def test_a_job_whose_key_is_taken_meanwhile_stays_dead(h: Harness, keep_key: Any) -> None:
    dead = await push_dead(h, key="k", keep_key=keep_key)
    plain = await push_dead(h)
    await h.advance(500)
    newer = await h.push("q", b"2", key="k", keep_key=keep_key, on_conflict="replace")
    assert newer not in (dead, plain)
    answer = await h.store.redrive(h.name, "q")
    assert (answer.ids, answer.conflicts) == ((plain,), (dead,))
    assert await h.state(dead) == State.DEAD
    assert await h.store.by_key(h.name, "q", "k") == newer
    await h.store.purge_dead(h.name, "q")
    assert await h.store.by_key(h.name, "q", "k") == newer


async def test_a_duration_that_is_over_conflicts_with_whoever_took_the_key_then(
    h: Harness,
) -> None:
    dead = await h.push("q", b"1", key="k", keep_key=30_000)
    await h.advance(1)
    await h.push("q", b"2", key="k", keep_key=500, on_conflict="replace")
    await h.fail(await h.lease("q"), dead=True)
    await h.advance(500)
    newer = await h.push("q", b"3", key="k", on_conflict="match")
    answer = await h.store.redrive(h.name, "q")
    assert (answer.ids, answer.conflicts) == ((), (dead,))
    assert await h.store.by_key(h.name, "q", "k") == newer


async def test_a_conflict_is_over_when_the_other_job_has_ended(h: Harness) -> None:
    dead = await push_dead(h, key="k")
    other = await h.push("q", key="k")
    assert (await h.store.redrive(h.name, "q")).conflicts == (dead,)
    await h.cancel(other)
    assert (await h.store.redrive(h.name, "q")).ids == (dead,)


async def test_a_kept_duration_that_still_means_the_dead_job_is_no_conflict(h: Harness) -> None:
    dead = await push_dead(h, key="k", keep_key=10_000)
    answer = await h.store.redrive(h.name, "q")
    assert (answer.ids, answer.conflicts) == ((dead,), ())
    await h.advance(9_998)
    assert await h.store.by_key(h.name, "q", "k") == dead
    await h.advance(1)
    assert await h.store.by_key(h.name, "q", "k") is None


async def test_of_two_dead_jobs_with_one_key_the_older_one_gets_it(h: Harness) -> None:
    older = await push_dead(h, key="k")
    newer = await push_dead(h, key="k")
    answer = await h.store.redrive(h.name, "q")
    assert (answer.ids, answer.conflicts) == ((older,), (newer,))


# -- purge and retention ---------------------------------------------------------------------------


async def test_purging_the_dead_forgets_them_and_nothing_else(h: Harness) -> None:
    done = await h.finish("q")
    dead = [await push_dead(h) for _ in range(3)]
    elsewhere = await push_dead(h, "r")
    cancelled = await h.push("q")
    await h.cancel(cancelled)
    ready = await h.push("q")
    named = [dead[1], done, cancelled, ready, elsewhere, 10**9]
    assert await h.store.purge_dead(h.name, "q", ids=named) == 1
    assert await h.states(dead) == {"dead": 2, "forgotten": 1}
    assert await h.store.purge_dead(h.name, "q") == 2
    assert await h.store.purge_dead(h.name, "q") == 0
    assert await h.counts("q") == {"cancelled": 1, "completed": 1, "ready": 1}
    assert await h.state(elsewhere) == State.DEAD


async def test_purging_the_dead_frees_their_retained_keys(h: Harness) -> None:
    dead = await push_dead(h, key="k", keep_key="retained")
    assert await h.store.by_key(h.name, "q", "k") == dead
    await h.store.purge_dead(h.name, "q")
    assert await h.store.by_key(h.name, "q", "k") is None


async def test_dead_jobs_are_kept_for_thirty_days(h: Harness) -> None:
    dead = await h.push("q")
    await h.fail(await h.lease("q"), dead=True)
    await h.advance(30 * DAY - 1)
    assert await h.state(dead) == State.DEAD
    h.clock.advance(1)
    assert await h.get(dead) is None


async def test_the_retention_of_the_dead_can_be_said_by_queue_and_by_job(h: Harness) -> None:
    await h.configure("q", retain_dead_ms=2_000, retain_ms=1)
    ids = (await h.push_many("q", [{}, {"retain_dead_ms": 5_000}, {"retain_dead_ms": 0}])).ids
    await h.fail(await h.lease("q", 3), dead=True)
    assert await h.states(ids) == {"dead": 2, "forgotten": 1}
    await h.advance(2_000)
    assert await h.get(ids[0]) is None
    await h.advance(2_999)
    assert await h.state(ids[1]) == State.DEAD
    await h.advance(1)
    assert await h.get(ids[1]) is None


async def test_dead_jobs_do_not_count_among_the_retained(h: Harness) -> None:
    await h.configure("q", retain_count=1)
    dead = [await push_dead(h) for _ in range(3)]
    done = await h.finish("q")
    assert await h.states([*dead, done]) == {"completed": 1, "dead": 3}


async def test_named_dead_jobs_are_redriven_by_the_instant_of_their_end(h: Harness) -> None:
    first, second = (await h.push_many("q", [{}, {}])).ids
    await h.cancel(second, discard=True)
    await h.advance(10)
    await h.cancel(first, discard=True)
    assert (await h.store.redrive(h.name, "q", ids=[first, second], limit=1)).ids == (second,)


async def test_retention_of_nothing_forgets_the_dead_even_if_the_clock_went_back(
    h: Harness,
) -> None:
    job_id = await h.push("q")
    await h.cancel(job_id, discard=True)
    await h.jump(-100)
    await h.configure("q", retain_dead_ms=0)
    assert await h.get(job_id) is None
