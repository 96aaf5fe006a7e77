"""Lanes hand out in rank order: what a sort over all ready jobs would give.

The rank is priority, then lifo before the rest (newest first), then ready instant, then id. Where
the jobs come from (cursors, late sources, heap, stack) and how many are taken at once must not show.
"""

from random import Random

import pytest

from penstock.kernel import commands as c
from penstock.kernel.codes import CLASSES, COUNTER_OF, READY
from penstock.kernel.kernel import Kernel
from penstock.kernel.queue import Queue
from penstock.kernel.read import oldest_ready
from penstock.model.job import JobOptions, JobSpec, Run
from penstock.model.policy import QueueConfig
from penstock.stores.loading import load_of
from tests.unit.history import START, History

PLAIN = (
    ("priorities", "delays", "backoff"),
    ("lifo", "priorities", "ttls"),
    ("alike", "batches", "delays"),
    ("keys", "flows", "priorities"),
    ("deep", "priorities", "batches"),
    ("deep", "lifo", "delays", "leases"),
    ("lifo", "alike", "batches", "priorities"),
)


def ranked(queue: Queue) -> list[int]:
    """Ids of the ready jobs by a plain sort."""
    ranks = []
    for block in queue.blocks.values():
        for offset, code in enumerate(block.codes):
            if COUNTER_OF[code] != READY:
                continue
            ready, job_id = block.due_at(offset), block.base + offset
            if block.options_of(offset).lifo:
                ranks.append((-block.priority_of(offset), 0, -ready, -job_id, job_id))
            else:
                ranks.append((-block.priority_of(offset), 1, ready, job_id, job_id))
    return [rank[-1] for rank in sorted(ranks)]


class Claimer:
    """Claims from one queue at one instant."""

    def __init__(self, kernel: Kernel, now: int, elapsed: int) -> None:
        self.kernel, self.now, self.elapsed = kernel, now, elapsed
        self.serial = 0

    def claim(self, tenant: str, queue: str, n: int) -> list[int]:
        self.serial += 1
        command = c.Claim(tenant, [queue], n, f"claimer{self.serial}", 86_400_000)
        lease = self.kernel.apply(command, self.now, self.elapsed)
        if lease is None:
            return []
        return [run.block.base + offset for run in lease.runs for offset in run.offsets()]

    def claim_all(self, tenant: str, queue: str, sizes: list[int]) -> list[int]:
        got: list[int] = []
        turn = 0
        while batch := self.claim(tenant, queue, sizes[turn % len(sizes)]):
            assert len(batch) <= sizes[turn % len(sizes)]
            got += batch
            turn += 1
        return got


@pytest.mark.parametrize("features", PLAIN, ids="-".join)
@pytest.mark.parametrize("seed", range(3))
def test_claims_take_in_rank_order_whatever_their_size(
    features: tuple[str, ...], seed: int
) -> None:
    history = History(800 + seed, features=features)
    kernel = history.kernel
    for _ in history.steps(250):
        pass
    claimer = Claimer(kernel, history.now, history.elapsed)
    for tenant in list(kernel.tenants.values()):
        for queue in list(tenant.queues.values()):
            assert not queue.groups
            plain = c.Configure(tenant.name, queue.name, QueueConfig())
            kernel.apply(plain, history.now, history.elapsed)
            expected = ranked(queue)
            sizes = [history.random.choice((1, 1, 2, 3, 7, 50, 1_000)) for _ in range(9)]
            assert claimer.claim_all(tenant.name, queue.name, sizes) == expected
            assert queue.counts[READY] == 0


@pytest.mark.parametrize("features", PLAIN, ids="-".join)
def test_the_oldest_ready_instant_is_that_of_a_scan(features: tuple[str, ...]) -> None:
    history = History(850, features=features)
    for number, _ in enumerate(history.steps(200)):
        if number % 5:
            continue
        for tenant in history.kernel.tenants.values():
            for queue in tenant.queues.values():
                instants = [
                    block.due_at(offset)
                    for block in queue.blocks.values()
                    for offset, code in enumerate(block.codes)
                    if COUNTER_OF[code] == READY
                ]
                assert oldest_ready(queue) == min(instants, default=None)


def pushed(kernel: Kernel, run: Run, now: int) -> list[int]:
    command = c.Push(tenant="t", loads=[load_of(run, 1, 0)])
    ids: list[int] = kernel.apply(command, now, 0).ids
    return ids


def test_more_priorities_than_a_block_has_classes_still_go_out_in_order() -> None:
    kernel = Kernel(1)
    priorities = list(range(CLASSES + 60))
    Random(1).shuffle(priorities)
    ids = pushed(kernel, Run.of("q", [JobSpec(priority=p) for p in priorities]), START)
    by_rank = [job_id for _, job_id in sorted(zip([-p for p in priorities], ids, strict=True))]
    assert Claimer(kernel, START, 0).claim_all("t", "q", [1, 2, 40]) == by_rank


@pytest.mark.parametrize("sets", [255, 256, 257, 300, 600])
def test_a_block_may_hold_more_sets_of_options_than_a_byte_counts(sets: int) -> None:
    kernel = Kernel(1)
    jobs = [JobSpec(task=f"task{number}") for number in range(sets)]
    half = sets // 2
    ids = pushed(kernel, Run.of("q", jobs[:half]), START)
    ids += pushed(kernel, Run.of("q", jobs[half:]), START + 1)
    ids += pushed(kernel, Run.of("q", [JobSpec(task="one more")]), START + 2)
    ids += pushed(kernel, Run.of("q", jobs[:3]), START + 3)
    names = [*(job.task for job in jobs), "one more", "task0", "task1", "task2"]
    for job_id, name in zip(ids, names, strict=True):
        found = kernel.locate("t", job_id)
        assert found is not None
        assert found[0].options_of(found[1]).task == name
    assert Claimer(kernel, START + 3, 0).claim_all("t", "q", [1, 100]) == ids


@pytest.mark.parametrize("sizes", [[1], [7], [4_096], [10_000], [1, 4_000, 300]])
def test_runs_over_the_edges_of_blocks_go_out_in_push_order(sizes: list[int]) -> None:
    kernel = Kernel(1)
    ids: list[int] = []
    for number, count in enumerate((1, 4_000, 200, 9_000, 3)):
        ids += pushed(kernel, Run.pack("q", [b"1"] * count), START + number)
    assert ids == sorted(ids)
    assert Claimer(kernel, START + 9, 0).claim_all("t", "q", sizes) == ids


def test_alternating_priorities_are_taken_each_in_its_order() -> None:
    kernel = Kernel(1)
    jobs = [JobSpec(priority=number % 3) for number in range(300)]
    ids = pushed(kernel, Run.of("q", jobs), START)
    expected = [ids[n] for p in (2, 1, 0) for n in range(300) if n % 3 == p]
    assert Claimer(kernel, START, 0).claim_all("t", "q", [10, 1, 37]) == expected


def test_a_lifo_batch_goes_out_last_first_and_before_the_others() -> None:
    kernel = Kernel(1)
    plain = pushed(kernel, Run.pack("q", [b"1"] * 3), START)
    lifo = JobOptions(lifo=True)
    first = pushed(kernel, Run.pack("q", [b"1"] * 3, lifo), START + 1)
    second = pushed(kernel, Run.pack("q", [b"1"] * 2, lifo), START + 2)
    expected = [*reversed(second), *reversed(first), *plain]
    assert Claimer(kernel, START + 2, 0).claim_all("t", "q", [1, 2]) == expected


def test_lanes_that_are_empty_are_forgotten() -> None:
    kernel = Kernel(1)
    pushed(kernel, Run.of("q", [JobSpec(priority=p) for p in range(50)]), START)
    claimer = Claimer(kernel, START, 0)
    claimer.claim_all("t", "q", [7])
    pushed(kernel, Run.pack("q", [b"1"] * 4_096), START)
    claimer.claim_all("t", "q", [1_000])
    assert len(kernel.tenants["t"].queues["q"].order) <= 2
