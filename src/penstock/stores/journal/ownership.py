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
from penstock.stores.journal.base import JournalError
from penstock.stores.journal.there import why_not_made

_WITNESS_AT: Final = 21  # behind the owner's process id and its line break


class Owned(Unavailable):
    """Another process, or another store of this one, owns the path."""

    def __init__(self, message: str, owner: int = 0) -> None:
        super().__init__(message, "url")
        self.owner = owner  # 0: not known


def owner_of(path: Path) -> int | None:
    """The process that owns a path now, if one does; 0 if we cannot know which."""
    try:
        handle = os.open(_lock(path), os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        return 0
    except OSError:  # it is not there, and cannot be
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
    except OSError:
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
        self.path = _lock(path).absolute()
        self.pid = 0  # of the process that took it
        self.handle: int | None = None
        self._store: os.stat_result | None = None  # the file or directory that is the store

    def take(self) -> None:
        """Own the path, or say who does."""
        path = self.path.with_suffix("")
        if self.path in _inherited:
            raise Owned(
                f"{path} was open in process {_inherited[self.path]} when this one was forked"
                " from it, and can be opened by any other but this",
                _inherited[self.path],
            )
        handle = self._locked()
        while not self._is_there(handle):  # deleted by somebody before it was locked
            os.close(handle)
            handle = self._locked()
        self.pid = os.getpid()
        os.pwrite(handle, b"%*d\n" % (_WITNESS_AT - 1, self.pid), 0)
        self.handle = handle
        _owned.add(self)

    def _locked(self) -> int:
        path = self.path.with_suffix("")
        try:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            why = why_not_made(self.path, error)
            raise Unavailable(f"{path} cannot be owned: {why}", "url") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = _said_by(handle)
            os.close(handle)
            raise Owned(f"{path} is owned by process {owner or 'unknown'}", owner) from None
        return handle

    def _is_there(self, handle: int) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), self.path.stat())
        except FileNotFoundError:
            return False

    def know_again(self) -> None:
        """The store is there now, and what lies there later has to be the same."""
        self._store = self.path.with_suffix("").stat()

    def check_there(self) -> None:
        """Raise JournalError if the store was deleted or replaced under our hands: what we write
        goes into a file that nobody will find."""
        path = self.path.with_suffix("")
        try:
            there = self._store is None or os.path.samestat(self._store, path.stat())
        except FileNotFoundError:
            there = False
        if not there:
            raise JournalError(f"{path} was deleted or replaced while it was open")

    def witness(self, store: str, position: int) -> None:
        """That position of this store is on stable storage."""
        if self.handle is not None:
            os.pwrite(self.handle, b"%s %020d\n" % (store.encode(), position), _WITNESS_AT)

    def leave(self) -> None:
        """The path is free at once, also if a child that was just forked still shares the lock."""
        if self.handle is not None:
            fcntl.flock(self.handle, fcntl.LOCK_UN)
            self.let_go()

    def undo(self) -> None:
        """Leave nothing behind that was not worth keeping: a lock file without a position. Whoever
        has opened it meanwhile finds that it is gone once they have locked it, and makes another."""
        if self.handle is not None and os.fstat(self.handle).st_size <= _WITNESS_AT:
            self.path.unlink(missing_ok=True)
        self.leave()

    def let_go(self) -> None:
        """Of the lock, but not for others who share it."""
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None


_owned: "WeakSet[Ownership]" = WeakSet()
_inherited: dict[Path, int] = {}  # lock files of what was open when we were forked, and by whom


def _leave_to_the_parent() -> None:
    """A forked child shares the lock, and would keep it when its parent has ended.

    It has the parent's database open as well. Neither SQLite nor RocksDB survives that: both keep
    per process what they have locked, and a child that opened the file again would believe to
    hold locks that it does not. So it may use the path through its owner, and never own it.
    """
    for ownership in list(_owned):
        if ownership.handle is not None:
            _inherited[ownership.path] = ownership.pid
        ownership.let_go()


os.register_at_fork(after_in_child=_leave_to_the_parent)
