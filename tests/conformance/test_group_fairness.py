"""Groups take turns: the ring of seats, one for each group and one for all ungrouped jobs.

Jobs are named by their group and a number (`a1`, `a2`, `b1`); those of `u` have no group.
"""

from random import Random
from typing import Any

import pytest

from penstock.model.job import JobSpec
from penstock.model.policy import Limits, Rate
from tests.conformance.harness import Harness, after

WIDE = Limits(group_concurrency=1_000)


class Line:
    """One queue whose jobs have names."""

    def __init__(self, h: Harness, queue: str = "q") -> None:
        self.h = h
        self.queue = queue
        self.ids: dict[str, int] = {}
        self.names: dict[int, str] = {}

    async def push(self, names: str, step: int = 1, **spec: object) -> None:
        """Push these jobs one after the other, `step` ms apart."""
        for name in names.split():
            await self.push_batch(name, **spec)
            await self.h.advance(step)

    async def push_batch(self, names: str, **spec: object) -> None:
        """Push these jobs in one call."""
        words = names.split()
        jobs = [{"group": None if name[0] == "u" else name[0], **spec} for name in words]
        pushed = await self.h.push_many(self.queue, jobs)
        for name, job_id in zip(words, pushed.ids, strict=True):
            self.ids[name] = job_id
            self.names[job_id] = name

    async def claim(self, n: int = 1) -> str:
        """The names that one claim takes."""
        return " ".join(self.names[job_id] for job_id in await self.h.claimed(self.queue, n))

    async def claims(self, count: int = 100) -> str:
        """The names that so many claims of one take, one after the other."""
        taken: list[str] = []
        while len(taken) < count and (name := await self.claim()):
            taken.append(name)
        return " ".join(taken)


async def test_service_goes_round_among_groups_and_the_ungrouped_seat(h: Harness) -> None:
    await h.configure("q", limits=WIDE)
    line = Line(h)
    await line.push("a1 a2 a3 b1 u1 u2")
    assert await line.claims() == "u1 a1 b1 u2 a2 a3"


async def test_a_batch_claim_goes_round_in_the_same_way(h: Harness) -> None:
    await h.configure("q", limits=WIDE)
    line = Line(h)
    await line.push_batch("a1 a2 a3 b1 u1 u2")
    assert await line.claim(10) == "u1 a1 b1 u2 a2 a3"


async def test_a_round_goes_on_where_the_last_claim_left_it(h: Harness) -> None:
    await h.configure("q", limits=WIDE)
    line = Line(h)
    await line.push("a1 a2 u1 u2")
    assert await line.claim() == "u1"
    await line.push("b1")
    assert await line.claim(3) == "a1 u2 b1"
    assert await line.claims() == "a2"


async def test_a_large_group_delays_a_small_one_by_at_most_one_turn(h: Harness) -> None:
    await h.configure("q", limits=Limits(group_concurrency=10_000))
    await h.push_many("q", [{"group": "large"}] * 300)
    await h.advance(1)
    await h.claimed("q", 50)
    (small,) = (await h.push_many("q", [{"group": "small"}])).ids
    assert small in await h.claimed("q", 2)


async def test_many_ungrouped_jobs_delay_a_group_by_at_most_one_turn(h: Harness) -> None:
    ids = await h.push_alike("q", 200)
    await h.advance(1)
    assert await h.claimed("q", 100) == ids[:100]
    grouped = await h.push("q", group="g")
    assert grouped in await h.claimed("q", 2)
    assert await h.claimed("q", 10) == ids[101:111]


async def test_a_group_delays_ungrouped_jobs_by_at_most_one_turn(h: Harness) -> None:
    await h.configure("q", limits=WIDE)
    await h.push_many("q", [{"group": "g"}] * 500)
    await h.claimed("q", 3)
    plain = await h.push("q")
    assert plain in await h.claimed("q", 2)


async def test_a_group_that_becomes_servable_takes_a_seat_at_the_back(h: Harness) -> None:
    line = Line(h)
    await line.push("a1 a2 b1 b2 c1")
    first = await h.lease("q")
    assert first.ids == [line.ids["a1"]]
    await h.ack(first)
    second = await h.lease("q")
    assert second.ids == [line.ids["b1"]]
    assert await line.claim() == "c1"
    await h.ack(second)
    assert await line.claims() == "a2 b2"


async def test_a_group_whose_slots_are_used_up_within_a_batch_gives_its_turn_away(
    h: Harness,
) -> None:
    await h.configure("q", limits=Limits(group_concurrency=2))
    line = Line(h)
    await line.push_batch("a1 a2 a3 b1 b2 b3 u1 u2 u3 u4")
    assert await line.claim(10) == "u1 a1 b1 u2 a2 b2 u3 u4"


async def test_an_empty_ungrouped_seat_gives_its_turn_away(h: Harness) -> None:
    await h.configure("q", limits=WIDE)
    line = Line(h)
    await line.push("a1 b1 a2 b2")
    assert await line.claim() == "a1"
    await line.push("u1")
    assert await line.claims() == "b1 u1 a2 b2"


async def test_the_ring_stands_still_while_no_group_can_be_served(h: Harness) -> None:
    line = Line(h)
    await line.push("u1 u2 u3")
    assert await line.claims(2) == "u1 u2"
    await line.push("a1")
    assert await line.claims() == "u3 a1"


async def test_each_priority_has_a_ring_of_its_own(h: Harness) -> None:
    await h.configure("q", limits=WIDE)
    line = Line(h)
    await line.push("a1 u1", priority=0)
    await line.push("b1 b2 u2 u3", priority=5)
    await line.push("c1", priority=0)
    assert await line.claims() == "u2 b1 u3 b2 u1 a1 c1"


async def test_a_group_is_served_by_the_priority_of_its_head_alone(h: Harness) -> None:
    await h.configure("q", limits=WIDE)
    line = Line(h)
    await line.push("a1", priority=1)
    await line.push("a2", priority=9)
    await line.push("a3", priority=0)
    await line.push("u1 u2", priority=5)
    await line.push("b1", priority=1)
    assert await line.claims(2) == "u1 u2"
    await line.push("u3", priority=1)
    assert await line.claims() == "u3 a1 a2 b1 a3"


async def test_a_group_whose_head_changes_priority_goes_to_the_back_of_the_other_ring(
    h: Harness,
) -> None:
    line = Line(h)
    await line.push("a1 b1 c1")
    await h.store.edit(h.name, line.ids["a1"], priority=1)
    await h.store.edit(h.name, line.ids["a1"], priority=0)
    assert await line.claims() == "b1 c1 a1"


async def test_an_edit_of_a_job_that_is_not_the_head_moves_no_seat(h: Harness) -> None:
    line = Line(h)
    await line.push("a1 a2 b1")
    await h.store.edit(h.name, line.ids["a2"], priority=50)
    assert await line.claims() == "a1 b1"


async def test_groups_of_one_batch_take_their_seats_in_push_order(h: Harness) -> None:
    line = Line(h)
    await line.push_batch("c1 a1 b1 a2 c2")
    assert await line.claim(5) == "c1 a1 b1"


async def test_groups_that_come_due_together_take_their_seats_by_their_heads_id(
    h: Harness,
) -> None:
    line = Line(h)
    due = h.now + 1_000
    await line.push("c1 a1 b1", run_at=due)
    h.clock.advance(due - h.now)
    assert await line.claims() == "c1 a1 b1"


async def test_groups_that_came_due_one_after_the_other_unnoticed_sit_in_that_order(
    h: Harness,
) -> None:
    line = Line(h)
    now = h.now
    for name, due in (("c1", 300), ("a1", 100), ("b1", 200)):
        await line.push(name, run_at=now + due)
    h.clock.advance(1_000)
    assert await line.claims() == "a1 b1 c1"


async def test_groups_freed_by_one_ack_take_their_seats_by_their_heads_id(h: Harness) -> None:
    line = Line(h)
    await line.push("b1 a1 a2 b2")
    lease = await h.lease("q", 2)
    await h.ack(lease, [line.ids["b1"], line.ids["a1"]])
    assert await line.claims() == "a2 b2"


async def test_groups_freed_by_more_concurrency_take_their_seats_by_their_heads_id(
    h: Harness,
) -> None:
    line = Line(h)
    await line.push("b1 a1 c1 c2 a2 b2")
    assert await line.claim(10) == "b1 a1 c1"
    await h.configure("q", limits=Limits(group_concurrency=2))
    assert await line.claims() == "c2 a2 b2"


async def test_a_retry_takes_its_groups_seat_when_it_is_due(h: Harness) -> None:
    line = Line(h)
    await line.push("a1", backoff=after(100))
    await line.push("a2 b1 c1")
    await h.fail(await h.lease("q"))
    assert await line.claim() == "b1"
    await h.advance(100)
    assert await line.claims() == "c1 a1"


async def test_a_group_without_a_token_has_no_seat_until_it_gets_one(h: Harness) -> None:
    rate = Rate(tokens=1, per_ms=1_000)
    await h.configure("q", limits=Limits(group_concurrency=10, group_rate=rate))
    line = Line(h)
    await line.push("a1 a2 b1 b2", step=10)
    assert await line.claim(10) == "a1 b1"
    await h.advance(999)
    assert await line.claim(10) == ""
    await h.advance(1)
    assert await line.claim(10) == "a2 b2"


async def test_tokens_that_return_at_one_instant_seat_their_groups_by_their_heads_id(
    h: Harness,
) -> None:
    line = Line(h)
    rate = Rate(tokens=3, per_ms=90, burst=1)
    await h.configure("q", limits=Limits(group_rate=rate, group_concurrency=2))
    await line.push_batch("h1")
    await line.push_batch("g1", timeout_ms=25, max_attempts=1)
    await line.push_batch("h2 g2")
    assert await line.claim(2) == "h1 g1"
    h.clock.advance(40)  # g1 has timed out meanwhile, before the tokens came back
    assert await line.claim(2) == "h2 g2"


async def test_a_group_whose_ready_job_is_replaced_into_another_loses_its_seat(
    h: Harness,
) -> None:
    line = Line(h)
    keyed: dict[str, Any] = {"key": "k", "on_conflict": "replace"}
    await line.push_batch("a1", **keyed)
    await line.push("b1")
    await line.push_batch("c1", payload=b"2", **keyed)  # a1 itself, now of the group c
    await line.push("a2")
    assert await line.claim(4) == "b1 c1 a2"


@pytest.mark.parametrize("waits", [False, True], ids=["alone", "with one that waits"])
async def test_a_group_that_is_servable_before_and_after_a_call_keeps_its_seat(
    h: Harness, waits: bool
) -> None:
    line = Line(h)
    keyed: dict[str, Any] = {"key": "k", "on_conflict": "replace"}
    await line.push_batch("a1", **keyed)
    if waits:
        await line.push_batch("a9", delay_ms=60_000)
    await line.push("b1")
    moved, new = (await h.push_many("q", [{"payload": b"2", **keyed}, {"group": "a"}])).ids
    assert moved == line.ids["a1"]
    line.names |= {moved: "u1", new: "a2"}
    assert await line.claim(4) == "u1 a2 b1"


async def test_the_ring_survives_a_restart(h: Harness) -> None:
    await h.configure("q", limits=WIDE)
    line = Line(h)
    await line.push("u1 u2 u3 a1 b1 a2 b2")
    assert await line.claims(2) == "u1 a1"
    await h.restart()
    assert await line.claims() == "b1 u2 a2 b2 u3"


async def test_batch_claims_take_what_as_many_single_claims_would(h: Harness) -> None:
    """The same random line in three queues, claimed by one, by seven and by a hundred."""
    random = Random(7)
    specs = [
        JobSpec(
            payload=b"%d" % n,
            group=random.choice([None, None, None, "a", "b", "c", f"g{n % 40}"]),
            priority=random.choice([0, 0, 0, 1]),
        )
        for n in range(200)
    ]
    orders = []
    for queue, size in (("singles", 1), ("sevens", 7), ("hundreds", 100)):
        await h.configure(queue, limits=Limits(group_concurrency=3))
        for begin in range(0, 200, 40):
            await h.push_many(queue, specs[begin : begin + 40])
            await h.advance(1)
        order = []
        while (lease := await h.claim(queue, size)) is not None:
            order += [job.payload for job in lease.jobs]
        orders.append(order)
    assert orders[0] == orders[1]
    assert orders[0] == orders[2]
