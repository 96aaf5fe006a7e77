"""The kernel's whole state as records (`records.py`), and a kernel from records.

`digest` is a fingerprint of everything that decides. What no record says is made anew here:
counters, lines, groups, timers, and which payload chunks are still needed.
"""

from array import array
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from penstock.kernel import records
from penstock.kernel.blocks import SIZE, UNFILED, Block, EndRun, Entry
from penstock.kernel.claim import note_timeouts
from penstock.kernel.codes import (
    ACTIVE,
    COUNTER_OF,
    DEAD,
    ENDED,
    FIRST_CLASS,
    GONE,
    GROUPED,
    HELD,
    LATE,
    LIFO,
    SCHEDULED,
    WAITING,
)
from penstock.kernel.ending import schedule_retention
from penstock.kernel.leases import HeldRun, LeaseRecord
from penstock.kernel.limits import Meter
from penstock.kernel.producers import Producer
from penstock.kernel.queue import Queue
from penstock.kernel.records import FORMAT, KINDS, BlockState, KeyState, LeaseState, QueueState
from penstock.kernel.timers import FOREVER
from penstock.model.errors import Invalid
from penstock.model.policy import BULK_MEMORY_MS, PRODUCER_IDLE_MS, Caps

if TYPE_CHECKING:
    from penstock.kernel.kernel import Kernel


def encode(kernel: "Kernel") -> list[bytes]:
    """One record per object, in an order that depends on nothing but the state."""
    encoded = [records.encode(records.meta(kernel))]
    for kind in KINDS:
        encoded += [
            records.encode(kind.record(key, kind.find(kernel, key)))
            for key in sorted(kind.keys(kernel))
        ]
    return encoded


def digest(kernel: "Kernel") -> str:
    whole = blake2b(digest_size=16)
    for record in encode(kernel):
        whole.update(len(record).to_bytes(8, "big"))
        whole.update(record)
    return whole.hexdigest()


# -- decoding ------------------------------------------------------------------------------------


def decode(encoded: Iterable[bytes], caps: Caps) -> "Kernel":
    """A kernel from the records of its objects, in any order."""
    from penstock.kernel.kernel import Kernel

    found: defaultdict[type, list[Any]] = defaultdict(list)
    for blob in encoded:
        record = records.decode(blob)
        found[type(record)].append(record)
    (meta,) = found[records.Meta]
    if meta.format != FORMAT:
        raise Invalid(f"a snapshot of format {meta.format}; this release reads {FORMAT}")
    kernel = Kernel(meta.seed, caps)
    kernel.now, kernel.elapsed = meta.now, meta.elapsed
    kernel.position, kernel.next_block = meta.position, meta.next_block
    kernel.sweep_at = FOREVER  # queues come before their jobs: none is to be taken for empty
    for state in found[records.TenantState]:
        tenant = kernel.tenant(state.name)
        tenant.bounds = state.bounds
        if state.bounds.push_rate is not None:
            tenant.meter = Meter(state.bounds.push_rate, state.arrival)
    for state in found[records.QueueState]:
        _decode_queue(kernel, state)
    for state in found[records.KeyState]:
        _decode_key(kernel, state)
    for state in sorted(found[records.BlockState], key=attrgetter("number")):
        _decode_block(kernel, state)
    for state in sorted(found[records.LeaseState], key=attrgetter("token")):
        _decode_lease(kernel, state)
    for state in found[records.QueueState]:
        _finish_queue(kernel, state)
    for state in found[records.BulkState]:
        kernel.bulks[state.tenant, state.bulk.name] = state.bulk
        kernel.calls.add(state.bulk.expires, 0, ("bulk", state.tenant, state.bulk.name))
    for state in found[records.FinishedState]:
        spot = (state.tenant, state.name)
        kernel.finished_bulks[spot] = state.finished
        kernel.calendar.add(state.finished.at + BULK_MEMORY_MS, "bulk", spot)
    for state in found[records.ProducerState]:
        spot = (state.tenant, state.name)
        kernel.producers[spot] = Producer.of(state.producer)
        kernel.calendar.add(state.producer.used_at + PRODUCER_IDLE_MS, "producer", spot)
    for state in found[records.CronState]:
        kernel.crons[state.tenant, state.record.spec.name] = state.record
    kernel.sweep_at = meta.sweep_at
    return kernel


def _decode_queue(kernel: "Kernel", state: QueueState) -> None:
    queue = kernel.queue(kernel.tenant(state.tenant), state.name)
    queue.config = config = state.config
    queue.ready_clock = state.ready_clock
    limits = config.limits
    queue.limited = config.paused or limits.concurrency is not None or limits.rate is not None
    if limits.rate is not None:
        queue.meter = Meter(limits.rate, state.arrival)
    if config.bounds.push_rate is not None:
        queue.push_meter = Meter(config.bounds.push_rate, state.push_arrival)
    for name, arrival in state.groups:
        if limits.group_rate is not None:
            queue.group(name).meter = Meter(limits.group_rate, arrival)


def _decode_key(kernel: "Kernel", state: KeyState) -> None:
    queue = kernel.tenants[state.tenant].queues[state.queue]
    queue.keys.put(state.key, state.record)
    if state.record.until:
        kernel.calendar.add(state.record.until, "key", (queue, state.key))


def _decode_block(kernel: "Kernel", state: BlockState) -> None:
    queue = kernel.tenants[state.tenant].queues[state.queue]
    block = Block(state.number, queue)
    kernel.blocks[state.number] = queue.blocks[state.number] = block
    block.codes = bytearray(state.codes)
    for options in state.options:
        index = len(block.options)
        block.option_index[options] = index
        block.options.append(options)
        block.timed = block.timed or options.timeout_ms is not None or options.lease_ms is not None
        block.retained = block.retained or options.retain_ms is not None
    for index, priority in enumerate(state.classes):
        code = block.classes[priority] = FIRST_CLASS + index
        queue.lane(priority).entries.append(Entry(block, code, 0))
    block.code_of = [
        LIFO if options.lifo else block.classes.get(options.priority, LATE)
        for options in block.options
    ]
    block.opts = array("H", state.opts) if state.wide else bytearray(state.opts)
    for column, packed in zip(block.columns(), state.columns, strict=True):
        column.frombytes(packed)
    if block.created_ms:
        block.last_created = block.created_ms[-1]
    block.commits = [tuple(commit) for commit in state.commits]  # type: ignore[misc]
    block.sides = state.sides
    block.live = len(block.codes) - block.codes.count(GONE)
    for end in state.ends:
        run = EndRun(
            block,
            end.lo,
            end.code,
            end.at,
            end.started_at,
            end.worker,
            end.turn,
            end.count,
            end.mask,
            end.deadline,
        )
        block.ended[end.lo] = run
        if end.deadline is not None:
            kernel.calendar.add(end.deadline, "forget", run)
    _count_chunks(kernel, block)


def _count_chunks(kernel: "Kernel", block: Block) -> None:
    """Each job needs the payload that it was pushed with, and what its own facts name."""
    chunks, codes = kernel.chunks, block.codes
    bounds = [*block.pay_pos, SIZE]
    for record, chunk in enumerate(block.pay_chunk):
        lo, hi = bounds[record], min(bounds[record + 1], len(codes))
        needed = hi - lo - codes.count(GONE, lo, hi)
        if needed:
            chunks[chunk] = chunks.get(chunk, 0) + needed
    for side in block.sides.values():
        for place in (side.payload, side.result, side.next.payload if side.next else None):
            if place is not None:
                chunks[place[0]] = chunks.get(place[0], 0) + 1


def _decode_lease(kernel: "Kernel", state: LeaseState) -> None:
    queue = kernel.tenants[state.tenant].queues[state.queue]
    runs = []
    for saved in state.runs:
        block = queue.blocks[saved.block]
        runs.append(HeldRun(block, saved.lo, saved.hi, saved.mask, saved.count))
    lease = LeaseRecord(
        state.token,
        queue,
        runs,
        state.count,
        state.worker,
        state.lease_ms,
        state.claimed_at,
        state.began,
        state.expires,
        state.first,
        0,
        state.extended_at,
        state.lost,
    )
    for run in runs:
        run.lease = lease
        if run.count and run.hi - run.lo == 1:
            run.block.holders[run.lo] = run
        elif run.count:
            run.block.held[run] = None
    kernel.leases[state.token] = lease
    kernel.expiries.add(lease)
    kernel.elapsed_due = min(kernel.elapsed_due, kernel.expiries.due)
    if any(run.block.timed or run.block.sides for run in runs):
        note_timeouts(kernel, lease)


def _finish_queue(kernel: "Kernel", state: QueueState) -> None:
    """What is made anew from the blocks: counters, lines, timers, retention."""
    queue = kernel.tenants[state.tenant].queues[state.name]
    queue.open = None if state.open is None else queue.blocks.get(state.open)
    late: list[tuple[int, int, Block, int]] = []
    for block in queue.blocks.values():
        for code, n in _tally(block.codes):
            queue.counts[COUNTER_OF[code]] += n
        queue.counts[GONE] = 0
        late += [
            (block.due_at(offset), block.base + offset, block, offset)
            for code in (LATE, GROUPED, LIFO)
            for offset in _offsets_of(code, block)
        ]
        _restore_timers(kernel, block)
        _count_members(queue, block)
    late.sort(key=lambda entry: entry[:2])
    for ready, job_id, block, offset in late:
        code = block.codes[offset]
        if code == GROUPED:
            side = block.sides[offset]
            queue.group(side.group or "").put(ready, job_id, side.owns_slot)
        elif code == LIFO:
            queue.lane(block.priority_of(offset)).put_lifo(ready, job_id)
        else:
            queue.lane(block.priority_of(offset)).put(ready, job_id)
    for priority, seats in state.rings:
        queue.lane(priority).ring = OrderedDict.fromkeys(seats)
        for seat in seats:
            if seat is not None:
                queue.groups[seat].seat = priority
    for group in list(queue.groups.values()):
        if group.jobs:
            queue.seat(group, kernel.elapsed)
        else:
            queue.drop_group(group)
    ends = [
        end
        for block in queue.blocks.values()
        for end in block.ended.values()
        if end.deadline is None and end.turn != UNFILED
    ]
    for end in sorted(ends, key=attrgetter("at", "turn")):
        (queue.dead if end.code == DEAD else queue.finished).append(end)
    queue.finished_count = sum(run.count for run in queue.finished)
    schedule_retention(kernel, queue)
    from penstock.kernel.manage import bound

    bound(queue)


def _count_members(queue: Queue, block: Block) -> None:
    """Members of groups that have not ended, and the slots that they take."""
    for offset, side in block.sides.items():
        if side.group is not None:
            counter = COUNTER_OF[block.codes[offset]]
            if counter != HELD and counter not in ENDED:
                group = queue.group(side.group)
                group.jobs += 1
                group.used += counter == ACTIVE or side.owns_slot


def _tally(codes: bytearray) -> Iterator[tuple[int, int]]:
    for code in sorted(set(codes)):
        yield code, codes.count(code)


def _offsets_of(code: int, block: Block) -> Iterator[int]:
    """Where the jobs of that code lie. Most blocks have none: they are not looked at job by job."""
    offset = block.codes.find(code)
    while offset >= 0:
        yield offset
        offset = block.codes.find(code, offset + 1)


def _restore_timers(kernel: "Kernel", block: Block) -> None:
    """Delays and ttls, neighbours with the same instant together."""
    first = span = instant = 0
    for offset in _offsets_of(SCHEDULED, block):
        due, job_id = block.due_at(offset), block.base + offset
        if span and (due != instant or job_id != first + span):
            kernel.promote_at(instant, first, span)
            span = 0
        if not span:
            first, instant = job_id, due
        span += 1
    if span:
        kernel.promote_at(instant, first, span)
    # A job has a ttl of its block's options, or of its own.
    shared = any(options.ttl_ms is not None for options in block.options)
    for offset in range(len(block.codes)) if shared else sorted(block.sides):
        if COUNTER_OF[block.codes[offset]] not in WAITING:
            continue
        ttl = block.options_of(offset).ttl_ms
        side = block.sides.get(offset)
        if ttl is not None and not (side is not None and (side.claimed or side.no_ttl)):
            kernel.expire_at(block.created_at(offset) + ttl, block.base + offset, 1)
