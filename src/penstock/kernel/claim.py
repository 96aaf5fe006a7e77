"""Claim: ready jobs go out on a lease.

The attempt is counted here, so that a job that kills its worker still reaches the dead letters.
"""

from itertools import compress
from typing import TYPE_CHECKING

from penstock.kernel import tell
from penstock.kernel.blocks import MASK, SHIFT
from penstock.kernel.codes import ACTIVE, READY
from penstock.kernel.commands import Claim
from penstock.kernel.lanes import Lane
from penstock.kernel.leases import HeldRun, LeaseRecord
from penstock.model.errors import Conflict
from penstock.model.job import JobOptions
from penstock.model.policy import LEASE_MS

if TYPE_CHECKING:
    from penstock.kernel.groups import Group
    from penstock.kernel.kernel import Kernel
    from penstock.kernel.queue import Queue


def claim(kernel: "Kernel", command: Claim) -> LeaseRecord | None:
    """The lease, or None if none of the queues can give a job now."""
    tenant = kernel.tenants.get(command.tenant)
    if tenant is None:
        return None
    if command.token in kernel.leases:
        raise Conflict("this lease token is in use", "lease")
    for name in command.queues:
        queue = tenant.queues.get(name)
        if queue is None or not queue.counts[READY]:
            continue
        n = command.n
        if queue.limited:
            n = room(kernel, queue, n)
            if not n:
                continue
        elif (n == 1 or queue.counts[READY] == 1) and not queue.groups:
            lease = _claim_single(kernel, queue, command)
            if lease is not None:
                return lease
        runs: list[HeldRun] = []
        taken = _take(kernel, queue, n, runs) if queue.groups else _take_lanes(queue, n, runs)
        if taken:
            return _grant(kernel, queue, runs, taken, command)
    return None


def _claim_single(kernel: "Kernel", queue: "Queue", command: Claim) -> LeaseRecord | None:
    """The hot path of claims that get one job: a plain one, found by a cursor. None: take the long
    way.

    Written flat because calls cost more than what they do; `_grant` says what it means.
    """
    lane = queue.lanes[-queue.order[0]]
    if lane.irregular or not lane.entries:
        return None
    entry = lane.entries[0]
    block = entry.block
    if block.timed:
        return None
    codes = block.codes
    lo = entry.cursor
    if lo == len(codes) or codes[lo] != entry.code:
        lo = codes.find(entry.code, lo)
        if lo < 0:
            return None
    if lo in block.sides:
        return None
    era = kernel.era
    if block.era != era:
        block.touch()
    codes[lo] = ACTIVE
    entry.cursor = lo + 1
    counts = queue.counts
    counts[READY] -= 1
    counts[ACTIVE] += 1
    lease_ms = command.lease_ms
    if lease_ms is None:
        lease_ms = LEASE_MS
    token = command.token
    now, elapsed = kernel.now, kernel.elapsed
    runs: list[HeldRun] = []
    kernel.leases[token] = lease = LeaseRecord(
        token,
        queue,
        runs,
        1,
        command.worker,
        lease_ms,
        now,
        elapsed,
        elapsed + lease_ms,
        block.base + lo,
        era,
    )
    run = block.holders[lo] = HeldRun(block, lo, lo + 1, None, 1, None, lease)
    runs.append(run)
    expiries = kernel.expiries
    bucket = expiries.buckets.get((elapsed + lease_ms) >> 8)
    if bucket is not None:
        bucket[token] = lease
        lease.bucket = bucket
    else:
        expiries.add(lease)
        if expiries.due < kernel.elapsed_due:
            kernel.elapsed_due = expiries.due
    if kernel.events is not None:
        tell.claimed_single(kernel, lease, block, lo)
    return lease


def room(kernel: "Kernel", queue: "Queue", n: int) -> int:
    """How many of n jobs the queue's own limits let pass now."""
    config = queue.config
    if config.paused:
        return 0
    concurrency = config.limits.concurrency
    if concurrency is not None:
        n = min(n, concurrency - queue.counts[ACTIVE])
    if queue.meter is not None:
        n = min(n, queue.meter.room(kernel.elapsed))
    return max(n, 0)


def _take_lanes(queue: "Queue", n: int, runs: list[HeldRun]) -> int:
    """From the highest priority down, where there are no groups."""
    taken = 0
    empty: list[Lane] | None = None
    for order in queue.order:
        lane = queue.lanes[-order]
        taken += lane.take(n - taken, runs)
        if taken == n:
            break
        if not lane.entries:
            empty = [*(empty or ()), lane]
    for lane in empty or ():
        queue.drop_lane(lane)
    return taken


# -- groups --------------------------------------------------------------------------------------


def _take(kernel: "Kernel", queue: "Queue", n: int, runs: list[HeldRun]) -> int:
    """Seats take turns; where no group has a seat, ungrouped jobs go out in runs."""
    taken = 0
    while taken < n:
        got = 0
        for order in queue.order:
            lane = queue.lanes[-order]
            if lane.ring is None:
                got = lane.take(n - taken, runs)
            else:
                got = _turn(kernel, queue, lane, runs)
            if got:
                break
        if not got:
            break
        taken += got
    return taken


def _turn(kernel: "Kernel", queue: "Queue", lane: Lane, runs: list[HeldRun]) -> int:
    """The seat at the front gives one job and goes to the back."""
    ring = lane.ring
    assert ring is not None
    queue.touch()
    for _ in range(len(ring)):
        seat = next(iter(ring))
        ring.move_to_end(seat)
        if seat is None:
            if lane.take(1, runs):
                return 1
            continue
        _serve(kernel, queue, queue.groups[seat], runs)
        return 1
    return 0


def _serve(kernel: "Kernel", queue: "Queue", group: "Group", runs: list[HeldRun]) -> None:
    head = group.head()
    assert head is not None, "a seated group can be served"
    block = queue.blocks[(head[1] - 1) >> SHIFT]
    offset = (head[1] - 1) & MASK
    block.touch()
    side = block.sides[offset]
    if side.owns_slot:
        side.owns_slot = False
    else:
        group.used += 1
    if group.meter is not None:
        group.meter.take(kernel.elapsed, 1)
    block.codes[offset] = ACTIVE
    runs.append(HeldRun(block, offset, offset + 1))
    queue.seat(group, kernel.elapsed)


# -- the lease -----------------------------------------------------------------------------------


def _grant(
    kernel: "Kernel", queue: "Queue", runs: list[HeldRun], taken: int, command: Claim
) -> LeaseRecord:
    counts = queue.counts
    counts[READY] -= taken
    counts[ACTIVE] += taken
    if queue.meter is not None:
        queue.meter.take(kernel.elapsed, taken)
    lease_ms = command.lease_ms
    timed = False
    for run in runs:
        block = run.block
        if block.sides:
            _start_sides(queue, run)
        if block.timed or block.sides:
            timed = True
    if timed:
        lease_ms = _lease_ms(runs, lease_ms)
    elif lease_ms is None:
        lease_ms = LEASE_MS
    token = command.token
    elapsed = kernel.elapsed
    expires = elapsed + lease_ms
    lease = LeaseRecord(
        token,
        queue,
        runs,
        taken,
        command.worker,
        lease_ms,
        kernel.now,
        elapsed,
        expires,
        min(run.block.base + run.lo for run in runs),
        kernel.era,
    )
    for run in runs:
        run.lease = lease
        if run.hi - run.lo == 1:
            run.block.holders[run.lo] = run
        else:
            run.block.held[run] = None
    kernel.leases[token] = lease
    expiries = kernel.expiries
    expiries.add(lease)
    if expiries.due < kernel.elapsed_due:
        kernel.elapsed_due = expiries.due
    if timed:
        note_timeouts(kernel, lease)
    if kernel.events is not None:
        tell.claimed(kernel, lease)
    return lease


def _start_sides(queue: "Queue", run: HeldRun) -> None:
    """Count the attempt of jobs with facts of their own; the others' is counted by their state."""
    block = run.block
    if run.hi - run.lo == 1:
        offsets = [run.lo] if run.lo in block.sides else []
    else:
        offsets = sorted(block.sides.keys() & set(run.offsets()))
    for offset in offsets:
        side = block.sides[offset]
        side.attempts += 1
        if not side.claimed:
            side.claimed = True
            if side.keys:
                queue.keys.free(side.keys, block.base + offset, "started")


def _options(run: HeldRun) -> list[JobOptions]:
    """The distinct options of a run's jobs, overridden ones included."""
    block = run.block
    numbers = block.opts[run.lo : run.hi]
    chosen = set(numbers if run.mask is None else compress(numbers, run.mask))
    found = [block.options[number] for number in sorted(chosen)]
    if block.sides:
        found += [
            side.options
            for offset in sorted(block.sides.keys() & set(run.offsets()))
            if (side := block.sides[offset]).options is not None
        ]
    return found


def _lease_ms(runs: list[HeldRun], asked: int | None) -> int:
    if asked is not None:
        return asked
    longest = 0
    for run in runs:
        if run.hi - run.lo == 1:
            longest = max(longest, run.block.options_of(run.lo).lease_ms or LEASE_MS)
        elif run.block.sides:
            offsets = run.offsets()
            longest = max(
                longest, *(run.block.options_of(offset).lease_ms or LEASE_MS for offset in offsets)
            )
        else:
            longest = max(longest, *(options.lease_ms or LEASE_MS for options in _options(run)))
    return longest


def note_timeouts(kernel: "Kernel", lease: LeaseRecord) -> None:
    """Note the instants at which attempts of this lease have run too long."""
    timeouts: dict[int, None] = {}
    for run in lease.runs:
        for options in _options(run):
            if options.timeout_ms is not None:
                timeouts[options.timeout_ms] = None
    for timeout in timeouts:
        kernel.calls.add(lease.began + timeout, lease.first, ("timeout", lease.token, timeout))
