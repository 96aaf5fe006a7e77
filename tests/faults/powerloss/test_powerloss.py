"""Small programs over power cuts: with their syncs nothing acknowledged is lost.

Without, it has to be: images that cannot catch a missing sync would prove nothing.
"""

import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from rocksdict import Options, Rdict

from tests.faults.powerloss import Image, Recording, record
from tests.faults.powerloss.writers import DATABASE, SIZE, record_of

ROOT = Path(__file__).resolve().parents[3]
IMAGES = 1_000 if os.environ.get("PENSTOCK_LONG") == "1" else 100
COUNT = 150  # records of a run

seeds = pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 8))]
)


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[[str], Recording]:
    def run(writer: str) -> Recording:
        directory = tmp_path / writer
        directory.mkdir()
        argv = [sys.executable, "-m", "tests.faults.powerloss.writers", writer]
        recording = record(
            [*argv, str(directory), str(COUNT)], directory, tmp_path / f"{writer}.log", cwd=ROOT
        )
        assert recording.markers == [str(number) for number in range(COUNT)]
        return recording

    return run


Run = Callable[[str], Recording]


def acknowledged(image: Image) -> set[int]:
    return {int(line) for line in image.markers}


# A log of records.


def fare(image: Image, number: int) -> str:
    """What became of a record of the log."""
    whole = record_of(number)
    there = image.files.get("log", b"")[number * SIZE :][:SIZE]
    if there == whole:
        return "whole"
    return "torn" if any(there) else "lost"


@seeds
def test_a_log_that_is_synced_keeps_every_acknowledged_record(recorded: Run, seed: int) -> None:
    for image in recorded("append").images(seed, IMAGES):
        assert {fare(image, number) for number in acknowledged(image)} <= {"whole"}, image


@seeds
def test_a_log_that_is_not_synced_loses_and_tears_records(recorded: Run, seed: int) -> None:
    fares = Counter(
        fare(image, number)
        for image in recorded("append-unsynced").images(seed, IMAGES)
        for number in acknowledged(image)
    )
    assert fares.keys() == {"whole", "torn", "lost"}


def test_a_strict_disk_loses_a_file_whose_directory_is_not_synced(recorded: Run) -> None:
    recording = recorded("append")
    assert all("log" in image.files for image in recording.images(1, IMAGES) if image.markers)
    strict = [image for image in recording.images(1, IMAGES, strict=True) if image.markers]
    assert 0 < sum("log" not in image.files for image in strict) < len(strict)


# A file replaced by a rename.


def version(image: Image) -> int | None:
    """The number of the version that is found whole; unset if none is."""
    found = image.files.get("current")
    return next((n for n in range(COUNT) if record_of(n) * 3 == found), None)


@seeds
@pytest.mark.parametrize("strict", [False, True])
def test_a_file_synced_before_its_rename_is_never_half_there(
    recorded: Run, seed: int, strict: bool
) -> None:
    for image in recorded("replace").images(seed, IMAGES, strict=strict):
        found = version(image)
        assert found is not None or "current" not in image.files, image
        last = max(acknowledged(image), default=-1)
        assert (-1 if found is None else found) >= last, image


@seeds
def test_a_file_not_synced_before_its_rename_may_be_empty_or_torn(recorded: Run, seed: int) -> None:
    broken = Counter(
        any(image.files["current"])
        for image in recorded("replace-unsynced").images(seed, IMAGES)
        if "current" in image.files and version(image) is None
    )
    assert broken.keys() == {False, True}


# SQLite.


def rows(directory: Path) -> dict[int, bytes]:
    """Everything in the table, of a database that has no fault."""
    database = apsw.Connection(str(directory / DATABASE))
    try:
        assert database.pragma("integrity_check") == "ok"
        if not database.table_exists("main", "rows"):
            return {}
        return dict(database.execute("select number, data from rows"))
    finally:
        database.close()


def lost_rows(image: Image, found: dict[int, bytes]) -> set[int]:
    assert all(data == record_of(number) for number, data in found.items()), image
    return acknowledged(image) - found.keys()


@seeds
def test_sqlite_that_syncs_every_commit_keeps_every_row(
    recorded: Run, tmp_path: Path, seed: int
) -> None:
    for image in recorded("sqlite-full").images(seed, IMAGES):
        assert not lost_rows(image, rows(image.materialise(tmp_path / "image"))), image


@seeds
def test_sqlite_that_syncs_checkpoints_alone_stays_whole_and_loses_rows(
    recorded: Run, tmp_path: Path, seed: int
) -> None:
    losses = [
        lost_rows(image, rows(image.materialise(tmp_path / "image")))
        for image in recorded("sqlite-normal").images(seed, IMAGES)
    ]
    assert any(losses)


@seeds
def test_sqlite_that_never_syncs_is_damaged(recorded: Run, tmp_path: Path, seed: int) -> None:
    damaged = 0
    for image in recorded("sqlite-off").images(seed, IMAGES):
        try:
            lost_rows(image, rows(image.materialise(tmp_path / "image")))
        except (apsw.CorruptError, apsw.NotADBError, AssertionError):
            damaged += 1
    assert damaged


# RocksDB.


def keys(directory: Path) -> dict[int, bytes]:
    database = Rdict(str(directory / "rocks"), Options(raw_mode=True))
    try:
        found: dict[Any, Any] = dict(database.items())
        return {int.from_bytes(key): value for key, value in found.items()}
    finally:
        database.close()


@seeds
def test_rocksdb_with_its_log_flushed_keeps_every_key(
    recorded: Run, tmp_path: Path, seed: int
) -> None:
    for image in recorded("rocksdb").images(seed, IMAGES):
        assert not lost_rows(image, keys(image.materialise(tmp_path / "image"))), image


@seeds
def test_rocksdb_with_its_log_not_flushed_loses_keys(
    recorded: Run, tmp_path: Path, seed: int
) -> None:
    losses = [
        lost_rows(image, keys(image.materialise(tmp_path / "image")))
        for image in recorded("rocksdb-unsynced").images(seed, IMAGES)
    ]
    assert any(losses)
