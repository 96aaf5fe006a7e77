"""What a claim costs with 10 k … 10 M jobs queued, and what it costs to look at or change one.

Every round builds its kernels anew, so that each claim meets a queue of the size it is named for,
with nothing released or edited before.
"""

import gc
import os
import random
from collections.abc import Callable, Sequence
from typing import Final

from benchmarks._kernel_speed import LEASE_MS, START, STATED, Work
from benchmarks._measure import ROUNDS, Figure, clock_ns, interleave
from penstock.kernel import read
from penstock.kernel.commands import Cancel, Claim, Edit, Load, Push
from penstock.kernel.kernel import Kernel
from penstock.model.lifecycle import State

SIZES: Final = (10_000, 100_000, 1_000_000, 10_000_000)
BATCH: Final = 1_000  # of the pushes that fill the queues
SINGLES: Final = 2_000  # claims of one job, per sample
BY_THOUSAND: Final = 200  # claims of 1,000 jobs, per sample, over as many kernels as that takes
PER_KERNEL: Final = 5  # … of which a small queue gives so many before it is made anew
LARGE: Final = 1_000_000  # from this size on, what is claimed in a sample does not make it smaller
WARM: Final = 100
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
    gc.collect()  # a queue that has stood for a while is old to the collector
    _claims(kernel, WARM, 1)
    single = _claims(kernel, SINGLES, 1) / SINGLES
    spent = 0
    for _ in range(BY_THOUSAND // PER_KERNEL):
        if size < LARGE:
            kernel = filled(size, work)
        spent += _claims(kernel, PER_KERNEL, 1_000)
    return single, spent / BY_THOUSAND


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
                            **STATED,
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


class _Touched:
    """A queue that is looked at and changed. A large one serves all rounds."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.each = min(TOUCHED, size // (2 * len(TOUCHES)))
        self.draw = random.Random(1)
        self.kernel: Kernel | None = None

    def take(self) -> Sequence[float]:
        if self.kernel is None or self.size < LARGE:
            self.kernel = filled(self.size, ALIKE)
        kernel, each = self.kernel, self.each
        chosen = self.draw.sample(range(1, self.size + 1), each * len(TOUCHES))
        # What an earlier round cancelled may be forgotten by now, what it delayed is not ready.
        ready = [job_id for job_id in chosen if _is_ready(kernel, job_id)]
        share = len(ready) // len(TOUCHES)
        return [
            touch(kernel, ready[at * share : at * share + share]) / share
            for at, touch in enumerate(TOUCHES.values())
        ]


def _is_ready(kernel: Kernel, job_id: int) -> bool:
    found = kernel.locate("default", job_id)
    return found is not None and read.view(kernel, *found).facts["state"] is State.READY


def touches(sizes: Sequence[int], rounds: int = ROUNDS) -> list[Figure]:
    """ns to look at, cancel or edit one of many queued jobs, drawn at random, each once."""
    takes: dict[str, Callable[[], Sequence[float]]] = {}
    for size in sizes:
        takes[str(size)] = _Touched(size).take
    figures = []
    for queued, samples in interleave(takes, rounds).items():
        for at, name in enumerate(TOUCHES):
            figures.append(
                Figure(
                    f"{name} of one of {int(queued):,}",
                    "ns",
                    tuple(sample[at] for sample in samples),
                    {
                        "operation": name,
                        "queued": int(queued),
                        "batch": 1,
                        "pushed_by": BATCH,
                        **STATED,
                    },
                )
            )
    return figures
