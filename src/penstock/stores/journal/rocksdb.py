"""The journal in a RocksDB directory.

One column family each for the log, the payload chunks, every kind of checkpoint row, and the facts;
keys are big-endian, so that they sort by position and number. A batch is one unsynced write,
followed by `flush_wal(True)` where it must reach stable storage: unlike a synced write, that lets
other threads run meanwhile.
"""

import logging
import re
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
from rocksdict import (
    AccessType,
    Checkpoint,
    ColumnFamily,
    DBRecoveryMode,
    Options,
    Rdict,
    WriteBatch,
)

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
from penstock.stores.journal.manifest import cut_torn_end, go_back, sync_names
from penstock.stores.journal.points import reach
from penstock.stores.journal.sealed import (
    hollow_chunk,
    sealed,
    sealed_chunk,
    unsealed,
    unsealed_chunk,
)
from penstock.stores.private import make_directory

log: Final = logging.getLogger("penstock.store")

FAMILIES: Final = ("facts", "log", "chunks", *KINDS)
MEMTABLE: Final = 16 << 20
MEMTABLES: Final = 4  # a write that had to wait for one would hold up the loop's thread
WAL_KEPT: Final = 64 << 20
BLOB_AT: Final = 4_096  # larger values lie in blob files, which compactions leave alone
COMPACT_AT: Final = 8 << 20  # bytes of files before we look whether they are needed …
GARBAGE: Final = 4  # … and the part of the chunks that is not, which makes it worth a compaction


def _number(value: int) -> bytes:
    return value.to_bytes(8, "big")


class RocksJournal(Journal):
    scheme = "rocksdb"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._db: Rdict | None = None
        self._families: dict[str, ColumnFamily] = {}
        self._tables: dict[str, Any] = {}  # of rocksdict's Rdict, in raw mode: bytes to bytes
        self._begun = WriteBatch(raw_mode=True)  # of the next batch, if anything is staged
        self._staged: set[int] = set()  # the chunks in it
        self._stuck = False  # a write failed: RocksDB takes no more until it is opened anew
        self._reopening = threading.Lock()  # a reader waits while the writer opens the files anew
        self._roomy = False  # there may be chunks in the files that are needed no more
        self._compacting: threading.Thread | None = None

    # -- opening ---------------------------------------------------------------------------------

    def open(self, *, read_only: bool = False) -> dict[str, Any]:
        try:
            self._open(read_only)
            if not read_only:  # RocksDB leaves it to us that its directory keeps its name
                sync_names(self.path.parent)
                self._roomy = True
            return {
                name.decode(): msgspec.msgpack.decode(unsealed(value, f"fact {name!r}"))
                for name, value in self._tables["facts"].items()
            }
        except JournalError:
            raise
        except Exception as error:
            raise self._error(error) from error

    def _open(self, read_only: bool = False) -> None:
        access = AccessType.read_only() if read_only else AccessType.read_write()
        families = {name: _options(name) for name in FAMILIES}
        if not read_only:
            make_directory(self.path)
        try:
            self._db = Rdict(str(self.path), _options(""), families, access)
        except Exception as error:
            if read_only or "Corruption" not in str(error):
                raise
            if cut := cut_torn_end(self.path):
                log.warning(
                    "%s: the MANIFEST ended within a record: cut by %d bytes", self.path, cut
                )
            elif "No such file" in str(error) and (older := go_back(self.path)):
                log.warning("%s: its last opening was cut short: %s again", self.path, older)
            else:
                raise
            self._db = Rdict(str(self.path), _options(""), families, access)
        self._tables = {name: self._db.get_column_family(name) for name in FAMILIES}
        self._families = {name: self._db.get_column_family_handle(name) for name in FAMILIES}

    def _error(self, error: Exception) -> JournalError:
        kind = Full if "No space left" in str(error) else JournalError
        return kind(f"{self.path}: {error}")

    # -- reading ---------------------------------------------------------------------------------

    def rows(self, checkpoint: int) -> Iterator[Row]:
        for kind in KINDS:
            newest: Row | None = None
            for whole, value in self._tables[kind].items():
                key, number = whole[:-8], int.from_bytes(whole[-8:])
                if newest is not None and newest.key != key:
                    yield newest
                    newest = None
                if number <= checkpoint:
                    data = unsealed(value, f"the row of {kind} {key.hex()}") if value else None
                    newest = Row(kind, key, number, data)
            if newest is not None:
                yield newest

    def groups(self, after: int) -> Generator[Group, None, None]:
        entries = self._tables["log"].iter()
        entries.seek_for_prev(_number(after + 1))
        if not entries.valid():
            entries.seek_to_first()
        while entries.valid():
            first, value = int.from_bytes(entries.key()), entries.value()
            last = int.from_bytes(value[:8])
            if last > after:
                yield Group(first, last, value[8:])
            entries.next()

    def chunk_ids(self, least: int) -> Iterable[int]:
        keys = self._tables["chunks"].keys(from_key=_number(least))
        return (int.from_bytes(key) for key in keys)

    def chunk(self, chunk: int) -> bytes:
        try:
            with self._reopening:
                data = self._tables["chunks"].get(_number(chunk))
        except Exception as error:
            raise self._error(error) from error
        if data is None:
            raise KeyError(chunk)
        return unsealed_chunk(data, f"payload chunk {chunk}")

    # -- writing ---------------------------------------------------------------------------------

    def stage(self, chunk: int, data: bytes) -> None:
        if not self._staged:
            self._begun = WriteBatch(raw_mode=True)
        self._staged.add(chunk)
        try:
            self._begun.put(_number(chunk), sealed_chunk(data), self._families["chunks"])
        except Exception:  # noqa: BLE001 -- whatever it is, the batch will meet it again and say so
            self._staged.clear()

    def write(self, batch: Batch, ready: Callable[[], None] = nothing) -> bool:
        assert self._db is not None, "opened first"
        reach("before write")
        try:
            if self._stuck:
                self._staged.clear()
                self._reopen()
            out = self._batch(batch)
            self._staged.clear()
            ready()
            self._db.write(out)
            reach("after write")
            if batch.sync:
                self._db.flush_wal(True)
                reach("after sync")
        except Exception as error:
            self._stuck = True
            raise self._error(error) from error
        return False

    def _batch(self, batch: Batch) -> WriteBatch:
        out = self._begun if self._staged else WriteBatch(raw_mode=True)
        needless = self._staged.copy()
        families = self._families
        if batch.group is not None:
            group = batch.group
            out.put(_number(group.first), _number(group.last) + group.data, families["log"])
        for chunk, data in batch.chunks:
            if chunk in needless:
                needless.remove(chunk)
            else:
                out.put(_number(chunk), sealed_chunk(data), families["chunks"])
        for chunk, data in batch.hollow:
            out.put(_number(chunk), hollow_chunk(data), families["chunks"])
        for chunk in (*batch.dropped, *needless):
            out.delete(_number(chunk), families["chunks"])
        for row in batch.rows:
            value = b"" if row.data is None else sealed(row.data)
            out.put(row.key + _number(row.checkpoint), value, families[row.kind])
        for row in batch.superseded:
            below = row.checkpoint if row.data is not None else row.checkpoint + 1
            out.delete_range(row.key + _number(0), row.key + _number(below), families[row.kind])
        for name, fact in batch.facts.items():
            out.put(name.encode(), sealed(msgspec.msgpack.encode(fact)), families["facts"])
        if batch.truncate is not None:
            self._truncate(out, batch.truncate)
        self._roomy = self._roomy or bool(batch.dropped)
        return out

    def _truncate(self, out: WriteBatch, upto: int) -> None:
        """Groups that end there or before; the one that reaches beyond stays."""
        entries = self._tables["log"].iter()
        entries.seek_for_prev(_number(upto))
        if not entries.valid():
            return
        last = int.from_bytes(entries.value()[:8])
        end = last + 1 if last <= upto else int.from_bytes(entries.key())
        out.delete_range(_number(0), _number(end), self._families["log"])

    # -- what is needed no more --------------------------------------------------------------------

    # RocksDB compacts what it writes, and a deletion is a few bytes: a backlog that was drained
    # would lie in its blob files until as much again has come in.

    @property
    def untidy(self) -> bool:
        return self._roomy and (self._compacting is None or not self._compacting.is_alive())

    def tidy(self) -> None:
        self._roomy = False
        if self.sizes()["file"] > COMPACT_AT and self._garbage():
            self._compacting = threading.Thread(
                target=self._compact, name="penstock-compact", daemon=True
            )
            self._compacting.start()

    def _garbage(self) -> bool:
        """Whether a quarter or more of the chunks in the files are not needed any more."""
        chunks = self._tables["chunks"]
        written = deleted = 0
        for where in ("active-mem-table", "imm-mem-tables"):
            written += chunks.property_int_value(f"rocksdb.num-entries-{where}") or 0
            deleted += chunks.property_int_value(f"rocksdb.num-deletes-{where}") or 0
        said = chunks.property_value("rocksdb.aggregated-table-properties") or ""
        found = dict(re.findall(r"# (entries|deletions)=(\d+)", said))
        written += int(found.get("entries", 0))
        deleted += int(found.get("deletions", 0))
        return deleted * GARBAGE >= max(written - deleted, 1)

    def _compact(self) -> None:
        """Beside everything else: to move what lives out of old files may take its time."""
        for table in list(self._tables.values()):  # all: a WAL goes when nobody needs it
            try:
                table.compact_range(None, None)
            except Exception as error:  # noqa: BLE001 -- nothing is lost but room
                log.debug("%s could not be compacted: %s", self.path, error)
                return

    def _stop_compacting(self) -> None:
        if self._compacting is not None and self._db is not None:
            self._db.cancel_all_background(False)
            self._compacting.join()
            self._compacting = None

    def _reopen(self) -> None:
        with self._reopening:
            self._shut()
            self._open()
        self._stuck = False

    def forget_after(self, checkpoint: int) -> None:
        assert self._db is not None, "opened first"
        out = WriteBatch(raw_mode=True)
        for kind in KINDS:
            entries = self._tables[kind].keys()
            for whole in entries:
                if int.from_bytes(whole[-8:]) > checkpoint:
                    out.delete(whole, self._families[kind])
        if not out.is_empty():
            self._db.write(out)

    # -- life ------------------------------------------------------------------------------------

    def backup(self, target: Path) -> None:
        assert self._db is not None, "opened first"
        try:
            Checkpoint(self._db).create_checkpoint(str(target / "store"))
        except Exception as error:
            raise self._error(error) from error

    def sizes(self) -> dict[str, int]:
        found = {"file": 0, "wal": 0}
        for path in self.path.iterdir():
            try:
                found["wal" if path.suffix == ".log" else "file"] += path.stat().st_size
            except FileNotFoundError:  # compacted away meanwhile
                continue
        return found

    def close(self) -> None:
        if self._db is not None:
            self._shut()

    def _shut(self) -> None:
        """Close the files. What cannot be moved from the WAL to its place any more stays there."""
        assert self._db is not None, "opened first"
        self._stop_compacting()
        self._tables.clear()
        self._families.clear()
        with suppress(Exception):
            self._db.close()
        self._db = None


def _options(family: str) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_write_buffer_size(MEMTABLE)
    options.set_max_write_buffer_number(MEMTABLES)
    options.set_max_total_wal_size(WAL_KEPT)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(2)
    # What was not synced may be torn anywhere: what lies before it is a state that was.
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    options.set_paranoid_checks(True)
    if family in ("log", "chunks"):
        options.set_enable_blob_files(True)
        options.set_min_blob_size(BLOB_AT)
        options.set_enable_blob_gc(True)
    return options
