"""What happens in a store that another process owns is heard by watching it, and never twice."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from penstock.model.errors import Forbidden, PenstockError, Unavailable
from penstock.model.event import Event
from penstock.model.job import JobSpec
from penstock.model.store import Store
from penstock.open import open_store
from penstock.protocol.access import OpenToAll, Principal
from penstock.server.tcp import tcp_listener
from penstock.stores import watching
from penstock.stores.embedded import EmbeddedStore
from penstock.stores.journal.ownership import Owned
from penstock.stores.serving import Listener
from penstock.stores.shared import SharedStore
from penstock.telemetry import following as following_module
from penstock.telemetry.following import Following
from penstock.telemetry.meter import COUNTED_KINDS
from tests.durable import scratch

PATIENCE_S = 30.0


class Heard:
    """An observer that remembers which jobs it was told of, by what happened to them."""

    def __init__(self) -> None:
        self.jobs: dict[str, Counter[int]] = {}

    def write(self, events: list[Event]) -> None:
        for event in events:
            self.jobs.setdefault(event.kind, Counter()).update(event.ids)

    def count(self, kind: str = "pushed") -> int:
        return self.jobs.get(kind, Counter()).total()

    async def many(self, n: int, kind: str = "pushed") -> None:
        while self.count(kind) < n:  # noqa: ASYNC110 - nobody would tell
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)  # for what should not come as well
        assert self.count(kind) == n


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following_module, "LOOK_S", 0.005)


def play(case: Callable[[], Awaitable[None]]) -> None:
    async def timed() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await case()

    asyncio.run(timed())


class Follower:
    """A store, and what is heard of it."""

    def __init__(self, *tenants: str) -> None:
        self.heard = Heard()
        self.following = Following(self.heard, tenants or ("default",), COUNTED_KINDS)
        self.store: Store

    async def open(self, url: str, token: str | None = None) -> "Follower":
        self.store = await open_store(url, observer=self.following, token=token)
        self.task = asyncio.create_task(self.following.run(self.store))
        await asyncio.sleep(0)
        return self

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.store.close()


async def push(store: Store, n: int = 1, tenant: str = "default") -> list[int]:
    return (await store.push_jobs(tenant, "work", [JobSpec()] * n)).ids


async def hand_over(one: Store, other: SharedStore) -> None:
    """Have the other own the path, though the one would like to keep it."""
    assert isinstance(one, SharedStore)
    own = one._own

    async def not_now() -> EmbeddedStore:
        raise Owned("the path is another's")

    one._own = not_now
    await one.leave()
    await other.changed_hands()
    one._own = own


async def shared(url: str) -> SharedStore:
    store = await open_store(url)
    assert isinstance(store, SharedStore)
    return store


def test_what_others_do_is_heard_and_what_goes_through_here() -> None:
    async def case() -> None:
        with scratch() as directory:
            owner = await shared(f"sqlite:///{directory}/jobs")
            here = await Follower().open(f"sqlite:///{directory}/jobs")
            assert not here.store.owned
            await push(here.store, 5)
            await push(owner, 3)
            lease = await owner.claim("default", ["work"], 4)
            assert lease is not None
            await here.store.ack("default", lease.token)
            await here.heard.many(8)
            await here.heard.many(4, "claimed")
            await here.heard.many(4, "completed")
            await here.close()
            await owner.close()

    play(case)


def test_a_store_that_is_ours_is_not_watched() -> None:
    async def case() -> None:
        here = await Follower().open("memory://")
        assert here.store.owned
        assert isinstance(here.store, EmbeddedStore)
        await push(here.store, 5)
        assert here.heard.count() == 5
        assert not here.store.engine.telling.watchers
        await here.close()

    play(case)


def test_only_the_tenants_that_are_known_are_watched() -> None:
    async def case() -> None:
        with scratch() as directory:
            owner = await shared(f"sqlite:///{directory}/jobs")
            here = await Follower("default", "acme").open(f"sqlite:///{directory}/jobs")
            await here.store.health()  # behind the watches
            await push(owner, 1, "other")
            await push(owner, 1, "acme")
            await push(owner, 1)
            await here.heard.many(2)
            await here.close()
            await owner.close()

    play(case)


def test_an_heir_counts_directly_and_nothing_twice() -> None:
    async def case() -> None:
        with scratch() as directory:
            owner = await shared(f"sqlite:///{directory}/jobs")
            here = await Follower().open(f"sqlite:///{directory}/jobs")
            await push(here.store, 5)
            await here.heard.many(5)
            await owner.close()
            await push(here.store, 7)
            assert here.store.owned
            assert here.heard.count() == 12  # at once
            await push(here.store, 7)
            await here.heard.many(19)
            assert isinstance(here.store, SharedStore)
            inner = here.store.inner
            assert isinstance(inner, EmbeddedStore)
            while inner.engine.telling.watchers:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            await here.close()

    play(case)


def test_a_watch_that_reaches_our_own_store_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As it does from the loss of the owner until we look who owns the store now."""
    monkeypatch.setattr(following_module, "LOOK_S", 3_600.0)

    async def case() -> None:
        with scratch() as directory:
            owner = await shared(f"sqlite:///{directory}/jobs")
            here = await Follower().open(f"sqlite:///{directory}/jobs")
            assert isinstance(here.store, SharedStore)
            await asyncio.sleep(0.1)  # a watch that had lasted is asked for again at once
            await owner.close()
            await here.store.changed_hands()
            inner = here.store.inner
            assert isinstance(inner, EmbeddedStore)
            while not inner.engine.telling.watchers:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            for _ in range(10):
                await push(here.store, 5)
            await here.heard.many(50)
            await here.close()

    play(case)


def test_a_store_that_is_handed_over_is_watched_again() -> None:
    async def case() -> None:
        with scratch() as directory:
            here = await Follower().open(f"sqlite:///{directory}/jobs")
            other = await shared(f"sqlite:///{directory}/jobs")
            await push(here.store, 3)
            await hand_over(here.store, other)
            while not other.inner.engine.telling.watchers:  # type: ignore[attr-defined] # noqa: ASYNC110
                await asyncio.sleep(0.001)
            await push(other, 4)
            await push(here.store, 5)
            await here.heard.many(12)
            await other.close()  # and back
            await push(here.store, 6)
            assert here.store.owned
            await here.heard.many(18)
            await here.close()

    play(case)


def test_no_job_is_heard_of_twice_while_owners_come_and_go() -> None:
    async def case() -> None:
        with scratch() as directory:
            url = f"sqlite:///{directory}/jobs"
            owner = await shared(url)
            here = await Follower().open(url)
            pushed: set[int] = set()
            over = False

            async def produce() -> None:
                while not over:
                    with suppress(Unavailable):  # we are just handing over
                        pushed.update(await push(here.store, 3))
                    await asyncio.sleep(0)

            producers = [asyncio.create_task(produce()) for _ in range(4)]
            for _ in range(4):  # somebody else's, ours, somebody else's, …
                next_one = await shared(url)
                before = len(pushed)
                while len(pushed) < before + 50:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                await owner.close()
                owner = next_one
                if here.store.owned:
                    await hand_over(here.store, owner)
            over = True
            await asyncio.gather(*producers)
            heard = here.heard.jobs["pushed"]
            assert max(heard.values()) == 1
            assert len(pushed.intersection(heard)) >= len(pushed) / 2
            # And from here on all are heard of.
            await push(here.store, 1)
            await asyncio.sleep(0.1)
            before = here.heard.count()
            await push(here.store, 100)
            await here.heard.many(before + 100)
            await here.close()
            await owner.close()

    play(case)


async def served(port: int = 0, authenticator: object = None) -> tuple[Listener, EmbeddedStore]:
    store = EmbeddedStore.in_memory()
    listener = tcp_listener(store, authenticator or OpenToAll())  # type: ignore[arg-type]
    await listener.listen_tcp("127.0.0.1", port)
    return listener, store


def url_of(listener: Listener) -> str:
    host, port = listener._servers[0].sockets[0].getsockname()
    return f"penstock://{host}:{port}"


def test_a_server_that_begins_anew_is_watched_anew() -> None:
    """Its history is another one: the positions of its events begin from the first again."""

    async def case() -> None:
        listener, store = await served()
        url = url_of(listener)
        here = await Follower().open(url)
        await push(here.store, 5)
        await push(here.store, 5)
        await here.heard.many(10)
        await listener.close()
        await store.close()
        listener, store = await served(int(url.rpartition(":")[2]))
        # The watch goes before what waits for the connection.
        await asyncio.gather(*(push(here.store, 1) for _ in range(5)))
        await here.heard.many(15)
        assert here.following.gaps == {"default": 1}
        await here.close()
        await listener.close()
        await store.close()

    play(case)


def test_calls_that_waited_for_a_new_owner_are_heard_of() -> None:
    """Those that were under way are repeated: the watch is asked for before they are."""

    async def case() -> None:
        listener, store = await served()
        url = url_of(listener)
        here = await Follower().open(url)
        await push(here.store, 1)
        await here.heard.many(1)
        released = asyncio.Event()

        async def too_late(*_said: object, **_named: object) -> None:
            await released.wait()
            raise Unavailable("gone")

        listener.gate.push = too_late  # type: ignore[assignment]
        under_way = [asyncio.create_task(push(here.store, 2)) for _ in range(10)]
        await asyncio.sleep(0.05)
        for connection in list(listener._connections):
            connection.abort()
        released.set()
        await listener.close()
        await store.close()
        listener, store = await served(int(url.rpartition(":")[2]))
        await asyncio.gather(*under_way)
        await here.heard.many(21)
        await here.close()
        await listener.close()
        await store.close()

    play(case)


class OnlyAcme:
    open_to_all = False

    def authenticate(self, token: str) -> Principal:
        return Principal("acme", "acme")


def test_a_tenant_that_may_not_be_watched_is_told_once_and_the_others_are_watched(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def case() -> None:
        listener, store = await served(authenticator=OnlyAcme())
        here = await Follower("default", "acme").open(url_of(listener), token="acme")
        await push(here.store, 3, "acme")
        await here.heard.many(3)
        while here.following.gaps["default"] < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert here.following.gaps["acme"] == 0
        await here.close()
        await listener.close()
        await store.close()

    with caplog.at_level(logging.INFO, "penstock.telemetry"):
        play(case)
    begin, refused = caplog.messages
    assert begin == (
        "the store is another process's: what happens to jobs is counted by watching it, for the"
        " tenants default, acme and no others"
    )
    assert refused == (
        "what happens to jobs of the tenant default is not counted until it can be watched again:"
        f" {Forbidden('these credentials are another tenant' + chr(39) + 's', 'tenant')}"
    )


def test_a_watch_that_fell_behind_goes_on_with_what_happens_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watching, "BACKLOG", 50)

    async def case() -> None:
        listener, store = await served()
        here = await Follower().open(url_of(listener))
        await push(here.store, 1)
        await here.heard.many(1)
        for _ in range(500):  # in one turn: nobody can follow
            await push(store, 1)
        while not here.following.gaps["default"]:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await here.store.health()
        before = here.heard.count()
        await push(here.store, 5)
        await here.heard.many(before + 5)
        await here.close()
        await listener.close()
        await store.close()

    play(case)


class Failing(EmbeddedStore):
    """Somebody else's store, whose watches end as they are told to."""

    error: PenstockError | None = None

    @property
    def owned(self) -> bool:
        return False

    def watch(self, *said: Any, **named: Any) -> AsyncIterator[Event]:
        watcher = super().watch(*said, **named)
        if self.error is not None:
            assert isinstance(watcher, watching.Watcher)
            watcher.end(self.error)
        return watcher


def test_the_same_reason_is_told_again_when_something_was_heard_in_between(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def case() -> None:
        store = Failing(EmbeddedStore.in_memory().engine, "memory")
        heard = Heard()
        following = Following(heard, ["default"])
        task = asyncio.create_task(following.run(store))
        await asyncio.sleep(0)
        for times in (1, 2):
            await push(store)
            await heard.many(times)
            store.error = Unavailable("gone")
            (watcher,) = store.engine.telling.watchers
            watcher.end(store.error)
            gaps = following.gaps["default"]
            while following.gaps["default"] < gaps + 3:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            store.error = None
            while not store.engine.telling.watchers:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not store.engine.telling.watchers
        await store.close()

    with caplog.at_level(logging.WARNING, "penstock.telemetry"):
        play(case)
    assert len(caplog.messages) == 2
