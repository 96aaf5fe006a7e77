"""What SQLite was told is what it does: it answers nothing to a setting that it did not take."""

from pathlib import Path

import pytest

from penstock.stores.journal import sqlite
from penstock.stores.journal.sqlite import SqliteJournal


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("journal_mode", "wal"),
        ("page_size", sqlite.PAGE),
        ("auto_vacuum", 2),
        ("journal_size_limit", sqlite.WAL_KEPT),
        ("synchronous", 2),
    ],
)
def test_the_writing_connection_has_its_settings(
    tmp_path: Path, name: str, value: str | int
) -> None:
    journal = SqliteJournal(tmp_path / "store")
    journal.open()
    try:
        assert journal._db.pragma(name) == value
    finally:
        journal.close()
