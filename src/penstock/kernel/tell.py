"""Events from changes, in ranges. Called only when somebody listens; changes nothing."""

from bisect import bisect_right
from collections.abc import Iterator
from itertools import compress, pairwise
from typing import TYPE_CHECKING, Any

from penstock.model.event import Event, EventKind
from penstock.model.job import IdRun, Ids

if TYPE_CHECKING:
    from penstock.kernel.blocks import Block
    from penstock.kernel.kernel import Kernel
    from penstock.kernel.leases import LeaseRecord
    from penstock.kernel.queue import Queue


def tell(
    kernel: "Kernel", kind: EventKind, queue: "Queue", ids: Ids, at: int, **facts: Any
) -> None:
    assert kernel.events is not None
    kernel.events.append(
        Event(
            kind=kind,
            tenant=queue.tenant.name,
            queue=queue.name,
            at=at,
            ids=ids,
            position=kernel.position,
            index=len(kernel.events),
            **facts,
        )
    )


def one(
    kernel: "Kernel", kind: EventKind, block: "Block", offset: int, at: int, **facts: Any
) -> None:
    """An event about a single job."""
    side = block.sides.get(offset)
    options = block.options_of(offset)
    tell(
        kernel,
        kind,
        block.queue,
        Ids((IdRun(block.base + offset, 1),)),
        at,
        attempt=facts.pop("attempt", side.attempts if side is not None else 0),
        pushed_at=block.created_at(offset),
        ready_at=block.due_at(offset),
        task=options.task,
        priority=block.priority_of(offset),
        **facts,
    )


def alike(
    block: "Block", lo: int, hi: int, mask: bytes | None
) -> Iterator[tuple[int, int, bytes | None]]:
    """Stretches (lo, hi, mask) of a run whose jobs share their times and options."""
    cuts = {lo, hi}
    for positions in (block.created_pos, block.due_pos):
        for index in range(bisect_right(positions, lo), len(positions)):
            if positions[index] >= hi:
                break
            cuts.add(positions[index])
    for offset in range(lo, hi):
        if offset in block.sides:
            cuts.update((offset, offset + 1))
    ordered = sorted(cuts)
    for begin, end in pairwise(ordered):
        part = None if mask is None else mask[begin - lo : end - lo]
        if part is not None and not any(part):
            continue
        numbers = block.opts[begin:end]
        kinds = set(numbers if part is None else compress(numbers, part))
        if len(kinds) == 1:
            yield begin, end, part
            continue
        for kind in sorted(kinds):
            chosen = bytes(
                1 if index == kind and (part is None or part[at]) else 0
                for at, index in enumerate(numbers)
            )
            if any(chosen):
                yield begin, end, chosen


def _first(lo: int, mask: bytes | None) -> int:
    return lo if mask is None else lo + mask.index(1)


def claimed(kernel: "Kernel", lease: "LeaseRecord") -> None:
    for run in lease.runs:
        block = run.block
        for lo, hi, mask in alike(block, run.lo, run.hi, run.mask):
            offset = _first(lo, mask)
            side = block.sides.get(offset)
            tell(
                kernel,
                "claimed",
                lease.queue,
                Ids((IdRun(block.base + lo, hi - lo, mask),)),
                lease.claimed_at,
                attempt=side.attempts if side is not None else 1,
                pushed_at=block.created_at(offset),
                ready_at=block.due_at(offset),
                claimed_at=lease.claimed_at,
                task=block.options_of(offset).task,
                priority=block.priority_of(offset),
                worker=lease.worker,
            )


def completed(
    kernel: "Kernel",
    lease: "LeaseRecord",
    block: "Block",
    begin: int,
    end: int,
    mask: bytes | None,
    at: int,
) -> None:
    """Plain jobs of a run; called before their end is settled."""
    for lo, hi, part in alike(block, begin, end, mask):
        offset = _first(lo, part)
        tell(
            kernel,
            "completed",
            lease.queue,
            Ids((IdRun(block.base + lo, hi - lo, part),)),
            at,
            attempt=1,
            pushed_at=block.created_at(offset),
            ready_at=block.due_at(offset),
            claimed_at=lease.claimed_at,
            task=block.options_of(offset).task,
            priority=block.priority_of(offset),
            worker=lease.worker,
        )


def pushed(kernel: "Kernel", queue: "Queue", first: int, count: int, *, held: bool = False) -> None:
    """Jobs just created, by their columns."""
    from penstock.kernel.blocks import SHIFT, SIZE

    at, end = first, first + count
    while at < end:
        block = queue.blocks[(at - 1) >> SHIFT]
        lo = at - block.base
        hi = min(SIZE, lo + end - at)
        for begin, until, mask in alike(block, lo, hi, None):
            offset = _first(begin, mask)
            due = block.due_at(offset)
            size = sum(
                block.place(o)[2] - block.place(o)[1]
                for o in range(begin, until)
                if mask is None or mask[o - begin]
            )
            tell(
                kernel,
                "pushed",
                queue,
                Ids((IdRun(block.base + begin, until - begin, mask),)),
                kernel.now,
                pushed_at=kernel.now,
                ready_at=due,
                run_at=due if due > kernel.now else 0,
                task=block.options_of(offset).task,
                priority=block.priority_of(offset),
                bytes=size,
                held=held,
            )
        at = block.base + hi
