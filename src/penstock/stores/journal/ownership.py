"""Who owns a path: one process, named in a lock file beside it.

The lock is the operating system's (flock) and goes with the process, however it ends; the file
tells people whose it is, and how far the store had got.

That is a witness: neither SQLite nor RocksDB can tell a write-ahead file with a damaged entry from
one that ends there, and both would quietly go back to the entry before. The position is written
down here after it has been synced, and not synced itself: after a crash it is there, after a power
cut it may be older, but it never says too much.
"""

import fcntl
import os
from pathlib import Path
from typing import Final
from weakref import WeakSet

from penstock.model.errors import Unavailable

_WITNESS_AT: Final = 21  # behind the owner's process id and its line break


class Owned(Unavailable):
    """Another process, or another store of this one, owns the path."""


def owner_of(path: Path) -> int | None:
    """The process that owns a path now, if one does."""
    try:
        handle = os.open(_lock(path), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return _said_by(handle)
    finally:
        os.close(handle)
    return None


def witnessed(path: Path) -> tuple[str, int]:
    """The store of which a position was witnessed last, and that position; ("", 0) if none was."""
    try:
        said = _lock(path).read_bytes()[_WITNESS_AT:].split()
    except FileNotFoundError:
        return "", 0
    if len(said) != 2 or not said[1].isdigit():
        return "", 0
    return said[0].decode("ascii", "replace"), int(said[1])


def _said_by(handle: int) -> int:
    """The process that a lock file names; 0 if it names none."""
    said = os.pread(handle, _WITNESS_AT, 0).strip()
    return int(said) if said.isdigit() else 0


def forget(path: Path) -> None:
    """An older copy lies there now: what was witnessed of the newer one is void."""
    if owner_of(path) is None:
        _lock(path).unlink(missing_ok=True)


def _lock(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


class Ownership:
    def __init__(self, path: Path) -> None:
        self._path = _lock(path)
        self.handle: int | None = None

    def take(self) -> None:
        """Own the path, or say who does."""
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = _said_by(handle) or "unknown"
            os.close(handle)
            raise Owned(
                f"{self._path.with_suffix('')} is owned by process {owner}", "url"
            ) from None
        os.pwrite(handle, b"%*d\n" % (_WITNESS_AT - 1, os.getpid()), 0)
        self.handle = handle
        _owned.add(self)

    def witness(self, store: str, position: int) -> None:
        """That position of this store is on stable storage."""
        if self.handle is not None:
            os.pwrite(self.handle, b"%s %020d\n" % (store.encode(), position), _WITNESS_AT)

    def leave(self) -> None:
        """The path is free at once, also if a child that was just forked still shares the lock."""
        if self.handle is not None:
            fcntl.flock(self.handle, fcntl.LOCK_UN)
            self.let_go()

    def let_go(self) -> None:
        """Of the lock, but not for others who share it."""
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None


_owned: "WeakSet[Ownership]" = WeakSet()


def _leave_to_the_parent() -> None:
    """A forked child shares the lock, and would keep it when its parent has ended."""
    for ownership in list(_owned):
        ownership.let_go()


os.register_at_fork(after_in_child=_leave_to_the_parent)
