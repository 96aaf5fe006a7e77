"""What holds of the kernel's state at any moment: every number it keeps equals a recount.

After each stretch of a random history the whole state is counted anew, the slow and plain way, from
nothing but the codes and sides of the blocks, and compared with what the kernel carries along.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.kernel import commands as c
from penstock.kernel.blocks import Block, Side
from penstock.kernel.codes import (
    ACTIVE,
    BLOCKED,
    CANCELLED,
    COMPLETED,
    COUNTER_OF,
    COUNTERS,
    DEAD,
    ENDED,
    EXPIRED,
    GONE,
    HELD,
    SCHEDULED,
    WAITING,
)
from penstock.kernel.kernel import Kernel
from penstock.kernel.keys import outlives
from penstock.kernel.queue import Queue
from penstock.model.job import JobSpec, KeyClaim, Run
from penstock.model.lifecycle import State
from penstock.model.policy import QueueConfig
from penstock.stores.loading import load_of
from tests.unit.history import FEATURES, START, History

NOTHING = Side()


def queues_of(kernel: Kernel) -> Iterator[Queue]:
    for tenant in kernel.tenants.values():
        yield from tenant.queues.values()


def jobs_of(queue: Queue) -> Iterator[tuple[Block, int, int, Side]]:
    """Every job that the queue knows: its place, its counter, its own facts."""
    for block in queue.blocks.values():
        for offset, code in enumerate(block.codes):
            if code != GONE:
                yield block, offset, COUNTER_OF[code], block.sides.get(offset, NOTHING)


def all_jobs(kernel: Kernel) -> Iterator[tuple[Block, int, int, Side]]:
    for queue in queues_of(kernel):
        yield from jobs_of(queue)


def counters_equal_a_scan(kernel: Kernel) -> None:
    for queue in queues_of(kernel):
        counts = [0] * COUNTERS
        for _, _, counter, _ in jobs_of(queue):
            counts[counter] += 1
        assert queue.counts == counts, queue.name
        for block in queue.blocks.values():
            assert block.live == len(block.codes) - block.codes.count(GONE)
            assert all(block.codes[offset] != GONE for offset in block.sides)
            assert len(block.opts) == len(block.codes) == len(block.ends)
    blocks = {
        number: block for queue in queues_of(kernel) for number, block in queue.blocks.items()
    }
    assert kernel.blocks == blocks
    assert kernel.queue_count == sum(1 for _ in queues_of(kernel))


def each_active_job_is_held_once(kernel: Kernel) -> None:
    held: Counter[tuple[int, int]] = Counter()
    for token, lease in kernel.leases.items():
        assert lease.token == token
        assert lease.expires > kernel.elapsed
        count = 0
        for run in lease.runs:
            offsets = run.offsets()
            assert len(offsets) == run.count
            assert run.lease is lease
            count += run.count
            for offset in offsets:
                held[run.block.number, offset] += 1
                assert run.block.holder_of(offset) is run
                assert run.block.queue is lease.queue
        assert lease.count == count > 0
    active = {
        (block.number, offset)
        for block, offset, counter, _ in all_jobs(kernel)
        if counter == ACTIVE
    }
    assert held == Counter(active)


def each_key_is_justified(kernel: Kernel) -> None:
    kept = 0
    for queue in queues_of(kernel):
        for key, record in queue.keys.records.items():
            kept += outlives(record.keep)
            if isinstance(record.keep, int):
                assert record.until > kernel.now, key
                continue
            found = kernel.locate(queue.tenant.name, record.id)
            assert found is not None, key
            block, offset = found
            side = block.sides[offset]
            counter = COUNTER_OF[block.codes[offset]]
            assert block.queue is queue
            assert key in {claim.key for claim in side.keys}
            assert counter != HELD
            if record.keep in ("live", "started"):
                assert counter not in ENDED, key
            if record.keep == "started":
                assert not side.claimed or side.next is not None, key
            assert record.digest == (side.next.digest if side.next is not None else side.digest)
    assert kernel.kept_keys == kept


def no_two_live_jobs_carry_one_key(kernel: Kernel) -> None:
    for queue in queues_of(kernel):
        carriers: Counter[str] = Counter()
        for _, _, counter, side in jobs_of(queue):
            if counter not in ENDED and counter != HELD:
                carriers.update(k.key for k in side.keys if k.keep_key == "live")
        assert all(count == 1 for count in carriers.values()), carriers


def chunks_equal_a_recount(kernel: Kernel) -> None:
    needed: Counter[int] = Counter()
    for block, offset, _, side in all_jobs(kernel):
        needed[block.pushed_place(offset)[0]] += 1
        places = [side.payload, side.result, side.next.payload if side.next is not None else None]
        needed.update(place[0] for place in places if place is not None)
    assert kernel.chunks == dict(needed)


def groups_equal_a_recount(kernel: Kernel) -> None:
    for queue in queues_of(kernel):
        jobs: Counter[str] = Counter()
        used: Counter[str] = Counter()
        for _, _, counter, side in jobs_of(queue):
            if side.group is None or counter in ENDED or counter == HELD:
                assert not side.owns_slot
                continue
            jobs[side.group] += 1
            used[side.group] += counter == ACTIVE or side.owns_slot
            assert not (side.owns_slot and counter == ACTIVE)
        assert {name: g.jobs for name, g in queue.groups.items() if g.jobs} == jobs
        assert {name: g.used for name, g in queue.groups.items() if g.jobs} == {
            name: used[name] for name in jobs
        }
        seats: dict[str, int] = {}
        for priority, lane in queue.lanes.items():
            if lane.ring is not None:
                assert None in lane.ring
                assert len(lane.ring) > 1
                for name in lane.ring:
                    if name is not None:
                        assert name not in seats
                        seats[name] = priority
        for name, group in queue.groups.items():
            assert group.seat == seats.get(name)
            head = group.head()
            room = group.meter is None or group.meter.room(kernel.elapsed)
            if head is None or not room:
                assert group.seat is None
            else:
                place = kernel.locate(queue.tenant.name, head[1])
                assert place is not None
                assert group.seat == place[0].priority_of(place[1])


def ends_and_retention_equal_a_recount(kernel: Kernel) -> None:
    for queue in queues_of(kernel):
        kept: Counter[str] = Counter()
        for block, offset, counter, side in jobs_of(queue):
            if counter in ENDED and not side.overdue:
                end = block.end_of(offset)
                assert end is not None
                assert end.code == counter
                if end.deadline is not None:
                    assert end.deadline > kernel.now
                else:
                    kept["dead" if counter == DEAD else "finished"] += 1
                    since = (
                        queue.config.retain_dead_ms if counter == DEAD else queue.config.retain_ms
                    )
                    assert end.at + since > kernel.now
            if side.overdue:
                assert side.pins
        runs = [run for run in queue.finished if run.block.ended.get(run.lo) is run]
        assert queue.finished_count == sum(run.count for run in queue.finished)
        assert queue.finished_count == sum(run.count for run in runs) == kept["finished"]
        assert queue.finished_count <= queue.config.retain_count
        assert [run.at for run in queue.finished] == sorted(run.at for run in queue.finished)
        dead = [run for run in queue.dead if run.block.ended.get(run.lo) is run]
        assert sum(run.count for run in dead) == kept["dead"]
        for run in runs:
            assert run.code in (COMPLETED, CANCELLED, EXPIRED)
            mask = run.mask or b"\x01" * (run.hi - run.lo)
            codes = run.block.codes[run.lo : run.hi]
            assert mask.count(1) == run.count
            assert all(code == run.code for code, one in zip(codes, mask, strict=True) if one)


def sums_under_bounds_equal_a_recount(kernel: Kernel) -> None:
    for tenant in kernel.tenants.values():
        live = size = 0
        for queue in tenant.queues.values():
            bounds = (queue.config.bounds, tenant.bounds)
            bounded = any(b.jobs is not None or b.bytes is not None or b.push_rate for b in bounds)
            assert queue.bounded == bounded
            if not bounded:
                continue
            places = [  # of what was said last: a version that waits counts already
                block.place(offset) if side.next is None else side.next.payload
                for block, offset, counter, side in jobs_of(queue)
                if counter not in ENDED
            ]
            assert queue.bytes == sum(end - begin for _, begin, end in places), queue.name
            live += len(places)
            size += queue.bytes
        assert (tenant.live, tenant.bytes) == (live, size)


def pins_equal_a_recount(kernel: Kernel) -> None:
    pins: Counter[tuple[int, int]] = Counter()
    for block, _, counter, side in all_jobs(kernel):
        tenant = block.queue.tenant.name
        wanted = [] if counter in ENDED else list(dict.fromkeys(side.depends_on))
        if side.next is not None:
            wanted += dict.fromkeys(side.next.depends_on)
        for dependency in wanted:
            found = kernel.locate(tenant, dependency)
            if found is not None:
                pins[found[0].number, found[1]] += 1
    for block, offset, _, side in all_jobs(kernel):
        assert side.pins == pins[block.number, offset], block.base + offset


def nothing_due_is_left(kernel: Kernel) -> None:
    for block, offset, counter, side in all_jobs(kernel):
        if counter == SCHEDULED:
            assert block.due_at(offset) > kernel.now
        if counter == BLOCKED:
            assert side.unmet
            for dependency in side.unmet:
                found = kernel.locate(block.queue.tenant.name, dependency)
                assert found is not None
                assert COUNTER_OF[found[0].codes[found[1]]] not in ENDED
        ttl = block.options_of(offset).ttl_ms
        if counter in WAITING and ttl is not None and not (side.claimed or side.no_ttl):
            assert block.created_at(offset) + ttl > kernel.now


def bulks_and_crons_know_their_jobs(kernel: Kernel) -> None:
    held = {
        (tenant, job_id)
        for (tenant, _), bulk in kernel.bulks.items()
        for parts in bulk.parts.values()
        for part in parts
        for job_id in range(part.first, part.first + part.count)
    }
    for block, offset, counter, _ in all_jobs(kernel):
        if counter == HELD:
            assert (block.queue.tenant.name, block.base + offset) in held
    for (tenant, name), record in kernel.crons.items():
        for job_id in (*record.pending, *record.live):
            found = kernel.locate(tenant, job_id)
            assert found is not None, (name, job_id)
            counter = COUNTER_OF[found[0].codes[found[1]]]
            assert counter not in ENDED
            assert (counter == SCHEDULED) or job_id not in record.pending


RULES = (
    counters_equal_a_scan,
    each_active_job_is_held_once,
    each_key_is_justified,
    no_two_live_jobs_carry_one_key,
    chunks_equal_a_recount,
    groups_equal_a_recount,
    ends_and_retention_equal_a_recount,
    sums_under_bounds_equal_a_recount,
    pins_equal_a_recount,
    nothing_due_is_left,
    bulks_and_crons_know_their_jobs,
)


def check(kernel: Kernel) -> None:
    for rule in RULES:
        rule(kernel)
    assert not kernel.cascade
    assert not kernel.unseated
    assert not kernel.unborn


def hold_throughout(history: History, n: int, every: int) -> None:
    for number, (step, answer) in enumerate(history.steps(n)):
        part_of_the_way = isinstance(step.command, c.Tick) and answer is False
        if number % every == every - 1 and not part_of_the_way:
            check(history.kernel)


@pytest.mark.parametrize("seed", range(400, 410))
def test_every_number_equals_a_recount_after_random_histories(seed: int) -> None:
    hold_throughout(History(seed), 500, 25)


@pytest.mark.parametrize("feature", sorted(set(FEATURES) - {"deep", "batches"}))
def test_every_number_equals_a_recount_at_every_step_of_histories_about(feature: str) -> None:
    hold_throughout(History(11, features=(feature, "own")), 200, 1)


@pytest.mark.parametrize("seed", range(420, 426))
def test_when_all_is_purged_nothing_is_left(seed: int) -> None:
    history = History(seed)
    for _ in history.steps(300):
        pass
    kernel = history.kernel
    for tenant, name in list(kernel.crons):
        kernel.apply(c.DropCron(tenant, name), history.now, history.elapsed)
    for tenant, name in list(kernel.bulks):
        kernel.apply(c.AbortBulk(tenant, name), history.now, history.elapsed)
    for queue in list(queues_of(kernel)):
        kernel.apply(c.Purge(queue.tenant.name, queue.name), history.now, history.elapsed)
    check(kernel)
    assert not kernel.chunks
    assert not kernel.leases
    assert not kernel.blocks
    assert kernel.kept_keys == 0
    assert not any(any(queue.counts) for queue in queues_of(kernel))


@pytest.mark.parametrize("seed", range(430, 436))
def test_when_all_has_ended_and_a_century_is_over_nothing_is_left(seed: int) -> None:
    history = History(seed)
    for _ in history.steps(300):
        pass
    kernel = history.kernel
    now, elapsed = history.now, history.elapsed
    for tenant, name in list(kernel.bulks):
        kernel.apply(c.AbortBulk(tenant, name), now, elapsed)
    ids = [(b.queue.tenant.name, b.base + o) for b, o, n, _ in all_jobs(kernel) if n not in ENDED]
    for tenant, job_id in ids:
        kernel.apply(c.Cancel(tenant, [job_id]), now, elapsed)
    century = 100 * 366 * 86_400_000
    kernel.apply(c.Tick(1 << 40), now + century, elapsed + century)
    check(kernel)
    assert not kernel.chunks
    assert not kernel.leases
    assert kernel.kept_keys == 0
    assert not kernel.producers
    assert not kernel.finished_bulks
    assert not any(queue.groups for queue in queues_of(kernel))


# -- small histories that once broke a rule ----------------------------------------------------------


def pushed(kernel: Kernel, *runs: Run) -> list[tuple[int, str]]:
    loads = [load_of(run, number, 0) for number, run in enumerate(runs, kernel.position * 10 + 1)]
    kernel.position += 1
    jobs: list[tuple[int, str]] = kernel.apply(c.Push(tenant="t", loads=loads), START, 0).jobs
    return jobs


def keyed(payload: bytes, *claims: KeyClaim) -> Run:
    return Run(queue="q", data=payload, ends=[len(payload)], more_keys=[claims])


def test_a_replace_by_one_of_several_keys_is_what_the_others_match_against() -> None:
    kernel = Kernel(1)
    pushed(kernel, keyed(b"1", KeyClaim("a", "replace"), KeyClaim("b")))
    assert pushed(kernel, keyed(b"2", KeyClaim("a", "replace"))) == [(1, "updated")]
    check(kernel)
    assert pushed(kernel, keyed(b"2", KeyClaim("b", "match"))) == [(1, "ignored")]


@pytest.mark.parametrize(
    "undo",
    [
        c.PurgeDead("t", "q"),
        c.Redrive(tenant="t", queue="q"),
        c.Drain("t", "q", State.DEAD),
    ],
    ids=lambda undo: type(undo).__name__,
)
def test_what_was_a_dead_letter_once_is_not_held_for_as_long_as_dead_letters_are(undo: Any) -> None:
    """Neither its end, which would keep its whole block, nor an instant to forget it at."""
    kernel = Kernel(1)
    for _ in range(100):
        ((job_id, _),) = pushed(kernel, Run.of("q", [JobSpec()]))
        kernel.apply(c.Cancel("t", [job_id], discard=True), START, 0)
        kernel.apply(undo, START, 0)
        check(kernel)
    (queue,) = queues_of(kernel)
    assert queue.counts[DEAD] == 0
    assert not queue.dead
    assert len(kernel.calendar._heap) == 1


def test_what_is_forgotten_soon_leaves_no_instants_to_forget_a_dead_letter_at() -> None:
    kernel = Kernel(1)
    kernel.apply(c.Configure("t", "q", QueueConfig(retain_ms=1)), START, 0)
    jobs = pushed(kernel, Run.of("q", [JobSpec()] * 101))
    kernel.apply(c.Cancel("t", [jobs[0][0]], discard=True), START, 0)
    for later, (job_id, _) in enumerate(jobs[1:]):
        kernel.apply(c.Cancel("t", [job_id]), START + 2 * later, 2 * later)
        check(kernel)
    assert len(kernel.calendar._heap) == 2
    month = 30 * 86_400_000
    kernel.apply(c.Tick(1 << 40), START + month, month)
    (queue,) = queues_of(kernel)
    assert not any(queue.counts)


@pytest.mark.parametrize("group", [None, "g"])
def test_a_job_that_dies_in_its_own_push_is_not_replaced_by_a_later_one(group: str | None) -> None:
    kernel = Kernel(1)
    pushed(kernel, Run.of("q", [JobSpec()]))
    kernel.apply(c.Cancel("t", [1]), START, 0)
    doomed = JobSpec(key="k", keep_key=60_000, depends_on=(1,), group=group)
    later = JobSpec(key="k", on_conflict="replace", payload=b"2")
    jobs = pushed(kernel, Run.of("q", [doomed, later]))
    check(kernel)
    assert [outcome for _, outcome in jobs] == ["created", "created"]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2_000, 2_200))
def test_at_length_every_number_equals_a_recount(seed: int) -> None:
    hold_throughout(History(seed), 2_000, 10)
