"""Who owns a path: one process, named in a lock file beside it.

The lock is the operating system's (flock) and goes with the process, however it ends; the file
only tells people whose it is.
"""

import fcntl
import os
from pathlib import Path
from weakref import WeakSet

from penstock.model.errors import Unavailable


def owner_of(path: Path) -> int | None:
    """The process that owns a path now, if one does."""
    try:
        handle = os.open(_lock(path), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        said = os.pread(handle, 32, 0).strip()
        return int(said) if said.isdigit() else 0
    finally:
        os.close(handle)
    return None


def _lock(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


class Ownership:
    def __init__(self, path: Path) -> None:
        self._path = _lock(path)
        self._handle: int | None = None

    def take(self) -> None:
        """Own the path, or say who does."""
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.pread(handle, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(handle)
            raise Unavailable(
                f"{self._path.with_suffix('')} is owned by process {owner}", "url"
            ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, b"%d\n" % os.getpid(), 0)
        self._handle = handle
        _owned.add(self)

    def leave(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


_owned: "WeakSet[Ownership]" = WeakSet()


def _leave_to_the_parent() -> None:
    """A forked child shares the lock, and would keep it when its parent has ended."""
    for ownership in list(_owned):
        ownership.leave()


os.register_at_fork(after_in_child=_leave_to_the_parent)
