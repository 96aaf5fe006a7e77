"""What is written down of a client operation, as JSON lines.

An operation is two lines: `invoked` before the call, then `ok` with the answer, `failed` (refused:
nothing happened) or `unknown`. The second one is missing where the process died in between, which
also means unknown. Each line goes out in a single write to a file opened for appending, so that
the lines of several processes never mix and a SIGKILL loses none.

Jobs are said in stretches: a push of 1,000 like jobs is one short line. Every payload carries its
serial, (maker, number), which is never used for another one; by it a job is recognised even if the
answer to its push was lost.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol, Self

import msgspec

from penstock.model.job import Outcome
from penstock.model.lifecycle import State
from penstock.model.policy import KeepKey, OnConflict, QueueConfig

Serial = tuple[str, int]  # maker, number
Span = tuple[int, int]  # first id, how many


def spans(ids: Iterable[int]) -> list[Span]:
    """Ids in their order, neighbours joined."""
    joined: list[Span] = []
    for job_id in ids:
        if joined and job_id == sum(joined[-1]):
            joined[-1] = (joined[-1][0], joined[-1][1] + 1)
        else:
            joined.append((job_id, 1))
    return joined


def each(joined: Iterable[Span]) -> Iterator[int]:
    for first, count in joined:
        yield from range(first, first + count)


def payload_of(serial: Serial) -> bytes:
    return msgspec.json.encode(serial)


def serial_of(payload: bytes) -> Serial:
    """The serial in a payload. Foreign payloads get one that no push ever contained."""
    try:
        maker, number = msgspec.json.decode(payload, type=tuple[str, int])
    except msgspec.DecodeError:
        return (f"foreign {payload[:64]!r}", 0)
    return maker, number


class Said(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A stretch of like jobs as the producer said them, with what matters to a rule."""

    maker: str
    first: int  # number of the first one
    count: int = 1
    delay_ms: int | None = None
    run_at: int | None = None
    key: str | None = None
    on_conflict: OnConflict = "return"
    keep_key: KeepKey = "live"
    group: str | None = None
    max_attempts: int = 3
    lease_ms: int | None = None
    timeout_ms: int | None = None
    ttl_ms: int | None = None
    retain_ms: int | None = None
    retain_dead_ms: int | None = None
    depends: bool = False

    @property
    def serials(self) -> list[Serial]:
        return [(self.maker, number) for number in range(self.first, self.first + self.count)]


class SaidRun(msgspec.Struct, frozen=True):
    queue: str
    jobs: list[Said]


# -- calls -----------------------------------------------------------------------------------------


class _Call(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="do"):
    pass


class Push(_Call, frozen=True, tag="push"):
    runs: list[SaidRun]
    producer: str | None = None
    sequence: int | None = None
    bulk: str | None = None
    part: str = ""


class OpenBulk(_Call, frozen=True, tag="open_bulk"):
    bulk: str


class CommitBulk(_Call, frozen=True, tag="commit_bulk"):
    bulk: str
    parts: list[str] | None = None


class AbortBulk(_Call, frozen=True, tag="abort_bulk"):
    bulk: str


class Claim(_Call, frozen=True, tag="claim"):
    queues: list[str]
    n: int = 1
    lease_ms: int | None = None
    worker: str = ""
    wait_ms: int = 0


class Ack(_Call, frozen=True, tag="ack"):
    lease: str
    ids: list[Span] | None = None
    results: dict[int, str] = {}


class Fail(_Call, frozen=True, tag="fail"):
    lease: str
    ids: list[Span] | None = None
    retry_in_ms: int | None = None
    dead: bool = False


class Release(_Call, frozen=True, tag="release"):
    lease: str
    ids: list[Span] | None = None


class Extend(_Call, frozen=True, tag="extend"):
    lease: str
    lease_ms: int | None = None


class Cancel(_Call, frozen=True, tag="cancel"):
    ids: list[Span]
    discard: bool = False


class Redrive(_Call, frozen=True, tag="redrive"):
    queue: str
    ids: list[Span] | None = None
    limit: int | None = None


class PurgeDead(_Call, frozen=True, tag="purge_dead"):
    queue: str
    ids: list[Span] | None = None


class Drain(_Call, frozen=True, tag="drain"):
    queue: str


class Purge(_Call, frozen=True, tag="purge"):
    queue: str


class Configure(_Call, frozen=True, tag="configure"):
    queue: str
    config: QueueConfig


class Get(_Call, frozen=True, tag="get"):
    ids: list[Span]


class ReadResult(_Call, frozen=True, tag="result"):
    id: int


LeaseCall = Ack | Fail | Release
Sweep = Drain | Purge | PurgeDead
Call = (
    Push
    | OpenBulk
    | CommitBulk
    | AbortBulk
    | Claim
    | Ack
    | Fail
    | Release
    | Extend
    | Cancel
    | Redrive
    | PurgeDead
    | Drain
    | Purge
    | Configure
    | Get
    | ReadResult
)


# -- answers ---------------------------------------------------------------------------------------


class _Answer(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="got"):
    pass


class Done(_Answer, frozen=True, tag="done"):
    """The call gives nothing back, or a number that no rule looks at."""


class Made(_Answer, frozen=True, tag="made"):
    """Of a push. Per run (first id, how many, outcome), in the order of the jobs."""

    runs: list[list[tuple[int, int, Outcome]]]


class Handed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A stretch of a claim's jobs: ids and serials run on together, the rest is alike."""

    id: int
    count: int = 1
    maker: str
    first: int
    attempt: int = 1
    group: str | None = None


class Leased(_Answer, frozen=True, tag="leased"):
    """Of a claim that got something; one that got nothing is Done."""

    lease: str
    queue: str
    jobs: list[Handed]


class Touched(_Answer, frozen=True, tag="touched"):
    """Of ack, release and cancel."""

    ids: list[Span]
    lost: list[Span] = []


class FailedOne(msgspec.Struct, frozen=True, array_like=True):
    id: int
    state: State
    run_at: int | None


class FailedJobs(_Answer, frozen=True, tag="failed_jobs"):
    jobs: list[FailedOne]
    lost: list[Span] = []


class Extended(_Answer, frozen=True, tag="extended"):
    lost: list[Span] = []


class Redriven(_Answer, frozen=True, tag="redriven"):
    ids: list[Span]


class Bulk(_Answer, frozen=True, tag="bulk"):
    state: Literal["open", "committed", "aborted"]


class Seen(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job as a read shows it."""

    id: int
    queue: str
    maker: str
    number: int
    state: State
    attempt: int
    run_at: int
    finished_at: int | None = None
    key: str | None = None
    group: str | None = None
    result: str | None = None
    dead_reason: str | None = None

    @property
    def serial(self) -> Serial:
        return (self.maker, self.number)


class Shown(_Answer, frozen=True, tag="shown"):
    """Of a get: those that are known."""

    jobs: list[Seen]


class Ended(_Answer, frozen=True, tag="ended"):
    """Of a result that was read."""

    state: State
    value: str | None = None


Answer = Done | Made | Leased | Touched | FailedJobs | Extended | Redriven | Bulk | Shown | Ended


# -- lines -----------------------------------------------------------------------------------------


class _Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="is"):
    run: str  # which process, or which Recorder of it
    now: int  # wall clock, ms
    at: int  # elapsed, ms


class Opened(_Line, frozen=True, tag="opened"):
    """A store was opened by this run: whatever an earlier one lost, it lost before this line."""


class Invoked(_Line, frozen=True, tag="invoked"):
    op: int
    call: Call


class Answered(_Line, frozen=True, tag="ok"):
    op: int
    answer: Answer


class Refused(_Line, frozen=True, tag="failed"):
    """An error that says that nothing happened."""

    op: int
    code: str
    message: str = ""


class Lost(_Line, frozen=True, tag="unknown"):
    """No answer, or one that says nothing: the call may have happened, or happen yet."""

    op: int
    why: str = ""


Line = Opened | Invoked | Answered | Refused | Lost


class Log(Protocol):
    def append(self, line: Line) -> None:
        """Write the line where it survives the store and the process."""


class ListLog:
    """A log in memory, for stores in this process that outlive nothing."""

    def __init__(self) -> None:
        self.lines: list[Line] = []

    def append(self, line: Line) -> None:
        self.lines.append(line)


class FileLog:
    """Lines at the end of a file that any number of processes may share."""

    def __init__(self, path: Path | str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        self._encode = msgspec.json.Encoder().encode
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")  # the writer before us was killed in the middle of a line

    def append(self, line: Line) -> None:
        data = self._encode(line) + b"\n"
        if os.write(self._file, data) != len(data):
            raise OSError("a line of the history was cut short")

    def close(self) -> None:
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_lines(path: Path | str) -> list[Line]:
    """The lines of a log. A torn one is left out: its call was not made yet, or has no answer."""
    decode = msgspec.json.Decoder(Line).decode
    rows = Path(path).read_bytes().split(b"\n")
    return [decode(row) for row in rows if row.endswith(b"}") and _whole(row)]


def _whole(row: bytes) -> bool:
    try:
        msgspec.json.decode(row, type=msgspec.Raw)
    except msgspec.DecodeError:
        return False
    return True
