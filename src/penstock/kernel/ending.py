"""How jobs end and are forgotten: the one place where counters, keys, groups, dependants, results
and retention are settled for a job that leaves the living.

`end_range` serves runs of plain jobs in a few operations on bytes; `end_one` serves a job that has
facts of its own. Both give the same result; a job may always take the slow way.
"""

from bisect import bisect_right
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from penstock.kernel.blocks import SIZE, UNFILED, Block, EndRun, Side
from penstock.kernel.codes import (
    ACTIVE,
    BYTE,
    COMPLETED,
    COUNTER_OF,
    DEAD,
    GONE,
    HELD,
)
from penstock.kernel.leases import set_codes, trimmed
from penstock.model.lifecycle import DeadReason

if TYPE_CHECKING:
    from penstock.kernel.kernel import Kernel
    from penstock.kernel.queue import Queue


def end_range(
    kernel: "Kernel",
    block: Block,
    lo: int,
    hi: int,
    mask: bytes | None,
    count: int,
    at: int,
    started_at: int,
    worker: str,
) -> None:
    """Active jobs without sides complete together."""
    queue = block.queue
    if block.era != kernel.era:
        block.touch()
    counts = queue.counts
    counts[ACTIVE] -= count
    counts[COMPLETED] += count
    if queue.bounded:
        _lower_bounds(queue, block, lo, hi, mask, count)
    if mask is None and hi - lo == 1:
        block.codes[lo] = COMPLETED
    else:
        set_codes(block, lo, hi, mask, COMPLETED)
    if kernel.awaited:
        kernel.note_ends(block, lo, hi, mask)
    run = EndRun(block, lo, COMPLETED, at, started_at, worker, 0, count, mask)
    block.ended[lo] = run
    file_end(kernel, queue, run)


def end_one(
    kernel: "Kernel",
    block: Block,
    offset: int,
    code: int,
    at: int,
    *,
    reason: DeadReason | None = None,
    started_at: int = 0,
    worker: str | None = None,
    forget_now: bool = False,
) -> None:
    """Any job that has not ended becomes completed, dead, cancelled or expired.

    One that was active must have left its lease already.
    """
    queue = block.queue
    block.touch()
    before = COUNTER_OF[block.codes[offset]]
    queue.counts[before] -= 1
    queue.counts[code] += 1
    block.codes[offset] = code
    if queue.bounded:
        _lower_bounds(queue, block, offset, offset + 1, None, 1)
    side = block.sides.get(offset)
    options = block.options_of(offset)
    if side is not None:
        _settle_side(kernel, queue, block, offset, side, before, code, at)
        if code == DEAD:
            side.dead_reason = reason
        if not started_at and side.started_at is not None:
            started_at, worker = side.started_at, side.worker
    elif code == DEAD:
        block.side(offset).dead_reason = reason
    if kernel.awaited:
        kernel.note_ends(block, offset, offset + 1, None)
    retain = options.retain_dead_ms if code == DEAD else options.retain_ms
    deadline = None if retain is None else at + retain
    run = EndRun(block, offset, code, at, started_at, worker, 0, 1, None, deadline)
    block.ended[offset] = run
    if forget_now:
        forget(kernel, block, offset, offset + 1, None, 1, code, force=True)
    else:
        file_end(kernel, queue, run)


def _settle_side(
    kernel: "Kernel",
    queue: "Queue",
    block: Block,
    offset: int,
    side: Side,
    before: int,
    code: int,
    at: int,
) -> None:
    job_id = block.base + offset
    if side.keys:
        queue.keys.free(side.keys, job_id, "live", "started")
    if side.next is not None:
        drop_version(kernel, queue.tenant.name, side)
    if side.group is not None and before != HELD:
        freed = before == ACTIVE or side.owns_slot
        side.owns_slot = False
        queue.leave_group(side.group, freed=freed, ended=True)
    if side.dependants:
        kernel.cascade.append((job_id, code, at, side.dependants))
    if side.depends_on:
        unpin(kernel, queue.tenant.name, side.depends_on)
    if side.cron is not None:
        kernel.crons_pending_end(queue.tenant.name, side.cron, job_id)
    side.unmet = ()


def drop_version(kernel: "Kernel", tenant: str, side: Side) -> None:
    """The version that waits for the running attempt will not start."""
    if side.next is not None:
        kernel.drop_chunk(side.next.payload[0], 1)
        unpin(kernel, tenant, side.next.depends_on)
        side.next = None


def pin(kernel: "Kernel", tenant: str, dependencies: tuple[int, ...]) -> None:
    """What a live dependant needs is kept beyond its retention."""
    for job_id in dict.fromkeys(dependencies):
        found = kernel.locate(tenant, job_id)
        if found is not None:
            found[0].side(found[1]).pins += 1


def unpin(kernel: "Kernel", tenant: str, dependencies: tuple[int, ...]) -> None:
    """A dependant ended: its dependencies may be forgotten if their retention is over."""
    for job_id in dict.fromkeys(dependencies):
        found = kernel.locate(tenant, job_id)
        if found is None:
            continue
        block, offset = found
        side = block.sides.get(offset)
        if side is not None and side.pins:
            block.touch()
            side.pins -= 1
            if side.overdue and not side.pins:
                forget(kernel, block, offset, offset + 1, None, 1, block.codes[offset])


def _lower_bounds(
    queue: "Queue", block: Block, lo: int, hi: int, mask: bytes | None, count: int
) -> None:
    size = size_of(block, lo, hi, mask)
    queue.bytes -= size
    queue.tenant.live -= count
    queue.tenant.bytes -= size


def size_of(block: Block, lo: int, hi: int, mask: bytes | None) -> int:
    """Payload bytes of these jobs, as was said last: a version that waits counts already."""
    total = 0
    for offset in range(lo, hi):
        if mask is None or mask[offset - lo]:
            side = block.sides.get(offset)
            version = side.next if side is not None else None
            _, begin, end = block.place(offset) if version is None else version.payload
            total += end - begin
    return total


# -- retention -----------------------------------------------------------------------------------


def file_end(kernel: "Kernel", queue: "Queue", run: EndRun) -> None:
    """File what just ended by the rule that it is kept under; forget what that pushes out."""
    config = queue.config
    if run.deadline is not None:
        if run.deadline <= run.at:
            forget_run(kernel, run)
        else:
            kernel.calendar.add(run.deadline, "forget", run)
        return
    if run.code == DEAD:
        if not config.retain_dead_ms:
            forget_run(kernel, run)
            return
        _file(queue.dead, run)
        _expect(kernel, queue, run.at + config.retain_dead_ms)
        return
    if not config.retain_ms or not config.retain_count:
        forget_run(kernel, run)
        return
    _file(queue.finished, run)
    queue.finished_count += run.count
    if queue.finished_count > config.retain_count:
        trim_finished(kernel, queue)
    _expect(kernel, queue, run.at + config.retain_ms)


def _expect(kernel: "Kernel", queue: "Queue", due: int) -> None:
    """See to it that the calendar comes back to this queue by then. If it does earlier, because of
    ends that are outdated since, it looks again what is next: an entry costs room until it is due.
    """
    if not queue.retention_due or due < queue.retention_due:
        schedule_retention(kernel, queue)


def _file(ends: deque[EndRun], run: EndRun) -> None:
    """Append, keeping the order of instants even if the wall clock went back."""
    last = ends[-1] if ends else None
    if last is None or last.at < run.at:
        run.turn = 0
        ends.append(run)
    elif last.at == run.at and last.block.ended.get(last.lo) is last:
        run.turn = last.turn + 1
        ends.append(run)
    else:
        _file_among(ends, run)


def _file_among(ends: deque[EndRun], run: EndRun) -> None:
    """Behind the last one that ended no later; its turn counts those that are not outdated.

    A kernel that was read back knows no others and must give the same turns.
    """
    index = len(ends)
    while index and ends[index - 1].at > run.at:
        index -= 1
    run.turn = 0
    for other in islice(reversed(ends), len(ends) - index, None):
        if other.at != run.at:
            break
        if other.block.ended.get(other.lo) is other:
            run.turn = other.turn + 1
            break
    ends.insert(index, run)


def drop_outdated(queue: "Queue") -> None:
    """Let go of the ends of jobs that are dead no longer (redriven, purged), once they outnumber the
    others: each holds its whole block, and would for as long as dead letters are kept."""
    if len(queue.dead) > 2 * queue.counts[DEAD]:
        queue.dead = deque(run for run in queue.dead if run.block.ended.get(run.lo) is run)


def trim_finished(kernel: "Kernel", queue: "Queue") -> None:
    """Forget the oldest ends beyond the count that the queue keeps."""
    most = queue.config.retain_count
    finished = queue.finished
    while queue.finished_count > most:
        run = finished[0]
        excess = queue.finished_count - most
        if run.count <= excess:
            finished.popleft()
            queue.finished_count -= run.count
            forget_run(kernel, run)
        else:
            queue.finished_count -= excess
            forget_first(kernel, run, excess)


def forget_first(kernel: "Kernel", run: EndRun, n: int, *, force: bool = False) -> None:
    """Forget the n lowest ids of a run; with the rest, if there is one, it stays."""
    block, lo = run.block, run.lo
    block.touch()
    if n == run.count:
        forget(kernel, block, lo, run.hi, run.mask, n, run.code, run=run, force=force)
        return
    if run.mask is None:
        cut = lo + n
        head = None
    else:
        below, above = n, run.hi - lo
        while below < above:
            middle = (below + above) // 2
            if run.mask.count(1, 0, middle) < n:
                below = middle + 1
            else:
                above = middle
        cut = lo + below
        head = run.mask[:below]
        run.lo, _, run.mask = trimmed(cut, run.mask[below:])
    if block.ended.get(lo) is run:
        del block.ended[lo]
    if head is None:
        run.lo = cut
    run.count -= n
    block.ended[run.lo] = run
    forget(kernel, block, lo, cut, head, n, run.code, run=run, force=force)


def schedule_retention(kernel: "Kernel", queue: "Queue") -> None:
    """Put the instant of the next forgetting by age into the calendar.

    Dead letters are kept for long, and what finishes comes and goes meanwhile: theirs is put there
    once, and not again each time that nothing else is next.
    """
    due = 0
    config = queue.config
    if queue.dead:
        due = queue.dead[0].at + config.retain_dead_ms
        if not queue.dead_due or due < queue.dead_due:
            queue.dead_due = due
            kernel.calendar.add(due, "retention", queue)
        due = queue.dead_due
    if queue.finished:
        finished = queue.finished[0].at + config.retain_ms
        if not due or finished < due:
            due = finished
            kernel.calendar.add(due, "retention", queue)
    queue.retention_due = due


def retention(kernel: "Kernel", queue: "Queue", instant: int) -> int:
    """The calendar says that something of this queue may be old enough; answers how many were."""
    if instant == queue.dead_due:
        queue.dead_due = 0
    if instant != queue.retention_due:
        return 0  # rescheduled meanwhile
    return apply_retention(kernel, queue, instant)


def apply_retention(kernel: "Kernel", queue: "Queue", instant: int) -> int:
    """Forget what the queue's rules keep no longer at that instant; answers how many jobs."""
    config = queue.config
    finished, dead = queue.finished, queue.dead
    count = 0
    none = not config.retain_ms or not config.retain_count
    while finished and (none or finished[0].at + config.retain_ms <= instant):
        run = finished.popleft()
        queue.finished_count -= run.count
        count += forget_run(kernel, run)
    trim_finished(kernel, queue)
    none = not config.retain_dead_ms
    while dead and (none or dead[0].at + config.retain_dead_ms <= instant):
        count += forget_run(kernel, dead.popleft())
    schedule_retention(kernel, queue)
    return count


def forget_run(kernel: "Kernel", run: EndRun) -> int:
    """Forget jobs that ended together, unless that end is outdated (a redrive, a purge)."""
    block = run.block
    if block.ended.get(run.lo) is not run:
        return 0
    lo, count, mask = run.lo, run.count, run.mask
    hi = lo + (count if mask is None else len(mask))
    forget(kernel, block, lo, hi, mask, count, run.code, run=run)
    return count


def forget(
    kernel: "Kernel",
    block: Block,
    lo: int,
    hi: int,
    mask: bytes | None,
    count: int,
    code: int,
    *,
    run: EndRun | None = None,
    force: bool = False,
) -> None:
    """Ended jobs with this code vanish.

    Those that a live dependant needs wait for its end, unless an operator throws them away; of a
    `run` that ended together, each of those keeps the record of its end by itself.
    """
    if block.era != kernel.era:
        block.touch()
    if block.has_sides(lo, hi):
        kept: list[int] = []
        for offset in range(lo, hi):
            if mask is None or mask[offset - lo]:
                _forget_one(kernel, block, offset, code, force)
                if run is not None and block.codes[offset] != GONE:
                    kept.append(offset)
        if run is not None and block.ended.get(lo) is run:
            del block.ended[lo]
        for offset in kept:
            assert run is not None
            block.ended[offset] = EndRun(
                block, offset, code, run.at, run.started_at, run.worker, UNFILED
            )
    else:
        block.ended.pop(lo, None)
        block.queue.counts[code] -= count
        if mask is None:
            block.codes[lo:hi] = bytes(hi - lo)
        else:
            before = int.from_bytes(block.codes[lo:hi], "little")
            after = before - int.from_bytes(mask, "little") * code
            block.codes[lo:hi] = after.to_bytes(hi - lo, "little")
        block.live -= count
        unref(kernel, block, lo, hi, mask)
    if not block.live:
        block.queue.drop_block(block)


def _forget_one(kernel: "Kernel", block: Block, offset: int, code: int, force: bool) -> None:
    side = block.sides.get(offset)
    if side is not None:
        if side.pins and not force:
            side.overdue = True
            return
        if side.keys:
            block.queue.keys.free(side.keys, block.base + offset, "retained")
        for place in (side.payload, side.result):
            if place is not None:
                kernel.drop_chunk(place[0], 1)
        del block.sides[offset]
    block.ended.pop(offset, None)
    block.queue.counts[code] -= 1
    block.codes[offset] = GONE
    block.live -= 1
    unref(kernel, block, offset, offset + 1, None)


def unref(kernel: "Kernel", block: Block, lo: int, hi: int, mask: bytes | None) -> None:
    """The payloads that these jobs were pushed with are no longer needed."""
    positions = block.pay_pos
    record = bisect_right(positions, lo) - 1
    at = lo
    while at < hi:
        until = positions[record + 1] if record + 1 < len(positions) else SIZE
        until = min(until, hi)
        n = until - at if mask is None else mask.count(1, at - lo, until - lo)
        if n:
            kernel.drop_chunk(block.pay_chunk[record], n)
        at = until
        record += 1


def discard_unborn(kernel: "Kernel", block: Block, lo: int, hi: int) -> None:
    """Held jobs vanish without ever having been: their bulk was aborted or left them out.

    For a whole stretch at once, since a bulk may hold millions: 0.01 µs a job, and 2 µs one by one.
    """
    block.touch()
    if kernel.awaited:
        kernel.note_ends(block, lo, hi, None)
    if block.has_sides(lo, hi):
        for offset in range(lo, hi):
            side = block.sides.pop(offset, None)
            if side is None:
                continue
            unpin(kernel, block.queue.tenant.name, side.depends_on)
            for place in (side.payload, side.result):
                if place is not None:
                    kernel.drop_chunk(place[0], 1)
    queue, n = block.queue, hi - lo
    if queue.bounded:
        _lower_bounds(queue, block, lo, hi, None, n)
    queue.counts[HELD] -= n
    block.codes[lo:hi] = BYTE[GONE] * n
    block.live -= n
    unref(kernel, block, lo, hi, None)


# -- dependants ----------------------------------------------------------------------------------


def run_cascade(kernel: "Kernel") -> None:
    """Tell dependants how their dependencies ended, and theirs in turn, without recursion."""
    from penstock.kernel.flows import dependency_ended

    cascade = kernel.cascade
    while cascade:
        job_id, code, at, dependants = cascade.popleft()
        for dependant in dict.fromkeys(dependants):
            dependency_ended(kernel, job_id, code, at, dependant)
