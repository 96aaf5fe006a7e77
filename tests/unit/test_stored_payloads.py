"""Payloads between memory and disk: what is read, let go and added to at the same time."""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable

import pytest

from penstock.model.errors import Unavailable
from penstock.model.job import JobOptions, JobSpec, Run
from penstock.open import JOURNALS, open_store
from penstock.stores.embedded import EmbeddedStore
from penstock.stores.journal.rocksdb import RocksJournal
from penstock.stores.journal.sqlite import SqliteJournal
from penstock.stores.keeper import Keeper
from penstock.stores.stored_payloads import StoredPayloads
from tests.durable import crash, scratch, settled
from tests.late import late_disk

T = "acme"
LARGE = JobOptions(codec="bytes", retain_ms=0)


def keeper_of(store: EmbeddedStore) -> Keeper:
    assert store.engine.keeper is not None
    return store.engine.keeper


def url_of(store: EmbeddedStore) -> str:
    journal = keeper_of(store).journal
    assert isinstance(journal, SqliteJournal | RocksJournal)
    return f"{journal.scheme}:///{journal.path}"


async def turns(n: int) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


@pytest.fixture(params=sorted(JOURNALS))
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def on(scheme: str, scenario: Callable[[EmbeddedStore], Awaitable[None]]) -> None:
    """A store that keeps one chunk in memory, the one used last."""

    async def whole(url: str) -> None:
        store = await open_store(f"{url}?cache_bytes=0", share=False)
        assert isinstance(store, EmbeddedStore)
        await scenario(store)

    with scratch() as directory:
        asyncio.run(whole(f"{scheme}:///{directory}/store"))


# -- let go while they are read --------------------------------------------------------------------


def test_a_chunk_that_was_let_go_while_it_was_read_takes_nothing_in() -> None:
    """Else it would go when the reader is done, with what came in meanwhile."""
    gate = threading.Event()

    def read(chunk: int) -> bytes:
        assert gate.wait(30)
        return b"old"

    async def scenario() -> None:
        payloads = StoredPayloads(read, first=2)
        growing, _ = payloads.add("", b"one")
        reading = asyncio.create_task(payloads.fetch([1, growing]))
        await asyncio.sleep(0)
        payloads.drop(growing)
        other, start = payloads.add("", b"two")
        gate.set()
        assert await reading == {1: b"old", growing: b"one"}
        chunks, _ = payloads.seal()
        assert dict(chunks)[other][start:] == b"two"
        payloads.close()

    asyncio.run(scenario())


def test_a_job_pushed_while_its_neighbour_goes_and_is_read_keeps_its_payload(scheme: str) -> None:
    async def scenario(store: EmbeddedStore) -> None:
        for _ in range(2):  # the first of them is on the disk alone
            await store.push(T, [Run.pack("q", [os.urandom(10_000)], LARGE)])
        await settled(store)
        writing = asyncio.create_task(store.push_jobs(T, "other", [JobSpec()]))
        await turns(3)
        # The writer has a batch, so these three share the next one, and a chunk.
        spec = JobSpec(key="k", payload=b"1", retain_ms=0)
        goes = asyncio.create_task(store.push_jobs(T, "q", [spec]))
        await turns(1)
        reading = asyncio.create_task(store.find(T, "q"))
        await turns(1)
        job_id = await store.by_key(T, "q", "k")
        assert job_id is not None
        gone = asyncio.create_task(store.cancel(T, [job_id]))
        await turns(1)
        stays = asyncio.create_task(store.push_jobs(T, "q", [JobSpec(payload=b"2")]))
        await turns(1)
        assert not any(task.done() for task in (writing, goes, reading, gone, stays))
        assert [job.payload for job in (await reading).jobs][2:] == [b"1"]
        await asyncio.gather(writing, goes, gone)
        ids = (await stays).ids
        await settled(store)
        (job,) = await store.get(T, ids)
        await store.close()
        again = await open_store(url_of(store), share=False)
        assert await again.get(T, ids) == [job]
        assert job is not None
        assert job.payload == b"2"
        await again.close()

    with late_disk(lambda: 20):
        on(scheme, scenario)


# -- read while the store closes -------------------------------------------------------------------


def test_whoever_still_reads_when_the_store_closes_is_told_so() -> None:
    async def scenario() -> None:
        payloads = StoredPayloads(lambda chunk: b"%d" % chunk, first=9)
        reading = [asyncio.create_task(payloads.fetch(wanted)) for wanted in ([1], [2], [1, 3])]
        await turns(1)
        payloads.close()
        for task in reading:
            with pytest.raises(Unavailable, match="the store is closed"):
                await task
        with pytest.raises(Unavailable, match="the store is closed"):
            await payloads.fetch([4])

    with late_disk(lambda: 5):
        asyncio.run(scenario())


def test_a_claim_whose_payload_is_read_when_the_store_closes_is_told_so(scheme: str) -> None:
    async def scenario(store: EmbeddedStore) -> None:
        for _ in range(2):
            await store.push(T, [Run.pack("q", [os.urandom(10_000)], LARGE)])
        await settled(store)
        claim = asyncio.create_task(store.claim(T, ["q"]))
        payloads = store.engine.payloads
        assert isinstance(payloads, StoredPayloads)
        while not payloads.loading:
            await turns(1)
        await store.close()
        with pytest.raises(Unavailable, match="the store is closed"):
            await claim

    with late_disk(lambda: 0, reads=lambda: 1_000):
        on(scheme, scenario)


# -- sweeping and the end --------------------------------------------------------------------------


async def little_needed(store: EmbeddedStore) -> None:
    """A chunk that is worth sweeping and has to be read for it."""
    ids = (await store.push(T, [Run.pack("q", [os.urandom(100)] * 2_000, LARGE)])).ids
    lease = await store.claim(T, ["q"], 2_000)
    assert lease is not None
    await store.ack(T, lease.token, ids[10:])
    await store.push(T, [Run.pack("q", [os.urandom(10_000)], LARGE)])
    await settled(store)


def test_a_sweep_that_comes_too_late_gives_up(
    scheme: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(store: EmbeddedStore) -> None:
        await little_needed(store)
        await crash(store)
        await keeper_of(store).sweep()
        assert "chunks could not be swept: the store is closed" in caplog.text

    on(scheme, scenario)


@pytest.mark.parametrize("after", range(0, 32, 3))
def test_no_sweep_begins_when_the_store_has_been_let_go(
    after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever batch was on its way: the checkpoint's last, or one that cleans up behind it."""
    swept: list[Keeper] = []

    def sweep(keeper: Keeper) -> None:
        swept.append(keeper)

    async def scenario(store: EmbeddedStore) -> None:
        await little_needed(store)
        await keeper_of(store).checkpoint()
        await turns(after)
        await keeper_of(store).stop_sweeping()
        monkeypatch.setattr(Keeper, "sweep", sweep)
        await crash(store)
        await turns(100)
        assert not swept

    with late_disk(lambda: 7):
        on("sqlite", scenario)
