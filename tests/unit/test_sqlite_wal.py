"""The WAL is moved into the file beside the writer, stays short, and takes the store with it if it
cannot be synced."""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import apsw
import pytest

from penstock.stores.journal import sqlite, wal
from penstock.stores.journal.base import Batch, JournalError
from penstock.stores.journal.sqlite import SqliteJournal
from penstock.stores.journal.wal import WalMover

MOVE_AT, FINISH_AT = 8, 32  # pages
CHUNK = bytes(range(256)) * (4 * sqlite.PAGE // 256)


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteJournal]:
    monkeypatch.setattr(sqlite, "MOVE_AT", MOVE_AT)
    monkeypatch.setattr(sqlite, "FINISH_AT", FINISH_AT)
    journal = SqliteJournal(tmp_path / "store")
    journal.open()
    try:
        yield journal
    finally:
        journal.close()


def mover_of(journal: SqliteJournal) -> WalMover:
    assert journal._mover is not None
    return journal._mover


def test_a_wal_that_is_written_to_all_the_time_is_begun_anew(journal: SqliteJournal) -> None:
    longest = 0
    for number in range(300):
        journal.write(Batch(chunks=[(number, CHUNK)], sync=number % 7 == 0))
        longest = max(longest, journal.sizes()["wal"])
    assert longest < 4 * FINISH_AT * sqlite.PAGE
    mover = mover_of(journal)
    assert mover._round >= 300 * 4 // (4 * FINISH_AT)


def test_what_was_written_meanwhile_is_all_there(journal: SqliteJournal) -> None:
    for number in range(200):
        if number % 3 == 0:
            journal.stage(number, CHUNK + b"%d" % number)
        journal.write(Batch(chunks=[(number, CHUNK + b"%d" % number)], sync=True))
        if number >= 100:
            journal.write(Batch(dropped=[number - 100]))
    journal.close()
    journal.open()
    assert list(journal.chunk_ids(0)) == list(range(100, 200))
    assert [journal.chunk(number) for number in range(100, 200)] == [
        CHUNK + b"%d" % number for number in range(100, 200)
    ]
    assert journal.damage() == []


def test_a_reader_of_an_old_state_holds_nothing_up(journal: SqliteJournal) -> None:
    journal.write(Batch(chunks=[(0, CHUNK)]))
    reader = journal._reader()
    reader.execute("BEGIN; SELECT count(*) FROM chunks")
    for number in range(1, 50):
        journal.write(Batch(chunks=[(number, CHUNK)], sync=True))
    assert reader.execute("SELECT count(*) FROM chunks").fetchall() == [(1,)]
    reader.close()
    for number in range(50, 100):
        journal.write(Batch(chunks=[(number, CHUNK)], sync=True))
    assert mover_of(journal)._round > 0, "begun anew as soon as nobody reads it"


class Failing:
    """A connection that cannot move anything."""

    def __init__(self, error: apsw.Error) -> None:
        self._error = error

    def wal_checkpoint(self, **_: Any) -> tuple[int, int]:
        raise self._error


def fail(mover: WalMover, error: apsw.Error) -> None:
    mover._move(Failing(error), 0)  # type: ignore[arg-type]


def test_nothing_is_safe_after_a_sync_has_failed_while_moving(journal: SqliteJournal) -> None:
    journal.write(Batch(chunks=[(1, b"1")], sync=True))
    fail(mover_of(journal), apsw.IOError("disk I/O error"))
    for _ in range(2):
        with pytest.raises(JournalError, match="disk I/O error"):
            journal.write(Batch(chunks=[(2, b"2")], sync=True))
    assert list(journal.chunk_ids(0)) == [1]


def test_whatever_ends_the_moving_ends_the_store(
    journal: SqliteJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(file: int) -> None:
        raise MemoryError

    monkeypatch.setattr(os, "fdatasync", failing)
    with pytest.raises(MemoryError):
        for number in range(1_000):
            journal.write(Batch(chunks=[(number, CHUNK)]))


def test_the_writer_does_not_move_what_a_long_reader_has_left_behind(
    journal: SqliteJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That takes seconds, and is the other thread's: here it never comes to it."""
    mover = mover_of(journal)
    monkeypatch.setattr(wal, "SLOWED_S", 0.0)
    monkeypatch.setattr(mover, "_asked", SimpleQueue())
    mover._done = (0, -FINISH_AT)  # as if so much more were left
    moved: list[apsw.Connection] = []
    monkeypatch.setattr(mover, "_move", lambda connection, asked: moved.append(connection))
    for number in range(100):
        journal.write(Batch(chunks=[(number, CHUNK)]))
    assert mover._pages > 2 * FINISH_AT
    assert moved == []
    mover._idle.set()
    monkeypatch.undo()


def test_somebody_who_has_locked_the_file_for_a_moment_is_waited_for(
    journal: SqliteJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = apsw.Connection(str(journal.path))
    other.execute("BEGIN IMMEDIATE")
    begin, waits = journal._begin, threading.Event()

    def told(level: str) -> None:
        waits.set()
        begin(level)

    monkeypatch.setattr(journal, "_begin", told)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(journal.write, Batch(chunks=[(1, b"1")], sync=True))
        assert waits.wait(30)
        other.execute("ROLLBACK")
        writing.result(30)
    other.close()
    assert list(journal.chunk_ids(0)) == [1]


@pytest.mark.parametrize("error", [apsw.FullError("full"), apsw.BusyError("busy")])
def test_what_cannot_be_moved_now_is_moved_later(journal: SqliteJournal, error: apsw.Error) -> None:
    fail(mover_of(journal), error)
    for number in range(100):
        journal.write(Batch(chunks=[(number, CHUNK)]))
    assert mover_of(journal)._round > 0
