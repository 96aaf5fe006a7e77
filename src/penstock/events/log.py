"""The event log of a store: encoded in the store's turn, written by a thread of its own.

A store never waits for it and never fails with it. Lines gather in a bounded buffer while the disk
is busy, full or broken; what does not fit is dropped, counted, said in the log and in `health`, and
told by a line of its own in front of the next one that is written.

After an error a batch is written again from its beginning, so a line may be there twice.
"""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final

from penstock.events.buffer import Buffer, Lines
from penstock.events.segments import Rules, Segments
from penstock.model.errors import Unavailable
from penstock.model.event import Event, Mark

log: Final = logging.getLogger("penstock.events")

GATHER_S: Final = 0.05  # how long lines gather before they are written
RETRY_S: Final = 1.0  # after an error
BUFFER_BYTES: Final = 64 << 20

Done = Callable[[bool], None]


class EventLog:
    """An `EventKeeper` that writes segments into a directory; several stores may share one."""

    def __init__(
        self,
        directory: str | Path,
        rules: Rules | None = None,
        *,
        buffer_bytes: int = BUFFER_BYTES,
        retry_s: float = RETRY_S,
    ) -> None:
        self.directory = Path(directory).resolve()
        self._rules = rules or Rules()
        self._buffer_bytes = buffer_bytes
        self._retry_s = retry_s
        self._writer: _Writer | None = None
        self._buffer = Buffer("", 0)
        self._ring: Callable[[], None] = _nobody

    def begin(self, store: str) -> Mark:
        if self._writer is not None:
            raise Unavailable(f"{self.directory} is the event log of another store", "events")
        try:
            segments = Segments(self.directory, store, self._rules)
        except OSError as error:
            raise Unavailable(
                f"the events cannot be kept in {self.directory}: {error.strerror}", "events"
            ) from error
        self._buffer = Buffer(store, self._buffer_bytes)
        self._writer = _Writer(self._buffer, segments, self._retry_s)
        self._ring = self._writer.ring
        return segments.mark

    def write(self, events: list[Event]) -> None:
        if self._buffer.put(events):
            self._ring()

    def missed(self, first: int, last: int) -> None:
        self._buffer.put_gap(first, last, "off")
        self._ring()

    def make_room(self) -> None:
        if self._writer is not None and self._writer.failed is None:
            self._buffer.room.wait()

    def sync(self, done: Done) -> None:
        if self._writer is None:
            done(False)
        else:
            self._writer.calls.put(done)

    def health(self) -> dict[str, Any]:
        writer = self._writer
        return {
            "events_position": 0 if writer is None else writer.upto,
            "events_buffered": self._buffer.size,
            "events_dropped": self._buffer.dropped,
            "events_failed": None if writer is None else writer.failed,
        }

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            self._ring = _nobody


def event_log(directory: str, *, seal_s: float, keep_s: float, keep_bytes: int) -> EventLog | None:
    """What settings say: none where no directory is named."""
    rules = Rules(seal_s=seal_s, keep_s=keep_s, keep_bytes=keep_bytes)
    return EventLog(directory, rules) if directory else None


def _nobody() -> None:
    """Rings where nobody writes: what comes now comes after the end of a store."""


class _Writer:
    """The thread between `begin` and `close`."""

    def __init__(self, buffer: Buffer, segments: Segments, retry_s: float) -> None:
        self._buffer = buffer
        self._segments = segments
        self._retry_s = retry_s
        self._lines: Lines | None = None  # taken, and not written yet
        self._waiting: list[Done] = []  # for everything to be synced
        self._dropped = 0  # events that the log has spoken of
        self._settled = 0  # events that were dropped when all was last well
        self.upto = segments.mark.position  # of what is written …
        self._sure = self.upto  # … and of what is synced, or told to be missing
        self.failed: str | None = None  # why nothing can be written now
        self.calls: SimpleQueue[Done | None] = SimpleQueue()  # None: something came
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="penstock-events", daemon=True)
        self._thread.start()

    def ring(self) -> None:
        self.calls.put(None)

    def close(self) -> None:
        """Write and seal what came, then end."""
        self._closing = True
        self.ring()
        self._thread.join()

    def _run(self) -> None:
        closing = False
        while not closing:
            self._wait()
            closing = self._closing  # everything that counts came before it was said
            try:
                self._work(closing)
            except OSError as error:
                self._fail(error)
            self._tell_dropped()
        self._answer(False)
        left = 0 if self._lines is None else len(self._lines.data)
        if left:
            log.error("%d bytes of events are not written: %s", left, self.failed)
        self._segments.let_go()

    def _wait(self) -> None:
        """For something to do: lines gather, then as many as there are go together."""
        patience = self._segments.due_s if self.failed is None else self._retry_s
        try:
            call = self.calls.get(timeout=patience)
            if call is None and not self._closing and self.failed is None:
                call = self.calls.get(timeout=GATHER_S)
            while True:
                if call is not None:
                    self._waiting.append(call)
                call = self.calls.get_nowait()
        except Empty:
            pass

    def _work(self, closing: bool) -> None:
        while (lines := self._lines or self._buffer.take()) is not None:
            self._lines = lines
            self._segments.append(lines.data, lines.first)
            self.upto = max(self.upto, lines.last)
            self._lines = None
            self._buffer.written(lines)
        if self._waiting:
            self._segments.sync()
            self._sure = self.upto
            self._answer(True)
        due_s = self._segments.due_s
        if closing or (due_s is not None and due_s <= 0):
            self._segments.seal()
            self._sure = self.upto
        if self.failed is not None:
            self.failed = None
            log.warning("events are written again, to %s", self._segments.directory)
        self._settled = self._buffer.dropped

    def _fail(self, error: OSError) -> None:
        """Lines wait for a better time; the store goes on."""
        if self.failed is None:
            log.error("events cannot be written to %s: %s", self._segments.directory, error)
        self.failed = str(error)
        if self._segments.left and self.upto > self._sure:
            # The system may have let go of what it could not sync.
            self._buffer.put_gap(self._sure + 1, self.upto, "failed")
            self._sure = self.upto
        self._buffer.room.set()
        if self._buffer.dropped > self._settled:
            self._answer(False)

    def _tell_dropped(self) -> None:
        dropped = self._buffer.dropped
        if dropped != self._dropped:
            log.error("%d events were dropped: the buffer was full", dropped - self._dropped)
            self._dropped = dropped

    def _answer(self, synced: bool) -> None:
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done(synced)
