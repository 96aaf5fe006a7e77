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
from penstock.kernel.ending import end_one, pin
from penstock.model.errors import Invalid
from penstock.model.job import CREATED, IGNORED, JobError
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
    # The graph as it will be. A node is −id for a job that is known, else a place in the push.
    nodes = _nodes(loads, decisions)
    after: dict[int, list[int]] = {}
    place = 0
    for which, load in enumerate(loads):
        plan = decisions[which]
        for index in range(len(load.ends)):
            refs = load.depends_on[index] if load.depends_on is not None else ()
            for ref in refs:
                if ref > highest:
                    raise Invalid(f"job {ref} was never reserved", "depends_on")
                if ref > 0:
                    _check_held(kernel, tenant, ref, bulk)
            if refs:
                found[which, index] = Dependencies(refs)
            if plan is None or plan[index][0] != IGNORED:
                after[nodes[place]] = [-ref if ref > 0 else nodes[-ref - 1] for ref in refs]
            place += 1
    check_cycles(kernel, tenant, after)
    return found


def _nodes(loads: "Sequence[Load]", decisions: list[list[tuple[int, int]] | None]) -> list[int]:
    """What each place of the push stands for: a known job, an earlier place, or itself."""
    nodes: list[int] = []
    for load, plan in zip(loads, decisions, strict=True):
        for index in range(len(load.ends)):
            outcome, owner = plan[index] if plan is not None else (CREATED, 0)
            if outcome == CREATED:
                nodes.append(len(nodes))
            else:
                nodes.append(-owner if owner > 0 else nodes[-owner - 1])
    return nodes


def _check_held(kernel: "Kernel", tenant: str, job_id: int, bulk: "Bulk | None") -> None:
    known = kernel.locate(tenant, job_id)
    if known is None or known[0].codes[known[1]] != HELD:
        return
    if bulk is None or not bulk.holds(job_id):
        raise Invalid(f"job {job_id} is held by another bulk", "depends_on")


def check_cycles(kernel: "Kernel", tenant: str, after: dict[int, list[int]]) -> None:
    """Nodes are places of a push, or −id; `after` says what those that change will wait for."""
    done: set[int] = set()
    for start in after:
        path: set[int] = set()
        stack = [(start, False)]
        while stack:
            node, leaving = stack.pop()
            if leaving:
                path.discard(node)
                done.add(node)
            elif node in path:
                raise Invalid("a job would depend on itself", "depends_on")
            elif node not in done:
                path.add(node)
                stack.append((node, True))
                onward = after[node] if node in after else _known_edges(kernel, tenant, -node)
                stack.extend((other, False) for other in onward)


def _known_edges(kernel: "Kernel", tenant: str, job_id: int) -> list[int]:
    """What a known job still waits for."""
    known = kernel.locate(tenant, job_id)
    side = known[0].sides.get(known[1]) if known is not None else None
    return [] if side is None else [-unmet for unmet in side.unmet]


def has_failed(kernel: "Kernel", tenant: str, job_id: int) -> bool:
    found = kernel.locate(tenant, job_id)
    code = COUNTER_OF[found[0].codes[found[1]]] if found is not None else COMPLETED
    return code in ENDED and code != COMPLETED


def resolve(
    kernel: "Kernel", block: Block, offset: int, side: Side, *, pinned: bool = False
) -> int:
    """Find out what a job that comes alive waits for. Answers a failed dependency's id, or 0.

    `pinned`: it was held by a bulk, which has kept its dependencies so far.
    """
    tenant = block.queue.tenant.name
    job_id = block.base + offset
    if not pinned:
        pin(kernel, tenant, side.depends_on)
    policy = block.options_of(offset).on_dependency_failure
    failed = 0
    unmet: list[int] = []
    for dependency in side.depends_on:
        known = kernel.locate(tenant, dependency)
        if known is None:
            if dependency in kernel.unborn and policy == "fail" and not failed:
                failed = dependency
            continue  # else long completed and forgotten
        other = known[0].side(known[1])
        code = COUNTER_OF[known[0].codes[known[1]]]
        if code in ENDED:
            if code != COMPLETED and policy == "fail" and not failed:
                failed = dependency
        else:
            unmet.append(dependency)
        if other.dependants is None:
            other.dependants = []
        other.dependants.append(job_id)
    side.unmet = tuple(unmet)
    return failed


def dependency_ended(kernel: "Kernel", dependency: int, code: int, at: int, dependant: int) -> None:
    """One dependency of a blocked job has ended: with what code, at which instant."""
    known = kernel.locate_any(dependant)
    if known is None:
        return
    block, offset = known
    side = block.sides.get(offset)
    if block.codes[offset] != BLOCKED or side is None or dependency not in side.unmet:
        return
    block.touch()
    if code != COMPLETED and block.options_of(offset).on_dependency_failure == "fail":
        die_of_dependency(kernel, block, offset, dependency, at)
        return
    side.unmet = tuple(unmet for unmet in side.unmet if unmet != dependency)
    if not side.unmet:
        unblock(kernel, block, offset, side, at)


def redirect(kernel: "Kernel", tenant: str, dependant: int, old: int, new: int) -> None:
    """What a job calls `old` is the job `new`: that one has the key which `old` should have had."""
    known = kernel.locate(tenant, dependant)
    side = known[0].sides.get(known[1]) if known is not None else None
    if known is None or side is None:
        return
    block, offset = known
    version = side.next if side.next is not None else side
    if old not in version.depends_on:
        return
    block.touch()
    if new not in version.depends_on and COUNTER_OF[block.codes[offset]] not in ENDED:
        pin(kernel, tenant, (new,))
    version.depends_on = tuple(
        dict.fromkeys(new if named == old else named for named in version.depends_on)
    )
    if block.codes[offset] != BLOCKED or old not in side.unmet:
        return
    side.unmet = tuple(unmet for unmet in side.unmet if unmet not in (old, new))
    found = kernel.locate(tenant, new)
    code = COMPLETED
    if found is not None:
        code = COUNTER_OF[found[0].codes[found[1]]]
        found[0].touch()
        other = found[0].side(found[1])
        other.dependants = [*(other.dependants or ()), dependant]
    if code not in ENDED:
        side.unmet = (*side.unmet, new)
    elif code != COMPLETED and block.options_of(offset).on_dependency_failure == "fail":
        die_of_dependency(kernel, block, offset, new, kernel.now)
    elif not side.unmet:
        unblock(kernel, block, offset, side, kernel.now)


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
