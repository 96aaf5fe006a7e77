"""What a store writes can be read by its owner alone, whatever the umask."""

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model.job import Run
from penstock.open import JOURNALS, open_store
from penstock.stores import backup
from penstock.stores.embedded import EmbeddedStore

SCHEMES = pytest.mark.parametrize("scheme", JOURNALS)


@pytest.fixture(autouse=True)
def open_hand() -> Iterator[None]:
    """A umask that hides nothing."""
    mask = os.umask(0)
    yield
    os.umask(mask)


def modes(directory: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.lstat().st_mode) for path in directory.iterdir()}


@SCHEMES
def test_files_of_a_store_are_private(scheme: str, tmp_path: Path) -> None:
    async def case() -> None:
        store = await open_store(f"{scheme}:///{tmp_path}/jobs?events={tmp_path}/events")
        await store.push("default", [Run(queue="q", data=b"1", ends=[1])])
        found = modes(tmp_path)
        assert found.pop("events") == 0o750
        whole = found.pop("jobs")
        assert whole == (0o600 if scheme == "sqlite" else 0o700)
        assert found  # a lock, a socket, a log ahead
        assert set(found.values()) == {0o600}, found
        assert set(modes(tmp_path / "events").values()) <= {0o640, 0o600}
        await store.close()

    asyncio.run(case())


@SCHEMES
def test_backups_and_what_is_restored_of_them_are_private(scheme: str, tmp_path: Path) -> None:
    async def case() -> Path:
        store = await open_store(f"{scheme}:///{tmp_path}/jobs", share=False)
        assert isinstance(store, EmbeddedStore)
        taken = await store.backup(tmp_path / "far" / "copies")
        await store.close()
        return taken

    taken = asyncio.run(case())
    assert modes(tmp_path / "far") == {"copies": 0o700}
    assert modes(taken.parent) == {taken.name: 0o600}
    again = tmp_path / "again"
    again.mkdir()
    backup.restore(taken, scheme, again / "jobs")
    assert modes(again)["jobs"] == (0o600 if scheme == "sqlite" else 0o700)


def test_a_mode_that_somebody_gave_stays(tmp_path: Path) -> None:
    async def case() -> None:
        for _ in range(2):
            store = await open_store(f"sqlite:///{tmp_path}/jobs")
            await store.close()
            (tmp_path / "jobs").chmod(0o640)

    asyncio.run(case())
    assert modes(tmp_path)["jobs"] == 0o640
