"""Checkpoints: when one is due, its rows slice by slice, and what it makes superfluous.

Each batch that goes to the disk takes a slice along, so that a checkpoint neither stalls the loop
nor delays an answer by more than a slice. Nothing older is touched before the record that makes
the new checkpoint valid is on stable storage.

One is due when opening the store would take too long: when the commands behind the last one took
so many seconds to carry out. Where checkpoints are dear it has to wait until they are a small share
of all that is done, but not for ever; and the size of the log is bounded all the same.
"""

from collections.abc import Callable
from time import monotonic, thread_time
from typing import Final

import msgspec

from penstock.kernel.checkpoint import Checkpoint
from penstock.kernel.checkpoint import Row as KernelRow
from penstock.kernel.kernel import Kernel
from penstock.model.policy import Caps
from penstock.stores.journal.base import Batch, Row
from penstock.stores.journal.points import reach
from penstock.stores.journal.settings import LOG_BYTES, RECORDS, REPLAY_S

SLICE: Final = 32 << 10  # bytes of rows that a batch takes along: about a block …
SLICES: Final = 4  # … or as many of them, until …
PACE: Final = 0.1  # … that is this share of the time since the batch before, or …
LONG_S: Final = 0.002  # … so many seconds
CLEANED: Final = 256  # objects whose older rows a batch takes away
SHARE: Final = 0.1  # of all time, that checkpoints for a quick replay may take …
GROWN: Final = 5  # … unless the replay has grown to so many times what it should be


class CheckpointFact(msgspec.Struct):
    """The last finished checkpoint, as the journal's facts tell it."""

    number: int = 0
    position: int = 0
    counts: dict[str, int] = {}
    caps: Caps | None = None
    chunk_floor: int = 0  # no chunk below it was needed any more


class Checkpointer:
    def __init__(
        self,
        kernel: Kernel,
        last: CheckpointFact,
        log_bytes: int = 0,
        records: int = 0,
        replay_s: float = 0.0,
    ) -> None:
        self._kernel = kernel
        self.last = last
        self._next = last
        # Of the log since the last checkpoint began: its size, and what carrying it out took.
        self.log_bytes = log_bytes
        self.records = records
        self.replay_s = replay_s
        self._before_s = 0.0  # that, of the log in front of one that is under way
        self.every_bytes = LOG_BYTES
        self.every_records = RECORDS
        self.every_s = REPLAY_S
        self.slice = SLICE
        self.cleaned = CLEANED
        self._cost_s = 0.0  # of the one under way, so far: processor time of both threads
        self._last_s = 0.0  # … and of the last one
        self._rested = 0.0  # when that has become a small enough share of the time
        self._fed = 0.0  # when the last batch got its slice
        self._running: Checkpoint | None = None
        self._final = False
        self._written: list[Row] = []  # of the finished checkpoint: older rows are to go
        self._truncating = False
        self._truncations = 0  # batches that truncate and are not written yet
        # Whether nobody needs the log up to a position any more, but for this checkpoint.
        self.spared: Callable[[int], bool] = lambda position: True

    def noted(self, size: int, seconds: float) -> None:
        """A record went into the log; carrying it out took that long."""
        self.log_bytes += size
        self.records += 1
        self.replay_s += seconds

    @property
    def due(self) -> bool:
        return (
            self.log_bytes >= self.every_bytes
            or self.records >= self.every_records
            or (self.replay_s >= self.every_s and not self.rest_s)
        )

    @property
    def rest_s(self) -> float:
        """How long one has to wait that is due but for its share of the time."""
        if not self.every_s <= self.replay_s < max(GROWN * self.every_s, self._last_s):
            return 0.0
        return max(self._rested - monotonic(), 0.0)

    @property
    def opening_s(self) -> float:
        """About what an opening would take to replay now."""
        return self._before_s + self.replay_s

    @property
    def working(self) -> bool:
        """Whether one is under way, or what it made superfluous is still there."""
        return bool(self._running or self._written or self._truncating or self._truncations)

    @property
    def busy(self) -> bool:
        """Whether a batch is wanted even if nobody has anything to write."""
        return self.working or self.due

    def begin(self, chunk_floor: int | None = None) -> None:
        """Begin one at the present state, unless one is under way. `chunk_floor`: below it no chunk
        is on the disk; unless said, that is so for all that nobody needs now."""
        if self.working:
            return
        self._running = self._kernel.checkpoint()
        position = self._running.position
        self._next = CheckpointFact(
            self.last.number + 1,
            position,
            self._running.counts,
            self._kernel.caps,
            min(self._kernel.chunks, default=0) if chunk_floor is None else chunk_floor,
        )
        self.log_bytes = self.records = 0
        self._before_s, self.replay_s = self.replay_s, 0.0
        self._fed = monotonic()
        reach("checkpoint begun")

    def feed(self, batch: Batch) -> None:
        """Let a batch take the next slice along."""
        if not self.busy:
            return
        began = thread_time()
        self.begin()
        self._feed(batch)
        self._cost_s += thread_time() - began

    def _feed(self, batch: Batch) -> None:
        if self._running is not None and not self._final:
            number = self._next.number
            rows = self._rows(self._running)
            if rows:
                batch.rows = [Row(r.kind, r.key, number, r.data) for r in rows]
                self._written += [
                    Row(r.kind, r.key, number, r.data and b"") for r in rows if r.older
                ]
                reach("checkpoint slice")
            elif self.spared(self._next.position):
                self._final = True
                batch.facts["checkpoint"] = msgspec.to_builtins(self._next)
                batch.sync = True
                reach("checkpoint final")
        elif self._running is None and (self._written or self._truncating):
            batch.superseded = self._written[-self.cleaned :]
            del self._written[-self.cleaned :]
            batch.truncate = self.last.position
            self._truncations += 1
            reach("truncation slice")

    def _rows(self, running: Checkpoint) -> list[KernelRow]:
        """A slice; where turns are long anyway it may be longer, so that the checkpoint is over
        while it is of use."""
        began = monotonic()
        until = began + min(PACE * (began - self._fed), LONG_S)
        rows = running.rows(self.slice)
        for _ in range(SLICES - 1):
            if not rows or not running.running or monotonic() >= until:
                break
            rows += running.rows(self.slice)
        self._fed = monotonic()
        return rows

    def written(self, batch: Batch, more: bool, seconds: float) -> None:
        """That batch is on the disk, and took its thread so long; `more`: the log can be truncated
        further."""
        if batch.rows or batch.truncate is not None:
            self._cost_s += seconds
        if self._final and "checkpoint" in batch.facts:
            assert self._running is not None
            self._running.finish()
            self.last = self._next
            self._running, self._final = None, False
            self._before_s = 0.0
            self._truncating = True
            reach("checkpoint done")
        elif batch.truncate is not None:
            self._truncations -= 1
            self._truncating = more
            if not self.working:
                self._rested = monotonic() + self._cost_s * (1 / SHARE - 1)
                self._last_s, self._cost_s = self._cost_s, 0.0

    def give_up(self) -> None:
        """Whatever the one under way gave, the next one gives."""
        if self._running is not None:
            self._running.abandon()
            self._running, self._final, self._written = None, False, []
