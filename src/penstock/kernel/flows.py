"""Dependencies: what a job waits for, and what it learns when those end.

A dependency knows its dependants and is pinned by those that live; a dependant knows its
dependencies and counts those not met. References inside one push are negative: −k is its k-th job.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from penstock.kernel import tell
from penstock.kernel.blocks import SIZE, Block, Side
from penstock.kernel.codes import (
    BLOCKED,
    COMPLETED,
    COUNTER_OF,
    DEAD,
    ENDED,
    HELD,
    READY,
    SCHEDULED,
)
from penstock.kernel.ending import end_one
from penstock.model.errors import Invalid
from penstock.model.job import UPDATED, JobError
from penstock.model.lifecycle import DeadReason

if TYPE_CHECKING:
    from penstock.kernel.bulks import Bulk
    from penstock.kernel.commands import Load
    from penstock.kernel.kernel import Kernel


class Dependencies(msgspec.Struct, frozen=True):
    refs: tuple[int, ...]  # ids, or −k

    def ids(self, expected: Sequence[int]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(ref if ref > 0 else expected[-ref - 1] for ref in self.refs))


def check_graph(
    kernel: "Kernel",
    tenant: str,
    loads: "Sequence[Load]",
    bulk: "Bulk | None",
    decisions: list[list[tuple[int, int]] | None],
) -> dict[tuple[int, int], Dependencies]:
    """The dependencies of each job of a push that has any; Invalid if they cannot be."""
    highest = kernel.next_block * SIZE
    found: dict[tuple[int, int], Dependencies] = {}
    after: dict[int, tuple[int, ...]] = {}  # place in the push → places it waits for
    place = 0
    for which, load in enumerate(loads):
        for index in range(len(load.ends)):
            refs = load.depends_on[index] if load.depends_on is not None else ()
            if refs:
                for ref in refs:
                    if ref > highest:
                        raise Invalid(f"job {ref} was never reserved", "depends_on")
                    if ref > 0:
                        _check_held(kernel, tenant, ref, bulk)
                found[which, index] = Dependencies(refs)
                after[place] = tuple(-ref - 1 for ref in refs if ref < 0)
                plan = decisions[which]
                if plan is not None and plan[index][0] == UPDATED and plan[index][1] > 0:
                    _check_loop(kernel, tenant, plan[index][1], refs)
            place += 1
    _check_cycles(after)
    return found


def _check_held(kernel: "Kernel", tenant: str, job_id: int, bulk: "Bulk | None") -> None:
    known = kernel.locate(tenant, job_id)
    if known is None or known[0].codes[known[1]] != HELD:
        return
    if bulk is None or not bulk.holds(job_id):
        raise Invalid(f"job {job_id} is held by another bulk", "depends_on")


def _check_cycles(after: dict[int, tuple[int, ...]]) -> None:
    done: set[int] = set()
    for start in after:
        path: dict[int, None] = {}
        stack = [(start, False)]
        while stack:
            place, leaving = stack.pop()
            if leaving:
                del path[place]
                done.add(place)
            elif place in path:
                raise Invalid(f"job {place + 1} of the push depends on itself", "depends_on")
            elif place not in done:
                path[place] = None
                stack.append((place, True))
                stack.extend((next_place, False) for next_place in after.get(place, ()))


def _check_loop(kernel: "Kernel", tenant: str, job_id: int, refs: tuple[int, ...]) -> None:
    """A replaced job must not come to wait for itself through jobs that wait already."""
    seen: set[int] = set()
    stack = [ref for ref in refs if ref > 0]
    while stack:
        ref = stack.pop()
        if ref == job_id:
            raise Invalid(f"job {job_id} would depend on itself", "depends_on")
        if ref in seen:
            continue
        seen.add(ref)
        known = kernel.locate(tenant, ref)
        if known is not None and COUNTER_OF[known[0].codes[known[1]]] not in ENDED:
            side = known[0].sides.get(known[1])
            if side is not None:
                stack.extend(side.depends_on)


def resolve(kernel: "Kernel", block: Block, offset: int, side: Side) -> int:
    """Find out what a job that comes alive waits for. Answers a failed dependency's id, or 0."""
    tenant = block.queue.tenant.name
    job_id = block.base + offset
    policy = block.options_of(offset).on_dependency_failure
    failed = 0
    side.waiting = 0
    for dependency in side.depends_on:
        known = kernel.locate(tenant, dependency)
        if known is None:
            if dependency in kernel.unborn and policy == "fail" and not failed:
                failed = dependency
            continue  # else long completed and forgotten
        other = known[0].side(known[1])
        other.pins += 1
        code = COUNTER_OF[known[0].codes[known[1]]]
        if code in ENDED:
            if code != COMPLETED and policy == "fail" and not failed:
                failed = dependency
        else:
            side.waiting += 1
        if other.dependants is None:
            other.dependants = []
        other.dependants.append(job_id)
    return failed


def dependency_ended(kernel: "Kernel", dependency: int, code: int, at: int, dependant: int) -> None:
    """One dependency of a blocked job has ended: with what code, at which instant."""
    known = kernel.locate_any(dependant)
    if known is None:
        return
    block, offset = known
    side = block.sides.get(offset)
    if block.codes[offset] != BLOCKED or side is None or dependency not in side.depends_on:
        return
    if code != COMPLETED and block.options_of(offset).on_dependency_failure == "fail":
        die_of_dependency(kernel, block, offset, dependency, at)
        return
    side.waiting -= 1
    if not side.waiting:
        unblock(kernel, block, offset, side, at)


def unblock(kernel: "Kernel", block: Block, offset: int, side: Side, at: int) -> None:
    queue = block.queue
    queue.counts[BLOCKED] -= 1
    if side.run_at is not None and side.run_at > kernel.now:
        queue.counts[SCHEDULED] += 1
        block.codes[offset] = SCHEDULED
        side.ready_at = side.run_at
        kernel.promote_at(side.run_at, block.base + offset, 1)
        return
    queue.counts[READY] += 1
    side.ready_at = queue.clamp(max(at, side.run_at or 0))
    queue.make_ready(block, offset, side.ready_at)


def die_of_dependency(
    kernel: "Kernel", block: Block, offset: int, dependency: int, at: int
) -> None:
    side = block.side(offset)
    error = JobError(
        kind="dependency_failed",
        message=f"job {dependency}, which this one depends on, did not complete",
        at=at,
        attempt=side.attempts,
    )
    side.errors = (*side.errors, error)[-kernel.caps.errors_per_job :]
    if kernel.events is not None:
        tell.one(
            kernel,
            "dead",
            block,
            offset,
            at,
            reason=DeadReason.DEPENDENCY_FAILED.value,
            error_kind=error.kind,
            error_message=error.message,
        )
    end_one(kernel, block, offset, DEAD, at, reason=DeadReason.DEPENDENCY_FAILED)
