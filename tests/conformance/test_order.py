"""Order within a queue: priority, then the instant it became ready, then push order."""

import random
from typing import cast

from penstock.model.job import Lease
from penstock.model.lifecycle import State
from penstock.model.policy import Limits, QueueConfig
from tests.conformance.harness import AT_ONCE, BLOCK, Harness, after, many_jobs


async def test_single_jobs_come_out_in_push_order(h: Harness) -> None:
    ids = []
    for _ in range(5):
        ids.append(await h.push("q"))
        h.clock.advance(1)
    assert [await h.claimed("q") for _ in ids] == [[job_id] for job_id in ids]


async def test_one_then_two_in_a_batch_then_one_come_out_in_order(h: Harness) -> None:
    first = await h.push("q")
    h.clock.advance(1)
    second, third = await h.push_alike("q", 2)
    h.clock.advance(1)
    fourth = await h.push("q")
    assert await h.claimed("q", 10) == [first, second, third, fourth]


async def test_pushes_of_one_instant_come_out_in_push_order(h: Harness) -> None:
    ids = [await h.push("q"), *await h.push_alike("q", 2), await h.push("q", task="other")]
    assert await h.claimed("q", 10) == ids


async def test_higher_priority_comes_first(h: Harness) -> None:
    ids = {}
    for priority in (0, -5, 9, 3, -1):
        ids[priority] = await h.push("q", priority=priority)
        h.clock.advance(1)
    assert await h.claimed("q", 10) == [ids[priority] for priority in (9, 3, 0, -1, -5)]


async def test_a_later_job_of_higher_priority_overtakes(h: Harness) -> None:
    low = await h.push_alike("q", 10)
    assert await h.claimed("q", 3) == low[:3]
    h.clock.advance(1)
    high = await h.push("q", priority=1)
    assert await h.claimed("q", 3) == [high, *low[3:5]]


@many_jobs
async def test_three_alternating_priorities_in_one_batch_come_out_by_priority(h: Harness) -> None:
    count = BLOCK + 901
    specs = [{"payload": b"%d" % index, "priority": index % 3} for index in range(count)]
    ids = (await h.push_many("q", specs)).ids
    expected = ids[2::3] + ids[1::3] + ids[0::3]
    jobs = [job for n in (500, 3_000, 10_000) for job in (await h.lease("q", n)).jobs]
    assert [job.id for job in jobs] == expected
    assert [job.payload for job in jobs] == [b"%d" % (job.id - ids[0]) for job in jobs]


async def test_three_hundred_priorities_in_one_batch_come_out_by_priority(h: Harness) -> None:
    priorities = [(index * 7_919) % 300 - 150 for index in range(1_200)]
    ids = (await h.push_many("q", [{"priority": priority} for priority in priorities])).ids
    expected = sorted(ids, key=lambda job_id: (-priorities[job_id - ids[0]], job_id))
    assert await h.claimed("q", 700) + await h.claimed("q", 700) == expected


async def test_priorities_of_several_batches_are_merged(h: Harness) -> None:
    pushed = []
    for turn in range(6):
        specs = [{"priority": (index + turn) % 4} for index in range(50)]
        ids = (await h.push_many("q", specs)).ids
        pushed += [(-((index + turn) % 4), job_id) for index, job_id in enumerate(ids)]
        h.clock.advance(1)
    assert await h.claimed("q", 1_000) == [job_id for _, job_id in sorted(pushed)]


async def test_a_delayed_job_takes_its_place_by_the_instant_it_was_due(h: Harness) -> None:
    delayed = await h.push("q", delay_ms=100)
    h.clock.advance(50)
    before = await h.push("q")
    h.clock.advance(100)
    behind = await h.push("q")
    assert await h.claimed("q", 3) == [before, delayed, behind]


async def test_of_two_jobs_that_became_ready_together_the_first_pushed_comes_first(
    h: Harness,
) -> None:
    delayed = await h.push("q", delay_ms=100)
    await h.advance(100)
    pushed = await h.push("q")
    assert await h.claimed("q", 2) == [delayed, pushed]


async def test_delays_that_shrink_within_a_batch_turn_the_order_round(h: Harness) -> None:
    count = 300
    specs = [{"delay_ms": count - index} for index in range(count)]
    ids = (await h.push_many("q", specs)).ids
    await h.advance(count // 2)
    assert await h.claimed("q", count) == ids[: count // 2 - 1 : -1]
    await h.advance(count)
    assert await h.claimed("q", count) == ids[count // 2 - 1 :: -1]


async def test_a_delayed_urgent_job_does_not_hold_up_a_ready_one(h: Harness) -> None:
    urgent = await h.push("q", priority=10, delay_ms=1_000)
    ready = await h.push("q", priority=-10)
    assert await h.claimed("q", 2) == [ready]
    await h.advance(1_000)
    assert await h.claimed("q", 2) == [urgent]


@many_jobs
async def test_a_delayed_job_in_the_middle_of_a_batch_does_not_hold_up_the_rest(
    h: Harness,
) -> None:
    specs = [{"delay_ms": 400 if index == 2_500 else None} for index in range(5_000)]
    ids = (await h.push_many("q", specs)).ids
    assert await h.claimed("q", 2_600) == ids[:2_500] + ids[2_501:2_601]
    h.clock.advance(10)
    newcomer = await h.push("q")
    await h.advance(390)
    assert await h.claimed("q", 10_000) == [*ids[2_601:], newcomer, ids[2_500]]


async def test_a_released_job_keeps_its_place(h: Harness) -> None:
    ids = await h.push_alike("q", 20)
    lease = await h.lease("q", 10)
    h.clock.advance(1)
    await h.release(lease, ids[3:6])
    assert await h.claimed("q", 5) == [*ids[3:6], ids[10], ids[11]]


async def test_a_released_delayed_job_keeps_the_place_of_its_due_instant(h: Harness) -> None:
    delayed = await h.push("q", delay_ms=10)
    h.clock.advance(5)
    before = await h.push("q")
    await h.advance(20)
    lease = await h.lease("q", 2)
    await h.release(lease)
    h.clock.advance(5)
    behind = await h.push("q")
    assert await h.claimed("q", 3) == [before, delayed, behind]


@many_jobs
async def test_jobs_released_in_any_order_come_out_in_their_own(h: Harness) -> None:
    ids = await h.push_alike("q", BLOCK + 400)
    lease = await h.lease("q", 10_000)
    for part in (ids[4_000:], ids[1_000:1_500], ids[2_000:4_000], ids[:1_000], ids[1_500:2_000]):
        h.clock.advance(1)
        await h.release(lease, reversed(part))
    assert await h.claimed("q", 10_000) == ids


async def test_a_retry_takes_its_place_by_the_instant_it_is_due(h: Harness) -> None:
    failing = await h.push("q", backoff=after(100))
    lease = await h.lease("q")
    h.clock.advance(10)
    await h.fail(lease)
    h.clock.advance(60)
    before = await h.push("q")
    h.clock.advance(60)
    behind = await h.push("q")
    assert await h.claimed("q", 3) == [before, failing, behind]


async def test_a_retry_without_wait_goes_behind_what_was_ready_before(h: Harness) -> None:
    failing = await h.push("q", backoff=AT_ONCE)
    h.clock.advance(1)
    before = await h.push("q")
    lease = await h.lease("q")
    h.clock.advance(1)
    await h.fail(lease)
    h.clock.advance(1)
    behind = await h.push("q")
    assert await h.claimed("q", 3) == [before, failing, behind]


async def test_lifo_jobs_come_newest_first_and_before_their_equals(h: Harness) -> None:
    plain = await h.push("q")
    ids = []
    for _ in range(3):
        h.clock.advance(1)
        ids.append(await h.push("q", lifo=True))
    assert await h.claimed("q", 10) == [*reversed(ids), plain]


@many_jobs
async def test_a_lifo_batch_comes_last_first(h: Harness) -> None:
    plain = await h.push_alike("q", 5)
    ids = await h.push_alike("q", BLOCK + 900, lifo=True)
    assert await h.claimed("q", 100) == ids[: -100 - 1 : -1]
    assert await h.claimed("q", 10_000) == [*ids[-101::-1], *plain]


async def test_lifo_does_not_overtake_a_higher_priority(h: Harness) -> None:
    high = await h.push("q", priority=1)
    h.clock.advance(1)
    lifo = await h.push("q", lifo=True)
    assert await h.claimed("q", 2) == [high, lifo]


async def test_lifo_and_plain_jobs_of_one_batch_are_told_apart(h: Harness) -> None:
    specs = [{"lifo": index % 2 == 1, "priority": index // 500} for index in range(1_000)]
    ids = (await h.push_many("q", specs)).ids
    expected = ids[999:499:-2] + ids[500:1_000:2] + ids[499::-2] + ids[0:500:2]
    assert await h.claimed("q", 1_000) == expected


async def test_lifo_ranks_a_delayed_job_by_the_instant_it_became_ready(h: Harness) -> None:
    slow = await h.push("q", lifo=True, delay_ms=100)
    h.clock.advance(50)
    quick = await h.push("q", lifo=True)
    await h.advance(10)
    assert await h.claimed("q") == [quick]
    h.clock.advance(1)
    newer = await h.push("q", lifo=True)
    await h.advance(39)
    assert await h.claimed("q", 2) == [slow, newer]


async def test_a_released_lifo_job_keeps_its_place_under_newer_ones(h: Harness) -> None:
    oldest = await h.push("q", lifo=True)
    h.clock.advance(1)
    old = await h.push("q", lifo=True)
    lease = await h.lease("q")
    assert lease.ids == [old]
    h.clock.advance(1)
    new = await h.push("q", lifo=True)
    await h.release(lease)
    assert await h.claimed("q", 3) == [new, old, oldest]


@many_jobs
async def test_an_edited_priority_moves_one_job_out_of_the_middle_of_a_batch(h: Harness) -> None:
    ids = await h.push_alike("q", BLOCK + 100)
    h.clock.advance(1)
    await h.store.edit(h.name, ids[2_000], priority=5)
    await h.store.edit(h.name, ids[10], priority=-5)
    (head,) = (await h.lease("q")).jobs
    assert (head.id, head.priority, head.options.priority) == (ids[2_000], 5, 0)
    rest = [job_id for job_id in ids if job_id not in {ids[10], ids[2_000]}]
    assert await h.claimed("q", 10_000) == [*rest, ids[10]]


async def test_an_edited_priority_keeps_the_ready_instant(h: Harness) -> None:
    old = await h.push("q")
    h.clock.advance(1)
    high = await h.push("q", priority=5)
    h.clock.advance(1)
    await h.store.edit(h.name, old, priority=5)
    assert await h.claimed("q", 2) == [old, high]


async def test_an_edited_priority_keeps_the_place_of_a_delayed_job_that_became_due(
    h: Harness,
) -> None:
    ids = (await h.push_many("q", [{"delay_ms": 30}, {"delay_ms": 30}, {}])).ids
    due = h.now + 30
    h.clock.advance(10)
    before = await h.push("q", priority=5)
    await h.advance(40)
    await h.store.edit(h.name, ids[0], priority=5)
    assert (await h.job(ids[0])).run_at == due
    jobs = (await h.lease("q", 10)).jobs
    assert [job.id for job in jobs] == [before, ids[0], ids[2], ids[1]]
    assert jobs[1].run_at == due


async def test_an_edited_payload_keeps_its_place(h: Harness) -> None:
    ids = await h.push_alike("q", 10)
    h.clock.advance(1)
    await h.store.edit(h.name, ids[4], payload=b'"a much longer payload than before"')
    jobs = (await h.lease("q", 10)).jobs
    assert [job.id for job in jobs] == ids
    expected = [b"%d" % index for index in range(10)]
    expected[4] = b'"a much longer payload than before"'
    assert [job.payload for job in jobs] == expected


async def test_a_job_edited_to_run_now_goes_behind_what_was_ready_before(h: Harness) -> None:
    promoted = await h.push("q", delay_ms=60_000)
    h.clock.advance(1)
    before = await h.push("q")
    h.clock.advance(1)
    await h.store.edit(h.name, promoted, delay_ms=0)
    assert await h.state(promoted) == State.READY
    h.clock.advance(1)
    behind = await h.push("q")
    assert await h.claimed("q", 3) == [before, promoted, behind]


async def test_a_ready_job_edited_to_a_later_instant_leaves_the_line_until_then(
    h: Harness,
) -> None:
    ids = await h.push_alike("q", 5)
    await h.store.edit(h.name, ids[2], run_at=h.now + 100)
    assert await h.state(ids[2]) == State.SCHEDULED
    assert await h.claimed("q", 10) == [ids[0], ids[1], ids[3], ids[4]]
    await h.advance(99)
    assert await h.claim("q") is None
    await h.advance(1)
    assert await h.claimed("q") == [ids[2]]


@many_jobs
async def test_cancelled_jobs_in_the_middle_are_passed_over(h: Harness) -> None:
    ids = await h.push_alike("q", 5_000)
    gone = ids[100:200] + ids[4_000:4_200] + ids[::500]
    await h.cancel(*gone)
    assert await h.claimed("q", 10_000) == [job_id for job_id in ids if job_id not in set(gone)]


@many_jobs
async def test_order_does_not_depend_on_the_size_of_the_claims(h: Harness) -> None:
    ids = await h.push_alike("q", 10_000) + await h.push_alike("q", 3_000)
    taken = [
        job_id
        for n in (1, BLOCK - 1, 1, BLOCK + 1, 2, 10_000)
        for job_id in await h.claimed("q", n)
    ]
    assert taken == ids


async def test_a_queue_keeps_its_order_while_others_are_served(h: Harness) -> None:
    pushed: dict[str, list[int]] = {"a": [], "b": []}
    taken: dict[str, list[int]] = {"a": [], "b": []}
    for turn in range(40):
        for queue in ("a", "b"):
            pushed[queue] += await h.push_alike(queue, 1 + turn % 6)
            h.clock.advance(1)
        taken["a"] += await h.claimed("a", 2)
        taken["b"] += await h.claimed("b", 5)
    for queue in ("a", "b"):
        taken[queue] += await h.claimed(queue, 10_000)
    assert taken == pushed


@many_jobs
async def test_a_line_of_thousands_keeps_its_order_whatever_leaves_and_returns(
    h: Harness,
) -> None:
    for seed in range(2):
        draw = random.Random(seed)
        queue = f"q{seed}"
        line: dict[int, tuple[int, int]] = {}  # of ready jobs: -priority, ready instant
        leases: list[tuple[Lease, dict[int, tuple[int, int]]]] = []
        ends: dict[str, int] = {}

        for step in range(120):
            h.clock.advance(draw.choice((0, 1, 20)))
            for lease, held in sorted(leases, key=lambda entry: ends[entry[0].token]):
                if ends[lease.token] <= h.now:
                    for job_id, (priority, _) in held.items():
                        line[job_id] = (priority, ends[lease.token])
                    leases.remove((lease, held))
            act = draw.randrange(8)
            if act <= 1:
                specs = [
                    {"priority": draw.choice((0, 0, 0, 1)), "backoff": AT_ONCE, "max_attempts": 0}
                ] * draw.choice((1, 30, 900))
                for job_id in (await h.push_many(queue, specs)).ids:
                    line[job_id] = (-cast(int, specs[0]["priority"]), h.now)
            elif act <= 3:
                n, lease_ms = draw.choice((1, 50, 2_000)), draw.choice((60, 500))
                expected = sorted(line, key=lambda job_id: (*line[job_id], job_id))[:n]
                claimed = await h.claim(queue, n, lease_ms=lease_ms)
                assert ([] if claimed is None else claimed.ids) == expected, (seed, step)
                if claimed is not None:
                    leases.append((claimed, {job_id: line.pop(job_id) for job_id in expected}))
                    ends[claimed.token] = h.now + lease_ms
            elif act == 4 and line:
                for job_id in draw.sample(sorted(line), min(len(line), 20)):
                    del line[job_id]
                    await h.cancel(job_id)
            elif act == 5 and line:
                job_id = draw.choice(sorted(line))
                line[job_id] = (-3, line[job_id][1])
                await h.store.edit(h.name, job_id, priority=3)
            elif leases:
                lease, held = draw.choice(leases)
                ids = draw.sample(sorted(held), max(1, len(held) // draw.choice((1, 2, 10))))
                call = draw.choice((h.ack, h.release, h.fail))
                await call(lease, ids)
                for job_id in ids:
                    priority, ready = held.pop(job_id)
                    if call != h.ack:
                        line[job_id] = (priority, ready if call == h.release else h.now)
                if not held:
                    leases.remove((lease, held))
            if step % 40 == 39:
                await h.restart()
        await h.check_counters()


async def test_a_mixed_line_comes_out_by_priority_then_ready_instant_then_id(h: Harness) -> None:
    for seed in range(2):
        draw = random.Random(seed)
        queue = f"q{seed}"
        rank: dict[int, tuple[int, int, int]] = {}
        for _ in range(40):
            specs = [
                {
                    "priority": draw.choice((0, 0, 0, 1, -1, 7)),
                    "delay_ms": draw.choice((None, None, None, 0, 5, 50, 200)),
                }
                for _ in range(draw.choice((1, 1, 3, 40)))
            ]
            ids = (await h.push_many(queue, specs)).ids
            for job_id, spec in zip(ids, specs, strict=True):
                ready = h.now + (spec["delay_ms"] or 0)
                rank[job_id] = (-(spec["priority"] or 0), ready, job_id)
            h.clock.advance(draw.choice((0, 1, 3)))
        await h.advance(200)
        taken: list[int] = []
        while ids := await h.claimed(queue, draw.choice((1, 2, 17, 100))):
            taken += ids
        assert taken == sorted(rank, key=rank.__getitem__)


async def test_a_queue_that_was_emptied_begins_anew_even_with_a_delayed_job(h: Harness) -> None:
    await h.push("q")
    await h.jump(-3_600_000)
    await h.store.drain(h.name, "q")
    delayed = await h.push("q", delay_ms=10)
    h.clock.advance(1)
    plain = await h.push("q")
    h.clock.advance(1)
    later = await h.push("q", delay_ms=1)
    await h.advance(20)
    assert await h.claimed("q", 3) == [plain, later, delayed]


async def test_an_emptied_queue_that_was_given_only_a_delayed_job_has_begun_anew(
    h: Harness,
) -> None:
    """Even if the clock went back after that job, and not before it."""
    await h.push("q")
    await h.store.purge(h.name, "q")
    await h.push("q", delay_ms=3_600_000)
    await h.jump(-3_600_000)
    first = await h.push("q")
    second = await h.push("q", delay_ms=50)
    await h.advance(100)
    assert await h.claimed("q", 2) == [first, second]


async def test_a_queue_that_is_configured_after_it_was_emptied_begins_anew(h: Harness) -> None:
    await h.push("q")
    await h.jump(-3_600_000)
    await h.store.purge(h.name, "q")
    await h.store.configure(h.name, "q", QueueConfig(limits=Limits(concurrency=9)))
    h.clock.advance(1)
    plain = await h.push("q")
    delayed = await h.push("q", delay_ms=10)
    h.clock.advance(20)
    last = await h.push("q")
    assert await h.claimed("q", 3) == [plain, delayed, last]
