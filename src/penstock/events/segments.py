"""The segment that grows: appended to, synced, and sealed by its size or its age.

All of it blocks, and belongs to one thread. Any error leaves the file as it is; the next append
seals what is whole of it and begins another.
"""

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final
from weakref import WeakSet

import msgspec

from penstock.events.recovery import last_of, locked, recover, seal, sync_directory
from penstock.events.segment import Place, open_in, sealed_in
from penstock.model.errors import Unavailable
from penstock.model.event import Mark

SEAL_BYTES: Final = 64 << 20
SEAL_S: Final = 10.0
KEEP_S: Final = 30 * 86_400.0
RESERVE: Final = 128 << 20  # free space that is left to the store, which needs half of it


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """When a segment is sealed, and how long it stays. 0: no such bound."""

    seal_bytes: int = SEAL_BYTES
    seal_s: float = SEAL_S  # after its first line
    keep_s: float = KEEP_S  # after it was sealed
    keep_bytes: int = 0  # of all sealed segments of the directory
    reserve_bytes: int = RESERVE  # free space below which nothing is written


class Segments:
    def __init__(
        self,
        directory: Path,
        store: str,
        rules: Rules,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Recover what is there, of this store and of others that are dead."""
        self.directory = directory
        self._store = store
        self._rules = rules
        self._clock = clock
        self._wall = wall
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(0o750, exist_ok=True)  # its group may read it: a pipeline of another user
        recover(directory, store)
        self.mark: Mark
        self.mark, self._sequence = last_of(directory, store)
        self.path: Path | None = None  # of the one that grows
        self._place = Place(store, 0)
        self._handle = -1
        self._size = 0
        self._since = 0.0
        self._named = False  # its name is on stable storage
        self.left = False  # an error has left one behind
        self.sealed = 0  # how many, since we began
        _growing.add(self)

    def append(self, data: bytes, first: int) -> None:
        """Write lines, of which the first is of that position; they are not synced yet."""
        self._check_room(len(data))
        if self._handle < 0:
            self._begin(first)
        try:
            while data:
                written = os.write(self._handle, data)
                self._size += written
                data = data[written:]
        except OSError:
            self._leave()
            raise

    def _check_room(self, size: int) -> None:
        if not self._rules.reserve_bytes:
            return
        room = os.statvfs(self.directory)
        if room.f_bavail * room.f_frsize < self._rules.reserve_bytes + size:
            raise OSError(f"less than {self._rules.reserve_bytes} bytes are free")

    def _begin(self, first: int) -> None:
        if self.left:
            self._seal_left()
        # By position, so that a name comes only once even if all the files before are gone.
        sequence = max(self._sequence + 1, first)
        place = Place(self._store, sequence)
        path = self.directory / place.open
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        if not locked(handle):
            os.close(handle)
            raise OSError(f"{path} is locked")
        self._place, self._sequence, self.path, self._handle = place, sequence, path, handle
        self._size, self._since, self._named = 0, self._clock(), False

    def _seal_left(self) -> None:
        try:
            recover(self.directory, self._store)
        except Unavailable as error:
            raise OSError(str(error)) from error
        self.left = any(place.store == self._store for place, _ in open_in(self.directory))

    def _leave(self) -> None:
        self._close()
        self.left = True

    def _close(self) -> None:
        """The file is free at once, also if a child that was just forked still shares the lock."""
        fcntl.flock(self._handle, fcntl.LOCK_UN)
        self.let_go()

    def sync(self) -> None:
        """Everything appended is on stable storage."""
        if self._handle < 0:
            return
        try:
            os.fsync(self._handle)
            if not self._named:
                sync_directory(self.directory)
                self._named = True
        except OSError:
            self._leave()
            raise

    def let_go(self) -> None:
        """Of the file, as it is, but not of the lock for others who share it."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle, self.path = -1, None

    @property
    def due_s(self) -> float | None:
        """How long until the segment is to be sealed; None: there is none."""
        if self._handle < 0:
            return None
        if self._size >= self._rules.seal_bytes:
            return 0.0
        return max(self._since + self._rules.seal_s - self._clock(), 0.0)

    def seal(self) -> None:
        """The segment is complete, and others may read it."""
        if self._handle < 0:
            return
        assert self.path is not None
        try:
            seal(self._handle, self.path, self.directory / self._place.sealed, self._size)
        except OSError:
            self._leave()
            raise
        self._close()
        self.sealed += 1
        self._forget()

    def _forget(self) -> None:
        """Delete segments that are older or more than the rules say, the oldest first.

        The newest of this store stays: it says where to go on after a crash.
        """
        rules = self._rules
        if not rules.keep_s and not rules.keep_bytes:
            return
        newest = self.directory / self._place.sealed
        found = []
        for _, path in sealed_in(self.directory):
            try:
                known = path.stat()
            except FileNotFoundError:  # somebody else was faster
                continue
            found.append((known.st_mtime, known.st_size, path))
        found.sort()
        total = sum(size for _, size, _ in found)
        for at, size, path in found:
            old = rules.keep_s and at < self._wall() - rules.keep_s
            many = rules.keep_bytes and total > rules.keep_bytes
            if not old and not many:
                break
            if path != newest:
                path.unlink(missing_ok=True)
                total -= size


_growing: "WeakSet[Segments]" = WeakSet()


def _leave_to_the_parent() -> None:
    """A forked child shares the lock, and would keep it when its parent has ended."""
    for segments in list(_growing):
        segments.let_go()


os.register_at_fork(after_in_child=_leave_to_the_parent)
