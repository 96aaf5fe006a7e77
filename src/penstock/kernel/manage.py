"""What operators and owners do to jobs and queues: cancel, edit, redrive, configure, drain, purge."""

from collections import deque
from itertools import compress, islice
from typing import TYPE_CHECKING

from penstock.kernel import tell
from penstock.kernel.blocks import UNFILED, Block, EndRun, Place
from penstock.kernel.codes import (
    ACTIVE,
    BLOCKED,
    CANCELLED,
    COUNTER_BY_STATE,
    COUNTER_OF,
    COUNTERS,
    DEAD,
    ENDED,
    GONE,
    HELD,
    READY,
    SCHEDULED,
    WAITING,
)
from penstock.kernel.commands import (
    Cancel,
    Configure,
    ConfigureTenant,
    Drain,
    Edit,
    Purge,
    PurgeDead,
    Redrive,
)
from penstock.kernel.ending import (
    apply_retention,
    drop_outdated,
    end_one,
    forget,
    forget_first,
    size_of,
    unpin,
    unref,
)
from penstock.kernel.limits import Meter
from penstock.kernel.settle import drop, take_away
from penstock.model.answers import Acked, Redriven
from penstock.model.errors import Conflict, NotFound, Overloaded
from penstock.model.fingerprint import fingerprint
from penstock.model.job import IdRun, Ids
from penstock.model.lifecycle import DeadReason
from penstock.model.policy import Rate

if TYPE_CHECKING:
    from penstock.kernel.kernel import Kernel
    from penstock.kernel.queue import Queue, Tenant


# -- jobs ----------------------------------------------------------------------------------------


def cancel(kernel: "Kernel", command: Cancel) -> Acked:
    done: dict[int, tuple[Block, int]] = {}
    lost: list[int] = []
    for job_id in dict.fromkeys(command.ids):
        found = kernel.locate(command.tenant, job_id)
        if found is None or COUNTER_OF[found[0].codes[found[1]]] in ENDED:
            lost.append(job_id)
        else:
            done[job_id] = found
    for job_id in sorted(done):
        cancel_one(kernel, *done[job_id], discard=command.discard)
    return Acked(Ids.of(done), Ids.of(lost))


def cancel_one(kernel: "Kernel", block: Block, offset: int, *, discard: bool = False) -> None:
    """Any job that has not ended ends here."""
    started_at, worker = 0, None
    if block.codes[offset] == ACTIVE:
        run = block.holder_of(offset)
        assert run is not None, "an active job is held"
        started_at, worker = run.lease.claimed_at, run.lease.worker
        side = block.side(offset)
        side.started_at, side.worker = started_at, worker
        take_away(kernel, run, offset)
    if kernel.events is not None:
        reason = DeadReason.DISCARDED.value if discard else ""
        tell.one(
            kernel, "dead" if discard else "cancelled", block, offset, kernel.now, reason=reason
        )
    end_one(
        kernel,
        block,
        offset,
        DEAD if discard else CANCELLED,
        kernel.now,
        reason=DeadReason.DISCARDED if discard else None,
        started_at=started_at,
        worker=worker,
    )
    block.queue.stir()


def edit(kernel: "Kernel", command: Edit) -> None:
    found = kernel.locate(command.tenant, command.job_id)
    if found is None:
        raise NotFound(f"job {command.job_id} is not known", "job_id")
    block, offset = found
    counter = COUNTER_OF[block.codes[offset]]
    if counter in ENDED or counter in (ACTIVE, HELD):
        raise Conflict("only a job that waits can be edited", "job_id")
    queue = block.queue
    now = kernel.now
    if command.payload is not None and queue.bounded:
        _check_bytes(block, offset, command.payload)
    side = block.side(offset)
    if command.payload is not None:
        _edit_payload(kernel, block, offset, command)
    run_at = command.run_at
    if run_at is None and command.delay_ms is not None:
        run_at = now + command.delay_ms
    ready = block.due_at(offset)
    if command.priority is not None:
        side.priority = command.priority
    if run_at is not None:
        side.said_run_at = run_at
    if counter == BLOCKED:
        if run_at is not None:
            side.run_at = run_at if run_at > now else None
    elif run_at is not None and run_at > now:
        queue.counts[counter] -= 1
        queue.counts[SCHEDULED] += 1
        block.codes[offset] = SCHEDULED
        side.run_at = side.ready_at = run_at
        kernel.promote_at(run_at, command.job_id, 1)
        if counter == READY and side.group is not None:
            kernel.unseated[queue.groups[side.group]] = None
    elif run_at is not None:
        queue.counts[counter] -= 1
        queue.counts[READY] += 1
        side.run_at = now
        side.ready_at = queue.clamp(now)
        queue.make_ready(block, offset, side.ready_at)
    elif command.priority is not None and counter == READY:
        # A cursor of the old lane must not find it, so it moves to the late sources.
        side.ready_at = ready
        queue.make_ready(block, offset, ready)
    if kernel.events is not None:
        tell.one(kernel, "edited", block, offset, now, run_at=run_at or 0)


def _check_bytes(block: Block, offset: int, payload: Place) -> None:
    """An edit may not do what a push may not."""
    queue = block.queue
    growth = payload[2] - payload[1] - size_of(block, offset, offset + 1, None)
    for held, bounds in ((queue, queue.config.bounds), (queue.tenant, queue.tenant.bounds)):
        if growth > 0 and bounds.bytes is not None and held.bytes + growth > bounds.bytes:
            raise Overloaded(f"at most {bounds.bytes} payload bytes may be held", "bytes")


def _edit_payload(kernel: "Kernel", block: Block, offset: int, command: Edit) -> None:
    assert command.payload is not None
    side = block.side(offset)
    queue = block.queue
    if queue.bounded:
        change = command.payload[2] - command.payload[1] - size_of(block, offset, offset + 1, None)
        queue.bytes += change
        queue.tenant.bytes += change
    if side.payload is not None:
        kernel.drop_chunk(side.payload[0], 1)
    side.payload = command.payload
    kernel.chunks[command.payload[0]] = kernel.chunks.get(command.payload[0], 0) + 1
    if side.keys:
        side.digest = command.digest
        for claim in side.keys:
            record = queue.keys.records.get(claim.key)
            if record is not None and record.id == block.base + offset:
                queue.keys.touch(claim.key)
                record.digest = command.digest
    if command.codec is not None:
        side.options = kernel.with_codec(block.options_of(offset), command.codec)


def redrive(kernel: "Kernel", command: Redrive) -> Redriven:
    done: list[int] = []
    conflicts: list[int] = []
    found = _dead(kernel, command.tenant, command.queue, command.ids)
    for block, offset in found:
        if command.limit is not None and len(done) >= command.limit:
            break
        side = block.sides[offset]
        if command.fingerprint is not None and (
            not side.errors or fingerprint(side.errors[-1]) != command.fingerprint
        ):
            continue
        if _redrive_one(kernel, block, offset):
            done.append(block.base + offset)
        else:
            conflicts.append(block.base + offset)
    if found:
        drop_outdated(found[0][0].queue)
    return Redriven(tuple(done), tuple(conflicts))


def _dead(
    kernel: "Kernel",
    tenant_name: str,
    name: str,
    ids: "Sequence[int] | None",  # type: ignore[name-defined] # noqa: F821
) -> list[tuple[Block, int]]:
    """Dead jobs of a queue: those named, or all, by the instant of their end and their id."""
    tenant = kernel.tenants.get(tenant_name)
    queue = tenant.queues.get(name) if tenant is not None else None
    if queue is None:
        return []
    if ids is not None:
        found = []
        for job_id in dict.fromkeys(ids):
            known = kernel.locate(tenant_name, job_id)
            if known is not None and known[0].queue is queue and known[0].codes[known[1]] == DEAD:
                found.append(known)
        return sorted(found, key=_end_order)
    ends = [
        (run.at, block.base + run.lo, block, run.lo)
        for block in queue.blocks.values()
        for run in block.ended.values()
        if run.code == DEAD and block.codes[run.lo] == DEAD
    ]
    ends.sort(key=lambda end: end[:2])
    return [(block, offset) for _, _, block, offset in ends]


def _end_order(place: tuple[Block, int]) -> tuple[int, int]:
    block, offset = place
    end = block.end_of(offset)
    assert end is not None, "a dead job has ended"
    return end.at, block.base + offset


def _redrive_one(kernel: "Kernel", block: Block, offset: int) -> bool:
    queue = block.queue
    side = block.sides[offset]
    job_id = block.base + offset
    now = kernel.now
    for claim in side.keys:
        record = queue.keys.find(claim.key, now)
        if record is not None and record.id != job_id:
            return False
    for claim in side.keys:
        if not isinstance(claim.keep_key, int):
            queue.keys.take(claim, job_id, side.digest, now)
    block.touch()
    if kernel.events is not None:
        tell.one(kernel, "redriven", block, offset, now)
    block.ended.pop(offset, None)
    queue.counts[DEAD] -= 1
    queue.counts[READY] += 1
    if queue.bounded:
        queue.bytes += (size := size_of(block, offset, offset + 1, None))
        queue.tenant.live += 1
        queue.tenant.bytes += size
    side.attempts = side.failures = 0
    side.claimed = side.overdue = False
    side.no_ttl = True
    side.dead_reason = None
    side.run_at = now
    side.ready_at = queue.clamp(now)
    for dependency in side.depends_on:
        known = kernel.locate(queue.tenant.name, dependency)
        if known is not None:
            known[0].side(known[1]).pins += 1
    if side.group is not None:
        queue.group(side.group).jobs += 1
    queue.make_ready(block, offset, side.ready_at)
    return True


def purge_dead(kernel: "Kernel", command: PurgeDead) -> int:
    found = _dead(kernel, command.tenant, command.queue, command.ids)
    for block, offset in found:
        forget(kernel, block, offset, offset + 1, None, 1, DEAD, force=True)
    if found:
        drop_outdated(found[0][0].queue)
    return len(found)


# -- queues --------------------------------------------------------------------------------------


def configure(kernel: "Kernel", command: Configure) -> None:
    tenant = kernel.tenant(command.tenant)
    if command.queue not in tenant.queues and kernel.queue_count >= kernel.caps.queues:
        kernel.sweep_queues()
    if command.queue not in tenant.queues and kernel.queue_count >= kernel.caps.queues:
        raise Overloaded(f"the store holds {kernel.caps.queues} queues", "queue")
    queue = kernel.queue(tenant, command.queue)
    queue.touch()
    if not queue.exists(kernel.now):
        queue.ready_clock = 0  # what is configured from here on was emptied before
    before, config = queue.config, command.config
    queue.config = config
    limits = config.limits
    queue.limited = config.paused or limits.concurrency is not None or limits.rate is not None
    queue.meter = _meter(queue.meter, limits.rate)
    queue.push_meter = _meter(queue.push_meter, config.bounds.push_rate)
    bound(queue)
    if before.limits != limits:
        kernel.unseated |= dict.fromkeys(queue.groups.values())
    apply_retention(kernel, queue, kernel.now)  # new rules hold for what has ended, too
    if kernel.events is not None:
        tell.tell(kernel, "configured", queue, Ids(), kernel.now)
    queue.stir()


def _meter(meter: Meter | None, rate: Rate | None) -> Meter | None:
    """A rate that stays keeps what was used of it."""
    if rate is None:
        return None
    return meter if meter is not None and meter.rate == rate else Meter(rate)


def bound(queue: "Queue") -> None:
    """Keep up the sums that bounds are checked against, exactly where there is a bound."""
    own, shared = queue.config.bounds, queue.tenant.bounds
    queue.bounded = any(
        bound is not None
        for bounds in (own, shared)
        for bound in (bounds.jobs, bounds.bytes, bounds.push_rate)
    )
    if queue.bounded:
        queue.bytes = sum(
            size_of(block, offset, offset + 1, None)
            for block in queue.blocks.values()
            for offset, code in enumerate(block.codes)
            if code != GONE and COUNTER_OF[code] not in ENDED
        )
    _sum_up(queue.tenant)


def _sum_up(tenant: "Tenant") -> None:
    tenant.live = sum(queue.live for queue in tenant.queues.values() if queue.bounded)
    tenant.bytes = sum(queue.bytes for queue in tenant.queues.values() if queue.bounded)


def configure_tenant(kernel: "Kernel", command: ConfigureTenant) -> None:
    tenant = kernel.tenant(command.tenant)
    kernel.changes.tenants.touch(tenant.name)
    tenant.bounds = command.bounds
    tenant.meter = _meter(tenant.meter, command.bounds.push_rate)
    for queue in tenant.queues.values():
        bound(queue)


def drain(kernel: "Kernel", command: Drain) -> int:
    tenant = kernel.tenants.get(command.tenant)
    queue = tenant.queues.get(command.queue) if tenant is not None else None
    if queue is None:
        return 0
    if command.state is not None:
        return _clean(kernel, queue, command)
    count = 0
    for block in list(queue.blocks.values()):
        mask = bytes(block.codes.translate(_WAITING_MARK))
        waiting = mask.count(1)
        if not waiting:
            continue
        count += waiting
        if kernel.events is not None:
            ids = Ids((IdRun(block.base, len(mask), mask),))
            tell.tell(kernel, "drained", queue, ids, kernel.now)
        if not block.sides and not queue.bounded and not kernel.awaited:
            _drain_plain(kernel, block, mask, waiting)
            continue
        for offset in compress(range(len(mask)), mask):
            end_one(kernel, block, offset, CANCELLED, kernel.now, forget_now=True)
    return count


_WAITING_MARK = bytes(1 if COUNTER_OF[code] in WAITING else 0 for code in range(256))


def _drain_plain(kernel: "Kernel", block: Block, mask: bytes, count: int) -> None:
    """Everything that waits in a block without sides, in one pass over its bytes."""
    block.touch()
    counts = block.queue.counts
    before = block.codes.translate(COUNTER_OF)
    for counter in sorted(WAITING):
        counts[counter] -= before.count(counter)
    block.codes[:] = block.codes.translate(_WITHOUT_WAITING)
    block.live -= count
    unref(kernel, block, 0, len(mask), mask)
    if not block.live:
        block.queue.drop_block(block)


_WITHOUT_WAITING = bytes(GONE if COUNTER_OF[code] in WAITING else code for code in range(256))


def _clean(kernel: "Kernel", queue: "Queue", command: Drain) -> int:
    """Jobs of one state that are old enough are thrown away."""
    assert command.state is not None
    code = COUNTER_BY_STATE[command.state]
    before = kernel.now - command.older_ms
    queue.touch()
    if code in ENDED:
        return _clean_ended(kernel, queue, code, before, command.limit)
    waiting = (
        (block, offset)
        for _, block in sorted(queue.blocks.items())
        for offset, counter in enumerate(block.codes.translate(COUNTER_OF))
        if counter == code and block.created_at(offset) <= before
    )
    chosen = list(islice(waiting, command.limit))
    if chosen and kernel.events is not None:
        ids = Ids.of(block.base + offset for block, offset in chosen)
        tell.tell(kernel, "drained", queue, ids, kernel.now)
    for block, offset in chosen:
        end_one(kernel, block, offset, CANCELLED, kernel.now, forget_now=True)
    return len(chosen)


def _clean_ended(
    kernel: "Kernel", queue: "Queue", code: int, before: int, limit: int | None
) -> int:
    """By the instant of their end, then by id, wherever they are filed to be forgotten.

    Only the last instant may be cut by the limit, and then each of its runs loses its lowest ids.
    """
    ends = [
        (run.at, job_id, run)
        for block in queue.blocks.values()
        for run in block.ended.values()
        if run.code == code and run.at <= before
        for job_id in IdRun(block.base + run.lo, run.hi - run.lo, run.mask)
    ]
    ends.sort(key=lambda end: end[:2])
    shares: dict[EndRun, int] = {}
    for _, _, run in ends[:limit]:
        shares[run] = shares.get(run, 0) + 1
    for run, n in shares.items():
        if run.deadline is None and run.turn != UNFILED and code != DEAD:
            queue.finished_count -= n
        forget_first(kernel, run, n, force=True)
    queue.finished = deque(run for run in queue.finished if run.block.ended.get(run.lo) is run)
    drop_outdated(queue)
    return sum(shares.values())


def purge(kernel: "Kernel", command: Purge) -> int:
    tenant = kernel.tenants.get(command.tenant)
    queue = tenant.queues.get(command.queue) if tenant is not None else None
    if queue is None:
        return 0
    for lease in [lease for lease in kernel.leases.values() if lease.queue is queue]:
        drop(kernel, lease)
    queue.touch()
    count = 0
    freed: list[tuple[int, ...]] = []  # dependencies of those that lived
    for block in queue.blocks.values():
        count += block.live
        kernel.changes.blocks.drop(block.number)
        _purge_sides(kernel, queue, block, freed)
        mask = bytes(1 if code != GONE else 0 for code in block.codes)
        if kernel.events is not None and block.live:
            ids = Ids((IdRun(block.base, len(mask), mask),))
            tell.tell(kernel, "purged", queue, ids, kernel.now)
        if kernel.awaited:
            kernel.note_ends(block, 0, len(block.codes), mask)
        unref(kernel, block, 0, len(mask), mask)
        block.codes[:] = bytes(len(block.codes))
        block.live = 0
        block.ended.clear()
        block.holders.clear()
        block.held.clear()
        block.sides.clear()
        kernel.blocks.pop(block.number, None)
    if queue.bounded:
        queue.tenant.live -= queue.live
        queue.tenant.bytes -= queue.bytes
        queue.bytes = 0
    kernel.drop_held(queue)
    queue.blocks.clear()
    queue.open = None
    queue.lanes.clear()
    queue.order.clear()
    kernel.unseated = {g: None for g in kernel.unseated if g.queue is not queue}
    for group in list(queue.groups.values()):
        group.clear()
        queue.drop_group(group)
    queue.keys.clear()
    queue.counts = [0] * COUNTERS
    queue.finished = deque()
    queue.finished_count = 0
    queue.dead = deque()
    queue.retention_due = 0
    for dependencies in freed:
        unpin(kernel, queue.tenant.name, dependencies)
    return count


def _purge_sides(
    kernel: "Kernel", queue: "Queue", block: Block, freed: list[tuple[int, ...]]
) -> None:
    for offset, side in sorted(block.sides.items()):
        ended = COUNTER_OF[block.codes[offset]] in ENDED
        if side.dependants and not ended:
            kernel.cascade.append((block.base + offset, CANCELLED, kernel.now, side.dependants))
        if side.cron is not None:
            kernel.crons_pending_end(queue.tenant.name, side.cron, block.base + offset)
        if side.depends_on and not ended:
            freed.append(side.depends_on)
        if side.next is not None:
            freed.append(side.next.depends_on)
        for place in (side.payload, side.result, side.next.payload if side.next else None):
            if place is not None:
                kernel.drop_chunk(place[0], 1)
