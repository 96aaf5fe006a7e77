"""The kernel's state as records, and a kernel from records.

One record per object (queue, block, lease, bulk, producer, cron, …), each by itself, so that a
checkpoint can be written in slices. Only what matters is in them: cursors, heaps, timers and
counters are made anew from the rest. `digest` is a fingerprint of everything that decides.

Changing a record's shape: raise FORMAT, keep the old decoder until no supported release writes it,
and add a golden snapshot to the tests.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.kernel.blocks import Block, EndRun, Entry, Side
from penstock.kernel.bulks import Bulk, FinishedBulk
from penstock.kernel.claim import note_timeouts
from penstock.kernel.codes import (
    COUNTER_OF,
    FIRST_CLASS,
    GONE,
    GROUPED,
    LATE,
    LIFO,
    SCHEDULED,
    WAITING,
)
from penstock.kernel.crons import CronRecord
from penstock.kernel.ending import schedule_retention
from penstock.kernel.keys import KeyRecord
from penstock.kernel.leases import HeldRun, LeaseRecord
from penstock.kernel.limits import Meter
from penstock.kernel.producers import Producer
from penstock.kernel.queue import Queue
from penstock.kernel.timers import FOREVER
from penstock.model.errors import Invalid
from penstock.model.job import JobOptions
from penstock.model.policy import BULK_MEMORY_MS, PRODUCER_IDLE_MS, Bounds, Caps, QueueConfig

if TYPE_CHECKING:
    from penstock.kernel.kernel import Kernel

FORMAT: Final = 1


class _Record(msgspec.Struct, tag=True, array_like=True):
    pass


class Meta(_Record):
    format: int
    seed: int
    now: int
    elapsed: int
    position: int
    next_block: int
    sweep_at: int
    chunks: dict[int, int]


class TenantRecord(_Record):
    name: str
    bounds: Bounds
    arrival: int  # of the push rate's meter


class QueueRecord(_Record):
    tenant: str
    name: str
    config: QueueConfig
    ready_clock: int
    open: int | None
    arrival: int
    push_arrival: int
    keys: list[tuple[str, KeyRecord]]
    groups: list[tuple[str, int, int, int]]  # name, jobs, used slots, arrival
    rings: list[tuple[int, list[str | None]]]  # priority, seats in order
    finished: list[tuple[int, int]]  # (block, lo) in order
    dead: list[tuple[int, int]]


class EndRecord(msgspec.Struct, array_like=True):
    lo: int
    hi: int
    mask: bytes | None
    count: int
    code: int
    at: int
    started_at: int
    worker: str | None
    deadline: int | None


class BlockRecord(_Record):
    number: int
    tenant: str
    queue: str
    codes: bytes
    opts: bytes
    wide: bool  # opts are 16 bits each
    options: list[JobOptions]
    classes: list[int]  # priorities in the order of their codes
    columns: list[bytes]  # created, due and payload columns, as packed integers
    commits: list[tuple[int, int, int, int]]
    sides: dict[int, Side]
    ends: list[EndRecord]


class RunRecord(msgspec.Struct, array_like=True):
    block: int
    lo: int
    hi: int
    mask: bytes | None
    count: int


class LeaseState(_Record):
    token: str
    tenant: str
    queue: str
    runs: list[RunRecord]
    count: int
    worker: str
    lease_ms: int
    claimed_at: int
    first: int
    extended_at: int
    began: int
    expires: int
    lost: list[int] | None


class BulkState(_Record):
    tenant: str
    bulk: Bulk


class FinishedState(_Record):
    tenant: str
    name: str
    finished: FinishedBulk


class ProducerState(_Record):
    tenant: str
    name: str
    producer: Producer


class CronState(_Record):
    tenant: str
    record: CronRecord


Record = (
    Meta
    | TenantRecord
    | QueueRecord
    | BlockRecord
    | LeaseState
    | BulkState
    | FinishedState
    | ProducerState
    | CronState
)


def _plain(value: Any) -> Any:
    if isinstance(value, array):
        return value.tolist()
    if isinstance(value, range):
        return list(value)
    raise TypeError(f"{type(value).__name__} has no place in a record")


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Record)


# -- encoding ------------------------------------------------------------------------------------


def records(kernel: "Kernel") -> Iterator[_Record]:
    """The state, one record per object, in an order that depends on nothing but the state."""
    yield Meta(
        FORMAT,
        kernel.seed,
        kernel.now,
        kernel.elapsed,
        kernel.position,
        kernel.next_block,
        kernel.sweep_at,
        dict(sorted(kernel.chunks.items())),
    )
    for _, tenant in sorted(kernel.tenants.items()):
        yield TenantRecord(tenant.name, tenant.bounds, _arrival(tenant.meter))
        for _, queue in sorted(tenant.queues.items()):
            yield _queue_record(queue)
    for number in sorted(kernel.blocks):
        yield _block_record(kernel.blocks[number])
    for token in sorted(kernel.leases):
        yield _lease_record(kernel.leases[token])
    for (owner, _), bulk in sorted(kernel.bulks.items()):
        yield BulkState(owner, bulk)
    for (owner, name), finished in sorted(kernel.finished_bulks.items()):
        yield FinishedState(owner, name, finished)
    for (owner, name), producer in sorted(kernel.producers.items()):
        yield ProducerState(owner, name, producer)
    for (owner, _), cron in sorted(kernel.crons.items()):
        yield CronState(owner, cron)


def encode(kernel: "Kernel") -> list[bytes]:
    return [_encoder.encode(record) for record in records(kernel)]


def digest(kernel: "Kernel") -> str:
    whole = blake2b(digest_size=16)
    for record in encode(kernel):
        whole.update(len(record).to_bytes(8, "big"))
        whole.update(record)
    return whole.hexdigest()


def _arrival(meter: Meter | None) -> int:
    return 0 if meter is None else meter.arrival


def _queue_record(queue: Queue) -> QueueRecord:
    return QueueRecord(
        queue.tenant.name,
        queue.name,
        queue.config,
        queue.ready_clock,
        None if queue.open is None else queue.open.number,
        _arrival(queue.meter),
        _arrival(queue.push_meter),
        sorted(queue.keys.records.items(), key=lambda item: item[0]),
        [(g.name, g.jobs, g.used, _arrival(g.meter)) for _, g in sorted(queue.groups.items())],
        [
            (priority, list(lane.ring))
            for priority, lane in sorted(queue.lanes.items())
            if lane.ring is not None
        ],
        _ends(queue.finished),
        _ends(queue.dead),
    )


def _ends(runs: "Sequence[EndRun]") -> list[tuple[int, int]]:
    return [(r.block.number, r.lo) for r in runs if r.block.ended.get(r.lo) is r]


def _block_record(block: Block) -> BlockRecord:
    wide = not isinstance(block.opts, bytearray)
    return BlockRecord(
        block.number,
        block.queue.tenant.name,
        block.queue.name,
        bytes(block.codes),
        block.opts.tobytes() if isinstance(block.opts, array) else bytes(block.opts),
        wide,
        block.options,
        list(block.classes),
        [column.tobytes() for column in block.columns()],
        block.commits,
        dict(sorted(block.sides.items())),
        [
            EndRecord(r.lo, r.hi, r.mask, r.count, r.code, r.at, r.started_at, r.worker, r.deadline)
            for _, r in sorted(block.ended.items())
        ],
    )


def _lease_record(lease: LeaseRecord) -> LeaseState:
    # One run per block, however the claim was cut: that is nobody's business after it.
    held: dict[int, list[int]] = {}
    for run in lease.runs:
        if run.count:
            held.setdefault(run.block.number, []).extend(run.offsets())
    runs = []
    for number, offsets in sorted(held.items()):
        lo, hi = min(offsets), max(offsets) + 1
        mask = bytearray(hi - lo)
        for offset in offsets:
            mask[offset - lo] = 1
        whole = len(offsets) == hi - lo
        runs.append(RunRecord(number, lo, hi, None if whole else bytes(mask), len(offsets)))
    return LeaseState(
        lease.token,
        lease.queue.tenant.name,
        lease.queue.name,
        runs,
        lease.count,
        lease.worker,
        lease.lease_ms,
        lease.claimed_at,
        lease.first,
        lease.extended_at,
        lease.began,
        lease.expires,
        lease.lost,
    )


# -- decoding ------------------------------------------------------------------------------------


def decode(encoded: Sequence[bytes], caps: Caps) -> "Kernel":
    from penstock.kernel.kernel import Kernel

    found: dict[type, list[Any]] = {}
    for blob in encoded:
        record = _decoder.decode(blob)
        found.setdefault(type(record), []).append(record)
    (meta,) = found[Meta]
    if meta.format != FORMAT:
        raise Invalid(f"a snapshot of format {meta.format}; this release reads {FORMAT}")
    kernel = Kernel(meta.seed, caps)
    kernel.now, kernel.elapsed = meta.now, meta.elapsed
    kernel.position, kernel.next_block = meta.position, meta.next_block
    kernel.chunks = meta.chunks
    kernel.sweep_at = FOREVER  # queues come before their jobs: none is to be taken for empty
    for state in found.get(TenantRecord, []):
        tenant = kernel.tenant(state.name)
        tenant.bounds = state.bounds
        if state.bounds.push_rate is not None:
            tenant.meter = Meter(state.bounds.push_rate, state.arrival)
    for state in found.get(QueueRecord, []):
        _decode_queue(kernel, state)
    for state in found.get(BlockRecord, []):
        _decode_block(kernel, state)
    for state in found.get(LeaseState, []):
        _decode_lease(kernel, state)
    for state in found.get(QueueRecord, []):
        _finish_queue(kernel, state)
    for state in found.get(BulkState, []):
        kernel.bulks[state.tenant, state.bulk.name] = state.bulk
        kernel.calls.add(state.bulk.expires, 0, ("bulk", state.tenant, state.bulk.name))
    for state in found.get(FinishedState, []):
        spot = (state.tenant, state.name)
        kernel.finished_bulks[spot] = state.finished
        kernel.calendar.add(state.finished.at + BULK_MEMORY_MS, "bulk", spot)
    for state in found.get(ProducerState, []):
        spot = (state.tenant, state.name)
        kernel.producers[spot] = state.producer
        kernel.calendar.add(state.producer.used_at + PRODUCER_IDLE_MS, "producer", spot)
    for state in found.get(CronState, []):
        kernel.crons[state.tenant, state.record.spec.name] = state.record
    kernel.sweep_at = meta.sweep_at
    return kernel


def _decode_queue(kernel: "Kernel", state: QueueRecord) -> None:
    queue = kernel.queue(kernel.tenant(state.tenant), state.name)
    queue.config = config = state.config
    queue.ready_clock = state.ready_clock
    limits = config.limits
    queue.limited = config.paused or limits.concurrency is not None or limits.rate is not None
    if limits.rate is not None:
        queue.meter = Meter(limits.rate, state.arrival)
    if config.bounds.push_rate is not None:
        queue.push_meter = Meter(config.bounds.push_rate, state.push_arrival)
    for key, record in state.keys:
        queue.keys.put(key, record)
        if record.until:
            kernel.calendar.add(record.until, "key", (queue, key))
    for name, jobs, used, arrival in state.groups:
        group = queue.group(name)
        group.jobs, group.used = jobs, used
        if limits.group_rate is not None:
            group.meter = Meter(limits.group_rate, arrival)


def _decode_block(kernel: "Kernel", state: BlockRecord) -> None:
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
    block.commits = [tuple(commit) for commit in state.commits]  # type: ignore[misc]
    block.sides = state.sides
    block.live = len(block.codes) - block.codes.count(GONE)
    for end in state.ends:
        run = EndRun(
            block,
            end.lo,
            end.hi,
            end.code,
            end.at,
            end.started_at,
            end.worker,
            end.count,
            end.mask,
            end.deadline,
        )
        block.ended[end.lo] = run
        if end.deadline is not None:
            kernel.calendar.add(end.deadline, "forget", run)


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


def _finish_queue(kernel: "Kernel", state: QueueRecord) -> None:
    """What is made anew from the blocks: counters, lines, timers, retention."""
    queue = kernel.tenants[state.tenant].queues[state.name]
    queue.open = None if state.open is None else queue.blocks.get(state.open)
    late: list[tuple[int, int, Block, int]] = []
    for block in queue.blocks.values():
        for code, n in _tally(block.codes):
            queue.counts[COUNTER_OF[code]] += n
        queue.counts[GONE] = 0
        for offset, code in enumerate(block.codes):
            if code in (LATE, GROUPED, LIFO):
                late.append((block.due_at(offset), block.base + offset, block, offset))
        _restore_timers(kernel, block)
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
            queue.seat(group)
        else:
            queue.drop_group(group)
    queue.finished.extend(queue.blocks[number].ended[lo] for number, lo in state.finished)
    queue.finished_count = sum(run.count for run in queue.finished)
    queue.dead.extend(queue.blocks[number].ended[lo] for number, lo in state.dead)
    schedule_retention(kernel, queue)
    from penstock.kernel.manage import bound

    bound(queue)


def _tally(codes: bytearray) -> Iterator[tuple[int, int]]:
    for code in sorted(set(codes)):
        yield code, codes.count(code)


def _restore_timers(kernel: "Kernel", block: Block) -> None:
    """Delays and ttls, neighbours with the same instant together."""
    first = span = instant = 0
    for offset in range(len(block.codes) + 1):
        due = 0
        if offset < len(block.codes) and block.codes[offset] == SCHEDULED:
            due = block.due_at(offset)
        if span and due != instant:
            kernel.promote_at(instant, first, span)
            span = 0
        if due:
            if not span:
                first, instant = block.base + offset, due
            span += 1
    if not any(o.ttl_ms is not None for o in block.options) and not block.sides:
        return
    for offset, code in enumerate(block.codes):
        if COUNTER_OF[code] not in WAITING:
            continue
        ttl = block.options_of(offset).ttl_ms
        side = block.sides.get(offset)
        if ttl is not None and not (side is not None and (side.claimed or side.no_ttl)):
            kernel.expire_at(block.created_at(offset) + ttl, block.base + offset, 1)
