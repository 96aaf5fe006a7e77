"""A chunk that the journal was given before its batch is there with the batch, or not at all."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model.job import JobOptions, Run
from penstock.open import JOURNALS, open_store
from penstock.stores.embedded import EmbeddedStore
from penstock.stores.journal.base import Batch, Group, Journal
from tests.durable import crash, scratch

LARGE = bytes(range(256)) * 64  # more than shares a chunk with others


@pytest.fixture(params=sorted(JOURNALS))
def path(request: pytest.FixtureRequest) -> Iterator[tuple[str, Path]]:
    with scratch() as directory:
        yield request.param, Path(directory) / "store"


def opened(path: tuple[str, Path]) -> Journal:
    journal = JOURNALS[path[0]](path[1])
    journal.open()
    return journal


def ids(path: tuple[str, Path]) -> list[int]:
    journal = opened(path)
    try:
        return sorted(journal.chunk_ids(0))
    finally:
        journal.close()


def test_a_staged_chunk_comes_with_its_batch(path: tuple[str, Path]) -> None:
    journal = opened(path)
    journal.stage(1, LARGE)
    journal.write(Batch(group=Group(1, 1, b"r"), chunks=[(1, LARGE), (2, b"small")], sync=True))
    assert journal.chunk(1) == LARGE
    assert journal.chunk(2) == b"small"
    journal.close()
    assert ids(path) == [1, 2]


def test_a_staged_chunk_that_its_batch_does_not_have_never_was(path: tuple[str, Path]) -> None:
    journal = opened(path)
    journal.stage(1, LARGE)
    journal.stage(2, LARGE[::-1])
    journal.write(Batch(group=Group(1, 2, b"r"), chunks=[(2, LARGE[::-1])], sync=True))
    journal.write(Batch(group=Group(3, 3, b"s"), chunks=[(3, b"next")], sync=False))
    journal.close()
    assert ids(path) == [2, 3]


def test_what_was_staged_for_a_batch_that_never_came_is_not_there(path: tuple[str, Path]) -> None:
    journal = opened(path)
    journal.write(Batch(group=Group(1, 1, b"r"), chunks=[(1, b"one")], sync=True))
    journal.stage(2, LARGE)
    with pytest.raises(KeyError):
        journal.chunk(2)
    journal.close()
    assert ids(path) == [1]


def test_staging_meets_a_batch_without_sync(path: tuple[str, Path]) -> None:
    journal = opened(path)
    journal.stage(1, LARGE)
    journal.write(Batch(group=Group(1, 1, b"r"), chunks=[(1, LARGE)], sync=False))
    journal.write(Batch(group=Group(2, 2, b"r"), facts={"head": 2}, sync=True))
    journal.close()
    assert ids(path) == [1]


async def _push(store: EmbeddedStore, *payloads: bytes) -> list[int]:
    run = Run.pack("work", payloads, JobOptions(codec="bytes"))
    return (await store.push("default", [run])).ids


def test_a_large_push_forgotten_in_the_same_turn_leaves_nothing(path: tuple[str, Path]) -> None:
    url = f"{path[0]}:///{path[1]}"

    async def play() -> None:
        store = await open_store(url, share=False)
        assert isinstance(store, EmbeddedStore)
        pushed = asyncio.ensure_future(_push(store, LARGE, LARGE))
        purged = asyncio.ensure_future(store.purge("default", "work"))
        kept = asyncio.ensure_future(_push(store, LARGE[::-1], b"x"))
        await asyncio.gather(pushed, purged, kept)
        assert purged.result() == 2
        await crash(store)
        again = await open_store(url, share=False)
        jobs = await again.get("default", [*pushed.result(), *kept.result()])
        assert [job and job.payload for job in jobs] == [None, None, LARGE[::-1], b"x"]
        await again.close()

    asyncio.run(play())
    assert len(ids(path)) == 1
