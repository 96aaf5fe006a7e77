"""A directory for what is not whole yet: nobody who is killed leaves one behind for good.

Whoever has one holds its lock, which goes with the process. The next who wants one in the same
place deletes those that nobody holds. Where the file system has no locks, they stay.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp


@contextmanager
def scratch(prefix: str, directory: Path) -> Iterator[Path]:
    """An empty one, only for us, which goes with all that is in it."""
    for left in directory.glob(f"{prefix}*"):
        _delete_unless_held(left)
    path, handle = _made(prefix, directory)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(handle)


def _made(prefix: str, directory: Path) -> tuple[Path, int]:
    while True:
        path = Path(mkdtemp(prefix=prefix, dir=directory))
        # Somebody who deletes what was left behind may take it for such before we have its lock.
        with suppress(FileNotFoundError):
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            if _locked(handle) is not False and path.exists():
                return path, handle
            os.close(handle)


def _delete_unless_held(path: Path) -> None:
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if _locked(handle):
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(handle)


def _locked(handle: int) -> bool | None:
    """Whether the lock is ours; None where there are no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
