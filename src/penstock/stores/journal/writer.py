"""The writer: one thread that takes batches to the disk, in order, one at a time.

While it writes, the loop goes on and the next batch gathers; so one fsync serves everybody who
came meanwhile, and `fsync` costs latency, not throughput. A large batch is given to it before the
one in front of it is done, so that it never waits for the loop.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple

from penstock.stores.journal.base import Batch, Full, Journal
from penstock.stores.journal.points import reach
from penstock.stores.journal.space import Ballast


class Written(NamedTuple):
    """What became of a batch."""

    batch: Batch
    more: bool = False  # older log groups are left to truncate
    seconds: float = 0.0  # of the thread's processor time
    error: Exception | None = None  # it is not on the disk, and nothing after it will be


Done = Callable[[Written], None]

REST_S: Final = 0.05  # without anything to write, before we tidy up …
PACE_S: Final = 0.005  # … bit by bit, with so long between two: others use the disk, too
SMOOTHING: Final = 0.1  # of the newest write in the mean that `health` shows


class Writer:
    def __init__(
        self,
        journal: Journal,
        ballast: Ballast,
        done: Done,
        synced: Callable[[int], None],
        check_there: Callable[[], None],
    ) -> None:
        self._journal = journal
        self._ballast = ballast
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._batches: SimpleQueue[Batch | tuple[int, bytes] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="penstock-writer", daemon=True)
        self._head = 0  # the last position written
        self.batches = 0
        self.syncs = 0
        self._synced = synced  # told of the last safe position
        self._check_there = check_there  # raises if the store is not there any more
        self._submitted = 0
        self._untold: Written | None = None
        self._spoilt: Exception | None = None  # what was staged could not be, nor be undone
        self.write_ms = 0.0  # of a synced batch, smoothed
        self._thread.start()

    def stage(self, chunk: int, data: bytes) -> None:
        """The next batch will be synced and has this chunk. What can be done for it before it is
        cut is done while the loop takes in the rest."""
        self._batches.put((chunk, data))

    def submit(self, batch: Batch) -> None:
        self._submitted += 1
        self._batches.put(batch)

    def _run(self) -> None:
        begun = 0
        while (batch := self._next()) is not None:
            if isinstance(batch, tuple):
                self._stage(*batch)
                continue
            begun += 1
            try:
                written = self._write(batch)
            except Exception as failed:  # noqa: BLE001 -- whatever it is, the store ends of it
                written = Written(batch, error=failed)
            self._tell()  # of the one before, if nothing of this one got as far as the disk
            reach("before answer")
            self._untold = written
            if written.error is not None:
                break
            if begun == self._submitted:
                self._tell()
        self._tell()

    def _next(self) -> Batch | tuple[int, bytes] | None:
        """What is to be done. While there is nothing, files that are too large get smaller."""
        pause_s = REST_S
        while self._journal.untidy and self._spoilt is None:
            try:
                return self._batches.get(timeout=pause_s)
            except Empty:
                self._tidy()
                pause_s = PACE_S
        return self._batches.get()

    def _tidy(self) -> None:
        try:
            self._journal.tidy()
        except Exception as failed:  # noqa: BLE001 -- nobody waits for it: the next batch fails of it
            self._spoilt = failed

    def _stage(self, chunk: int, data: bytes) -> None:
        try:
            self._journal.stage(chunk, data)
        except Exception as failed:  # noqa: BLE001 -- nobody waits for it: the batch fails of it
            self._spoilt = failed

    def _tell(self) -> None:
        """The loop what became of the last batch: at once if there is no other, and otherwise when
        that one only waits for the disk. Before, both would want the interpreter."""
        written, self._untold = self._untold, None
        if written is not None:
            with suppress(RuntimeError):  # the loop is gone, and with it everybody who is to know
                self._loop.call_soon_threadsafe(self._done, written)

    def _write(self, batch: Batch) -> Written:
        if self._spoilt is not None:
            raise self._spoilt
        began, worked = time.perf_counter(), time.thread_time()
        try:
            more = self._journal.write(batch, self._tell)
        except Full:
            if not self._ballast.drop():
                raise
            more = self._journal.write(batch, self._tell)
        self._check_there()
        seconds = time.thread_time() - worked
        self.batches += 1
        if batch.group is not None:
            self._head = batch.group.last
        if batch.sync:
            self.syncs += 1
            if self._head:
                self._synced(self._head)
            took = (time.perf_counter() - began) * 1000
            self.write_ms += SMOOTHING * (took - self.write_ms)
        return Written(batch, more, seconds)

    def close(self) -> None:
        """Write what was submitted, then end."""
        self._batches.put(None)
        self._thread.join()
