"""Backups: taken while serving, restored elsewhere, verified without a trace."""

import asyncio
import errno
import io
import os
import shutil
import tarfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock.model.errors import Conflict, Invalid, NotFound, Unavailable
from penstock.model.job import JobOptions, JobSpec, Run
from penstock.open import JOURNALS, open_store
from penstock.stores import backup
from penstock.stores.embedded import EmbeddedStore

T = "acme"
SCHEMES = sorted(JOURNALS)


async def opened(url: str) -> EmbeddedStore:
    store = await open_store(url, share=False)
    assert isinstance(store, EmbeddedStore)
    return store


def on(url: str, scenario: Callable[[EmbeddedStore], Awaitable[None]]) -> None:
    async def whole() -> None:
        store = await opened(url)
        try:
            await scenario(store)
        finally:
            await store.close()

    asyncio.run(whole())


async def push_on(store: EmbeddedStore, stop: asyncio.Event) -> list[int]:
    """Push batches until told to stop; answers the ids that were acknowledged."""
    acknowledged: list[int] = []
    run = Run.pack("load", [b"x" * 44] * 500, JobOptions(codec="bytes"))
    while not stop.is_set():
        acknowledged += (await store.push(T, [run])).ids
        lease = await store.claim(T, ["load"], 100)
        assert lease is not None
        await store.ack(T, lease.token)
    return acknowledged


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_backup_under_load_holds_everything_that_was_acknowledged_before_it(
    scheme: str, tmp_path: Path
) -> None:
    seen: list[int] = []

    async def scenario(store: EmbeddedStore) -> None:
        stop = asyncio.Event()
        pushing = asyncio.create_task(push_on(store, stop))
        seen.extend((await store.push_jobs(T, "q", [JobSpec(payload=b"1")] * 3)).ids)
        await store.backup(tmp_path / "backups")
        stop.set()
        assert await pushing

    on(f"{scheme}:///{tmp_path}/store", scenario)
    (taken,) = backup.kept(tmp_path / "backups")
    report = backup.verify(taken, JOURNALS)
    assert report.problems == []
    assert report.jobs >= len(seen)
    backup.restore(taken, scheme, tmp_path / "restored")

    async def look(store: EmbeddedStore) -> None:
        assert [job and job.payload for job in await store.get(T, seen)] == [b"1"] * 3
        fresh = (await store.push_jobs(T, "q", [JobSpec()])).ids
        assert fresh[0] > max(seen)

    on(f"{scheme}:///{tmp_path}/restored", look)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_restore_overwrites_nothing(scheme: str, tmp_path: Path) -> None:
    async def scenario(store: EmbeddedStore) -> None:
        await store.push_jobs(T, "q", [JobSpec()])
        await store.backup(tmp_path / "backups")

    on(f"{scheme}:///{tmp_path}/store", scenario)
    (taken,) = backup.kept(tmp_path / "backups")
    with pytest.raises(Conflict, match="exists"):
        backup.restore(taken, scheme, tmp_path / "store")
    other = {"sqlite": "rocksdb", "rocksdb": "sqlite"}[scheme]
    with pytest.raises(Invalid, match=f"is of a {scheme} store"):
        backup.restore(taken, other, tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()


def test_a_damaged_backup_is_found_out(tmp_path: Path) -> None:
    async def scenario(store: EmbeddedStore) -> None:
        await store.push_jobs(T, "q", [JobSpec()])
        await store.backup(tmp_path / "backups")

    on(f"sqlite:///{tmp_path}/store", scenario)
    (taken,) = backup.kept(tmp_path / "backups")
    whole = taken.read_bytes()
    for place in range(0, len(whole), max(1, len(whole) // 40)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x40
        taken.write_bytes(damaged)
        try:
            report = backup.verify(taken, JOURNALS)
        except Invalid:
            continue
        # A bit of the archive's own headers that means nothing: what it holds is whole.
        assert (report.problems, report.jobs) == ([], 1)
    taken.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(Invalid, match="damaged"):
        backup.verify(taken, JOURNALS)
    with pytest.raises(NotFound):
        backup.verify(tmp_path / "nothing", JOURNALS)


@pytest.mark.parametrize("left", ["-wal", "-shm", "-journal"])
def test_what_is_left_of_another_store_does_not_go_into_a_restored_one(
    left: str, tmp_path: Path
) -> None:
    async def scenario(store: EmbeddedStore) -> None:
        await store.push_jobs(T, "q", [JobSpec()])
        await store.backup(tmp_path / "backups")

    on(f"sqlite:///{tmp_path}/store", scenario)
    (taken,) = backup.kept(tmp_path / "backups")
    beside = tmp_path / f"restored{left}"
    beside.write_bytes(b"of another")
    with pytest.raises(Conflict, match=f"restored{left} is of a store that was here"):
        backup.restore(taken, "sqlite", tmp_path / "restored")
    assert not (tmp_path / "restored").exists()
    beside.unlink()
    backup.restore(taken, "sqlite", tmp_path / "restored")
    assert backup.inspect(JOURNALS["sqlite"](tmp_path / "restored")).jobs == 1


def test_a_full_disk_says_nothing_against_a_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(store: EmbeddedStore) -> None:
        await store.backup(tmp_path / "backups")

    on(f"sqlite:///{tmp_path}/store", scenario)
    (taken,) = backup.kept(tmp_path / "backups")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(Unavailable, match="cannot be unpacked: No space left on device"):
        backup.verify(taken, JOURNALS)


@pytest.mark.parametrize("name", ["../elsewhere", "/tmp/elsewhere", "a/../../elsewhere", "link"])
def test_what_leads_elsewhere_is_no_backup(name: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    forged = tmp_path / "in" / "20260101T000000.000Z.backup"
    with tarfile.open(forged, "w:gz") as archive:
        entry = tarfile.TarInfo(name)
        if name == "link":
            entry.type, entry.linkname = tarfile.SYMTYPE, "../elsewhere"
        archive.addfile(entry, io.BytesIO())
    with pytest.raises(Invalid, match="no backup"):
        backup.verify(forged, JOURNALS)
    with pytest.raises(Invalid, match="no backup"):
        backup.restore(forged, "sqlite", tmp_path / "restored")
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "in", forged]


def test_backups_on_an_interval_keep_the_newest(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store?backup_dir={tmp_path}/b&backup_every_s=0.01&backup_keep=2"

    async def scenario(store: EmbeddedStore) -> None:
        keeper = store.engine.keeper
        assert keeper is not None
        seen: dict[str, None] = {}
        while len(seen) < 4:
            await store.push_jobs(T, "q", [JobSpec()])
            if keeper.backups.last is not None:
                seen[keeper.backups.last.name] = None
        assert (await store.health()).detail["backup_failed"] is None

    on(url, scenario)
    kept = backup.kept(tmp_path / "b")
    assert 1 <= len(kept) <= 3  # one may have come after the last was counted
    assert backup.verify(kept[-1], JOURNALS).problems == []


def test_an_interval_needs_a_directory(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="backup_dir"):
        asyncio.run(opened(f"sqlite:///{tmp_path}/store?backup_every_s=5"))


def test_a_store_in_memory_has_nothing_to_back_up(tmp_path: Path) -> None:
    async def scenario(store: EmbeddedStore) -> None:
        with pytest.raises(Invalid, match="memory"):
            await store.backup(tmp_path)

    on("memory://", scenario)
