"""The raw limit: bytes taken to stable storage by the bare engine, with nothing around it.

One thread, one commit after another, one value each; no queue, no hand-over, no checksum, no index.
"""

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Final

import apsw
from rocksdict import Options, Rdict, WriteBatch

WAL_BYTES: Final = 16 << 20  # of SQLite, before it goes into the file
MEMTABLE: Final = 64 << 20
PREALLOCATED: Final = 64 << 20


class Raw(ABC):
    @abstractmethod
    def commit(self, data: bytes) -> None:
        """These bytes are on stable storage when this returns."""

    @abstractmethod
    def close(self) -> None: ...


class BareSqlite(Raw):
    def __init__(self, path: Path, page: int) -> None:
        self._db = db = apsw.Connection(str(path))
        db.pragma("page_size", page)
        db.pragma("journal_mode", "wal")
        db.pragma("synchronous", "full")
        db.pragma("wal_autocheckpoint", WAL_BYTES // page)
        db.execute("CREATE TABLE blobs(id INTEGER PRIMARY KEY, data BLOB)")

    def commit(self, data: bytes) -> None:
        self._db.execute("INSERT INTO blobs(data) VALUES(?)", (data,))

    def close(self) -> None:
        self._db.close()


class BareRocks(Raw):
    def __init__(self, path: Path) -> None:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(MEMTABLE)
        options.set_max_background_jobs(2)
        options.set_enable_blob_files(True)
        options.set_min_blob_size(4_096)
        self._db = Rdict(str(path), options)
        self._number = 0

    def commit(self, data: bytes) -> None:
        self._number += 1
        batch = WriteBatch(raw_mode=True)
        batch.put(self._number.to_bytes(8, "big"), data)
        self._db.write(batch)
        self._db.flush_wal(True)

    def close(self) -> None:
        self._db.close()


class BareFile(Raw):
    """Over bytes that have been written before, so that the file system has nothing to note."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(self._file, bytes(PREALLOCATED))
        os.fsync(self._file)
        self._at = 0

    def commit(self, data: bytes) -> None:
        if self._at + len(data) > PREALLOCATED:
            self._at = 0
        os.pwrite(self._file, data, self._at)
        os.fdatasync(self._file)
        self._at += len(data)

    def close(self) -> None:
        os.close(self._file)
