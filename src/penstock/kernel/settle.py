"""The ways out of `active`: ack, fail, release, expiry, timeout; and the heartbeat that puts off.

Plain jobs complete by ranges, whole leases and those that are named alike. A job with facts of its
own, and any other way out, is settled job by job. Every way out frees what the job held.
"""

from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

from penstock.kernel import tell
from penstock.kernel.blocks import MASK, SHIFT, UNFILED, Block, EndRun, Side
from penstock.kernel.codes import (
    ACTIVE,
    COMPLETED,
    COUNTER_OF,
    DEAD,
    GONE,
    READY,
    SCHEDULED,
    STATES,
)
from penstock.kernel.commands import Ack, Extend, Fail, Release, Report
from penstock.kernel.ending import end_one, end_range, file_end, trim_finished
from penstock.kernel.leases import HeldRun, LeaseRecord, by_block, joined
from penstock.kernel.replace import restart
from penstock.model.answers import Acked, Extended, Failed, FailedJob, Released
from penstock.model.errors import Invalid, LeaseLost
from penstock.model.event import EventKind
from penstock.model.job import IdRun, Ids, JobError, LogLine
from penstock.model.lifecycle import DeadReason
from penstock.model.overdue import LEASE_EXPIRED, timed_out
from penstock.model.policy import backoff_ms

if TYPE_CHECKING:
    from penstock.kernel.kernel import Kernel

Held = tuple[HeldRun, int]  # a run and the offset of a job in it


def lease_of(kernel: "Kernel", tenant: str, token: str) -> LeaseRecord:
    lease = kernel.leases.get(token)
    if lease is None or lease.queue.tenant.name != tenant:
        raise LeaseLost("the lease has expired, or never was", "lease")
    return lease


def named(lease: LeaseRecord, ids: Sequence[int] | None) -> tuple[list[Held], list[int]]:
    """The named jobs that the lease holds (None: all that it holds), and the ids of the others."""
    if ids is None:
        held = held_by(lease)
        lost: list[int] = []
    else:
        held, lost = [], []
        for job_id in dict.fromkeys(ids):
            run = _holder(lease, job_id)
            if run is None:
                lost.append(job_id)
            else:
                held.append((run, (job_id - 1) & MASK))
    if not held:
        raise LeaseLost("the lease holds none of these jobs (any more)", "lease")
    return held, lost


def _holder(lease: LeaseRecord, job_id: int) -> HeldRun | None:
    block = lease.queue.blocks.get((job_id - 1) >> SHIFT)
    return lease.run_of(block, (job_id - 1) & MASK) if block is not None else None


def held_by(lease: LeaseRecord) -> list[Held]:
    """What the lease holds by ascending id, however its claim was cut into runs."""
    runs = lease.runs
    if len(runs) > 1:
        runs = sorted(runs, key=lambda run: (run.block.number, run.lo))
    held = [(run, offset) for run in runs for offset in run.offsets()]
    if len(runs) > 1:
        held.sort(key=_by_id)
    return held


def _by_id(held: Held) -> tuple[int, int]:
    return held[0].block.number, held[1]


def leave(kernel: "Kernel", run: HeldRun, offset: int) -> None:
    """A job leaves its lease; with the last one the lease ends."""
    block, lease = run.block, run.lease
    if lease.era != kernel.era:
        kernel.changes.touch_lease(lease)
    if run.hi - run.lo == 1:
        run.count = 0
        block.holders.pop(offset, None)
    else:
        run.leave(offset)
        if not run.count:
            block.held.pop(run, None)
    lease.count -= 1
    if not lease.count:
        drop(kernel, lease)


def take_away(kernel: "Kernel", run: HeldRun, offset: int) -> None:
    """A job is taken from its lease; the holder learns it by the next heartbeat."""
    lease = run.lease
    kernel.changes.touch_lease(lease)
    lease.lost = [*(lease.lost or ()), run.block.base + offset]
    leave(kernel, run, offset)


def drop(kernel: "Kernel", lease: LeaseRecord) -> None:
    if lease.token in kernel.leases:
        if lease.era != kernel.era:
            kernel.changes.touch_lease(lease)
        del kernel.leases[lease.token]
        kernel.expiries.strike(lease)
        lease.runs = []


# -- ack -----------------------------------------------------------------------------------------


def ack(kernel: "Kernel", command: Ack) -> Acked:
    lease = kernel.leases.get(command.lease)
    if lease is None or lease.queue.tenant.name != command.tenant:
        raise LeaseLost("the lease has expired, or never was", "lease")
    if command.ids is None and command.results is None and lease.count:
        if lease.count == 1 and not kernel.awaited:
            run = lease.runs[0]
            block = run.block
            plain = not (block.sides or block.retained or block.queue.bounded)
            if plain and run.count and run.hi - run.lo == 1:  # else the job is in another run
                return _ack_single(kernel, lease, run)
        return Acked(_ack_whole(kernel, lease))
    held, lost = named(lease, command.ids)
    results = command.results or {}
    if results:
        acked = {run.block.base + offset for run, offset in held}
        known = {*acked, *lost}
        for job_id in results:
            if job_id not in known:
                if _holder(lease, job_id) is not None:
                    raise Invalid(f"job {job_id} is not acked by this call", "results")
                lost.append(job_id)
    for run, offset in sorted(held, key=_by_id) if results else ():  # however they were named
        side = run.block.sides.get(offset)
        place = results.get(run.block.base + offset)
        if place is not None:
            side = run.block.side(offset)
            if side.next is None:
                side.result, side.result_codec = place, command.codec
                kernel.chunks[place[0]] = kernel.chunks.get(place[0], 0) + 1
        _complete(kernel, lease, run, offset, side)
    if not results:
        _ack_some(kernel, lease, held)
    lease.queue.stir()
    return Acked(Ids.of(run.block.base + offset for run, offset in held), Ids.of(lost))


def _ack_single(kernel: "Kernel", lease: LeaseRecord, run: HeldRun) -> Acked:
    """The hot path of acks for one plain job, written flat because calls cost more.

    The second half is `ending.file_end`: in a steady state each ack pays for the oldest end, too.
    """
    block, lo = run.block, run.lo
    if kernel.events is not None:
        tell.completed(kernel, lease, block, lo, lo + 1, None, kernel.now)
    token = lease.token
    era = kernel.era
    if lease.era != era:  # else its claim has touched the block in this era
        kernel.changes.touch_lease(lease)
        block.touch()
    del kernel.leases[token]
    if lease.bucket is not None:
        lease.bucket.pop(token, None)
    lease.runs.clear()
    del block.holders[lo]
    queue = lease.queue
    if queue.watched:
        kernel.stirred[queue] = None
    answer = Acked(Ids((IdRun(block.base + lo, 1),)))
    counts = queue.counts
    counts[ACTIVE] -= 1
    counts[COMPLETED] += 1
    block.codes[lo] = COMPLETED
    now = kernel.now
    finished = queue.finished
    keep = queue.config.retain_count
    turn = UNFILED
    if queue.retention_due and finished and keep:
        last = finished[-1]
        if last.at == now:
            turn = last.turn + 1
        elif last.at < now:
            turn = 0
    end = EndRun(block, lo, COMPLETED, now, lease.claimed_at, lease.worker, turn)
    block.ended[lo] = end
    if turn == UNFILED:
        file_end(kernel, queue, end)
        return answer
    finished.append(end)
    if queue.finished_count < keep:
        queue.finished_count += 1
        return answer
    oldest = finished[0]
    old, offset = oldest.block, oldest.lo
    if oldest.count > 1 or offset in old.sides or old.ended.get(offset) is not oldest:
        queue.finished_count += 1
        trim_finished(kernel, queue)
        return answer
    finished.popleft()
    if old.era != era:
        old.touch()
    del old.ended[offset]
    counts[oldest.code] -= 1
    old.codes[offset] = GONE
    old.live -= 1
    chunks = old.pay_chunk
    chunk = chunks[0] if len(chunks) == 1 else chunks[bisect_right(old.pay_pos, offset) - 1]
    left = kernel.chunks[chunk] - 1
    if left:
        kernel.chunks[chunk] = left
    else:
        kernel.drop_chunk(chunk, 1)
    if not old.live:
        queue.drop_block(old)
    return answer


def _ack_whole(kernel: "Kernel", lease: LeaseRecord) -> Ids:
    """Every job that the lease still holds completes. The hot path of acks.

    By block and ascending ids, however the claim was cut into runs: a lease that was read back
    from a checkpoint is cut otherwise and must leave the same behind.
    """
    now = kernel.now
    if lease.era != kernel.era:
        kernel.changes.touch_lease(lease)
    done: list[IdRun] = []
    for block, runs in by_block(lease):
        lo, hi, mask, count = joined(runs)
        done.append(IdRun(block.base + lo, hi - lo, mask))
        if block.retained or (block.sides and block.has_sides(lo, hi)):
            held = [(run, offset) for run in runs for offset in run.offsets()]
            for run, offset in sorted(held, key=lambda each: each[1]):
                _complete(kernel, lease, run, offset, block.sides.get(offset))
            continue
        if kernel.events is not None:
            tell.completed(kernel, lease, block, lo, hi, mask, now)
        lease.count -= count
        for run in runs:
            run.count = 0
            if run.hi - run.lo == 1:
                block.holders.pop(run.lo, None)
            else:
                block.held.pop(run, None)
        end_range(kernel, block, lo, hi, mask, count, now, lease.claimed_at, lease.worker)
    drop(kernel, lease)
    lease.queue.stir()
    return Ids(tuple(done))


def _ack_some(kernel: "Kernel", lease: LeaseRecord, held: list[Held]) -> None:
    """Some jobs of the lease complete: a worker tells them as they end. Plain ones of a block go
    together, by ascending ids however they were named; it is one end and one event."""
    blocks: dict[int, list[Held]] = {}
    for each in held:
        blocks.setdefault(each[0].block.number, []).append(each)
    for _, own in sorted(blocks.items()):
        own.sort(key=itemgetter(1))
        block = own[0][0].block
        offsets = [offset for _, offset in own]
        sides = block.sides
        if len(own) == 1 or block.retained or (sides and not sides.keys().isdisjoint(offsets)):
            for run, offset in own:
                _complete(kernel, lease, run, offset, sides.get(offset))
            continue
        lo, hi = offsets[0], offsets[-1] + 1
        mask = None
        if hi - lo > len(own):
            marks = bytearray(hi - lo)
            for offset in offsets:
                marks[offset - lo] = 1
            mask = bytes(marks)
        now = kernel.now
        if kernel.events is not None:
            tell.completed(kernel, lease, block, lo, hi, mask, now)
        for run, offset in own:
            leave(kernel, run, offset)
        end_range(kernel, block, lo, hi, mask, len(own), now, lease.claimed_at, lease.worker)


def _complete(
    kernel: "Kernel", lease: LeaseRecord, run: HeldRun, offset: int, side: Side | None
) -> None:
    block, now = run.block, kernel.now
    leave(kernel, run, offset)
    if side is not None and side.next is not None:
        restart(kernel, block, offset, side, now)
        return
    if kernel.events is not None:
        tell.one(
            kernel,
            "completed",
            block,
            offset,
            now,
            attempt=side.attempts if side is not None else 1,
            claimed_at=lease.claimed_at,
            worker=lease.worker,
        )
    end_one(kernel, block, offset, COMPLETED, now, started_at=lease.claimed_at, worker=lease.worker)


# -- fail ----------------------------------------------------------------------------------------


def fail(kernel: "Kernel", command: Fail) -> Failed:
    lease = lease_of(kernel, command.tenant, command.lease)
    held, lost = named(lease, command.ids)
    jobs = [
        fail_one(
            kernel,
            run,
            offset,
            command.error,
            kernel.now,
            retry_in_ms=command.retry_in_ms,
            dead=command.dead,
        )
        for run, offset in held
    ]
    lease.queue.stir()
    return Failed(tuple(jobs), Ids.of(lost))


def fail_one(
    kernel: "Kernel",
    run: HeldRun,
    offset: int,
    error: JobError,
    at: int,
    *,
    retry_in_ms: int | None = None,
    dead: bool = False,
    cause: str = "",
) -> FailedJob:
    """An attempt failed at that instant: retry, or dead. `cause`: no worker said so."""
    block, lease = run.block, run.lease
    queue = block.queue
    job_id = block.base + offset
    side = block.side(offset)
    leave(kernel, run, offset)
    if side.next is not None:
        restart(kernel, block, offset, side, at)
        return _standing(block, offset)
    side.failures += 1
    error = JobError(
        kind=error.kind,
        message=error.message,
        trace=error.trace,
        at=at,
        worker=lease.worker,
        attempt=side.attempts,
    )
    side.errors = (*side.errors, error)[-kernel.caps.errors_per_job :]
    side.started_at, side.worker = lease.claimed_at, lease.worker
    options = block.options_of(offset)
    facts = {
        "claimed_at": lease.claimed_at,
        "worker": lease.worker,
        "error_kind": error.kind,
        "error_message": error.message,
        "cause": cause,
    }
    if dead or (options.max_attempts and side.attempts >= options.max_attempts):
        reason = DeadReason.REJECTED if dead else DeadReason.MAX_ATTEMPTS
        if kernel.events is not None:
            tell.one(kernel, "dead", block, offset, at, reason=reason.value, **facts)
        end_one(
            kernel,
            block,
            offset,
            DEAD,
            at,
            reason=reason,
            started_at=lease.claimed_at,
            worker=lease.worker,
        )
        return FailedJob(job_id, STATES[DEAD], None)
    wait = (
        backoff_ms(options.backoff, side.failures, kernel.seed, job_id)
        if retry_in_ms is None
        else retry_in_ms
    )
    run_at = at + wait
    if kernel.events is not None:
        tell.one(kernel, "retried", block, offset, at, run_at=run_at, **facts)
    side.run_at = side.ready_at = run_at
    queue.counts[ACTIVE] -= 1
    if side.group is not None:
        side.owns_slot = True
    if wait:
        queue.counts[SCHEDULED] += 1
        block.codes[offset] = SCHEDULED
        kernel.promote_at(run_at, job_id, 1)
    else:
        queue.counts[READY] += 1
        queue.make_ready(block, offset, run_at)
    return _standing(block, offset)


def _standing(block: Block, offset: int) -> FailedJob:
    counter = COUNTER_OF[block.codes[offset]]
    if counter in (DEAD, GONE):  # a new version that was over at once
        return FailedJob(block.base + offset, STATES[DEAD], None)
    return FailedJob(block.base + offset, STATES[counter], block.run_at(offset))


# -- release, expiry, timeout ----------------------------------------------------------------------


def release(kernel: "Kernel", command: Release) -> Released:
    lease = lease_of(kernel, command.tenant, command.lease)
    held, lost = named(lease, command.ids)
    for run, offset in held:
        block = run.block
        queue = block.queue
        side = block.side(offset)
        leave(kernel, run, offset)
        if side.next is not None:
            restart(kernel, block, offset, side, kernel.now)
            continue
        if kernel.events is not None:
            tell.one(kernel, "released", block, offset, kernel.now, worker=lease.worker)
        side.attempts -= 1
        side.started_at, side.worker = lease.claimed_at, lease.worker
        queue.counts[ACTIVE] -= 1
        queue.counts[READY] += 1
        if side.group is not None:
            queue.groups[side.group].used -= 1
            kernel.unseated[queue.groups[side.group]] = None
        queue.make_ready(block, offset, block.due_at(offset))
    lease.queue.stir()
    return Released(Ids.of(run.block.base + offset for run, offset in held), Ids.of(lost))


def expire_lease(kernel: "Kernel", lease: LeaseRecord, at: int) -> None:
    """Whatever the lease still holds has failed at that instant."""
    for run, offset in held_by(lease):
        fail_one(kernel, run, offset, LEASE_EXPIRED, at, cause=LEASE_EXPIRED.kind)
    drop(kernel, lease)
    lease.queue.stir()


def time_out(kernel: "Kernel", lease: LeaseRecord, timeout: int, at: int) -> int:
    """Attempts of this lease that were given that long have run longer; answers how many."""
    count = 0
    error = timed_out(timeout)
    for run, offset in held_by(lease):
        if run.block.options_of(offset).timeout_ms == timeout:
            kernel.changes.touch_lease(lease)
            lease.lost = [*(lease.lost or ()), run.block.base + offset]
            fail_one(kernel, run, offset, error, at, cause=error.kind)
            count += 1
    lease.queue.stir()
    return count


# -- extend, report --------------------------------------------------------------------------------


def extend(kernel: "Kernel", command: Extend) -> Extended:
    lease = lease_of(kernel, command.tenant, command.lease)
    lease_ms = lease.lease_ms if command.lease_ms is None else command.lease_ms
    kernel.changes.touch_lease(lease)
    kernel.expiries.strike(lease)
    lease.expires = kernel.elapsed + lease_ms
    lease.extended_at = kernel.now
    kernel.expiries.add(lease)
    kernel.elapsed_due = min(kernel.elapsed_due, kernel.expiries.due)
    if kernel.events is not None and lease.count:
        ids = Ids(tuple(_ids(block, runs) for block, runs in by_block(lease)))
        tell.tell(kernel, "extended", lease.queue, ids, kernel.now, worker=lease.worker)
    return Extended(kernel.now + lease_ms, Ids.of(lease.lost or ()))


def _ids(block: Block, runs: list[HeldRun]) -> IdRun:
    """Those still held."""
    lo, hi, mask, _ = joined(runs)
    return IdRun(block.base + lo, hi - lo, mask)


def report(kernel: "Kernel", command: Report) -> None:
    lease = lease_of(kernel, command.tenant, command.lease)
    ((run, offset),), _ = named(lease, [command.job_id])
    block = run.block
    said: list[tuple[EventKind, str]] = []
    if command.progress is not None or command.message is not None:
        side = block.side(offset)
        if command.progress is not None:
            side.progress = command.progress
        if command.message is not None:
            side.progress_message = command.message
        said.append(("progress", f"{side.progress or 0} {side.progress_message or ''}".strip()))
    if command.logs:
        side = block.side(offset)
        lines = [LogLine(line.at or kernel.now, line.message, line.level) for line in command.logs]
        side.logs = [*(side.logs or ()), *lines][-kernel.caps.logs_per_job :]
        said += [("log", line.message) for line in lines]
    if command.partial is not None:
        said.append(("partial", command.partial))
    if kernel.events is not None:
        for kind, data in said:
            tell.one(
                kernel,
                kind,
                block,
                offset,
                kernel.now,
                worker=lease.worker,
                data=data,
            )
