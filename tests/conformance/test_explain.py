"""`explain` tells the truth: why a job is not running, and who comes before it."""

import pytest

from penstock.model.answers import EXPLANATIONS, Explanation
from penstock.model.errors import NotFound
from penstock.model.lifecycle import State
from penstock.model.policy import Limits, Rate
from tests.conformance.harness import Harness, after
from tests.conformance.test_keys import ENDED, bring

HOUR = 3_600_000


async def explain(h: Harness, job_id: int) -> Explanation:
    explanation = await h.store.explain(h.name, job_id)
    assert explanation.id == job_id
    assert explanation.reasons
    assert set(explanation.reasons) <= set(EXPLANATIONS)
    return explanation


async def test_a_held_a_blocked_and_an_active_job_say_so(h: Harness) -> None:
    bulk = (await h.store.open_bulk(h.name)).bulk
    (held,) = (await h.push_many("q", [{}], bulk=bulk)).ids
    active = await h.push("q")
    await h.lease("q")
    blocked = await h.push("q", depends_on=(active,))
    for job_id, reason in ((held, "held"), (blocked, "blocked"), (active, "active")):
        explanation = await explain(h, job_id)
        assert (explanation.state, explanation.reasons) == (State(reason), (reason,))


async def test_a_delayed_job_and_one_in_backoff_are_told_apart(h: Harness) -> None:
    delayed = await h.push("q", delay_ms=5_000)
    backoff = await h.push("q", backoff=after(3_000))
    await h.fail(await h.lease("q"))
    for job_id, reason, wait in ((delayed, "delayed", 5_000), (backoff, "backoff", 3_000)):
        explanation = await explain(h, job_id)
        assert explanation.reasons == (reason,)
        assert explanation.start_at is None or explanation.start_at >= h.now + wait
        assert not await h.claimed("q")


@pytest.mark.parametrize("state", [state for state in ENDED if state != "forgotten"])
async def test_a_job_that_has_ended_says_so(h: Harness, state: str) -> None:
    explanation = await explain(h, await bring(h, "q", state))
    assert (explanation.state, explanation.reasons) == (State(state), ("ended",))
    assert explanation.start_at is None


async def test_a_job_that_nobody_knows_is_not_found(h: Harness) -> None:
    forgotten = await bring(h, "q", "forgotten")
    for job_id in (forgotten, forgotten + 1):
        with pytest.raises(NotFound):
            await h.store.explain(h.name, job_id)


async def test_the_next_job_is_the_one_that_the_next_claim_takes(h: Harness) -> None:
    specs = [
        {"priority": 1},
        {"priority": 5},
        {"priority": 5, "lifo": True},
        {},
        {"priority": 5, "lifo": True},
    ]
    ids = (await h.push_many("q", specs)).ids
    left = set(ids)
    while left:
        reasons = {job_id: (await explain(h, job_id)).reasons for job_id in left}
        following = [job_id for job_id in left if reasons[job_id] == ("next",)]
        assert len(following) == 1
        assert all(reasons[job_id] == ("line",) for job_id in left if job_id != following[0])
        assert await h.claimed("q") == following
        left -= set(following)


async def test_the_number_ahead_is_the_number_served_before(h: Harness) -> None:
    specs = [{"priority": priority} for priority in (0, 3, 1, 3, 0, 2)]
    ids = (await h.push_many("q", specs)).ids
    ahead = {job_id: (await explain(h, job_id)).ahead for job_id in ids}
    order = await h.claimed("q", 10)
    assert [ahead[job_id] for job_id in order] == [0, 1, 2, 3, 4, 5]


async def test_with_groups_there_is_one_next_job_and_it_is_the_next(h: Harness) -> None:
    specs = [{"group": group} for group in ("a", "a", None, "b", None, "b")]
    ids = (await h.push_many("q", specs)).ids
    waiting = set(ids)
    for _ in range(4):
        reasons = {job_id: (await explain(h, job_id)).reasons for job_id in waiting}
        (taken,) = await h.claimed("q")
        assert reasons[taken] == ("next",)
        assert [job_id for job_id in waiting if "next" in reasons[job_id]] == [taken]
        waiting.remove(taken)
    assert {(await explain(h, job_id)).reasons for job_id in waiting} == {("group",)}


async def test_a_paused_queue_is_a_reason(h: Harness) -> None:
    await h.configure("q", paused=True)
    job_id = await h.push("q")
    assert "paused" in (await explain(h, job_id)).reasons
    await h.configure("q")
    assert (await explain(h, job_id)).reasons == ("next",)


async def test_a_rate_and_a_concurrency_that_are_used_up_are_reasons(h: Harness) -> None:
    await h.configure("q", limits=Limits(concurrency=1, rate=Rate(tokens=1)))
    _, second = (await h.push_many("q", [{}, {}])).ids
    lease = await h.lease("q")
    assert {"concurrency", "rate"} <= set((await explain(h, second)).reasons)
    await h.ack(lease)
    reasons = (await explain(h, second)).reasons
    assert "rate" in reasons
    assert "concurrency" not in reasons
    assert await h.claim("q") is None
    await h.advance(1_000)
    assert (await explain(h, second)).reasons == ("next",)


async def test_under_a_rate_each_job_waits_for_the_tokens_of_those_before_it(h: Harness) -> None:
    await h.configure("q", limits=Limits(rate=Rate(tokens=1, burst=2)))
    _, *rest = (await h.push_many("q", [{}] * 5)).ids
    assert await h.claimed("q")
    for place, job_id in enumerate(rest):  # one token is left, and one comes each second
        explanation = await explain(h, job_id)
        assert explanation.reasons == (("line",) if place else ("next",))
        assert explanation.start_at in (None, h.now + 1_000 * place)
    assert await h.claimed("q")
    for place, job_id in enumerate(rest[1:], 1):
        explanation = await explain(h, job_id)
        assert explanation.reasons == ("rate",)
        assert explanation.start_at in (None, h.now + 1_000 * place)
    assert not await h.claimed("q")


async def test_under_a_rate_a_delayed_job_waits_for_those_that_are_due_before_it(
    h: Harness,
) -> None:
    await h.configure("q", limits=Limits(rate=Rate(tokens=1)))
    await h.push_many("q", [{}] * 3)
    assert await h.claimed("q")  # the next tokens come after 1, 2 … seconds; two jobs are ready
    at = h.now
    specs = [(500, 0), (2_200, 0), (2_500, 0), (2_600, 5), (60_000, 0), (60_000, 0)]
    starts = [4_000, 5_000, 6_000, 3_000, 60_000, 61_000]
    ids = (await h.push_many("q", [{"delay_ms": ms, "priority": rank} for ms, rank in specs])).ids
    for job_id, start in zip(ids, starts, strict=True):
        explanation = await explain(h, job_id)
        assert explanation.reasons == ("delayed",)
        assert explanation.start_at in (None, at + start)
    await h.configure("q", limits=Limits(rate=Rate(tokens=1)), paused=True)
    for job_id, (delay_ms, _) in zip(ids, specs, strict=True):  # not before, whoever resumes it
        assert (await explain(h, job_id)).start_at in (None, at + delay_ms)


async def test_a_busy_group_and_its_spent_rate_are_reasons(h: Harness) -> None:
    await h.configure("q", limits=Limits(group_rate=Rate(tokens=1)))
    _, second = (await h.push_many("q", [{"group": "g"}, {"group": "g"}])).ids
    lease = await h.lease("q")
    assert {"group", "group_rate"} <= set((await explain(h, second)).reasons)
    await h.ack(lease)
    reasons = (await explain(h, second)).reasons
    assert "group" not in reasons
    assert "group_rate" in reasons
    await h.advance(1_000)
    assert (await explain(h, second)).reasons == ("next",)


async def test_a_group_held_by_a_backoff_is_a_reason(h: Harness) -> None:
    first, second = (
        await h.push_many("q", [{"group": "g", "backoff": after(1_000)}, {"group": "g"}])
    ).ids
    await h.fail(await h.lease("q"))
    assert (await explain(h, first)).reasons == ("backoff",)
    assert (await explain(h, second)).reasons == ("group",)
    await h.advance(1_000)
    assert (await explain(h, first)).reasons == ("next",)
    assert (await explain(h, second)).reasons == ("group",)


async def test_explaining_changes_nothing(h: Harness) -> None:
    specs = [{"group": group} for group in ("a", None, "b", "a", None)]
    for queue in ("asked", "left"):
        await h.push_many(queue, specs)
    for _ in range(3):
        for job in await h.scan("asked"):
            await explain(h, job.id)
    orders = [[job.group for job in (await h.lease(q, 5)).jobs] for q in ("asked", "left")]
    assert orders[0] == orders[1]


async def test_what_is_due_counts_before_explain_looks(h: Harness) -> None:
    delayed = await h.push("q", delay_ms=1_000)
    expires = await h.push("r", ttl_ms=1_000)
    h.clock.advance(1_000)
    assert (await explain(h, delayed)).reasons == ("next",)
    assert (await explain(h, expires)).reasons == ("ended",)
