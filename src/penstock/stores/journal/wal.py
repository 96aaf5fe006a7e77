"""Moving SQLite's WAL into its file on a thread of its own, while the writer goes on.

SQLite does it within a commit, whenever the WAL has grown enough: everybody in that batch waits
for all that the batches before it wrote. What is moved here nobody waits for. But a WAL is only
begun anew when every page of it has been moved, and one that is written to all the time never gets
there, so the writer moves the rest itself once the WAL is long enough and little is left. SQLite
syncs the file only then; so that this is short too, we sync it after every pass.

A sync that fails here is as final as one of the writer's: no batch is said to be safe after it.
"""

import os
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import apsw

EAGER: Final = 4  # towards the end of a WAL a pass is worth its while at so much less
SLOWED_S: Final = 0.05  # a batch, while the moving gets through what a reader has held up
SHORT: Final = 2  # … and what is left then is short, for the writer to wait for


class WalMover:
    """Everything but the moving itself is called by the writer's thread."""

    def __init__(self, writer: apsw.Connection, path: Path, move_at: int, finish_at: int) -> None:
        self._writer = writer
        self._move_at = move_at  # pages not yet moved that are worth a pass
        self._finish_at = finish_at  # pages of a WAL that is to be begun anew
        self._pages = 0  # of the WAL, after the last commit
        self._round = 0  # how often it was begun anew
        self._done = (0, 0)  # the round in which a pass was asked for, and the pages moved by then
        self._error: Exception | None = None  # what moving failed of
        self._idle = threading.Event()
        self._idle.set()
        self._asked: SimpleQueue[int | None] = SimpleQueue()
        self._db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        self._db.pragma("wal_autocheckpoint", 0)
        self._db.pragma("synchronous", "full")
        self._file = os.open(path, os.O_RDWR)
        self._thread = threading.Thread(target=self._run, name="penstock-wal", daemon=True)
        self._thread.start()
        writer.set_wal_hook(self._committed)  # instead of SQLite's own

    def _committed(self, connection: apsw.Connection, name: str, pages: int) -> int:
        """A commit left the WAL with so many pages."""
        if pages < self._pages:
            self._round += 1
        self._pages = pages
        worth = self._move_at if pages < self._finish_at else self._move_at // EAGER
        if pages - self._moved >= worth:
            self.move()
        return apsw.SQLITE_OK

    def move(self) -> None:
        """Have a pass made, if none is."""
        if self._pages > self._moved and self._idle.is_set():
            self._idle.clear()
            self._asked.put(self._round)

    def before_a_batch(self) -> None:
        """Between two transactions: move the rest, if it is time to."""
        left = self._pages - self._moved
        if self._pages >= self._finish_at and left:
            short = left <= self._move_at // SHORT and self._idle.is_set()
            if short:
                self._move(self._writer, self._round)
            elif self._pages >= 2 * self._finish_at:
                self._catch_up(left)
        self.check()

    def _catch_up(self, left: int) -> None:
        """The rest is not getting shorter: we write faster than it is moved."""
        if left <= self._finish_at:
            self._idle.wait()
            self._move(self._writer, self._round)
        else:  # somebody has read an old state for long: to move it all would take seconds
            self._idle.wait(SLOWED_S)

    def check(self) -> None:
        """Raise what moving failed of."""
        if self._error is not None:
            raise self._error

    @property
    def _moved(self) -> int:
        """Pages of this WAL that are known to be in the file. What a pass says that was overtaken
        by a new round may be of either, and counts for nothing."""
        asked, pages = self._done
        return pages if asked == self._round else 0

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            try:
                self._move(self._db, asked)
                os.fdatasync(self._file)
            except Exception as error:  # noqa: BLE001 -- the writer ends of it
                self._error = error
            finally:
                self._idle.set()

    def _move(self, connection: apsw.Connection, asked: int) -> None:
        try:
            moved = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)[1]
            self._done = (asked, moved)
        except (apsw.FullError, apsw.BusyError):
            pass  # all of it is still in the WAL: another time
        except apsw.Error as error:
            self._error = error

    def close(self) -> None:
        """What has not been moved stays in the WAL for whoever closes last."""
        self._writer.set_wal_hook(None)  # it would keep the connection's owner alive
        self._asked.put(None)
        self._thread.join()
        self._db.close()

    def let_go(self) -> None:
        """When no connection is open any more: to close a file releases all locks on it that the
        process has, SQLite's too."""
        os.close(self._file)
