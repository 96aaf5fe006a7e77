"""A file that held a backlog gets small again, a little with every batch."""

from pathlib import Path

from penstock.stores.journal import sqlite
from penstock.stores.journal.base import Batch
from penstock.stores.journal.sqlite import SqliteJournal

CHUNKS = 4 * sqlite.SHRINK_AT
CHUNK = bytes(sqlite.PAGE)


def test_pages_of_dropped_chunks_go_back_to_the_file_system(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "store")
    journal.open()
    journal.write(Batch(chunks=[(number, CHUNK) for number in range(CHUNKS)]))
    full = journal._db.pragma("page_count")
    for number in range(CHUNKS):
        journal.write(Batch(dropped=[number]))
    left = journal._db.pragma("page_count")
    journal.close()
    assert full >= CHUNKS
    assert left <= sqlite.SHRINK_AT + sqlite.SHRUNK + 100  # what lies there for good, and no more
    assert (tmp_path / "store").stat().st_size == left * sqlite.PAGE
