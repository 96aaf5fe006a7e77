"""What lies where a store is wanted: nothing, something else, or what this user may not touch."""

import asyncio
import logging
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.cli.backup import backup
from penstock.cli.doctor import doctor
from penstock.model.errors import NotFound, Unavailable
from penstock.model.job import JobSpec
from penstock.open import JOURNALS, open_store
from penstock.stores.journal.ownership import Ownership

SCHEMES = sorted(JOURNALS)
NOBODY = 65_534


def refused(url: str, kind: type[Exception] = Unavailable, **how: bool) -> str:
    """Why it cannot be opened."""

    async def case() -> None:
        store = await open_store(url, **how)  # type: ignore[arg-type]
        await store.close()

    with pytest.raises(kind) as error:
        asyncio.run(case())
    return str(error.value)


def filled(url: str) -> None:
    async def case() -> None:
        store = await open_store(url, share=False)
        await store.push_jobs("default", "q", [JobSpec()])
        await store.close()

    asyncio.run(case())


def names(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


# -- something else --------------------------------------------------------------------------------


def junk(scheme: str, path: Path) -> None:
    if scheme == "sqlite":
        path.write_bytes(b"this is no store" * 1_000)
    else:
        path.mkdir()
        (path / "CURRENT").write_text("nothing\n")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_cannot_be_opened_is_told_once_and_left_as_it_was(
    scheme: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    junk(scheme, tmp_path / "store")
    with caplog.at_level(logging.INFO, "penstock.store"):
        told = refused(f"{scheme}:///{tmp_path}/store")
    assert told.startswith("the store cannot be opened: ")
    assert not caplog.records
    assert names(tmp_path) == ["store"]


def test_another_file_is_no_store(tmp_path: Path) -> None:
    junk("sqlite", tmp_path / "store")
    assert refused(f"sqlite:///{tmp_path}/store") == (
        f"the store cannot be opened: {tmp_path}/store is no SQLite file: it is something else,"
        " or a damaged store; name another, or restore a backup"
    )


def test_a_store_whose_making_was_cut_short_is_made_anew(tmp_path: Path) -> None:
    """As a power cut may leave it: SQLite's journal was synced, and of the file only its size is
    there. The journal says that the file was empty before."""
    path = tmp_path / "store"
    path.write_bytes(bytes(32 << 10))
    journal = bytes.fromhex("d9d505f920a163d7 00000000 3d217d2b 00000000 00000200 00008000")
    (tmp_path / "store-journal").write_bytes(journal.ljust(512, b"\0"))

    async def scenario() -> None:
        store = await open_store(f"sqlite:///{path}", share=False)
        await store.push_jobs("default", "q", [JobSpec(payload=b"1")])
        await store.close()

    asyncio.run(scenario())
    assert path.read_bytes().startswith(b"SQLite format 3")


def test_a_directory_is_no_sqlite_file(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    assert refused(f"sqlite:///{tmp_path}/store") == (
        f"the store cannot be opened: {tmp_path}/store is a directory, and sqlite:// names a file"
    )
    filled(f"rocksdb:///{tmp_path}/rocks")
    assert refused(f"sqlite:///{tmp_path}/rocks") == (
        f"the store cannot be opened: {tmp_path}/rocks is a directory, and sqlite:// names a file;"
        f" rocksdb:///{tmp_path}/rocks is a store"
    )


def test_a_file_is_no_rocksdb_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("of somebody")
    assert refused(f"rocksdb:///{tmp_path}/file") == (
        f"the store cannot be opened: {tmp_path}/file is a file, and rocksdb:// names a directory"
    )
    filled(f"sqlite:///{tmp_path}/store")
    assert refused(f"rocksdb:///{tmp_path}/store") == (
        f"the store cannot be opened: {tmp_path}/store is a file, and rocksdb:// names a directory;"
        f" sqlite:///{tmp_path}/store is a store"
    )


def test_another_program_s_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "contacts.db"
    theirs = sqlite3.connect(path)
    theirs.execute("CREATE TABLE people(name TEXT)")
    theirs.close()
    before = path.read_bytes()
    assert refused(f"sqlite:///{path}") == (
        f"the store cannot be opened: {path} is another program's database; name another file"
    )
    assert path.read_bytes() == before
    assert names(tmp_path) == ["contacts.db"]


def test_a_directory_of_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter").write_text("dear")
    assert refused(f"rocksdb:///{tmp_path}/home") == (
        f"the store cannot be opened: {tmp_path}/home is a directory of other things; name one"
        " that is empty or not there yet"
    )
    assert names(tmp_path) == ["home"]
    assert names(tmp_path / "home") == ["letter"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_empty_place_becomes_a_store_and_is_none_before(scheme: str, tmp_path: Path) -> None:
    path = tmp_path / "store"
    if scheme == "sqlite":
        path.touch()
    else:
        path.mkdir()
    told = refused(f"{scheme}:///{path}?mode=ro", NotFound)
    assert told == f"url: there is no store at {path}"
    assert names(tmp_path) == ["store"]
    filled(f"{scheme}:///{path}")


def test_a_lock_that_has_witnessed_something_stays(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store"
    filled(url)
    junk("sqlite", tmp_path / "store")
    refused(url)
    assert "store.lock" in names(tmp_path)
    assert refused(url)


def test_a_lock_file_that_goes_away_is_locked_by_nobody(tmp_path: Path) -> None:
    """Whoever waited for it with a handle of the old one must not believe to own the path."""
    first, second = Ownership(tmp_path / "store"), Ownership(tmp_path / "store")
    first.take()
    first.undo()
    assert names(tmp_path) == []
    second.take()
    assert names(tmp_path) == ["store.lock"]
    second.leave()


def test_a_name_that_no_file_can_have_is_no_store(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/{'x' * 300}"
    assert "there is no store at" in refused(f"{url}?mode=ro", NotFound)
    assert refused(url).endswith("cannot be owned: File name too long")


def test_a_directory_that_takes_no_files_is_there_all_the_same() -> None:
    told = refused("sqlite:////proc/jobs.db")
    assert told == "url: /proc/jobs.db cannot be owned: no file can be made in /proc"


# -- no right --------------------------------------------------------------------------------------


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that other users may look into, as nothing under pytest's own is."""
    with tempfile.TemporaryDirectory() as made:
        place = Path(made).resolve()
        place.chmod(0o755)
        yield place


@contextmanager
def without_rights(place: Path) -> Iterator[None]:
    """As somebody who may read there and nothing else."""
    place.chmod(0o555)
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        place.chmod(0o755)


def readable(path: Path) -> None:
    for each in (path, *path.rglob("*")):
        each.chmod(0o755 if each.is_dir() else 0o644)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_store_that_may_be_read_but_not_written_beside_says_what_to_do(
    scheme: str, open_place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = open_place / "store"
    filled(f"{scheme}:///{path}")
    readable(path)
    if scheme == "rocksdb":
        path.chmod(0o555)
    where = open_place if scheme == "sqlite" else path
    why = (
        f"{path} cannot be read by who may not write to {where}, where its database keeps files of"
        " its own; read a copy: penstock backup by who may, and penstock restore elsewhere"
    )
    with without_rights(open_place):
        told = refused(f"{scheme}:///{path}?mode=ro")
        assert doctor(f"{scheme}:///{path}", lake=None, check=False, as_json=False) == 1
        shown = capsys.readouterr().err
        assert backup(f"{scheme}:///{path}", Path(tempfile.gettempdir()), 0) == 1
        if scheme == "sqlite":  # a copy of the other has to own it
            assert capsys.readouterr().err == f"{why}\n"
    assert told == f"the store cannot be opened: {why}"
    assert shown == f"PROBLEM: {why}\n"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_place_where_this_user_may_not_write_says_so(scheme: str, open_place: Path) -> None:
    path = open_place / "store"
    with without_rights(open_place):
        assert refused(f"{scheme}:///{path}") == (
            f"url: {path} cannot be owned: this user may not write to {open_place}"
        )
    filled(f"{scheme}:///{path}")
    (open_place / "store.lock").chmod(0o400)
    owner = "root" if os.geteuid() == 0 else ""
    with without_rights(open_place):
        told = refused(f"{scheme}:///{path}")
        assert told.startswith(f"url: {path} cannot be owned: this user may not write store.lock")
        assert owner in told
    assert refused(f"{scheme}:///{open_place}/a/b/store") == (
        f"url: {open_place}/a/b/store cannot be owned: there is no directory {open_place}/a/b;"
        " make it first"
    )
    (open_place / "file").touch()
    assert refused(f"{scheme}:///{open_place}/file/store") == (
        f"url: {open_place}/file/store cannot be owned: {open_place}/file is no directory"
    )


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_store_that_this_user_may_not_read_says_whose_it_is(
    scheme: str, open_place: Path
) -> None:
    path = open_place / "store"
    filled(f"{scheme}:///{path}")
    path.chmod(0o000)
    with without_rights(open_place):
        told = refused(f"{scheme}:///{path}?mode=ro")
    path.chmod(0o700)
    assert told.startswith(f"the store cannot be opened: this user may not read {path}, which is ")
