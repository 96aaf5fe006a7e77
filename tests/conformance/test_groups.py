"""Groups: one job at a time (or a few), in order; who holds a slot and who lets go of it."""

import pytest

from penstock.model.errors import LeaseLost
from penstock.model.job import JobSpec
from penstock.model.lifecycle import State
from penstock.model.policy import Limits
from tests.conformance.blocks import fill_block
from tests.conformance.endings import ENDINGS, LEASE_MS, RETRIES, WAIT_MS, Ending, each
from tests.conformance.harness import Harness, after


async def claim_all(h: Harness, queue: str = "q", n: int = 1) -> list[int]:
    """The ids that claims of `n` take one after the other until nothing is left to take."""
    taken: list[int] = []
    while got := await h.claimed(queue, n):
        taken += got
    return taken


async def test_a_group_runs_one_job_at_a_time_in_push_order(h: Harness) -> None:
    ids = []
    for _ in range(3):
        ids.append(await h.push("q", group="g"))
        await h.advance(1)
    for job_id in ids:
        lease = await h.lease("q", 10)
        assert lease.ids == [job_id]
        assert await h.claim("q", 10) is None
        await h.ack(lease)
        await h.advance(1)
    assert await h.claim("q") is None


async def test_a_batch_pushed_and_claimed_at_once_still_runs_one_at_a_time(h: Harness) -> None:
    ids = (await h.push_many("q", [{"group": "g"}] * 3)).ids
    for job_id in ids:
        lease = await h.lease("q", 10_000)
        assert lease.ids == [job_id]
        await h.ack(lease)


async def test_a_batch_claim_takes_at_most_the_free_slots_of_each_group(h: Harness) -> None:
    await h.configure("q", limits=Limits(group_concurrency=2))
    a = (await h.push_many("q", [{"group": "a"}] * 5)).ids
    b = (await h.push_many("q", [{"group": "b"}] * 1)).ids
    u = (await h.push_many("q", [{}] * 3)).ids
    first = await h.lease("q", 2)
    assert len(first) == 2
    rest = await h.lease("q", 100)
    taken = {*first.ids, *rest.ids}
    assert taken == {*a[:2], *b, *u}
    assert await h.claim("q", 100) is None
    await h.ack(rest, [a[1]] if a[1] in rest.ids else [a[0]])
    assert await h.claimed("q", 100) == [a[2]]


async def test_inside_a_group_the_ready_instant_decides_then_push_order(h: Harness) -> None:
    late = await h.push("q", group="g", delay_ms=30)
    early = await h.push("q", group="g", delay_ms=10)
    now = await h.push("q", group="g")
    also_now = await h.push("q", group="g")
    await h.advance(50)
    last = await h.push("q", group="g")
    order = []
    while (lease := await h.claim("q", 10)) is not None:
        order += lease.ids
        await h.ack(lease)
    assert order == [now, also_now, early, late, last]


async def test_priority_does_not_reorder_a_group(h: Harness) -> None:
    low = await h.push("q", group="g", priority=-5)
    await h.advance(1)
    high = await h.push("q", group="g", priority=5)
    lease = await h.lease("q", 10)
    assert lease.ids == [low]
    await h.ack(lease)
    assert await h.claimed("q", 10) == [high]


async def test_priority_ranks_a_group_by_its_head(h: Harness) -> None:
    low_head = await h.push("q", group="g", priority=-5)
    high_tail = await h.push("q", group="g", priority=9)
    middle = await h.push("q", priority=1)
    top = await h.push("q", priority=5)
    leases = [await h.lease("q"), await h.lease("q"), await h.lease("q")]
    assert [lease.ids for lease in leases] == [[top], [middle], [low_head]]
    await h.push("q", priority=8)
    await h.ack(leases[2])
    assert await h.claimed("q") == [high_tail]


async def test_a_group_that_is_busy_never_holds_up_others(h: Harness) -> None:
    first = await h.push("q", group="g", priority=9)
    await h.push("q", group="g", priority=9)
    await h.advance(1)
    other = await h.push("q", group="h")
    plain = await h.push("q")
    assert set(await claim_all(h)) == {first, other, plain}


async def test_groups_of_two_queues_have_nothing_to_do_with_each_other(h: Harness) -> None:
    first = await h.push("q", group="g")
    second = await h.push("r", group="g")
    assert await h.claimed("q") == [first]
    assert await h.claimed("r") == [second]


async def test_group_concurrency_lets_that_many_run(h: Harness) -> None:
    await h.configure("q", limits=Limits(group_concurrency=3))
    ids = (await h.push_many("q", [{"group": "g"}] * 5)).ids
    one = await h.lease("q")
    more = await h.lease("q", 10)
    assert one.ids + more.ids == ids[:3]
    await h.ack(more, [ids[2]])
    assert await h.claimed("q", 10) == [ids[3]]


async def test_more_group_concurrency_counts_at_once_and_less_when_slots_are_given_back(
    h: Harness,
) -> None:
    ids = (await h.push_many("q", [{"group": "g"}] * 6)).ids
    first = await h.lease("q", 10)
    await h.configure("q", limits=Limits(group_concurrency=3))
    second = await h.lease("q", 10)
    assert second.ids == ids[1:3]
    await h.configure("q", limits=Limits(group_concurrency=2))
    await h.ack(first)
    assert await h.claim("q", 10) is None
    await h.ack(second, [ids[1]])
    assert await h.claimed("q", 10) == [ids[3]]


# -- every way out of `active` ---------------------------------------------------------------------


@each(ENDINGS)
async def test_every_way_out_of_active_frees_the_groups_slot(h: Harness, ending: Ending) -> None:
    first = await h.push("q", group="g", **ending.spec)
    await h.advance(1)
    following = await h.push("q", group="g")
    await h.advance(1)
    lease = await h.lease("q", 10)
    assert lease.ids == [first]
    await ending.leave(h, lease)
    assert await h.state(first) == ending.after
    if ending.after is None:
        following = await h.push("q", group="g")
    await h.push("q", group="g")
    expected = first if ending.after == "ready" else following
    assert await h.claimed("q", 10) == [expected]
    assert await h.claim("q", 10) is None


@each(ENDINGS)
async def test_every_way_out_of_active_lets_a_waiting_claim_have_the_groups_next_job(
    h: Harness, ending: Ending
) -> None:
    first = await h.push("q", group="g", **ending.spec)
    following = await h.push("q", group="g")
    lease = await h.lease("q")
    waiting = await h.start(h.lease("q", wait_ms=3_600_000))
    assert not waiting.done()
    await ending.leave(h, lease)
    if ending.after is None:
        following = await h.push("q", group="g")
    expected = first if ending.after == "ready" else following
    assert (await h.told(waiting)).ids == [expected]


@each(RETRIES)
async def test_a_job_in_backoff_keeps_its_groups_slot(h: Harness, ending: Ending) -> None:
    first = await h.push("q", group="g", **ending.spec)
    await h.advance(1)
    second = await h.push("q", group="g")
    lease = await h.lease("q", 10)
    assert lease.ids == [first]
    await ending.leave(h, lease)
    assert await h.state(first) == State.SCHEDULED
    other = await h.push("q", group="h")
    assert await h.claimed("q", 10) == [other]
    await h.advance(WAIT_MS)
    await h.cancel(other)
    retry = await h.lease("q", 10)
    assert [(job.id, job.attempt) for job in retry.jobs] == [(first, 2)]
    await h.ack(retry)
    assert await h.claimed("q", 10) == [second]


async def test_a_retry_without_wait_is_not_overtaken_in_its_group(h: Harness) -> None:
    """It is ready later than the job behind it, but the slot is its own."""
    first = await h.push("q", group="g", backoff=after(0), max_attempts=3)
    await h.advance(1)
    second = await h.push("q", group="g")
    for attempt in (1, 2):
        await h.advance(1)
        lease = await h.lease("q", 10)
        assert [(job.id, job.attempt) for job in lease.jobs] == [(first, attempt)]
        await h.fail(lease)
    last = await h.lease("q", 10)
    assert last.ids == [first]
    await h.fail(last)
    assert await h.state(first) == State.DEAD
    assert await h.claimed("q", 10) == [second]


async def test_a_retry_that_is_due_but_not_claimed_still_keeps_its_slot(h: Harness) -> None:
    first = await h.push("q", group="g", backoff=after(100))
    second = await h.push("q", group="g")
    await h.fail(await h.lease("q"))
    await h.advance(5_000)
    assert await h.state(first) == State.READY
    lease = await h.lease("q", 10)
    assert lease.ids == [first]
    await h.ack(lease)
    assert await h.claimed("q", 10) == [second]


async def test_a_backoff_uses_one_of_several_slots(h: Harness) -> None:
    await h.configure("q", limits=Limits(group_concurrency=2))
    ids = (await h.push_many("q", [{"group": "g", "backoff": after(100)}] * 4)).ids
    lease = await h.lease("q", 2)
    await h.fail(lease, [ids[0]])
    assert await h.claim("q", 10) is None
    await h.ack(lease, [ids[1]])
    third = await h.lease("q", 10)
    assert third.ids == [ids[2]]
    await h.advance(100)
    assert await h.claimed("q", 10) == [ids[0]]
    await h.ack(third)
    assert await h.claimed("q", 10) == [ids[3]]


@pytest.mark.parametrize("wait_ms", [0, WAIT_MS], ids=["ready", "scheduled"])
@pytest.mark.parametrize("how", ["cancel", "discard", "replace", "drain", "purge"])
async def test_a_job_that_leaves_its_backoff_for_good_frees_the_slot(
    h: Harness, how: str, wait_ms: int
) -> None:
    first = await h.push("q", group="g", backoff=after(wait_ms), key="k")
    await h.advance(1)
    second = await h.push("q", group="g")
    await h.fail(await h.lease("q"))
    await h.advance(1)
    if how == "replace":
        await h.push("q", b"2", group="g", key="k", on_conflict="replace")
    elif how in ("drain", "purge"):
        await getattr(h.store, how)(h.name, "q")
        second = await h.push("q", group="g")
    else:
        await h.cancel(first, discard=how == "discard")
    assert await h.claimed("q", 10) == [second]
    assert await h.claim("q", 10) is None


async def test_an_edit_leaves_the_slot_to_the_job_in_backoff(h: Harness) -> None:
    first = await h.push("q", group="g", backoff=after(WAIT_MS))
    await h.push("q", group="g")
    await h.fail(await h.lease("q"))
    await h.store.edit(h.name, first, priority=-3)
    assert await h.claim("q", 10) is None
    await h.store.edit(h.name, first, run_at=h.now + 50)
    await h.advance(20)
    assert await h.claim("q", 10) is None
    await h.store.edit(h.name, first, delay_ms=0)
    assert await h.claimed("q", 10) == [first]


async def test_a_released_job_frees_the_slot_and_stays_first(h: Harness) -> None:
    first = await h.push("q", group="g")
    await h.advance(1)
    second = await h.push("q", group="g")
    await h.release(await h.lease("q"))
    await h.cancel(first)
    assert await h.claimed("q", 10) == [second]


async def test_a_release_after_a_failed_attempt_frees_the_slot_too(h: Harness) -> None:
    """The second attempt is given back; the slot that its backoff had kept goes with it."""
    first = await h.push("q", group="g", backoff=after(10))
    await h.advance(1)
    second = await h.push("q", group="g", priority=0)
    await h.fail(await h.lease("q"))
    await h.advance(10)
    lease = await h.lease("q")
    assert lease.ids == [first]
    await h.release(lease)
    assert await h.claimed("q", 10) == [second]
    assert await h.claim("q", 10) is None


async def test_a_redriven_job_has_no_slot_of_its_own(h: Harness) -> None:
    first = await h.push("q", group="g")
    await h.fail(await h.lease("q"), dead=True)
    await h.advance(1)
    second = await h.push("q", group="g")
    await h.advance(1)
    await h.store.redrive(h.name, "q")
    lease = await h.lease("q", 10)
    assert lease.ids == [second]
    await h.ack(lease)
    assert await h.claimed("q", 10) == [first]


# -- who does not hold a group ---------------------------------------------------------------------


async def test_a_job_that_never_started_and_is_delayed_does_not_hold_its_group(h: Harness) -> None:
    delayed = await h.push("q", group="g", delay_ms=1_000)
    await h.advance(1)
    ready = await h.push("q", group="g")
    lease = await h.lease("q", 10)
    assert lease.ids == [ready]
    await h.advance(1_000)
    assert await h.claim("q", 10) is None
    await h.ack(lease)
    assert await h.claimed("q", 10) == [delayed]


async def test_a_blocked_job_does_not_hold_its_group(h: Harness) -> None:
    dependency = await h.push("d")
    blocked = await h.push("q", group="g", depends_on=(dependency,))
    await h.advance(1)
    ready = await h.push("q", group="g")
    lease = await h.lease("q", 10)
    assert lease.ids == [ready]
    await h.ack(lease)
    await h.ack(await h.lease("d"))
    assert await h.claimed("q", 10) == [blocked]


async def test_jobs_that_end_without_having_run_leave_the_group_to_the_rest(h: Harness) -> None:
    expires = await h.push("q", group="g", ttl_ms=100)
    cancelled = await h.push("q", group="g")
    following = await h.push("q", group="g")
    await h.cancel(cancelled)
    await h.advance(100)
    assert await h.state(expires) == State.EXPIRED
    assert await h.claimed("q", 10) == [following]


async def test_an_expired_lease_frees_the_group_before_any_sweep(h: Harness) -> None:
    await h.push("q", group="g", max_attempts=1)
    following = await h.push("q", group="g")
    lease = await h.lease("q")
    h.clock.advance(LEASE_MS)
    assert await h.claimed("q") == [following]
    with pytest.raises(LeaseLost):
        await h.ack(lease)


# -- mixtures, blocks, restarts --------------------------------------------------------------------


async def test_grouped_and_plain_jobs_across_a_block_boundary(h: Harness) -> None:
    await fill_block(h, "q", room=20)
    specs = [JobSpec(payload=b"%d" % n, group=None if n % 2 else f"g{n % 10}") for n in range(100)]
    ids = (await h.push_many("q", specs)).ids
    assert ids == list(range(ids[0], ids[0] + 100))
    lease = await h.lease("q", 10_000)
    heads = {ids[n] for n in (0, 2, 4, 6, 8)}
    assert set(lease.ids) == {*(ids[n] for n in range(1, 100, 2)), *heads}
    said = dict(zip(ids, specs, strict=True))
    for job in lease.jobs:
        assert (job.payload, job.group) == (said[job.id].payload, said[job.id].group)
    await h.ack(lease)
    for turn in range(1, 10):
        lease = await h.lease("q", 10_000)
        assert lease.ids == [ids[n + turn * 10] for n in (0, 2, 4, 6, 8)]
        await h.ack(lease)
    assert await h.claim("q", 10_000) is None


async def test_groups_survive_a_restart(h: Harness) -> None:
    running = await h.push("q", group="running")
    backing_off = await h.push("q", group="backoff", backoff=after(1_000))
    waiting = (await h.push_many("q", [{"group": "running"}, {"group": "backoff"}])).ids
    lease = await h.lease("q", 10)
    assert set(lease.ids) == {running, backing_off}
    await h.fail(lease, [backing_off])
    await h.restart()
    assert await h.claim("q", 10) is None
    assert (await h.info("q")).groups == 2
    await h.ack(lease)
    assert await h.claimed("q", 10) == [waiting[0]]
    await h.advance(1_000)
    retry = await h.lease("q", 10)
    assert retry.ids == [backing_off]
    await h.ack(retry)
    assert await h.claimed("q", 10) == [waiting[1]]


async def test_slots_never_leak_over_many_ways_out(h: Harness) -> None:
    for turn in range(3):
        for ending in (*ENDINGS, *RETRIES):
            if ending.after is None:
                continue
            job_id = await h.push("q", group="g", **ending.spec)
            lease = await h.lease("q", 10)
            assert lease.ids == [job_id], (turn, ending.name)
            await ending.leave(h, lease)
            await h.cancel(job_id)
    assert (await h.info("q")).groups == 0
    last = (await h.push_many("q", [{"group": "g"}] * 2)).ids
    assert await h.claimed("q", 10) == [last[0]]
