"""Events between the store that tells them and the thread that writes them, as lines, bounded.

The store puts in, the thread takes out; both under a lock that is held for moments. What does not
fit is dropped and becomes a gap: a line in front of the next event that fits.
"""

import threading
import time
from typing import Final, NamedTuple

from penstock.events.segment import Missing, encode, encode_gap
from penstock.model.event import Event

BULK: Final = 64  # events that are encoded together: alone, one costs twice as much


class Lines(NamedTuple):
    """What was taken out."""

    data: bytes
    first: int  # position of the first event
    last: int


class Buffer:
    def __init__(self, store: str, limit: int) -> None:
        self._store = store
        self._limit = limit
        self._lock = threading.Lock()
        self._events: list[Event] = []  # not encoded yet
        self._chunks: list[bytes] = []  # of lines, before those
        self._first = self._last = 0
        self._gap: tuple[int, Missing] | None = None  # behind all of them
        self._awaited = True  # nothing came since the last time it was emptied
        self.size = 0  # bytes of lines, those included that were taken and are not written yet
        self.dropped = 0  # events
        self.room = threading.Event()
        self.room.set()

    def put(self, events: list[Event]) -> bool:
        """Take in the events of one command; True for the first ones since it was emptied."""
        position = events[-1].position
        with self._lock:
            if self.size >= self._limit:
                self._drop(position, len(events))
            else:
                if self._gap is not None:
                    self._close_gap()
                gathered = self._events
                if not gathered and not self._chunks:
                    self._first = position
                self._last = position
                gathered += events
                if len(gathered) >= BULK or events[-1].data:
                    self._encode()
            awaited, self._awaited = self._awaited, False
            return awaited

    def _encode(self) -> None:
        if self._events:
            self._add(encode(self._store, self._events))
            self._events = []

    def _add(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self.size += len(chunk)
        if self.size >= self._limit:
            self.room.clear()

    def _drop(self, position: int, events: int) -> None:
        first, before = self._gap or (position, Missing(position))
        self._gap = first, Missing(position, before.events + events)
        self.dropped += events

    def _close_gap(self) -> None:
        assert self._gap is not None
        first, missing = self._gap
        self._gap = None
        self._encode()
        if not self._chunks:
            self._first = first
        self._last = missing.through
        self._add(self._gap_line(first, missing, "dropped"))

    def _gap_line(self, first: int, missing: Missing, reason: str) -> bytes:
        return encode_gap(self._store, first, missing, reason, time.time_ns() // 1_000_000)

    def put_gap(self, first: int, last: int, reason: str) -> None:
        """In front of all: these events are not there, or perhaps not."""
        with self._lock:
            if not self._events and not self._chunks:
                self._first = self._last = last
            self._chunks.insert(0, self._gap_line(first, Missing(last), reason))
            self.size += len(self._chunks[0])
            self._awaited = False

    def take(self) -> Lines | None:
        """Empty it; None: there is nothing."""
        with self._lock:
            if self._gap is not None:
                self._close_gap()
            self._awaited = True
            if not self._events and not self._chunks:
                return None
            self._encode()
            chunks, self._chunks = self._chunks, []
            return Lines(b"".join(chunks), self._first, self._last)

    def written(self, lines: Lines) -> None:
        """These need no room any more."""
        with self._lock:
            self.size -= len(lines.data)
        self.room.set()
