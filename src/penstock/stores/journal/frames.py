"""The log's records: commands that changed something, each with its instants and its decision.

    record  = length u32 · position u64 · crc32 of these two · crc32 of the body · body
    body    = MessagePack of [now, elapsed, command, decision]

All integers are little-endian. A record that ends early is torn; one that is whole and does not
match its checksums is corrupt. The header has a checksum of its own, so that a damaged length is
never taken for a torn tail.

**Changing the format.** A new field of a command is given a default and goes last; nothing else
changes without a new FORMAT. A new FORMAT keeps reading the old one until a checkpoint has been
written with the new release, and adds a golden log to `tests/golden/`. A change of what the kernel
decides raises `kernel.VERSION` and keeps the old path for logs of the old version: a log is only
ever replayed by the rules by which it was written.
"""

import struct
from array import array
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from penstock.kernel import commands as c
from penstock.kernel.leases import LeaseRecord
from penstock.model.job import IdRun, Ids
from penstock.stores.journal.checksum import crc32

FORMAT: Final = 1

_HEADER: Final = struct.Struct("<IQII")
_CHECKED: Final = struct.Struct("<IQ")
HEADER_SIZE: Final = _HEADER.size

AnyCommand = (
    c.Push
    | c.Claim
    | c.Ack
    | c.Fail
    | c.Release
    | c.Extend
    | c.Report
    | c.Cancel
    | c.Edit
    | c.Redrive
    | c.PurgeDead
    | c.Configure
    | c.ConfigureTenant
    | c.Drain
    | c.Purge
    | c.OpenBulk
    | c.CommitBulk
    | c.AbortBulk
    | c.PutCron
    | c.DropCron
    | c.Tick
    | c.Resume
)


class Body(msgspec.Struct, array_like=True):
    now: int
    elapsed: int
    command: AnyCommand
    decision: msgspec.Raw


class Record(msgspec.Struct):
    position: int
    now: int
    elapsed: int
    command: c.Command
    decision: bytes


class Corrupt(Exception):
    """Whole, and not what was written. The message names the record."""


def _plain(value: Any) -> Any:
    if isinstance(value, array):
        return value.tobytes() if value.typecode == "I" else value.tolist()
    if isinstance(value, range):
        return list(value)
    if isinstance(value, LeaseRecord):
        return _claimed(value)
    raise TypeError(f"{type(value).__name__} has no place in a log")


def _packed(kind: type, value: Any) -> Any:
    if kind is array:
        if isinstance(value, bytes):
            ends = array("I")
            ends.frombytes(value)
            return ends
        return array("I", value)
    raise TypeError(f"a log holds no {kind.__name__}")


_encoder: Final = msgspec.msgpack.Encoder(enc_hook=_plain)
_decoder: Final = msgspec.msgpack.Decoder(Body, dec_hook=_packed)


# -- decisions -----------------------------------------------------------------------------------


def decision(outcome: Any) -> bytes:
    """What the kernel decided, in a form that two kernels with the same state agree on.

    The order of ids within an answer, and how ranges are cut, depend on how the state came about;
    they are put in order here.
    """
    if isinstance(outcome, LeaseRecord):
        return _encoder.encode(_claimed(outcome))
    if isinstance(outcome, msgspec.Struct):
        return _encoder.encode([_ordered(getattr(outcome, f)) for f in outcome.__struct_fields__])
    return _encoder.encode(outcome)


def _ordered(value: Any) -> Any:
    if isinstance(value, Ids):
        return _ranges(value.runs)
    return value


def _claimed(lease: LeaseRecord) -> list[Any]:
    runs = [IdRun(run.block.base + run.lo, run.hi - run.lo, run.still()) for run in lease.runs]
    return [lease.queue.name, lease.expires, _ranges(runs)]


def _ranges(runs: Any) -> list[int]:
    """Ids as first, span, first, span …, ascending, neighbours joined."""
    if len(runs) == 1 and runs[0].mask is None:
        return [runs[0].first, runs[0].span]
    whole = Ids.of(sorted(job_id for run in runs for job_id in run))
    return [number for run in whole.runs for number in (run.first, run.span)]


# -- records -------------------------------------------------------------------------------------


def encode(position: int, now: int, elapsed: int, command: c.Command, decided: bytes) -> bytes:
    body = _encoder.encode([now, elapsed, command, msgspec.Raw(decided)])
    checked = _CHECKED.pack(len(body), position)
    return _HEADER.pack(len(body), position, crc32(checked), crc32(body)) + body


def decode(data: bytes) -> Iterator[Record]:
    """The records of one group. Ends silently where the data ends within a record."""
    view = memoryview(data)
    at = 0
    while at + HEADER_SIZE <= len(data):
        length, position, header_crc, body_crc = _HEADER.unpack_from(data, at)
        if crc32(_CHECKED.pack(length, position)) != header_crc:
            raise Corrupt(f"the header of the record at byte {at}, position {position}")
        body = view[at + HEADER_SIZE : at + HEADER_SIZE + length]
        if len(body) < length:
            return
        if crc32(body) != body_crc:
            raise Corrupt(f"the record of position {position}")
        try:
            whole = _decoder.decode(body)
        except msgspec.MsgspecError as error:
            raise Corrupt(f"the record of position {position}: {error}") from None
        yield Record(position, whole.now, whole.elapsed, whole.command, bytes(whole.decision))
        at += HEADER_SIZE + length


def whole_length(data: bytes) -> int:
    """How many bytes of a group are whole records."""
    at = 0
    while at + HEADER_SIZE <= len(data):
        length = _HEADER.unpack_from(data, at)[0]
        if at + HEADER_SIZE + length > len(data):
            break
        at += HEADER_SIZE + length
    return at
