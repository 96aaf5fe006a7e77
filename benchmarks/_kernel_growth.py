"""What a claim costs with 10 k … 10 M jobs queued, and what it costs to look at or change one.

Every round builds its kernels anew, so that each claim meets a queue of the size it is named for,
with nothing released or edited before.
"""

import os
import random
from array import array
from collections.abc import Callable, Sequence
from typing import Final

from benchmarks._kernel_speed import LEASE_MS, PAYLOAD, START, Work
from benchmarks._measure import ROUNDS, Figure, clock_ns, interleave
from penstock.kernel import read
from penstock.kernel.commands import Cancel, Claim, Edit, Load, Push
from penstock.kernel.kernel import Kernel

SIZES: Final = (10_000, 100_000, 1_000_000, 10_000_000)
BATCH: Final = 1_000  # of the pushes that fill the queues
SINGLES: Final = 2_000  # claims of one job, per sample
BY_THOUSAND: Final = 200  # claims of 1,000 jobs, per sample, over as many kernels as that takes
PER_KERNEL: Final = 5  # … of which one kernel gives so many
TOUCHED: Final = 2_000  # jobs looked at, cancelled or edited, per sample
ALIKE: Final = Work("same options", BATCH, (0,))
MIXED: Final = Work("three priorities", BATCH, (0, 1, 2))


def filled(jobs: int, work: Work) -> Kernel:
    kernel = Kernel(seed=1)
    ends, options, option_of = work.ends, work.options, work.option_of
    for number in range(jobs // BATCH):
        load = Load(
            queue="work",
            chunk=number + 1,
            start=0,
            ends=ends,
            options=options,
            option_of=option_of,
        )
        kernel.apply(Push(tenant="default", loads=[load]), START + number, number)
    return kernel


def _claims(kernel: Kernel, times: int, n: int) -> int:
    now, elapsed, apply, urandom = kernel.now, kernel.elapsed, kernel.apply, os.urandom
    began = clock_ns()
    for _ in range(times):
        apply(Claim("default", ("work",), n, urandom(16).hex(), LEASE_MS, "w"), now, elapsed)
    return clock_ns() - began


def _claim_cost(size: int, work: Work) -> Sequence[float]:
    """ns of a claim of one job and of a claim of 1,000."""
    kernel = filled(size, work)
    _claims(kernel, 100, 1)
    single = _claims(kernel, SINGLES, 1) / SINGLES
    spent = done = 0
    while done < BY_THOUSAND:
        if done or size < 100_000:
            kernel = kernel if size >= 1_000_000 else filled(size, work)
        spent += _claims(kernel, PER_KERNEL, 1_000)
        done += PER_KERNEL
    return single, spent / done


def claims(sizes: Sequence[int], rounds: int = ROUNDS) -> list[Figure]:
    figures = []
    for work in (ALIKE, MIXED):
        takes: dict[str, Callable[[], Sequence[float]]] = {
            str(size): lambda size=size, work=work: _claim_cost(size, work)  # type: ignore[misc]
            for size in sizes
        }
        for size, samples in interleave(takes, rounds).items():
            for at, n in enumerate((1, 1_000)):
                figures.append(
                    Figure(
                        f"{work.name} · claim of {n:,} with {int(size):,} queued",
                        "ns",
                        tuple(sample[at] for sample in samples),
                        {
                            "queued": int(size),
                            "claim_of": n,
                            "priorities": len(work.priorities),
                            "pushed_by": BATCH,
                            "payload_bytes": len(PAYLOAD),
                            "events": False,
                        },
                    )
                )
    return figures


# -- one job among many ----------------------------------------------------------------------------


def _look(kernel: Kernel, ids: Sequence[int]) -> int:
    began = clock_ns()
    for job_id in ids:
        found = kernel.locate("default", job_id)
        assert found is not None
        read.view(kernel, *found)
    return clock_ns() - began


def _cancel(kernel: Kernel, ids: Sequence[int]) -> int:
    now, elapsed, apply = kernel.now, kernel.elapsed, kernel.apply
    began = clock_ns()
    for job_id in ids:
        apply(Cancel("default", [job_id]), now, elapsed)
    return clock_ns() - began


def _edit_priority(kernel: Kernel, ids: Sequence[int]) -> int:
    now, elapsed, apply = kernel.now, kernel.elapsed, kernel.apply
    began = clock_ns()
    for job_id in ids:
        apply(Edit(tenant="default", job_id=job_id, priority=7), now, elapsed)
    return clock_ns() - began


def _edit_run_at(kernel: Kernel, ids: Sequence[int]) -> int:
    now, elapsed, apply = kernel.now, kernel.elapsed, kernel.apply
    soon = now + 3_600_000
    began = clock_ns()
    for job_id in ids:
        apply(Edit(tenant="default", job_id=job_id, run_at=soon + job_id), now, elapsed)
    return clock_ns() - began


TOUCHES: Final[dict[str, Callable[[Kernel, Sequence[int]], int]]] = {
    "look-up": _look,
    "cancel": _cancel,
    "edit priority": _edit_priority,
    "edit run_at": _edit_run_at,
}


def touches(sizes: Sequence[int], rounds: int = ROUNDS) -> list[Figure]:
    """ns to look at, cancel or edit one of many queued jobs, drawn at random, each once."""
    takes: dict[str, Callable[[], Sequence[float]]] = {}
    for size in sizes:
        per_touch = min(TOUCHED, size // (2 * len(TOUCHES)))
        holder: dict[str, Kernel] = {}

        def take(
            size: int = size, n: int = per_touch, held: dict[str, Kernel] = holder
        ) -> Sequence[float]:
            # A large queue serves all rounds, a small one is made anew for each.
            if size <= 1_000_000 or not held:
                held["kernel"] = filled(size, ALIKE)
                held["kernel"].apply(Cancel("default", [1]), START + size, size)
            chosen = array("q", random.Random().sample(range(2, size + 1), n * len(TOUCHES)))
            taken = []
            for at, touch in enumerate(TOUCHES.values()):
                ids = [
                    i for i in chosen[at * n : at * n + n] if held["kernel"].locate("default", i)
                ]
                taken.append(touch(held["kernel"], ids) / len(ids))
            return taken

        takes[str(size)] = take
    figures = []
    for queued, samples in interleave(takes, rounds).items():
        for at, name in enumerate(TOUCHES):
            figures.append(
                Figure(
                    f"{name} of one of {int(queued):,}",
                    "ns",
                    tuple(sample[at] for sample in samples),
                    {"operation": name, "queued": int(queued), "batch": 1, "events": False},
                )
            )
    return figures
