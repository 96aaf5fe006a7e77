"""Small programs to be recorded, each with a sync where one belongs or, as a control, without.

    python -m tests.faults.powerloss.writers NAME DIRECTORY COUNT

Each acknowledges by a marker, the number of a record, once the record is said to be safe.
"""

import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import apsw

from tests.faults.powerloss.marker import Marker

DATABASE: Final = "rows.db"
SIZE: Final = 700  # of a record: more than a sector, and no multiple of one


def record_of(number: int) -> bytes:
    """Bytes that no other record has, in any of their sectors."""
    return hashlib.shake_256(str(number).encode()).digest(SIZE)


def append(directory: Path, count: int, *, sync: bool) -> None:
    acknowledge = Marker()
    log = os.open(directory / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number in range(count):
        os.write(log, record_of(number))
        if sync:
            os.fdatasync(log)
        acknowledge(number)
    os.close(log)


def replace(directory: Path, count: int, *, sync: bool) -> None:
    """A file renamed over its former version."""
    acknowledge = Marker()
    above = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    for number in range(count):
        with (directory / "new").open("wb") as new:
            new.write(record_of(number) * 3)
            new.flush()
            if sync:
                os.fsync(new.fileno())
        (directory / "new").replace(directory / "current")
        os.fsync(above)
        acknowledge(number)
    os.close(above)


def sqlite(directory: Path, count: int, *, synchronous: str) -> None:
    acknowledge = Marker()
    rows = apsw.Connection(str(directory / DATABASE))
    rows.pragma("journal_mode", "wal")
    rows.pragma("synchronous", synchronous)
    rows.wal_autocheckpoint(40)  # pages: so that a short run has several
    rows.execute("create table if not exists rows (number integer primary key, data blob)")
    for number in range(count):
        rows.execute("insert into rows values (?, ?)", (number, record_of(number)))
        acknowledge(number)
    rows.close()


def rocksdb(directory: Path, count: int, *, sync: bool) -> None:
    from rocksdict import Options, Rdict, WriteBatch

    acknowledge = Marker()
    options = Options(raw_mode=True)
    options.set_write_buffer_size(64 * 1024)  # so that a short run writes tables, too
    database = Rdict(str(directory / "rocks"), options)
    for number in range(count):
        batch = WriteBatch(raw_mode=True)
        batch.put(number.to_bytes(8), record_of(number))
        database.write(batch)
        if sync:
            database.flush_wal(True)
        acknowledge(number)
    database.close()


WRITERS: Final[dict[str, Callable[[Path, int], None]]] = {
    "append": lambda directory, count: append(directory, count, sync=True),
    "append-unsynced": lambda directory, count: append(directory, count, sync=False),
    "replace": lambda directory, count: replace(directory, count, sync=True),
    "replace-unsynced": lambda directory, count: replace(directory, count, sync=False),
    "sqlite-full": lambda directory, count: sqlite(directory, count, synchronous="full"),
    "sqlite-normal": lambda directory, count: sqlite(directory, count, synchronous="normal"),
    "sqlite-off": lambda directory, count: sqlite(directory, count, synchronous="off"),
    "rocksdb": lambda directory, count: rocksdb(directory, count, sync=True),
    "rocksdb-unsynced": lambda directory, count: rocksdb(directory, count, sync=False),
}

if __name__ == "__main__":
    WRITERS[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
