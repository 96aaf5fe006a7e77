"""A segment: a file of event lines, one JSON object each, and what its name says.

Whoever reads them may be another program, so everything a line says is in the line. A line says
one event of `penstock.model.event` in the same ranges; what is 0, empty or false is left out. The
three numbers (store, position, index) are its identity: a line that was written twice, before a
crash and after it, has them twice.

VERSION is of the line. How to change it:
- A new field goes last, has a default, and may be left out: readers skip what they do not know, and
  the version stays.
- Anything else (another meaning, another unit, a field that is gone) is a new version. `decode`
  then reads both, and the old one until no segment of it can be left: the longest retention that
  anybody has set. The page docs/reference/events.md describes both meanwhile.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from penstock.model.event import Event
from penstock.model.job import IdRun, Ids

VERSION: Final = 1

GAP: Final = "gap"  # the kind of a line that says which events are not here

Range = tuple[int, int]  # the first id, and how many


class Line(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """An event as it is written. Times are wall-clock milliseconds."""

    v: int  # the version of the line
    store: str  # the store that it happened in: 32 hexadecimal digits
    position: int  # of the command in that store's history
    index: int  # of the event within that command; -1: a gap before it
    kind: str  # what happened
    tenant: str
    queue: str
    at: int  # when it took effect, not when it was noticed
    count: int = 0  # of jobs it happened to
    ids: Sequence[Range] = ()  # theirs, as [first, how many]
    attempt: int = 0  # of these jobs, counted at the claim
    pushed_at: int = 0
    ready_at: int = 0
    claimed_at: int = 0
    run_at: int = 0  # of pushed (when delayed), retried, edited: when it is due
    worker: str = ""
    task: str = ""
    priority: int = 0
    bytes: int = 0  # of pushed: payload bytes of all these jobs
    reason: str = ""  # of dead: why; of a gap: why
    error_kind: str = ""
    error_message: str = ""
    cause: str = ""  # of retried and dead: lease_expired or timeout, where no worker said so
    held: bool = False  # of pushed: part of a bulk, invisible until committed
    data: str = ""  # of progress, log and partial: what was said; of a gap: a `Missing` as JSON


class Missing(msgspec.Struct, frozen=True):
    """What a gap says: the events from its own position on are not here, or perhaps not."""

    through: int  # the last position of the gap
    events: int = 0  # how many there were, where that is known


class Place(NamedTuple):
    """Where a segment stands among all."""

    store: str
    sequence: int  # ascends within a store; not every number is there

    @property
    def sealed(self) -> str:
        return f"events-{self.store}-{self.sequence:012d}.jsonl"

    @property
    def open(self) -> str:
        """Spark, like others, ignores a name that begins so: it never sees a file that grows."""
        return f"_open-{self.store}-{self.sequence:012d}.jsonl"


_NAME: Final = re.compile(r"(events|_open)-([0-9a-f]{32})-(\d{12,})\.jsonl")


def sealed_in(directory: Path) -> list[tuple[Place, Path]]:
    """The sealed segments of a directory: store by store, in the order they were written."""
    return _found(directory, "events")


def open_in(directory: Path) -> list[tuple[Place, Path]]:
    """Those that grow, or that grew in a process which is dead."""
    return _found(directory, "_open")


def _found(directory: Path, prefix: str) -> list[tuple[Place, Path]]:
    found = []
    for path in directory.iterdir():
        name = _NAME.fullmatch(path.name)
        if name is not None and name[1] == prefix:
            found.append((Place(name[2], int(name[3])), path))
    return sorted(found)


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Line)


def encode(store: str, events: Iterable[Event]) -> bytes:
    """The lines of these events.

    The cost of the event log on the way of a command: so a struct by position and one call for all
    lines (0.65 µs an event on the 2-core machine, a third of a line made of text).
    """
    lines = []
    for e in events:
        ids: Sequence[Range]
        runs = e.ids.runs
        if len(runs) == 1 and runs[0].mask is None:
            run = runs[0]
            count = run.span
            ids = ((run.first, count),)
        else:
            ids = ranges(e.ids)
            count = len(e.ids)
        lines.append(
            Line(
                VERSION,
                store,
                e.position,
                e.index,
                e.kind,
                e.tenant,
                e.queue,
                e.at,
                count,
                ids,
                e.attempt,
                e.pushed_at,
                e.ready_at,
                e.claimed_at,
                e.run_at,
                e.worker,
                e.task,
                e.priority,
                e.bytes,
                e.reason,
                e.error_kind,
                e.error_message,
                e.cause,
                e.held,
                e.data,
            )
        )
    return _encoder.encode_lines(lines)


def encode_gap(store: str, first: int, missing: Missing, reason: str, at: int) -> bytes:
    """The line that says that events from this position on are missing."""
    data = _encoder.encode(missing).decode()
    line = Line(VERSION, store, first, -1, GAP, "", "", at, reason=reason, data=data)
    return _encoder.encode_lines([line])


def ranges(ids: Ids) -> list[Range]:
    """Masks taken apart: stretches of ids that are all meant."""
    found: list[Range] = []
    for run in ids.runs:
        found += [(run.first, run.span)] if run.mask is None else _stretches(run)
    return found


def _stretches(run: IdRun) -> list[Range]:
    mask = run.mask or b""
    found = []
    lo = mask.find(1)
    while lo >= 0:
        hi = mask.find(0, lo)
        if hi < 0:
            hi = len(mask)
        found.append((run.first + lo, hi - lo))
        lo = mask.find(1, hi)
    return found


def decode(text: bytes) -> Line:
    """A line, or ValueError with what is wrong with it."""
    try:
        line = _decoder.decode(text)
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 at byte {error.start}") from None
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None
    if line.v != VERSION:
        raise ValueError(f"it is of version {line.v}; this release reads {VERSION}")
    if line.count != sum([n for _, n in line.ids]):
        raise ValueError(f"it counts {line.count} jobs, and names {sum(n for _, n in line.ids)}")
    return line
