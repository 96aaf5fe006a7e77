"""What a store writes is its owner's: payloads may be anybody's secrets.

Files get mode 0600 and directories 0700, whatever the umask says, when they are made; what is there
already keeps the mode that somebody gave it. SQLite gives its -wal and -shm the mode of the file,
and what lies in RocksDB's directory is behind that directory's.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

FILE: Final = 0o600
DIRECTORY: Final = 0o700


def make_file(path: Path) -> None:
    """An empty file, if nothing is there; what hinders us will hinder whoever opens it next."""
    with suppress(OSError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE))


def make_directory(path: Path) -> None:
    """The same; those above it are their owners' business."""
    with suppress(OSError):
        path.mkdir(DIRECTORY)


def opener(path: str, flags: int) -> int:
    """For `open`: a file that is made is private from its first instant."""
    return os.open(path, flags, FILE)


def close_off(whole: Path) -> None:
    """A store that was unpacked from somewhere else."""
    whole.chmod(DIRECTORY if whole.is_dir() else FILE)
