"""Cancel, edit and promote, in every state that a job can be in."""

from typing import Any

import pytest

from penstock.model.errors import Conflict, LeaseLost, NotFound
from penstock.model.job import JobSpec
from penstock.model.lifecycle import DeadReason, State
from tests.conformance.blocks import fill_block
from tests.conformance.harness import Harness, after
from tests.conformance.test_keys import ENDED, NOT_STARTED, STARTED, bring

HOUR = 3_600_000
KNOWN_ENDED = [state for state in ENDED if state != "forgotten"]


# -- cancel ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("discard", [False, True], ids=["cancel", "discard"])
@pytest.mark.parametrize("state", [*NOT_STARTED, *STARTED])
async def test_a_live_job_is_cancelled_at_once(h: Harness, state: str, discard: bool) -> None:
    job_id = await bring(h, "q", state)
    await h.advance(5)
    answer = await h.cancel(job_id, discard=discard)
    assert (list(answer.acked), list(answer.lost)) == ([job_id], [])
    job = await h.job(job_id)
    expected = (State.DEAD, DeadReason.DISCARDED) if discard else (State.CANCELLED, None)
    assert (job.state, job.dead_reason) == expected
    assert job.finished_at == h.now
    result = await h.result(job_id)
    assert (result.state, result.value) == (expected[0], None)
    await h.advance(HOUR // 2)
    assert await h.claim("q", 10) is None


@pytest.mark.parametrize("state", ENDED)
async def test_a_job_that_has_ended_cannot_be_cancelled(h: Harness, state: str) -> None:
    job_id = await bring(h, "q", state)
    before = await h.get(job_id)
    for discard in (False, True):
        answer = await h.cancel(job_id, discard=discard)
        assert (list(answer.acked), list(answer.lost)) == ([], [job_id])
    assert await h.get(job_id) == before


async def test_cancel_sorts_a_mixed_list_into_cancelled_and_lost(h: Harness) -> None:
    done = await h.finish("q")
    ready, delayed = (await h.push_many("q", [{}, {"delay_ms": HOUR}])).ids
    unknown = delayed + 1_000
    answer = await h.cancel(done, ready, unknown, delayed, ready)
    assert set(answer.acked) == {ready, delayed}
    assert len(answer.acked) == 2
    assert set(answer.lost) == {done, unknown}


@pytest.mark.parametrize("turned", [False, True])
async def test_a_job_and_its_dependants_can_be_cancelled_together(h: Harness, turned: bool) -> None:
    """None of them fails as another's dependant, in whatever order they are named."""
    ids = (await h.push_many("q", [{}, {"depends_on": (-1,)}, {"depends_on": (-4,)}, {}])).ids
    answer = await h.store.cancel(h.name, ids[::-1] if turned else ids)
    assert (sorted(answer.acked), len(answer.lost)) == (ids, 0)
    assert await h.states(ids) == {"cancelled": 4}


async def test_the_worker_of_a_cancelled_job_learns_by_lost(h: Harness) -> None:
    ids = await h.push_alike("q", 3)
    lease = await h.lease("q", 3)
    await h.cancel(ids[1])
    assert list((await h.extend(lease)).lost) == [ids[1]]
    assert list((await h.extend(lease)).lost) == [ids[1]]
    answer = await h.ack(lease, [ids[0], ids[1]])
    assert (list(answer.acked), list(answer.lost)) == ([ids[0]], [ids[1]])
    with pytest.raises(LeaseLost):
        await h.ack(lease, [ids[1]])
    assert await h.state(ids[1]) == State.CANCELLED
    assert list((await h.ack(lease)).acked) == [ids[2]]


async def test_a_result_reported_for_a_cancelled_job_is_not_kept(h: Harness) -> None:
    ids = await h.push_alike("q", 2)
    lease = await h.lease("q", 2)
    await h.cancel(ids[0])
    await h.ack(lease)
    assert (await h.job(ids[0])).result is None


async def test_cancel_wakes_those_who_wait_for_the_result(h: Harness) -> None:
    job_id = await h.push("q")
    waiting = await h.start(h.result(job_id, wait_ms=60_000))
    await h.cancel(job_id)
    assert (await h.told(waiting)).state == State.CANCELLED


async def test_a_cancelled_job_is_forgotten_by_its_retention(h: Harness) -> None:
    job_id = await h.push("q", retain_ms=500)
    forgotten = await h.push("q", retain_ms=0)
    by_default = await h.push("q")
    await h.cancel(job_id, forgotten, by_default)
    assert await h.get(forgotten) is None
    await h.advance(500)
    assert await h.get(job_id) is None
    await h.advance(HOUR - 501)
    assert await h.state(by_default) == State.CANCELLED
    await h.advance(1)
    assert await h.get(by_default) is None


async def test_cancelling_many_across_a_block_boundary_leaves_the_rest(h: Harness) -> None:
    await fill_block(h, "q", room=20)
    specs = [
        JobSpec(
            payload=b"%d" % n,
            key=f"k{n}" if n % 4 == 1 else None,
            delay_ms=100 if n % 4 == 2 else None,
            group="g" if n % 4 == 3 else None,
        )
        for n in range(60)
    ]
    ids = (await h.push_many("q", specs)).ids
    answer = await h.store.cancel(h.name, ids[10:50])
    assert (len(answer.acked), len(answer.lost)) == (40, 0)
    await h.advance(100)
    assert await h.states(ids) == {"cancelled": 40, "ready": 20}
    lease = await h.lease("q", 100)
    rest = [*ids[:10], *ids[50:]]
    grouped = [job_id for job_id in rest if (job_id - ids[0]) % 4 == 3]
    assert set(lease.ids) == {job_id for job_id in rest if job_id not in grouped[1:]}


# -- edit ------------------------------------------------------------------------------------------

EDITS: list[dict[str, Any]] = [{"priority": 7}, {"run_at": 0}, {"delay_ms": 5}, {"payload": b"9"}]


@pytest.mark.parametrize("state", ["active", *KNOWN_ENDED])
async def test_a_job_that_is_active_or_ended_cannot_be_edited(h: Harness, state: str) -> None:
    job_id = await bring(h, "q", state)
    before = await h.job(job_id)
    for edit in EDITS:
        with pytest.raises(Conflict):
            await h.store.edit(h.name, job_id, **edit)
    assert await h.job(job_id) == before


async def test_a_job_that_is_not_known_cannot_be_edited(h: Harness) -> None:
    forgotten = await bring(h, "q", "forgotten")
    for job_id in (forgotten, forgotten + 1, 2**53 - 1):
        with pytest.raises(NotFound):
            await h.store.edit(h.name, job_id, priority=1)


@pytest.mark.parametrize("state", [*NOT_STARTED, "backoff", "released"])
async def test_priority_and_payload_are_changed_and_nothing_else(h: Harness, state: str) -> None:
    job_id = await bring(h, "q", state, payload=b"1", key="k", group="g", priority=2)
    before = await h.job(job_id)
    await h.advance(5)
    await h.store.edit(h.name, job_id, priority=7, payload=b"[2]")
    job = await h.job(job_id)
    assert (job.priority, job.payload, job.options.priority) == (7, b"[2]", 2)
    assert (job.state, job.run_at, job.attempt) == (before.state, before.run_at, before.attempt)
    assert (job.key, job.group, job.created_at) == ("k", "g", before.created_at)


async def test_an_edited_payload_may_have_another_codec(h: Harness) -> None:
    job_id = await h.push("q", b"1")
    await h.store.edit(h.name, job_id, payload=b"\xff\x00", codec="bytes")
    (job,) = (await h.lease("q")).jobs
    assert (job.id, job.payload, job.options.codec) == (job_id, b"\xff\x00", "bytes")


async def test_an_edited_priority_decides_with_the_ready_instant_kept(h: Harness) -> None:
    first = await h.push("q")
    await h.advance(1)
    second = await h.push("q", priority=5)
    await h.advance(1)
    third = await h.push("q", priority=5)
    await h.store.edit(h.name, first, priority=5)
    lease = await h.lease("q", 10)
    assert lease.ids == [first, second, third]
    assert lease.jobs[0].priority == 5


async def test_a_job_may_be_edited_to_any_priority_and_back(h: Harness) -> None:
    ids = [await h.push("q", priority=priority) for priority in (0, 1, 2)]
    await h.store.edit(h.name, ids[0], priority=2**31 - 1)
    await h.store.edit(h.name, ids[1], priority=-(2**31))
    await h.store.edit(h.name, ids[0], priority=0)
    assert await h.claimed("q", 10) == [ids[2], ids[0], ids[1]]


async def test_an_edit_to_a_later_run_at_delays_a_ready_job(h: Harness) -> None:
    job_id = await h.push("q")
    await h.store.edit(h.name, job_id, run_at=h.now + 500)
    assert await h.state(job_id) == State.SCHEDULED
    assert await h.claim("q") is None
    await h.advance(499)
    assert await h.claim("q") is None
    await h.advance(1)
    assert await h.claimed("q") == [job_id]


async def test_an_edited_delay_moves_a_scheduled_job_both_ways(h: Harness) -> None:
    later = await h.push("q", delay_ms=100)
    sooner = await h.push("q", delay_ms=1_000)
    await h.store.edit(h.name, later, delay_ms=1_000)
    await h.store.edit(h.name, sooner, delay_ms=100)
    await h.advance(100)
    assert await h.claimed("q", 5) == [sooner]
    await h.advance(900)
    assert await h.claimed("q", 5) == [later]


async def test_an_edit_of_one_job_of_an_alike_batch_leaves_its_neighbours(h: Harness) -> None:
    await fill_block(h, "q", room=5)
    ids = await h.push_alike("q", 12, delay_ms=1_000, task="t")
    await h.store.edit(h.name, ids[4], payload=b'"edited"', priority=3)
    await h.store.edit(h.name, ids[7], delay_ms=0)
    assert await h.claimed("q", 20) == [ids[7]]
    await h.advance(1_000)
    jobs = (await h.lease("q", 20)).jobs
    assert [job.id for job in jobs] == [ids[4], *ids[:4], *ids[5:7], *ids[8:]]
    payloads = {ids[n]: b"%d" % n for n in range(12)} | {ids[4]: b'"edited"'}
    assert [job.payload for job in jobs] == [payloads[job.id] for job in jobs]
    assert [job.priority for job in jobs] == [3] + [0] * 10


async def test_a_blocked_job_edited_to_another_run_at_stays_blocked(h: Harness) -> None:
    dependency = await h.push("d")
    later = await h.push("q", depends_on=(dependency,))
    sooner = await h.push("q", depends_on=(dependency,), delay_ms=HOUR)
    await h.store.edit(h.name, later, run_at=h.now + 500)
    await h.store.edit(h.name, sooner, delay_ms=0)
    assert await h.counts("q") == {"blocked": 2}
    await h.ack(await h.lease("d"))
    assert await h.claimed("q", 5) == [sooner]
    assert await h.state(later) == State.SCHEDULED
    await h.advance(500)
    assert await h.claimed("q", 5) == [later]


async def test_edits_survive_a_restart(h: Harness) -> None:
    ids = await h.push_alike("q", 3)
    await h.store.edit(h.name, ids[2], priority=4, payload=b'"edited"')
    await h.store.edit(h.name, ids[0], delay_ms=1_000)
    await h.restart()
    lease = await h.lease("q", 5)
    assert [(job.id, job.payload) for job in lease.jobs] == [(ids[2], b'"edited"'), (ids[1], b"1")]
    await h.advance(1_000)
    assert await h.claimed("q") == [ids[0]]


# -- promote ---------------------------------------------------------------------------------------


async def test_a_promoted_job_is_ready_since_its_promotion(h: Harness) -> None:
    delayed = await h.push("q", delay_ms=HOUR)
    await h.advance(1)
    earlier = await h.push("q")
    await h.advance(1)
    await h.store.edit(h.name, delayed, delay_ms=0)
    await h.advance(1)
    later = await h.push("q")
    assert (await h.job(delayed)).run_at == h.now - 1
    assert await h.claimed("q", 5) == [earlier, delayed, later]


async def test_a_past_run_at_promotes_too(h: Harness) -> None:
    earlier = await h.push("q")
    delayed = await h.push("q", delay_ms=HOUR)
    await h.advance(5)
    await h.store.edit(h.name, delayed, run_at=h.now - HOUR)
    assert await h.claimed("q", 5) == [earlier, delayed]


async def test_a_promoted_retry_keeps_its_attempts(h: Harness) -> None:
    job_id = await h.push("q", backoff=after(HOUR), max_attempts=2)
    await h.fail(await h.lease("q"))
    await h.store.edit(h.name, job_id, delay_ms=0)
    lease = await h.lease("q")
    assert [(job.id, job.attempt) for job in lease.jobs] == [(job_id, 2)]
    await h.fail(lease)
    job = await h.job(job_id)
    assert (job.state, len(job.errors)) == (State.DEAD, 2)


async def test_promotion_serves_a_claim_that_waits(h: Harness) -> None:
    job_id = await h.push("q", delay_ms=HOUR)
    waiting = await h.start(h.lease("q", wait_ms=60_000))
    await h.store.edit(h.name, job_id, delay_ms=0)
    assert (await h.told(waiting)).ids == [job_id]


async def test_the_ttl_of_a_promoted_job_still_counts_from_its_push(h: Harness) -> None:
    job_id = await h.push("q", delay_ms=1_000, ttl_ms=2_000)
    await h.advance(500)
    await h.store.edit(h.name, job_id, delay_ms=0)
    await h.advance(1_500)
    assert await h.state(job_id) == State.EXPIRED
