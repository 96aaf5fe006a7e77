"""An opening of RocksDB that a power cut took back in part: what it began with is still there."""

import asyncio
import shutil
from pathlib import Path

import pytest

from penstock.model.job import JobSpec
from penstock.model.lifecycle import State
from penstock.open import open_store
from penstock.stores.embedded import EmbeddedStore
from tests.durable import crash

T = "acme"


async def opened(path: Path) -> EmbeddedStore:
    store = await open_store(f"rocksdb:///{path}", share=False)
    assert isinstance(store, EmbeddedStore)
    return store


def test_a_file_without_its_name_is_not_missed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, before, lock = tmp_path / "store", tmp_path / "before", tmp_path / "store.lock"

    async def scenario() -> None:
        store = await opened(path)
        await store.push_jobs(T, "q", [JobSpec(payload=b"1")] * 20)
        # As a killed process leaves it; to close it in order would leave nothing to replay.
        shutil.copytree(path, before)
        await crash(store)
        witness = lock.read_bytes()
        shutil.rmtree(path)
        shutil.copytree(before, path)
        await crash(await opened(path))
        lock.write_bytes(witness)  # the opening did not get as far as to write anything
        # The directory after a cut: what was there, and of what came since all but one name.
        made = sorted(each.name for each in path.glob("*.sst"))
        assert made, "the opening replayed something"
        for name in ("CURRENT", *(each.name for each in path.glob("MANIFEST-*")), *made[1:]):
            shutil.copy(path / name, before / name)
        shutil.rmtree(path)
        before.rename(path)
        again = await opened(path)
        (found,) = await again.queues(T)
        assert found.counts[State.READY] == 20
        assert "its last opening was cut short: MANIFEST-" in caplog.text
        await again.close()
        await (await opened(path)).close()

    asyncio.run(scenario())


def test_a_file_that_is_missing_otherwise_is_missed(tmp_path: Path) -> None:
    path = tmp_path / "store"

    async def scenario() -> None:
        store = await opened(path)
        await store.push_jobs(T, "q", [JobSpec(payload=b"1")] * 20)
        await store.close()
        store = await opened(path)
        await store.close()
        gone = min(path.glob("*.sst"))
        gone.unlink()
        with pytest.raises(Exception, match=gone.name):
            await opened(path)

    asyncio.run(scenario())
