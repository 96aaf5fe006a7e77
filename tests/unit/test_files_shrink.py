"""What a backlog took on the disk is given back when it is drained, though nobody writes any more."""

import asyncio
from pathlib import Path
from typing import Final

import pytest

from penstock.model.job import Run
from penstock.model.lifecycle import State
from penstock.open import open_store
from penstock.stores.embedded import EmbeddedStore
from penstock.stores.journal import sqlite, writer

T: Final = "default"
PUSHES: Final = 200
PAYLOADS: Final = [b'"' + b"x" * 200 + b'"'] * 1_000
FULL: Final = PUSHES * len(PAYLOADS) * 200
LEFT: Final = 16 << 20  # what a store may have that holds next to nothing
PATIENCE_S: Final = 60.0


async def opened(scheme: str, directory: Path) -> EmbeddedStore:
    store = await open_store(f"{scheme}:///{directory}/store?reserve_bytes=0", share=False)
    assert isinstance(store, EmbeddedStore)
    return store


def file_bytes(store: EmbeddedStore) -> int:
    return sizes(store)["file"]


def sizes(store: EmbeddedStore) -> dict[str, int]:
    keeper = store.engine.keeper
    assert keeper is not None
    return keeper.journal.sizes()


async def fill(store: EmbeddedStore) -> None:
    for _ in range(PUSHES):
        await store.push(T, [Run.pack("q", PAYLOADS)])


async def drain(store: EmbeddedStore, keep: int = 0) -> None:
    while (lease := await store.claim(T, ["q"], 10_000)) is not None:
        await store.ack(T, lease.token)
        if (await store.queues(T, ["q"]))[0].counts[State.READY] <= keep:
            return


async def until_small(store: EmbeddedStore, most: int) -> None:
    """The files get smaller beside whatever else is done, so that we look."""
    async with asyncio.timeout(PATIENCE_S):
        while await asyncio.to_thread(file_bytes, store) > most:
            pass


@pytest.mark.parametrize("scheme", ["sqlite", "rocksdb"])
def test_a_drained_backlog_gives_its_room_back(scheme: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await opened(scheme, tmp_path)
        await fill(store)
        await drain(store)
        await until_small(store, LEFT)
        await store.push(T, [Run.pack("q", [b"1"])])  # and it goes on
        assert (await store.queues(T, ["q"]))[0].counts[State.READY] == 1
        await store.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("scheme", ["sqlite", "rocksdb"])
def test_what_was_left_too_large_gets_small_when_it_is_opened(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a process that ended as soon as it was done."""

    async def left() -> int:
        store = await opened(scheme, tmp_path)
        await fill(store)
        await drain(store)
        size = sum(sizes(store).values())  # what lies in a WAL is not in the file yet
        await store.close()
        return size

    async def scenario() -> None:
        store = await opened(scheme, tmp_path)
        await until_small(store, LEFT)
        await store.close()

    with monkeypatch.context() as hurried:
        hurried.setattr(writer, "REST_S", 3_600)  # there is no rest …
        hurried.setattr(sqlite, "SHRINK_AT", FULL)  # … and no batch takes any of it along
        assert asyncio.run(left()) > FULL // 2
    asyncio.run(scenario())


@pytest.mark.parametrize("scheme", ["sqlite", "rocksdb"])
def test_what_is_still_needed_stays(scheme: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await opened(scheme, tmp_path)
        await fill(store)
        await drain(store, keep=FULL // 200 // 4)
        await until_small(store, FULL // 2 + LEFT)
        left = []
        while (lease := await store.claim(T, ["q"], 10_000)) is not None:
            left += [job.payload for job in lease.jobs]
            await store.ack(T, lease.token)
        assert left == [PAYLOADS[0]] * (FULL // 200 // 4)
        await store.close()

    asyncio.run(scenario())
