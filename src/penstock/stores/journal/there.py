"""What lies where a store is wanted, before anything is written to it.

SQLite and RocksDB open whatever they can, and make what they miss: another program's database would
get our tables, a home directory RocksDB's files. And they say little of what hinders them.
"""

import errno
import os
import pwd
import re
from pathlib import Path
from typing import Final
from urllib.parse import quote

from penstock.stores.journal.base import JournalError

_MAGIC: Final = b"SQLite format 3\0"
# What RocksDB makes; CURRENT, which makes it a store, comes last.
_ROCKS: Final = re.compile(
    r"CURRENT|IDENTITY|LOCK|LOG.*|(MANIFEST|OPTIONS)-.*|rocksdict-.*|.*\.(log|sst|blob|dbtmp)"
)


def is_there(scheme: str, path: Path) -> bool:
    """Whether there is anything of a store; an empty file or directory is about to become one."""
    try:
        if scheme == "rocksdb" and path.is_dir():
            return any(path.iterdir())
        return path.stat().st_size > 0 or _beside(path, "-wal").exists()
    except PermissionError:  # let whoever opens it say so
        return True
    except OSError:
        return False


def check_kind(scheme: str, path: Path) -> None:
    """Raise JournalError if a file is where a directory has to be, or the other way round."""
    if scheme == "sqlite" and path.is_dir():
        right = f"; rocksdb:///{path} is a store" if (path / "CURRENT").exists() else ""
        raise JournalError(f"{path} is a directory, and sqlite:// names a file{right}")
    if scheme == "rocksdb" and path.is_file():
        right = f"; sqlite:///{path} is a store" if _begins(path) == _MAGIC else ""
        raise JournalError(f"{path} is a file, and rocksdb:// names a directory{right}")


def check_ours(scheme: str, path: Path) -> None:
    """Raise JournalError if something else lies there. Not for a store that was here before: what
    has become of that, its journal tells."""
    if scheme == "rocksdb":
        found = [each.name for each in path.iterdir()] if path.is_dir() else []
        if "CURRENT" not in found and not all(map(_ROCKS.fullmatch, found)):
            raise JournalError(
                f"{path} is a directory of other things; name one that is empty or not there yet"
            )
    elif path.is_file():
        # Of a file whose making was cut short, SQLite's journal beside it knows what it was before.
        if _begins(path) not in (_MAGIC, b"") and not _beside(path, "-journal").exists():
            raise JournalError(
                f"{path} is no SQLite file: it is something else, or a damaged store;"
                " name another, or restore a backup"
            )
        if _has_others_tables(path):
            raise JournalError(f"{path} is another program's database; name another file")


def _begins(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC))
    except PermissionError:
        return b""  # let whoever opens it say so


def _has_others_tables(path: Path) -> bool:
    import apsw

    # Immutable: nothing is made beside the file. With a WAL, whoever has it open has made it all.
    how = "" if _beside(path, "-wal").exists() else "?immutable=1"
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    try:
        db = apsw.Connection(f"file:{quote(str(path))}{how}", flags=flags)
        try:
            tables = {name for (name,) in db.execute("SELECT name FROM sqlite_schema")}
        finally:
            db.close()
    except apsw.Error:  # what is wrong with it is for the journal to tell
        return False
    return bool(tables) and "facts" not in tables


# -- rights ----------------------------------------------------------------------------------------


def hindrance(scheme: str, path: Path) -> str | None:
    """Which right this user misses to read what lies there; None if it is not that."""
    if not _may(path, os.R_OK):
        return f"this user may not read {path}, which is {_owner(path)}'s"
    # SQLite shares an index of its WAL through a file, RocksDB takes notes.
    beside = path.parent if scheme == "sqlite" else path
    if _may(beside, os.W_OK) or (scheme == "sqlite" and _beside(path, "-shm").exists()):
        return None
    return (
        f"{path} cannot be read by who may not write to {beside}, where its database keeps files of"
        " its own; read a copy: penstock backup by who may, and penstock restore elsewhere"
    )


def why_not_made(path: Path, error: OSError) -> str:
    """Why a file cannot be made or written there, and what to do."""
    above = path.parent
    if error.errno == errno.ENOENT:
        if above.is_dir():
            return f"no file can be made in {above}"
        return f"there is no directory {above}; make it first"
    if error.errno == errno.ENOTDIR:
        return f"{above} is no directory"
    if isinstance(error, PermissionError):
        if _may(path, os.F_OK):
            return f"this user may not write {path.name}, which is {_owner(path)}'s"
        return f"this user may not write to {above}"
    if error.errno == errno.EROFS:
        return f"{above} lies on a file system that is read-only"
    return error.strerror or str(error)


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=True)


def _owner(path: Path) -> str:
    try:
        return pwd.getpwuid(path.stat().st_uid).pw_name
    except KeyError:
        return f"user {path.stat().st_uid}"
    except OSError:
        return "another user"


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
