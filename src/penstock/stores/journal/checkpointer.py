"""Checkpoints: when one is due, its rows slice by slice, and what it makes superfluous.

Each batch that goes to the disk takes a slice along, so that a checkpoint neither stalls the loop
nor delays an answer by more than a slice. Nothing older is touched before the record that makes
the new checkpoint valid is on stable storage.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from penstock.kernel.checkpoint import Checkpoint
from penstock.kernel.kernel import Kernel
from penstock.stores.journal.base import Batch, Row
from penstock.stores.journal.points import reach
from penstock.stores.journal.recovery import CheckpointFact
from penstock.stores.journal.settings import LOG_BYTES, RECORDS

SLICE: Final = 32 << 10  # bytes of rows that a batch takes along: about a block
CLEANED: Final = 256  # objects whose older rows a batch takes away


class Checkpointer:
    def __init__(self, kernel: Kernel, last: CheckpointFact, log_bytes: int, records: int) -> None:
        self._kernel = kernel
        self.last = last
        self._next = last
        self.log_bytes = log_bytes
        self.records = records
        self.every_bytes = LOG_BYTES
        self.every_records = RECORDS
        self._running: Checkpoint | None = None
        self._final = False
        self._written: list[Row] = []  # of the finished checkpoint: older rows are to go
        self._truncating = False
        # Whether nobody needs the log up to a position any more, but for this checkpoint.
        self.spared: Callable[[int], bool] = lambda position: True

    def noted(self, size: int) -> None:
        """A record went into the log."""
        self.log_bytes += size
        self.records += 1

    @property
    def due(self) -> bool:
        return self.log_bytes >= self.every_bytes or self.records >= self.every_records

    @property
    def busy(self) -> bool:
        """Whether a batch is wanted even if nobody has anything to write."""
        return bool(self._running or self._written or self._truncating) or self.due

    def begin(self) -> None:
        """Begin one at the present state, unless one is under way."""
        if self._running is not None or self._written or self._truncating:
            return
        self._running = self._kernel.checkpoint()
        position = self._running.position
        self._next = CheckpointFact(
            self.last.number + 1,
            position,
            self._running.counts,
            self._kernel.caps,
            min(self._kernel.chunks, default=0),
        )
        self.log_bytes = self.records = 0
        reach("checkpoint begun")

    def feed(self, batch: Batch) -> None:
        """Let a batch take the next slice along."""
        if self._running is None and self.due:
            self.begin()
        if self._running is not None and not self._final:
            number = self._next.number
            rows = [Row(r.kind, r.key, number, r.data) for r in self._running.rows(SLICE)]
            if rows:
                batch.rows = rows
                self._written += [Row(r.kind, r.key, number, r.data and b"") for r in rows]
                reach("checkpoint slice")
            elif self.spared(self._next.position):
                self._final = True
                batch.facts["checkpoint"] = msgspec.to_builtins(self._next)
                batch.sync = True
                reach("checkpoint final")
        elif self._running is None and (self._written or self._truncating):
            batch.superseded, self._written = self._written[:CLEANED], self._written[CLEANED:]
            batch.truncate = self.last.position
            reach("truncation slice")

    def written(self, batch: Batch, more: bool) -> None:
        """That batch is on the disk; `more`: the log can be truncated further."""
        if self._final and "checkpoint" in batch.facts:
            assert self._running is not None
            self._running.finish()
            self.last = self._next
            self._running, self._final = None, False
            self._truncating = True
            reach("checkpoint done")
        elif batch.truncate is not None:
            self._truncating = more
