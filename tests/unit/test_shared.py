"""One path, several stores: the first owns it, the others are its clients, and one is its heir."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from penstock.model.errors import Unavailable
from penstock.model.job import JobSpec
from penstock.model.store import Store
from penstock.open import JOURNALS, open_store
from penstock.stores.journal.ownership import owner_of
from penstock.stores.shared import SharedStore
from tests.durable import scratch

PATIENCE_S = 30.0


@pytest.fixture(params=sorted(JOURNALS))
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with scratch() as directory:
        yield f"{request.param}:///{directory}/jobs"


async def shared(url: str) -> SharedStore:
    store = await open_store(url)
    assert isinstance(store, SharedStore)
    return store


async def push(store: Store, n: int = 1, queue: str = "work") -> list[int]:
    return (await store.push_jobs("default", queue, [JobSpec()] * n)).ids


def play(case: Callable[[], Awaitable[None]]) -> None:
    async def timed() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await case()

    asyncio.run(timed())


def test_the_second_store_is_a_client_of_the_first(url: str) -> None:
    async def case() -> None:
        first, second = await shared(url), await shared(url)
        assert (first.owned, second.owned) == (True, False)
        ids = await push(second, 3)
        lease = await first.claim("default", ["work"], 10)
        assert lease is not None
        assert lease.ids == ids
        assert list((await second.ack("default", lease.token)).acked) == ids
        await second.close()
        await first.close()

    play(case)


def test_a_client_inherits_the_path_when_its_owner_closes(url: str) -> None:
    async def case() -> None:
        first, second, third = await shared(url), await shared(url), await shared(url)
        ids = await push(first, 5)
        waiting = asyncio.ensure_future(third.claim("default", ["late"], wait_ms=20_000))
        await third.health()  # the claim has been sent before it
        await first.close()
        more = await push(second, 5)
        assert min(more) > max(ids)
        assert second.owned or third.owned
        assert not (second.owned and third.owned)
        late = await push(second, queue="late")
        lease = await waiting
        assert lease is not None
        assert lease.ids == late
        lease = await third.claim("default", ["work"], 10)
        assert lease is not None
        assert lease.ids == ids + more
        await second.close()
        assert await push(third)
        assert third.owned
        await third.close()

    play(case)
    assert not Path(url.partition("///")[2] + ".sock").exists()


def test_a_client_that_says_nothing_inherits_the_path_as_well(url: str) -> None:
    async def case() -> None:
        first, second = await shared(url), await shared(url)
        await first.close()
        await second.changed_hands()
        assert second.owned
        await second.close()

    play(case)


def test_threads_with_loops_of_their_own_are_clients_of_the_owner(url: str) -> None:
    async def case() -> None:
        store = await shared(url)
        found: list[int] = []

        async def from_a_thread() -> None:
            found.extend(await push(store, 2))
            assert not store.owned
            await store.leave()

        threads = [threading.Thread(target=lambda: asyncio.run(from_a_thread())) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        lease = await store.claim("default", ["work"], 10)
        assert lease is not None
        assert sorted(lease.ids) == sorted(found)
        assert len(found) == 6
        await store.close()

    play(case)


def test_a_path_may_be_longer_than_a_socket_s_name(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)

    for name in ("jobs.db", "j" * 200):

        async def once(name: str = name) -> None:
            first = await shared(f"sqlite:///{deep}/{name}")
            second = await shared(f"sqlite:///{deep}/{name}")
            assert not second.owned
            assert await push(second)
            await second.close()
            await first.close()

        play(once)


_OWNER = """
import asyncio, os, sys
from penstock.model.job import JobSpec
from penstock.open import open_store

async def main():
    store = await open_store(sys.argv[1])
    if len(sys.argv) > 2 and os.fork() == 0:
        os.read(0, 1)  # a child that outlives its parent, with all that it inherited
        os._exit(0)
    pushed = await store.push_jobs("default", "work", [JobSpec()] * 3)
    print(*pushed.ids, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("child", [(), ("fork",)], ids=["alone", "with a child"])
def test_a_killed_owner_is_followed_by_its_client(url: str, child: tuple[str, ...]) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, url, *child],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert owner.stdout is not None
        ids = [int(word) for word in owner.stdout.readline().split()]

        async def case() -> None:
            store = await shared(url)
            assert owner_of(Path(url.partition("///")[2])) == owner.pid
            waiting = asyncio.ensure_future(store.claim("default", ["late"], wait_ms=20_000))
            await store.health()
            os.kill(owner.pid, signal.SIGKILL)
            more = await push(store, 2)
            assert store.owned
            late = await push(store, queue="late")
            lease = await waiting
            assert lease is not None
            assert lease.ids == late
            lease = await store.claim("default", ["work"], 10)
            assert lease is not None
            assert lease.ids == ids + more
            await store.close()

        play(case)
    finally:
        owner.kill()
        assert owner.stdin is not None
        owner.stdin.close()  # the child's end, too
        owner.wait()
        assert owner.stdout is not None
        owner.stdout.close()


def test_what_cannot_be_opened_says_why(url: str) -> None:
    path = Path(url.partition("///")[2])
    if url.startswith("sqlite"):
        path.write_bytes(b"this is no store" * 1_000)
    else:
        path.mkdir()
        (path / "CURRENT").write_text("nothing\n")

    async def case() -> None:
        with pytest.raises(Unavailable, match="cannot be opened"):
            await open_store(url)

    play(case)
