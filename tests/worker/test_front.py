"""A claim that waits on the handlers' loop, and is taken back at an awkward moment."""

import asyncio
from collections.abc import Callable
from typing import Any, Literal

import msgspec
import pytest

from penstock import Penstock
from penstock.client.home import Home
from penstock.model.job import JobOptions, Run
from penstock.model.store import Store
from penstock.stores.embedded import EmbeddedStore
from penstock.worker.contexts import Contexts
from penstock.worker.front import Front
from penstock.worker.held import Held, Work
from penstock.worker.pools.async_ import AsyncPool
from tests.worker.harness import closing, run


class Handlers:
    """The handlers' loop, as one that is busy: what it is told, it does when the test says so."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._told: list[Callable[[], Any]] = []
        self.call_soon = self._loop.call_soon
        self.create_task = self._loop.create_task

    def call_soon_threadsafe(self, call: Callable[..., Any], *said: Any) -> None:
        self._told.append(lambda: call(*said))

    async def called(self, times: int = 1) -> None:
        while len(self._told) < times:  # noqa: ASYNC110 - the next turn will have done it
            await asyncio.sleep(0)

    def go_on(self) -> None:
        told, self._told = self._told, []
        for call in told:
            call()


@pytest.mark.parametrize("busy", [True, False])
def test_a_claim_that_is_taken_back_before_it_was_made_ends(busy: bool) -> None:
    app = Penstock("memory://")

    @app.task(queue="q")
    async def quick() -> None: ...

    async def case() -> list[object]:
        async with closing(app):
            home: Any = asyncio.get_running_loop()
            handlers: Any = Handlers()
            taken: list[object] = []
            contexts = Contexts(app, "worker", lambda work: lambda job, report: None)
            pool = AsyncPool(app, contexts, loop=handlers, home=home, ended=taken.extend)

            def adopt(held: Held, works: list[Work]) -> None:
                taken.append(held)

            front = Front(app, handlers, pool, None, take=taken.append, adopt=adopt)
            said = {"queues": ["q"], "n": 1, "lease_ms": None, "worker": "w", "wait_ms": 30_000}
            claim = asyncio.create_task(front.claim(**said))
            await handlers.called()
            if not busy:
                handlers.go_on()
                await asyncio.sleep(0)
            claim.cancel()
            await handlers.called(2 if busy else 1)
            handlers.go_on()
            await asyncio.wait([claim], timeout=5)
            assert claim.cancelled()
            return taken

    assert run(case) == []


@pytest.mark.parametrize("ends", ["at_once", "refused", "later"])
def test_the_home_thread_hears_of_a_job_before_it_hears_of_its_end(ends: str) -> None:
    app = Penstock("memory://")
    began: list[list[str]] = []  # what had been heard by then

    @app.task(queue="q", name="quick")
    async def quick(how: Literal["at_once", "later"]) -> None:
        began.append(heard[:])
        if how == "later":
            await asyncio.sleep(0)

    heard: list[str] = []

    async def case() -> list[str]:
        async with closing(app):
            loop, over = asyncio.get_running_loop(), asyncio.Event()
            count = 0

            def adopt(held: Held, works: list[Work]) -> None:
                heard.append(f"{len(works)} begun")

            def ended(works: list[Work]) -> None:
                nonlocal count
                count += len(works)
                heard.append("ended")
                if count == 3:
                    over.set()

            contexts = Contexts(app, "worker", lambda work: lambda job, report: None)
            pool = AsyncPool(app, contexts, loop=loop, home=loop, ended=ended)
            front = Front(app, loop, pool, None, take=lambda lease: None, adopt=adopt)
            store = await app.store()
            task = JobOptions(task="quick")
            said = [msgspec.json.encode({"how": ends})] * 3
            await store.push("default", [Run.pack("q", said, task)])
            await front.claim(queues=["q"], n=3, lease_ms=None, worker="w", wait_ms=0)
            await over.wait()
            return heard

    first, *rest = run(case)
    assert first == "3 begun"
    assert set(rest) == {"ended"}
    assert began[:1] == ([] if ends == "refused" else [[]]), "and of neither before it begins"


def test_a_job_that_ends_at_once_is_heard_of_first_also_when_another_ends_before_it() -> None:
    """In the same turn: the end of the other is about to be told already."""
    here = EmbeddedStore.in_memory()

    class AtHand(Home):
        async def store(self) -> Store:
            """One that lives on the loop of the handlers, as a connection does."""
            return here

    app = Penstock("memory://")
    app.home = AtHand("memory://", app.tenant)
    heard: list[str] = []
    go_on: list[asyncio.Future[None]] = []

    @app.task(queue="q", name="slow")
    async def slow() -> None:
        await go_on[0]

    @app.task(queue="q", name="quick")
    async def quick() -> None: ...

    async def case() -> None:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        go_on.append(loop.create_future())

        def hear(works: list[Work], what: str) -> None:
            heard.extend(f"{work.task.name} {what}" for work in works)
            if len(heard) == 4:
                over.set()

        def adopt(held: Held, works: list[Work]) -> None:
            hear(works, "begun")

        def ended(works: list[Work]) -> None:
            hear(works, "ended")

        contexts = Contexts(app, "worker", lambda work: lambda job, report: None)
        pool = AsyncPool(app, contexts, loop=loop, home=loop, ended=ended)
        front = Front(app, loop, pool, None, take=lambda lease: None, adopt=adopt)
        said = {"queues": ["q"], "n": 1, "lease_ms": None, "worker": "w", "wait_ms": 30_000}
        await here.push_one("default", "q", b"{}", (JobOptions(task="slow"),))
        await front.claim(**said)
        waiting = asyncio.create_task(front.claim(**said))
        while not here.engine.waiting:  # noqa: ASYNC110 - the next turn will have done it
            await asyncio.sleep(0)
        go_on[0].set_result(None)
        await here.push_one("default", "q", b"{}", (JobOptions(task="quick"),))
        await waiting
        await over.wait()
        await here.close()

    run(case)
    assert heard.index("quick begun") < heard.index("quick ended")
