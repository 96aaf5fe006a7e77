"""The journal in one SQLite file.

One connection writes, on the writer's thread; one reads payloads, on the reader's; one moves the
WAL into the file, on a thread of its own. WAL mode:
`synchronous=FULL` for a batch that must reach stable storage, `NORMAL` for one that need not.
Every blob of ours carries a checksum, because SQLite has none for its pages.

Tables: `log` (one row a group), `chunks`, one per kind of checkpoint row, and `facts`.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec

from penstock.stores.journal.base import (
    KINDS,
    Batch,
    Full,
    Group,
    Journal,
    JournalError,
    Row,
    nothing,
)
from penstock.stores.journal.points import reach
from penstock.stores.journal.sealed import (
    hollow_chunk,
    sealed,
    sealed_chunk,
    unsealed,
    unsealed_chunk,
)
from penstock.stores.journal.wal import WalMover
from penstock.stores.private import make_file

PAGE: Final = 32 << 10  # what SQLite does page by page is what large pushes wait for
MOVE_AT: Final = (8 << 20) // PAGE  # pages of the WAL that are moved into the file in one go
FINISH_AT: Final = (
    32 << 20
) // PAGE  # pages after which it is begun anew, if nobody reads an old state
WAL_KEPT: Final = 64 << 20  # and cuts a WAL that grew beyond this
BUSY_MS: Final = 5_000  # that somebody else may have the file locked for
TRUNCATED: Final = 64  # groups that one batch takes off the log
SHRINK_AT: Final = (8 << 20) // PAGE  # free pages before they are given back …
SHRUNK: Final = (1 << 20) // PAGE  # … by so many a batch, or at a time where there is none

_SCHEMA: Final = """
CREATE TABLE facts(name TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID;
CREATE TABLE log(first INTEGER PRIMARY KEY, last INTEGER NOT NULL, data BLOB NOT NULL);
CREATE TABLE chunks(id INTEGER PRIMARY KEY, data BLOB NOT NULL);
""" + "".join(
    f"CREATE TABLE {kind}(key BLOB, checkpoint INTEGER, data BLOB, PRIMARY KEY(key, checkpoint));\n"
    for kind in KINDS
)


def _per_kind(statement: str) -> dict[str, str]:
    return {kind: statement.format(kind=kind) for kind in KINDS}


_CHUNK: Final = "INSERT INTO chunks VALUES(?,?)"
_NEWEST: Final = _per_kind(
    "SELECT key, max(checkpoint), data FROM {kind} WHERE checkpoint <= ? GROUP BY key"
)
_ROW: Final = _per_kind("INSERT OR REPLACE INTO {kind} VALUES(?,?,?)")
_OLDER: Final = _per_kind("DELETE FROM {kind} WHERE key=? AND checkpoint<?")
_BEYOND: Final = _per_kind("DELETE FROM {kind} WHERE checkpoint > ?")

_kind: Final = attrgetter("kind")


def _values(row: Row) -> tuple[bytes, int, bytes | None]:
    return row.key, row.checkpoint, None if row.data is None else sealed(row.data)


def _below(row: Row) -> tuple[bytes, int]:
    """Its older rows; itself as well if the object is gone."""
    return row.key, row.checkpoint if row.data is not None else row.checkpoint + 1


class SqliteJournal(Journal):
    scheme = "sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._write: apsw.Connection | None = None
        self._read: apsw.Connection | None = None
        self._mover: WalMover | None = None
        self._level = ""
        self._staged: set[int] = set()  # chunks in the open transaction
        self._roomy = False  # there may be free pages to give back

    @property
    def _db(self) -> apsw.Connection:
        assert self._write is not None, "opened first"
        return self._write

    # -- opening ---------------------------------------------------------------------------------

    def open(self, *, read_only: bool = False) -> dict[str, Any]:
        flags = apsw.SQLITE_OPEN_READONLY
        if not read_only:
            flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
            make_file(self.path)
        try:
            self._write = db = apsw.Connection(str(self.path), flags=flags)
            db.set_busy_timeout(BUSY_MS)
            if not read_only:
                db.execute(f"PRAGMA page_size={PAGE}; PRAGMA auto_vacuum=INCREMENTAL")
                # One by one: a statement that answers a row holds back those behind it.
                db.pragma("journal_mode", "wal")
                db.pragma("journal_size_limit", WAL_KEPT)
                self._set_level("FULL")
                if not db.table_exists(None, "facts"):
                    with db:
                        db.execute(_SCHEMA)
            else:
                db.execute("BEGIN")  # one state, whatever its owner does meanwhile
                if not db.table_exists(None, "facts"):
                    raise JournalError(f"{self.path} is no store of this kind")
            facts = {
                name: msgspec.msgpack.decode(unsealed(value, f"fact {name!r}"))
                for name, value in db.execute("SELECT name, value FROM facts")
            }
            self._read = db if read_only else self._reader()
            if not read_only:
                self._mover = WalMover(db, self.path, MOVE_AT, FINISH_AT)
                self._roomy = True
        except apsw.Error as error:
            raise JournalError(f"{self.path}: {error}") from error
        return facts

    def _reader(self) -> apsw.Connection:
        """Another connection that only reads, and leaves the WAL to the writer."""
        reader = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READONLY)
        reader.set_busy_timeout(BUSY_MS)
        reader.execute("PRAGMA wal_autocheckpoint=0")
        reader.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        return reader

    def _set_level(self, level: str) -> None:
        if level != self._level:
            self._db.execute(f"PRAGMA synchronous={level}")
            self._level = level

    # -- reading ---------------------------------------------------------------------------------

    def rows(self, checkpoint: int) -> Iterator[Row]:
        try:
            for kind in KINDS:
                found = self._db.execute(_NEWEST[kind], (checkpoint,))
                for key, number, value in found:
                    what = f"the row of {kind} {key.hex()}"
                    yield Row(kind, key, number, None if value is None else unsealed(value, what))
        except apsw.Error as error:
            raise JournalError(f"{self.path}: {error}") from error

    def groups(self, after: int) -> Generator[Group, None, None]:
        try:
            for first, last, data in self._db.execute(
                "SELECT first, last, data FROM log WHERE last > ? ORDER BY first", (after,)
            ):
                yield Group(first, last, data)
        except apsw.Error as error:
            raise JournalError(f"{self.path}: {error}") from error

    def chunk_ids(self, least: int) -> Iterable[int]:
        try:
            found = self._db.execute("SELECT id FROM chunks WHERE id >= ?", (least,))
            return [number for (number,) in found]
        except apsw.Error as error:
            raise JournalError(f"{self.path}: {error}") from error

    def chunk(self, chunk: int) -> bytes:
        assert self._read is not None, "opened first"
        try:
            found = self._read.execute("SELECT data FROM chunks WHERE id=?", (chunk,)).fetchone()
        except (apsw.Error, UnicodeDecodeError) as error:
            raise JournalError(f"{self.path}: {error}") from error
        if found is None:
            raise KeyError(chunk)
        return unsealed_chunk(found[0], f"payload chunk {chunk}")

    # -- writing ---------------------------------------------------------------------------------

    def stage(self, chunk: int, data: bytes) -> None:
        try:
            if not self._staged:
                self._begin("FULL")
            self._staged.add(chunk)
            self._db.execute(_CHUNK, (chunk, sealed_chunk(data)))
        except Exception:  # noqa: BLE001 -- whatever it is, the batch will meet it again and say so
            self._roll_back()

    def write(self, batch: Batch, ready: Callable[[], None] = nothing) -> bool:
        db = self._db
        try:
            if not self._staged:
                self._begin("FULL" if batch.sync else "NORMAL")
            try:
                more = self._put(batch)
                reach("before write")
                ready()
                db.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise
            self._staged.clear()
            if self._mover is not None:
                self._mover.check()
        except apsw.FullError as error:
            raise Full(str(error)) from error
        except apsw.Error as error:
            raise JournalError(f"{self.path}: {error}") from error
        reach("after write")
        if batch.sync:  # by the commit itself
            reach("after sync")
        return more

    def _begin(self, level: str) -> None:
        if self._mover is not None:
            self._mover.before_a_batch()
        self._set_level(level)
        self._db.execute("BEGIN IMMEDIATE")

    def _roll_back(self) -> None:
        self._staged.clear()
        if not self._db.get_autocommit():
            self._db.execute("ROLLBACK")

    def _put(self, batch: Batch) -> bool:
        db = self._db
        if batch.group is not None:
            group = batch.group
            db.execute(
                "INSERT OR REPLACE INTO log VALUES(?,?,?)", (group.first, group.last, group.data)
            )
        needless = self._staged.copy()
        for chunk, data in batch.chunks:
            if chunk in needless:
                needless.remove(chunk)
            else:
                db.execute(_CHUNK, (chunk, sealed_chunk(data)))
        for chunk, data in batch.hollow:
            db.execute("UPDATE chunks SET data=? WHERE id=?", (hollow_chunk(data), chunk))
        if batch.dropped or needless:
            gone = [(chunk,) for chunk in (*batch.dropped, *needless)]
            db.executemany("DELETE FROM chunks WHERE id=?", gone)
        for kind, rows in groupby(batch.rows, _kind):
            db.executemany(_ROW[kind], [_values(row) for row in rows])
        for kind, rows in groupby(batch.superseded, _kind):
            db.executemany(_OLDER[kind], [_below(row) for row in rows])
        for name, value in batch.facts.items():
            packed = sealed(msgspec.msgpack.encode(value))
            db.execute("INSERT OR REPLACE INTO facts VALUES(?,?)", (name, packed))
        more = False
        if batch.truncate is not None:
            db.execute(
                "DELETE FROM log WHERE first IN"
                " (SELECT first FROM log WHERE last <= ? ORDER BY first LIMIT ?)",
                (batch.truncate, TRUNCATED),
            )
            more = db.changes() == TRUNCATED
        if batch.dropped or batch.truncate is not None or batch.superseded:
            self._roomy = True
        if self._roomy:
            self._shrink()
        return more

    def _shrink(self) -> None:
        """Give free pages back to the file system, a few at a time."""
        free = self._db.pragma("freelist_count")
        self._roomy = free > SHRINK_AT and free * 4 > self._db.pragma("page_count")
        if self._roomy:
            # It gives back one page per row that it is asked for.
            self._db.execute(f"PRAGMA incremental_vacuum({SHRUNK})").fetchall()

    @property
    def untidy(self) -> bool:
        return self._roomy and not self._staged

    def tidy(self) -> None:
        try:
            self._begin("NORMAL")
            try:
                self._shrink()
                self._db.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise
        except apsw.FullError:
            self._roomy = False  # until something is dropped again
        except apsw.Error as error:
            raise JournalError(f"{self.path}: {error}") from error
        if not self._roomy and self._mover is not None:
            self._mover.move()  # the file is cut by that

    def forget_after(self, checkpoint: int) -> None:
        try:
            with self._db as db:
                for kind in KINDS:
                    db.execute(_BEYOND[kind], (checkpoint,))
        except apsw.Error as error:
            raise JournalError(f"{self.path}: {error}") from error

    # -- life ------------------------------------------------------------------------------------

    def backup(self, target: Path) -> None:
        copy = apsw.Connection(str(target / "store.db"))
        source = self._reader()
        try:
            copy.pragma("synchronous", "extra")
            source.execute("BEGIN; SELECT 1 FROM facts")  # one state, however long the copy takes
            with copy.backup("main", source, "main") as task:
                while not task.done:
                    task.step(1_024)
            copy.pragma("journal_mode", "delete")
        except apsw.FullError as error:
            raise Full(f"backup of {self.path}: {error}") from error
        except apsw.Error as error:
            raise JournalError(f"backup of {self.path}: {error}") from error
        finally:
            source.close()
            copy.close()

    def damage(self) -> list[str]:
        return [said for (said,) in self._db.execute("PRAGMA integrity_check") if said != "ok"]

    def sizes(self) -> dict[str, int]:
        found = {}
        for name, suffix in (("file", ""), ("wal", "-wal")):
            try:
                found[name] = self.path.with_name(self.path.name + suffix).stat().st_size
            except FileNotFoundError:
                found[name] = 0
        return found

    def close(self) -> None:
        if self._mover is not None:
            self._mover.close()
        for connection in (self._read, self._write):
            if connection is not None:
                connection.close()
        if self._mover is not None:
            self._mover.let_go()
        self._read = self._write = self._mover = None
