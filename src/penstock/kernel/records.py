"""The kernel's state as records: one per object, each by itself, so that one can be written alone.

Only what matters is in them: cursors, heaps, timers and counters are made anew from the rest. No
record grows with the store: what a queue has many of (blocks, keys) are objects of their own, and
the order in which jobs ended is a number in each end.

Changing a record's shape: raise FORMAT, keep the old decoder until no supported release writes it,
and add a golden snapshot to the tests.
"""

from array import array
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from penstock.kernel.blocks import Block, Side
from penstock.kernel.bulks import Bulk, FinishedBulk
from penstock.kernel.crons import CronRecord
from penstock.kernel.keys import KeyRecord
from penstock.kernel.leases import HeldRun, LeaseRecord
from penstock.kernel.limits import Meter
from penstock.kernel.producers import Remembered
from penstock.kernel.queue import Queue
from penstock.model.job import JobOptions
from penstock.model.policy import Bounds, QueueConfig

if TYPE_CHECKING:
    from penstock.kernel.kernel import Kernel

FORMAT: Final = 1


class Record(msgspec.Struct, tag=True, array_like=True):
    pass


class Meta(Record):
    format: int
    seed: int
    now: int
    elapsed: int
    position: int
    next_block: int
    sweep_at: int


class TenantState(Record):
    name: str
    bounds: Bounds
    arrival: int  # of the push rate's meter


class QueueState(Record):
    tenant: str
    name: str
    config: QueueConfig
    ready_clock: int
    open: int | None
    arrival: int
    push_arrival: int
    groups: list[tuple[str, int]]  # name, arrival: those whose rate remembers something
    rings: list[tuple[int, list[str | None]]]  # priority, seats in order


class KeyState(Record):
    tenant: str
    queue: str
    key: str
    record: KeyRecord


class EndState(msgspec.Struct, array_like=True):
    lo: int
    count: int
    mask: bytes | None
    code: int
    at: int
    started_at: int
    worker: str | None
    deadline: int | None
    turn: int


class BlockState(Record):
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
    ends: list[EndState]


class RunState(msgspec.Struct, array_like=True):
    block: int
    lo: int
    hi: int
    mask: bytes | None
    count: int


class LeaseState(Record):
    token: str
    tenant: str
    queue: str
    runs: list[RunState]
    count: int
    worker: str
    lease_ms: int
    claimed_at: int
    first: int
    extended_at: int
    began: int
    expires: int
    lost: list[int] | None


class BulkState(Record):
    tenant: str
    bulk: Bulk


class FinishedState(Record):
    tenant: str
    name: str
    finished: FinishedBulk


class ProducerState(Record):
    tenant: str
    name: str
    producer: Remembered


class CronState(Record):
    tenant: str
    record: CronRecord


AnyRecord = (
    Meta
    | TenantState
    | QueueState
    | KeyState
    | BlockState
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
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(AnyRecord)


def encode(record: Record) -> bytes:
    return _encoder.encode(record)


def decode(encoded: bytes) -> Record:
    record: Record = _decoder.decode(encoded)
    return record


# -- a record from an object -----------------------------------------------------------------------


def meta(kernel: "Kernel") -> Meta:
    return Meta(
        FORMAT,
        kernel.seed,
        kernel.now,
        kernel.elapsed,
        kernel.position,
        kernel.next_block,
        kernel.sweep_at,
    )


def _arrival(meter: Meter | None) -> int:
    return 0 if meter is None else meter.arrival


def _queue_state(_: Any, queue: Queue) -> QueueState:
    return QueueState(
        queue.tenant.name,
        queue.name,
        queue.config,
        queue.ready_clock,
        None if queue.open is None else queue.open.number,
        _arrival(queue.meter),
        _arrival(queue.push_meter),
        [
            (name, arrival)
            for name, group in sorted(queue.groups.items())
            if (arrival := _arrival(group.meter))
        ],
        [
            (priority, list(lane.ring))
            for priority, lane in sorted(queue.lanes.items())
            if lane.ring is not None
        ],
    )


def _block_state(_: Any, block: Block) -> BlockState:
    return BlockState(
        block.number,
        block.queue.tenant.name,
        block.queue.name,
        bytes(block.codes),
        block.opts.tobytes() if isinstance(block.opts, array) else bytes(block.opts),
        not isinstance(block.opts, bytearray),
        block.options,
        list(block.classes),
        [column.tobytes() for column in block.columns()],
        block.commits,
        dict(sorted(block.sides.items())),
        [
            EndState(
                end.lo,
                end.count,
                end.mask,
                end.code,
                end.at,
                end.started_at,
                end.worker,
                end.deadline,
                end.turn,
            )
            for _, end in sorted(block.ended.items())
        ],
    )


def _lease_state(_: Any, lease: LeaseRecord) -> LeaseState:
    return LeaseState(
        lease.token,
        lease.queue.tenant.name,
        lease.queue.name,
        _held(lease.runs),
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


def _held(runs: list[HeldRun]) -> list[RunState]:
    """One run per block, however the claim was cut: that is nobody's business after it."""
    if len(runs) == 1 and runs[0].mask is None and runs[0].gone is None:
        run = runs[0]
        return [RunState(run.block.number, run.lo, run.hi, None, run.count)]
    held: dict[int, list[int]] = {}
    for run in runs:
        if run.count:
            held.setdefault(run.block.number, []).extend(run.offsets())
    states = []
    for number, offsets in sorted(held.items()):
        lo, hi = min(offsets), max(offsets) + 1
        mask = bytearray(hi - lo)
        for offset in offsets:
            mask[offset - lo] = 1
        whole = len(offsets) == hi - lo
        states.append(RunState(number, lo, hi, None if whole else bytes(mask), len(offsets)))
    return states


# -- the kinds of objects --------------------------------------------------------------------------


class Kind(NamedTuple):
    """Objects of one kind: what they are known by, where they are, what is written of each."""

    name: str
    keys: "Callable[[Kernel], Iterable[Any]]"
    count: "Callable[[Kernel], int]"
    find: "Callable[[Kernel, Any], Any]"  # None: there is no such object
    record: Callable[[Any, Any], Record]  # by key and object
    place: Callable[[Any], bytes]  # the key as bytes, no two alike


def _find_queue(kernel: "Kernel", key: tuple[str, str]) -> Queue | None:
    tenant = kernel.tenants.get(key[0])
    return None if tenant is None else tenant.queues.get(key[1])


def _find_key(kernel: "Kernel", key: tuple[str, str, str]) -> KeyRecord | None:
    queue = _find_queue(kernel, key[:2])
    return None if queue is None else queue.keys.records.get(key[2])


def _queues(kernel: "Kernel") -> Iterable[Queue]:
    return (queue for tenant in kernel.tenants.values() for queue in tenant.queues.values())


def _eight_bytes(number: int) -> bytes:
    return number.to_bytes(8, "big")


TENANTS: Final = Kind(
    "tenants",
    keys=lambda kernel: kernel.tenants,
    count=lambda kernel: len(kernel.tenants),
    find=lambda kernel, name: kernel.tenants.get(name),
    record=lambda name, tenant: TenantState(name, tenant.bounds, _arrival(tenant.meter)),
    place=str.encode,
)
QUEUES: Final = Kind(
    "queues",
    keys=lambda kernel: ((queue.tenant.name, queue.name) for queue in _queues(kernel)),
    count=lambda kernel: kernel.queue_count,
    find=_find_queue,
    record=_queue_state,
    place=_encoder.encode,
)
KEYS: Final = Kind(
    "keys",
    keys=lambda kernel: (
        (queue.tenant.name, queue.name, key)
        for queue in _queues(kernel)
        for key in queue.keys.records
    ),
    count=lambda kernel: kernel.key_count,
    find=_find_key,
    record=lambda key, record: KeyState(key[0], key[1], key[2], record),
    place=_encoder.encode,
)
BLOCKS: Final = Kind(
    "blocks",
    keys=lambda kernel: kernel.blocks,
    count=lambda kernel: len(kernel.blocks),
    find=lambda kernel, number: kernel.blocks.get(number),
    record=_block_state,
    place=_eight_bytes,
)
LEASES: Final = Kind(
    "leases",
    keys=lambda kernel: kernel.leases,
    count=lambda kernel: len(kernel.leases),
    find=lambda kernel, token: kernel.leases.get(token),
    record=_lease_state,
    place=str.encode,
)
BULKS: Final = Kind(
    "bulks",
    keys=lambda kernel: kernel.bulks,
    count=lambda kernel: len(kernel.bulks),
    find=lambda kernel, spot: kernel.bulks.get(spot),
    record=lambda spot, bulk: BulkState(spot[0], bulk),
    place=_encoder.encode,
)
FINISHED: Final = Kind(
    "finished_bulks",
    keys=lambda kernel: kernel.finished_bulks,
    count=lambda kernel: len(kernel.finished_bulks),
    find=lambda kernel, spot: kernel.finished_bulks.get(spot),
    record=lambda spot, finished: FinishedState(spot[0], spot[1], finished),
    place=_encoder.encode,
)
PRODUCERS: Final = Kind(
    "producers",
    keys=lambda kernel: kernel.producers,
    count=lambda kernel: len(kernel.producers),
    find=lambda kernel, spot: kernel.producers.get(spot),
    record=lambda spot, producer: ProducerState(spot[0], spot[1], producer.record()),
    place=_encoder.encode,
)
CRONS: Final = Kind(
    "crons",
    keys=lambda kernel: kernel.crons,
    count=lambda kernel: len(kernel.crons),
    find=lambda kernel, spot: kernel.crons.get(spot),
    record=lambda spot, cron: CronState(spot[0], cron),
    place=_encoder.encode,
)
KINDS: Final = (TENANTS, QUEUES, KEYS, BLOCKS, LEASES, BULKS, FINISHED, PRODUCERS, CRONS)
