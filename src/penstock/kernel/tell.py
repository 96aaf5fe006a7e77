"""Events from changes, in ranges. Called only when somebody listens; changes nothing.

A server counts by events, so somebody always listens there: what follows is written for runs, and
its hot three (`pushed`, `claimed`, `completed`) make their events themselves, and not by `tell`.
"""

from bisect import bisect_right
from collections.abc import Iterator
from itertools import compress, pairwise
from operator import sub
from typing import TYPE_CHECKING, Any

from penstock.kernel.blocks import SHIFT, SIZE
from penstock.kernel.leases import both, by_block, joined
from penstock.model.event import Event, EventKind
from penstock.model.job import IdRun, Ids

if TYPE_CHECKING:
    from array import array

    from penstock.kernel.blocks import Block, Side
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
    if hi - lo == 1:
        yield lo, hi, mask
        return
    plain = not block.sides and not block.commits and block.same_ready_until(lo) >= hi
    for begin, end in ((lo, hi),) if plain else pairwise(sorted(_cuts(block, lo, hi))):
        part = None if mask is None else mask[begin - lo : end - lo]
        if part is not None and 1 not in part:
            continue
        numbers = block.opts[begin:end]
        if len(block.options) == 1 or numbers.count(numbers[0]) == end - begin:
            yield begin, end, part
            continue
        kinds = sorted(set(numbers if part is None else compress(numbers, part)))
        if len(kinds) == 1:
            yield begin, end, part
            continue
        for kind in kinds:
            chosen = _marked(numbers, kind)
            yield begin, end, chosen if part is None else both(chosen, part)


def _cuts(block: "Block", lo: int, hi: int) -> set[int]:
    """Where the columns or the facts of single jobs may make a difference."""
    cuts = {lo, hi}
    for positions in (block.created_pos, block.due_pos):
        for index in range(bisect_right(positions, lo), len(positions)):
            if positions[index] >= hi:
                break
            cuts.add(positions[index])
    for first, last, _, _ in block.commits:
        cuts.update(cut for cut in (first, last) if lo < cut < hi)
    sides = block.sides
    if sides:
        between = (
            [offset for offset in sides if lo <= offset < hi]
            if len(sides) < hi - lo
            else [offset for offset in range(lo, hi) if offset in sides]
        )
        apart = [offset for offset in between if _stands_out(sides[offset])]
        cuts.update(apart)
        cuts.update(offset + 1 for offset in apart)
    return cuts


def _stands_out(side: "Side") -> bool:
    """Whether an event can tell this job from its neighbours. Keys and groups it does not tell."""
    return (
        side.attempts > 1
        or side.ready_at is not None
        or side.created_at is not None
        or side.options is not None
        or side.priority is not None
        or side.payload is not None
    )


def _marked(numbers: "bytearray | array[int]", kind: int) -> bytes:
    """1 where that number stands."""
    if isinstance(numbers, bytearray):
        table = bytearray(256)
        table[kind] = 1
        return bytes(numbers.translate(table))
    return bytes(number == kind for number in numbers)


def _first(lo: int, mask: bytes | None) -> int:
    return lo if mask is None else lo + mask.index(1)


def _times(block: "Block", offset: int) -> tuple[int, int]:
    """When the job was pushed, and when it became ready."""
    if block.due_pos or block.commits or block.sides:
        return block.created_at(offset), block.due_at(offset)
    created = block.created_ms[bisect_right(block.created_pos, offset) - 1]
    return created, created


def claimed(kernel: "Kernel", lease: "LeaseRecord") -> None:
    """By block: how a claim is cut into runs is otherwise at a replay behind a checkpoint."""
    for block, runs in by_block(lease):
        begin, end, held, _ = joined(runs)
        for lo, hi, mask in alike(block, begin, end, held):
            _claimed(kernel, lease, block, lo, hi, mask)


def _claimed(
    kernel: "Kernel", lease: "LeaseRecord", block: "Block", lo: int, hi: int, mask: bytes | None
) -> None:
    """Jobs of one block that are alike."""
    events, queue = kernel.events, lease.queue
    assert events is not None
    offset = _first(lo, mask)
    side = block.sides.get(offset)
    options = block.options[block.opts[offset]] if side is None else block.options_of(offset)
    pushed_at, ready_at = _times(block, offset)
    events.append(
        Event(
            kind="claimed",
            tenant=queue.tenant.name,
            queue=queue.name,
            at=lease.claimed_at,
            ids=Ids((IdRun(block.base + lo, hi - lo, mask),)),
            attempt=side.attempts if side is not None else 1,
            pushed_at=pushed_at,
            ready_at=ready_at,
            claimed_at=lease.claimed_at,
            worker=lease.worker,
            task=options.task,
            priority=options.priority if side is None else block.priority_of(offset),
            position=kernel.position,
            index=len(events),
        )
    )


def claimed_single(kernel: "Kernel", lease: "LeaseRecord", block: "Block", offset: int) -> None:
    """The same for one job that has nothing of its own: what an idle worker is given."""
    events, queue, at = kernel.events, lease.queue, lease.claimed_at
    assert events is not None
    options = block.options[block.opts[offset]]
    if block.due_pos or block.commits or offset < block.created_pos[-1]:
        pushed_at, ready_at = _times(block, offset)
    else:  # of the newest
        pushed_at = ready_at = block.created_ms[-1]
    events.append(
        Event(
            kind="claimed",
            tenant=queue.tenant.name,
            queue=queue.name,
            at=at,
            ids=Ids((IdRun(block.base + offset, 1),)),
            attempt=1,
            pushed_at=pushed_at,
            ready_at=ready_at,
            claimed_at=at,
            worker=lease.worker,
            task=options.task,
            priority=options.priority,
            position=kernel.position,
            index=len(events),
        )
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
    events, queue = kernel.events, lease.queue
    assert events is not None
    for lo, hi, part in alike(block, begin, end, mask):
        offset = _first(lo, part)
        options = block.options[block.opts[offset]]
        pushed_at, ready_at = _times(block, offset)
        events.append(
            Event(
                kind="completed",
                tenant=queue.tenant.name,
                queue=queue.name,
                at=at,
                ids=Ids((IdRun(block.base + lo, hi - lo, part),)),
                attempt=1,
                pushed_at=pushed_at,
                ready_at=ready_at,
                claimed_at=lease.claimed_at,
                worker=lease.worker,
                task=options.task,
                priority=options.priority,
                position=kernel.position,
                index=len(events),
            )
        )


def pushed(kernel: "Kernel", queue: "Queue", first: int, count: int, *, held: bool = False) -> None:
    """Jobs just created, by their columns."""
    events, now = kernel.events, kernel.now
    assert events is not None
    at, end = first, first + count
    while at < end:
        block = queue.blocks[(at - 1) >> SHIFT]
        lo = at - block.base
        hi = min(SIZE, lo + end - at)
        sizes: list[int] | None = None  # of each job, where they are told by masks
        for begin, until, mask in alike(block, lo, hi, None):
            if mask is not None and sizes is None:
                sizes = _sizes(block, lo, hi)
            offset = _first(begin, mask)
            options = block.options_of(offset)
            due = block.due_at(offset)
            events.append(
                Event(
                    kind="pushed",
                    tenant=queue.tenant.name,
                    queue=queue.name,
                    at=now,
                    ids=Ids((IdRun(block.base + begin, until - begin, mask),)),
                    pushed_at=now,
                    ready_at=due,
                    run_at=due if due > now else 0,
                    task=options.task,
                    priority=options.priority,
                    bytes=_size(block, begin, until)
                    if mask is None or sizes is None
                    else sum(compress(sizes[begin - lo : until - lo], mask)),
                    held=held,
                    position=kernel.position,
                    index=len(events),
                )
            )
        at = block.base + hi


def pushed_alike(
    kernel: "Kernel", block: "Block", offset: int, count: int, due: int, size: int
) -> None:
    """The same for plain jobs of one block that are ready and alike: all is known of them."""
    events, queue, now = kernel.events, block.queue, kernel.now
    assert events is not None
    options = block.options[block.opts[offset]]
    events.append(
        Event(
            kind="pushed",
            tenant=queue.tenant.name,
            queue=queue.name,
            at=now,
            ids=Ids((IdRun(block.base + offset, count),)),
            pushed_at=now,
            ready_at=due,
            run_at=due if due > now else 0,
            task=options.task,
            priority=options.priority,
            bytes=size,
            position=kernel.position,
            index=len(events),
        )
    )


def _sizes(block: "Block", lo: int, hi: int) -> list[int]:
    """The payload bytes of each of these jobs."""
    positions, ends = block.pay_pos, block.ends
    record = bisect_right(positions, lo) - 1
    sizes: list[int] = []
    at = lo
    while at < hi:
        until = positions[record + 1] if record + 1 < len(positions) else hi
        until = min(until, hi)
        part = ends[at:until]
        before = block.pay_begin[record] if at == positions[record] else ends[at - 1]
        sizes += map(sub, part, [before, *part[:-1]])
        at = until
        record += 1
    return sizes


def _size(block: "Block", lo: int, hi: int) -> int:
    """The payload bytes of all of them."""
    if hi - lo == 1:
        _, begin, end = block.place(lo)
        return end - begin
    record = bisect_right(block.pay_pos, lo) - 1
    if bisect_right(block.pay_pos, hi - 1) - 1 > record:
        return sum(_sizes(block, lo, hi))
    first = block.pay_begin[record] if lo == block.pay_pos[record] else block.ends[lo - 1]
    return block.ends[hi - 1] - first
