"""Blocks: stretches of 4,096 consecutive ids of one queue, held in packed columns.

What jobs share costs a byte or less each: a state code, an index into a small table of options,
run-length columns for times and payload places. What only some jobs have lives in `sides`.
Columns are append-only: a change to a job's own facts goes into its side, so that a slice taken
at a claim stays true.

Ids are 1-based: id = number * 4096 + offset + 1.
"""

from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.kernel.codes import ACTIVE, CLASSES, COMPLETED, FIRST_CLASS, LATE, LIFO
from penstock.model.job import Codec, JobError, JobOptions, KeyClaim, LogLine
from penstock.model.lifecycle import DeadReason

if TYPE_CHECKING:
    from penstock.kernel.leases import HeldRun
    from penstock.kernel.queue import Queue

SHIFT: Final = 12
SIZE: Final = 1 << SHIFT
MASK: Final = SIZE - 1

Place = tuple[int, int, int]  # chunk, begin, end: where a payload or a result lies

UNFILED: Final = -1  # EndRun.turn of what is kept for a dependant alone
RELATIVE: Final = -1  # Side.said_run_at of a job pushed with a relative delay


class Version(msgspec.Struct, kw_only=True):
    """The new version of a job that was replaced while active."""

    options: JobOptions
    payload: Place
    digest: bytes
    said_run_at: int | None
    run_at: int | None  # None: at once
    group: str | None = None
    headers: dict[str, str] | None = None
    depends_on: tuple[int, ...] = ()


class Side(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """What one job has and its neighbours do not.

    There may be millions, none leads back to itself: the collector need not go through them.
    """

    # said by its producer
    keys: tuple[KeyClaim, ...] = ()
    digest: bytes = b""  # of codec and payload; keyed jobs only
    said_run_at: int | None = None  # None: none said; RELATIVE: a delay
    group: str | None = None
    headers: dict[str, str] | None = None
    depends_on: tuple[int, ...] = ()

    # overrides of the block's columns
    options: JobOptions | None = None
    payload: Place | None = None
    created_at: int | None = None
    run_at: int | None = None
    ready_at: int | None = None
    priority: int | None = None

    # its life
    attempts: int = 0  # counted so far, the running one included
    failures: int = 0  # since the push, replace or redrive: what the backoff counts
    claimed: bool = False  # was ever claimed: its ttl is over, its `started` key free
    owns_slot: bool = False  # a started job in backoff: holds its group's slot
    no_ttl: bool = False  # redriven
    errors: tuple[JobError, ...] = ()  # the last 10
    dead_reason: DeadReason | None = None
    progress: int | None = None
    progress_message: str | None = None
    logs: list[LogLine] | None = None  # the last 100
    result: Place | None = None
    result_codec: Codec | None = None
    next: Version | None = None  # replaced while active
    started_at: int | None = None  # of the last attempt, once it is over
    worker: str | None = None

    # flows
    unmet: tuple[int, ...] = ()  # dependencies that it still waits for
    dependants: list[int] | None = None
    pins: int = 0  # live dependants: kept beyond retention while there are any
    overdue: bool = False  # retention is over; forgotten when the last pin goes
    cron: str | None = None


class Entry:
    """A lane's place in a block: ready jobs of one code from the cursor on."""

    __slots__ = ("block", "code", "cursor")

    def __init__(self, block: "Block", code: int, cursor: int) -> None:
        self.block = block
        self.code = code
        self.cursor = cursor


class EndRun(msgspec.Struct, gc=False, eq=False):
    """Jobs of one block that ended together: what retention counts and look-ups read."""

    block: "Block"
    lo: int
    code: int
    at: int
    started_at: int  # 0: never claimed
    worker: str | None
    turn: int = 0  # among those of its queue that ended at one instant; UNFILED: in no line
    count: int = 1
    mask: bytes | None = None  # None: every offset from lo on
    deadline: int | None = None  # of an explicit retain; None: by the queue

    @property
    def hi(self) -> int:
        return self.lo + (self.count if self.mask is None else len(self.mask))


class Block:
    __slots__ = (
        "base",
        "classes",
        "code_of",
        "codes",
        "commits",
        "created_ms",
        "created_pos",
        "due_ms",
        "due_pos",
        "ended",
        "ends",
        "era",
        "held",
        "holders",
        "last_created",
        "last_index",
        "last_options",
        "live",
        "number",
        "option_index",
        "options",
        "opts",
        "pay_begin",
        "pay_chunk",
        "pay_origin",
        "pay_pos",
        "queue",
        "retained",
        "sides",
        "tail",
        "tail_chunk",
        "timed",
    )

    def __init__(self, number: int, queue: "Queue") -> None:
        self.number = number
        self.base = number * SIZE + 1
        self.queue = queue
        self.era = queue.kernel.era  # of its last change; see `touch`
        self.codes = bytearray()
        self.last_created = -1  # the newest entry of the created column
        self.tail_chunk = 0  # of the last single push, if nothing came behind it; 0: look it up
        self.tail = 0  # where its payload ends in that chunk
        self.opts: bytearray | array[int] = bytearray()  # array("H") past 256 option sets
        self.options: list[JobOptions] = []
        self.option_index: dict[JobOptions, int] = {}
        self.last_options: JobOptions | None = None
        self.last_index = 0
        self.classes: dict[int, int] = {}  # priority → in-order ready code
        self.code_of: list[int] = []  # by option: the ready code of a job pushed ready
        self.created_pos = array("H")
        self.created_ms = array("q")
        self.due_pos = array("H")
        # 0: ready when created; positive: run_at; negative: no run_at was said, but the job is
        # ready only at that instant, because the wall clock had gone back.
        self.due_ms = array("q")
        self.ends = array("I")  # payload ends, relative to the origin of their record
        self.pay_pos = array("H")
        self.pay_chunk = array("q")
        self.pay_origin = array("I")
        self.pay_begin = array("I")
        # (lo, hi, committed at, due): held jobs published later; they override the columns above.
        self.commits: list[tuple[int, int, int, int]] = []
        self.sides: dict[int, Side] = {}
        self.live = 0  # jobs not gone
        self.ended: dict[int, EndRun] = {}  # by their lowest offset
        self.holders: dict[int, HeldRun] = {}  # active jobs claimed one by one
        self.held: dict[HeldRun, None] = {}  # active jobs claimed in runs
        self.timed = False  # some options here name a timeout or a lease
        self.retained = False  # some options here name their own retention

    def touch(self) -> None:
        """Comes before any change to what its record says; what hot paths do inline.

        A block that changes takes its queue along.
        """
        kernel = self.queue.kernel
        if self.era != kernel.era:
            self.queue.touch()
            kernel.changes.blocks.touch(self.number)
            self.era = kernel.era

    def option(self, options: JobOptions) -> int:
        """The index of these options in this block's table."""
        if options is self.last_options:
            return self.last_index
        index = self.option_index.get(options)
        if index is None:
            index = len(self.options)
            self.option_index[options] = index
            self.options.append(options)
            self.code_of.append(self._ready_code(options))
            if options.timeout_ms is not None or options.lease_ms is not None:
                self.timed = True
            if options.retain_ms is not None:
                self.retained = True
            if index == 256:
                self.opts = array("H", list(self.opts))  # from bytes, it would take raw memory
        self.last_options = options
        self.last_index = index
        return index

    def _ready_code(self, options: JobOptions) -> int:
        if options.lifo:
            return LIFO
        code = self.classes.get(options.priority)
        if code is None:
            if len(self.classes) == CLASSES:
                return LATE  # more priorities than classes: found through the lane's late sources
            code = self.classes[options.priority] = FIRST_CLASS + len(self.classes)
            self.queue.lane(options.priority).entries.append(Entry(self, code, len(self.codes)))
        return code

    # -- columns -------------------------------------------------------------------------------

    def note_created(self, position: int, at: int) -> None:
        if not self.created_ms or self.created_ms[-1] != at:
            self.created_pos.append(position)
            self.created_ms.append(at)
            self.last_created = at

    def note_due(self, position: int, at: int) -> None:
        """`at` = 0: as created. Blocks that never see a delay keep no entry."""
        if (self.due_ms[-1] if self.due_ms else 0) != at:
            self.due_pos.append(position)
            self.due_ms.append(at)

    def note_last_due(self, position: int, at: int) -> bool:
        """The newest job of the block is due otherwise than was noted; False if it is not that."""
        if position != len(self.codes) - 1:
            return False
        if self.due_pos and self.due_pos[-1] == position:
            self.due_ms[-1] = at
        else:
            self.note_due(position, at)
        return True

    def note_payload(self, position: int, chunk: int, origin: int, begin: int) -> None:
        """From `position` on, ends count from `origin` in that chunk; the first begins at begin."""
        self.tail_chunk = 0
        self.pay_pos.append(position)
        self.pay_begin.append(begin)
        self.pay_chunk.append(chunk)
        self.pay_origin.append(origin)

    def columns(self) -> "list[array[int]]":
        """All packed columns beside the codes and the options, in the order of their records."""
        return [
            self.created_pos,
            self.created_ms,
            self.due_pos,
            self.due_ms,
            self.ends,
            self.pay_pos,
            self.pay_chunk,
            self.pay_origin,
            self.pay_begin,
        ]

    # -- facts of one job ------------------------------------------------------------------------

    def created_at(self, offset: int) -> int:
        side = self.sides.get(offset)
        if side is not None and side.created_at is not None:
            return side.created_at
        if self.commits:
            for lo, hi, at, _ in self.commits:
                if lo <= offset < hi:
                    return at
        return self.created_ms[bisect_right(self.created_pos, offset) - 1]

    def due_at(self, offset: int) -> int:
        """run_at of a scheduled job, the ready instant of a ready one."""
        side = self.sides.get(offset)
        if side is not None and side.ready_at is not None:
            return side.ready_at
        return self.column_due(offset)

    def said_due(self, offset: int) -> int:
        """What the push or the commit said of when the job is due; see `due_ms`."""
        if self.commits:
            for lo, hi, _, due in self.commits:
                if lo <= offset < hi:
                    return due
        if self.due_pos:
            index = bisect_right(self.due_pos, offset) - 1
            if index >= 0:
                return self.due_ms[index]
        return 0

    def column_due(self, offset: int) -> int:
        """As `due_at`, but as it was at the push or the commit."""
        return abs(self.said_due(offset)) or self.created_at(offset)

    def run_at(self, offset: int) -> int:
        """Not before this instant: as said, or when a retry is due; else when it was pushed."""
        side = self.sides.get(offset)
        if side is not None:
            if side.run_at is not None:
                return side.run_at
            if side.created_at is not None:  # it began anew: the column says what was before
                return side.created_at
        due = self.said_due(offset)
        return due if due > 0 else self.created_at(offset)

    def same_ready_until(self, offset: int) -> int:
        """The end of the stretch from `offset` on whose columns give one ready instant."""
        until = SIZE
        for positions in (self.created_pos, self.due_pos):
            index = bisect_right(positions, offset)
            if index < len(positions):
                until = min(until, positions[index])
        return until

    def options_of(self, offset: int) -> JobOptions:
        side = self.sides.get(offset)
        if side is not None and side.options is not None:
            return side.options
        return self.options[self.opts[offset]]

    def priority_of(self, offset: int) -> int:
        side = self.sides.get(offset)
        if side is not None:
            if side.priority is not None:
                return side.priority
            if side.options is not None:
                return side.options.priority
        return self.options[self.opts[offset]].priority

    def place(self, offset: int) -> Place:
        side = self.sides.get(offset)
        if side is not None and side.payload is not None:
            return side.payload
        return self.pushed_place(offset)

    def pushed_place(self, offset: int) -> Place:
        """Where the payload lies that the job was first pushed with."""
        record = bisect_right(self.pay_pos, offset) - 1
        origin = self.pay_origin[record]
        first = offset == self.pay_pos[record]
        begin = self.pay_begin[record] if first else self.ends[offset - 1]
        return self.pay_chunk[record], origin + begin, origin + self.ends[offset]

    def side(self, offset: int) -> Side:
        """The job's own facts, to be changed; a new record begins with what its state said."""
        self.touch()
        side = self.sides.get(offset)
        if side is None:
            side = self.sides[offset] = Side()
            if self.codes[offset] in (ACTIVE, COMPLETED):
                side.attempts, side.claimed = 1, True
        return side

    def has_sides(self, lo: int, hi: int) -> bool:
        sides = self.sides
        if not sides:
            return False
        if hi - lo == 1:
            return lo in sides
        return not sides.keys().isdisjoint(range(lo, hi))

    def holder_of(self, offset: int) -> "HeldRun | None":
        """The run of the lease that holds an active job."""
        run = self.holders.get(offset)
        if run is not None:
            return run
        for run in self.held:
            if run.holds(offset):
                return run
        return None

    def end_of(self, offset: int) -> EndRun | None:
        """How and when an ended job ended."""
        run = self.ended.get(offset)
        if run is not None:
            return run
        for run in self.ended.values():
            if run.lo <= offset < run.hi and (run.mask is None or run.mask[offset - run.lo]):
                return run
        return None
