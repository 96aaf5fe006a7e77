"""Limits on claims: rate, concurrency and those of each group, over all workers, never leaking."""

from typing import Any

import pytest

from penstock.model.job import JobSpec
from penstock.model.lifecycle import State
from penstock.model.policy import Limits, Rate
from tests.conformance.blocks import fill_block
from tests.conformance.endings import ENDINGS, RETRIES, Ending, each
from tests.conformance.harness import Harness

PER_SECOND = Rate(tokens=5)


# -- rate ------------------------------------------------------------------------------------------


async def test_a_rate_gives_out_its_tokens_and_then_one_every_fraction_of_the_period(
    h: Harness,
) -> None:
    await h.configure("q", limits=Limits(rate=PER_SECOND))
    ids = await h.push_alike("q", 20)
    for job_id in ids[:5]:
        assert await h.claimed("q") == [job_id]
    assert await h.claim("q") is None
    await h.advance(199)
    assert await h.claim("q") is None
    await h.advance(1)
    assert await h.claimed("q") == [ids[5]]
    assert await h.claim("q") is None
    await h.advance(1_000)
    assert await h.claimed("q", 20) == ids[6:11]
    assert await h.claim("q", 20) is None


async def test_a_batch_claim_respects_the_rate(h: Harness) -> None:
    await h.configure("q", limits=Limits(rate=PER_SECOND))
    ids = await h.push_alike("q", 20)
    assert await h.claimed("q", 3) == ids[:3]
    assert await h.claimed("q", 10_000) == ids[3:5]
    assert await h.claim("q", 10_000) is None


async def test_a_burst_is_the_most_that_is_given_out_at_one_instant(h: Harness) -> None:
    await h.configure("small", limits=Limits(rate=Rate(tokens=10, burst=2)))
    await h.configure("large", limits=Limits(rate=Rate(tokens=1, burst=4)))
    small = await h.push_alike("small", 20)
    large = await h.push_alike("large", 20)
    assert await h.claimed("small", 20) == small[:2]
    assert await h.claimed("large", 20) == large[:4]
    await h.advance(100)
    assert await h.claimed("small", 20) == small[2:3]
    assert await h.claim("large", 20) is None
    await h.advance(900)
    assert await h.claimed("small", 20) == small[3:5]
    assert await h.claimed("large", 20) == large[4:5]
    await h.advance(60_000)
    assert await h.claimed("small", 20) == small[5:7]
    assert await h.claimed("large", 20) == large[5:9]


async def test_a_rate_is_never_exceeded_over_a_long_time(h: Harness) -> None:
    await h.configure("q", limits=Limits(rate=Rate(tokens=7, per_ms=1_000, burst=3)))
    await h.push_alike("q", 300)
    taken = 0
    for step in (13, 29, 7, 101, 3) * 20:
        taken += len(await h.claimed("q", 100))
        await h.advance(step)
    # 20 × 153 ms pass in between: at most the burst and what that time brings back.
    assert taken == 3 + (20 * 153 - 3) * 7 // 1_000


async def test_an_ended_job_does_not_give_its_token_back(h: Harness) -> None:
    await h.configure("q", limits=Limits(rate=Rate(tokens=2)))
    await h.push_alike("q", 5)
    lease = await h.lease("q", 5)
    await h.ack(lease)
    assert await h.claim("q", 5) is None


async def test_a_rate_runs_on_time_that_passed_not_on_the_wall_clock(h: Harness) -> None:
    await h.configure("q", limits=Limits(rate=Rate(tokens=1)))
    await h.push_alike("q", 5)
    assert len(await h.claimed("q", 5)) == 1
    await h.jump(3_600_000)
    assert await h.claim("q", 5) is None
    await h.jump(-7_200_000)
    await h.advance(1_000)
    assert len(await h.claimed("q", 5)) == 1


async def test_a_claim_that_waits_is_served_when_the_next_token_comes(h: Harness) -> None:
    await h.configure("q", limits=Limits(rate=Rate(tokens=1)))
    ids = await h.push_alike("q", 3)
    await h.lease("q")
    waiting = await h.start(h.lease("q", 5, wait_ms=60_000))
    await h.advance(999)
    await h.settle()
    assert not waiting.done()
    await h.advance(1)
    assert (await h.told(waiting)).ids == [ids[1]]


# -- concurrency -----------------------------------------------------------------------------------


async def test_concurrency_holds_over_single_and_batch_claims(h: Harness) -> None:
    await h.configure("q", limits=Limits(concurrency=3))
    ids = await h.push_alike("q", 10)
    first = await h.lease("q", 1)
    second = await h.lease("q", 10)
    assert first.ids + second.ids == ids[:3]
    assert await h.claim("q", 10) is None
    await h.ack(second, [ids[2]])
    assert await h.claimed("q", 10) == [ids[3]]
    assert await h.claim("q", 10) is None


@each((*ENDINGS, *RETRIES))
async def test_every_way_out_of_active_frees_exactly_one_slot(h: Harness, ending: Ending) -> None:
    await h.configure("q", limits=Limits(concurrency=2))
    stays = await h.push("q")
    await h.advance(1)
    leaves = await h.push("q", **ending.spec)
    await h.advance(1)
    rest = await h.push_alike("q", 3)
    kept = await h.lease("q", lease_ms=86_400_000)
    lease = await h.lease("q", 10)
    assert (kept.ids, lease.ids) == ([stays], [leaves])
    assert await h.claim("q", 10) is None
    await ending.leave(h, lease)
    assert await h.state(leaves) == ending.after
    if ending.after is None:  # everything of the queue is gone, the other lease too
        rest = await h.push_alike("q", 3)
        assert await h.claimed("q", 10) == rest[:2]
    elif ending.after == "ready":
        assert await h.claimed("q", 10) == [leaves]
    else:
        assert await h.claimed("q", 10) == rest[:1]
    assert await h.claim("q", 10) is None


async def test_a_claim_that_waits_is_served_when_a_slot_is_freed(h: Harness) -> None:
    await h.configure("q", limits=Limits(concurrency=1))
    ids = await h.push_alike("q", 3)
    lease = await h.lease("q")
    waiting = await h.start(h.lease("q", 5, wait_ms=60_000))
    assert not waiting.done()
    await h.ack(lease)
    assert (await h.told(waiting)).ids == [ids[1]]


async def test_slots_never_leak_over_many_ways_out(h: Harness) -> None:
    await h.configure("q", limits=Limits(concurrency=3, group_concurrency=2))
    for turn in range(4):
        for ending in (*ENDINGS, *RETRIES):
            group = "g" if turn % 2 else None
            job_id = await h.push("q", group=group, **ending.spec)
            lease = await h.lease("q", 10)
            assert lease.ids == [job_id], (turn, ending.name)
            await ending.leave(h, lease)
            await h.cancel(job_id)
    await h.push_alike("q", 10)
    assert len(await h.claimed("q", 10)) == 3


async def test_partial_acks_free_as_many_slots_as_they_name_once(h: Harness) -> None:
    await h.configure("q", limits=Limits(concurrency=4))
    ids = await h.push_alike("q", 12)
    lease = await h.lease("q", 10)
    await h.ack(lease, [ids[0], ids[0], ids[2], ids[11]])
    assert await h.claimed("q", 10) == ids[4:6]
    assert await h.claim("q", 10) is None


async def test_a_job_cancelled_under_a_lease_is_not_freed_again_by_its_ack(h: Harness) -> None:
    await h.configure("q", limits=Limits(concurrency=2))
    ids = await h.push_alike("q", 6)
    lease = await h.lease("q", 2)
    await h.cancel(ids[0])
    third = await h.lease("q", 10)
    assert third.ids == [ids[2]]
    await h.ack(lease)
    assert await h.claimed("q", 10) == [ids[3]]
    assert await h.claim("q", 10) is None


async def test_two_queues_each_free_their_own_slots(h: Harness) -> None:
    leases = {}
    for queue in ("q", "r"):
        await h.configure(queue, limits=Limits(concurrency=1))
        await h.push_many(queue, [{"group": "g"}, {"group": "g"}, {}])
        leases[queue] = await h.lease(queue)
    assert await h.claim(["q", "r"], 5) is None
    await h.ack(leases["r"])
    assert await h.claim("q", 5) is None
    again = await h.lease(["q", "r"], 5)
    assert (again.queue, len(again)) == ("r", 1)
    assert await h.claim(["q", "r"], 5) is None
    await h.ack(leases["q"])
    assert (await h.lease(["r", "q"], 5)).queue == "q"


async def test_a_queue_at_its_limit_is_passed_over_for_the_next_in_the_list(h: Harness) -> None:
    await h.configure("full", limits=Limits(concurrency=1))
    await h.configure("spent", limits=Limits(rate=Rate(tokens=1)))
    for queue in ("full", "spent", "free"):
        await h.push_alike(queue, 3)
    await h.lease("full")
    await h.lease("spent")
    assert (await h.lease(["full", "spent", "free"])).queue == "free"


async def test_less_concurrency_takes_nothing_away_but_gives_nothing_out(h: Harness) -> None:
    await h.configure("q", limits=Limits(concurrency=3))
    ids = await h.push_alike("q", 6)
    lease = await h.lease("q", 3)
    await h.configure("q", limits=Limits(concurrency=1))
    await h.ack(lease, ids[:2])
    assert await h.claim("q", 5) is None
    await h.ack(lease)
    assert await h.claimed("q", 5) == [ids[3]]


async def test_raising_a_limit_serves_a_claim_that_waits(h: Harness) -> None:
    await h.configure("q", limits=Limits(concurrency=1))
    ids = await h.push_alike("q", 6)
    await h.lease("q")
    waiting = await h.start(h.lease("q", 5, wait_ms=60_000))
    await h.configure("q", limits=Limits(concurrency=3))
    assert (await h.told(waiting)).ids == ids[1:3]


async def test_concurrency_counts_jobs_that_ran_before_it_was_configured(h: Harness) -> None:
    ids = await h.push_alike("q", 6)
    lease = await h.lease("q", 2)
    await h.configure("q", limits=Limits(concurrency=3))
    assert await h.claimed("q", 5) == ids[2:3]
    await h.ack(lease)
    assert await h.claimed("q", 5) == ids[3:5]


async def test_redelivery_counts_against_the_limits_like_any_claim(h: Harness) -> None:
    await h.configure("q", limits=Limits(concurrency=1, rate=Rate(tokens=2, per_ms=60_000)))
    first, second = await h.push_alike("q", 2)
    await h.release(await h.lease("q"))
    again = await h.lease("q", 5)
    assert again.ids == [first]
    await h.ack(again)
    assert await h.claim("q") is None
    await h.advance(60_000)
    assert await h.claimed("q") == [second]


# -- groups' own limits ----------------------------------------------------------------------------


async def test_every_group_has_a_rate_of_its_own(h: Harness) -> None:
    rate = Rate(tokens=2, per_ms=1_000)
    await h.configure("q", limits=Limits(group_rate=rate, group_concurrency=10))
    jobs = [{"group": name} for name in "ab" for _ in range(4)]
    ids = (await h.push_many("q", [*jobs, {}, {}, {}])).ids
    a, b, plain = ids[:4], ids[4:8], ids[8:]
    assert set(await h.claimed("q", 20)) == {*a[:2], *b[:2], *plain}
    assert await h.claim("q", 20) is None
    await h.advance(499)
    assert await h.claim("q", 20) is None
    await h.advance(1)
    assert set(await h.claimed("q", 20)) == {a[2], b[2]}


async def test_a_groups_rate_outlives_its_jobs(h: Harness) -> None:
    await h.configure("q", limits=Limits(group_rate=Rate(tokens=1)))
    await h.finish("q", group="g", retain_ms=0)
    later = await h.push("q", group="g")
    assert await h.claim("q") is None
    await h.advance(1_000)
    assert await h.claimed("q") == [later]


async def test_what_was_used_of_a_rate_stays_used_over_a_purge(h: Harness) -> None:
    rate = Rate(tokens=1, per_ms=1_000)
    await h.configure("grouped", limits=Limits(group_rate=rate, group_concurrency=9))
    await h.configure("whole", limits=Limits(rate=rate))
    for queue, group in (("grouped", "g"), ("whole", None)):
        await h.push_many(queue, [{"group": group}] * 3)
        assert len(await h.claimed(queue, 3)) == 1
        await h.store.purge(h.name, queue)
        ids = (await h.push_many(queue, [{"group": group}] * 3)).ids
        assert await h.claim(queue, 3) is None
        await h.advance(999)
        assert await h.claim(queue, 3) is None
        await h.advance(1)
        assert await h.claimed(queue, 3) == ids[:1]


@pytest.mark.parametrize("which", ["rate", "group_rate"])
async def test_a_changed_rate_starts_full_and_one_that_stays_goes_on(
    h: Harness, which: str
) -> None:
    async def set_rate(tokens: int, **more: Any) -> None:
        limits: dict[str, Any] = {which: Rate(tokens=tokens, per_ms=60_000)}
        await h.configure("q", limits=Limits(group_concurrency=99, **limits), **more)

    await set_rate(2)
    await h.push_many("q", [{"group": "g"}] * 20)
    assert len(await h.claimed("q", 9)) == 2
    await set_rate(2, retain_count=5)
    assert await h.claim("q", 9) is None
    await set_rate(3)
    assert len(await h.claimed("q", 9)) == 3
    await set_rate(2)
    assert len(await h.claimed("q", 9)) == 2


async def test_a_claim_that_waits_is_served_when_a_groups_token_comes(h: Harness) -> None:
    await h.configure("q", limits=Limits(group_rate=Rate(tokens=1), group_concurrency=5))
    ids = (await h.push_many("q", [{"group": "g"}] * 3)).ids
    await h.lease("q")
    waiting = await h.start(h.lease("q", 5, wait_ms=60_000))
    assert not waiting.done()
    await h.advance(1_000)
    assert (await h.told(waiting)).ids == [ids[1]]


async def test_all_limits_hold_together(h: Harness) -> None:
    limits = Limits(
        rate=Rate(tokens=6, per_ms=60_000),
        concurrency=5,
        group_rate=Rate(tokens=2, per_ms=60_000),
        group_concurrency=3,
    )
    await h.configure("q", limits=limits)
    jobs = [{"group": name} for name in "ab" for _ in range(4)] + [{}] * 10
    ids = (await h.push_many("q", jobs)).ids
    lease = await h.lease("q", 100)
    assert len(lease) == 5
    assert len([job for job in lease.jobs if job.group == "a"]) <= 2
    await h.ack(lease)
    assert len(await h.claimed("q", 100)) == 1
    assert await h.claim("q", 100) is None
    assert set(lease.ids) < set(ids)


# -- mixtures, blocks, restarts --------------------------------------------------------------------


async def test_limits_hold_across_a_block_boundary(h: Harness) -> None:
    held = await fill_block(h, "q", room=15)
    await h.configure("q", limits=Limits(concurrency=31, rate=Rate(tokens=50, per_ms=60_000)))
    specs = [JobSpec(group="g" if n % 20 == 3 else None) for n in range(100)]
    ids = (await h.push_many("q", specs)).ids
    first = await h.lease("q", 10_000)
    assert len(first) == 30
    await h.ack(first, first.ids[::2])
    second = await h.lease("q", 10_000)
    assert len(second) == 15
    await h.ack(held)
    await h.ack(first)
    await h.ack(second)
    assert len(await h.claimed("q", 10_000)) == 5
    assert await h.claim("q", 10_000) is None
    grouped = [job_id for job_id in ids[3::20] if await h.state(job_id) == State.ACTIVE]
    assert len(grouped) <= 1


async def test_limits_survive_a_restart(h: Harness) -> None:
    limits = Limits(
        rate=Rate(tokens=3, per_ms=60_000),
        concurrency=2,
        group_rate=Rate(tokens=1, per_ms=60_000),
    )
    await h.configure("q", limits=limits)
    grouped = (await h.push_many("q", [{"group": "g"}, {"group": "g"}])).ids
    plain = await h.push_alike("q", 5)
    lease = await h.lease("q", 2)
    await h.restart()
    assert await h.claim("q", 5) is None
    await h.ack(lease)
    third = await h.lease("q", 5)
    assert len(third) == 1
    assert third.ids != [grouped[1]]
    await h.restart()
    await h.ack(third)
    assert await h.claim("q", 5) is None
    await h.advance(20_000)
    assert await h.claimed("q", 5) == [plain[2]]


@pytest.mark.parametrize("limits", [Limits(concurrency=2), Limits(rate=Rate(tokens=2))], ids=str)
async def test_removing_the_configuration_removes_its_limits(h: Harness, limits: Limits) -> None:
    await h.configure("q", limits=limits)
    ids = await h.push_alike("q", 10)
    assert await h.claimed("q", 10) == ids[:2]
    await h.configure("q")
    assert await h.claimed("q", 10) == ids[2:]


async def test_removing_a_group_rate_lets_its_groups_go_on(h: Harness) -> None:
    await h.configure("q", limits=Limits(group_rate=Rate(tokens=1, per_ms=60_000)))
    first, second = (await h.push_many("q", [{"group": "g"}, {"group": "g"}])).ids
    lease = await h.lease("q", 5)
    assert lease.ids == [first]
    await h.configure("q")
    assert (await h.store.explain(h.name, second)).reasons == ("group",)
    await h.ack(lease)
    assert (await h.store.explain(h.name, second)).reasons == ("next",)
    assert await h.claimed("q", 5) == [second]
