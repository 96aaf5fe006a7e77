"""Claims that wait on the handlers' loop: what follows them, and who hears of it when."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Literal

import msgspec
import pytest
import uvloop

from penstock import Penstock
from penstock.client.execute import DONE
from penstock.client.home import Home
from penstock.model.job import JobOptions, Lease, Run
from penstock.model.store import Store
from penstock.protocol.runs import Single
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


class Bare(EmbeddedStore):
    """Gives single jobs as a server's store does."""

    async def claim_bare(self, *said: Any, **more: Any) -> Lease | Single | None:
        lease = await self.claim(*said, **more)
        if lease is None or len(lease) > 1:
            return lease
        (job,) = lease.jobs
        said = lease.token, lease.queue, lease.expires_at, job.id, job.payload
        return Single(*said, (job.options,), job.created_at)


def lent(here: EmbeddedStore) -> Penstock:
    """An app whose store lives on the loop of the handlers, as a connection does."""

    class AtHand(Home):
        async def store(self) -> Store:
            return here

    app = Penstock("memory://")
    app.home = AtHand("memory://", app.tenant)
    return app


SAID: Any = {"n": 1, "lease_ms": None, "worker": "w", "wait_ms": 30_000}


async def waited(here: EmbeddedStore, times: int = 1) -> None:
    while here.engine.waiting != times:  # noqa: ASYNC110 - a turn to come will have done it
        await asyncio.sleep(0)


@pytest.mark.parametrize("kind", [EmbeddedStore, Bare])
def test_a_claim_follows_a_job_that_was_over_at_once_until_one_takes_longer(
    kind: type[EmbeddedStore],
) -> None:
    here = kind.in_memory()
    app = lent(here)
    heard: list[object] = []

    @app.task(queue="q", name="job")
    async def job(turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)

    async def case() -> None:
        loop = asyncio.get_running_loop()

        def adopt(held: Held, works: list[Work]) -> None:
            heard.append(("begun", held.lease.ids))

        def ended(works: list[Work]) -> None:
            heard.extend(("ended", list(work.ids)) for work in works)

        def served(lease: Lease) -> list[str]:
            heard.append(("served", lease.ids))
            return ["another", "q"]

        contexts = Contexts(app, "worker", lambda work: lambda job, report: None)
        pool = AsyncPool(app, contexts, loop=loop, home=loop, ended=ended)
        front = Front(app, loop, pool, None, take=heard.append, adopt=adopt)
        claim = asyncio.create_task(front.claim(served, queues=["q"], **SAID))
        for number in (1, 2, 3):
            await waited(here)
            turns = b'{"turns":%d}' % (number // 3)
            await here.push_one("default", "q", turns, (JobOptions(task="job"),))
            if number < 3:
                while ("served", [number]) not in heard:  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0)
        lease = await claim
        assert lease is not None and lease.ids == [3]
        while heard[-1] != ("ended", [3]):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
        assert not here.engine.waiting, "what runs is the home thread's to claim beside"
        await here.close()

    run(case)
    known = [("begun", [1]), ("ended", [1]), ("begun", [2]), ("ended", [2]), ("begun", [3])]
    assert [each for each in heard if each[0] != "served"] == [*known, ("ended", [3])]  # type: ignore[index]


def test_queues_are_asked_in_the_order_that_is_said_meanwhile() -> None:
    asked: list[object] = []

    class Asked(Bare):
        async def claim(self, tenant: str, queues: Any, *said: Any, **more: Any) -> Lease | None:
            asked.append(queues)
            return await super().claim(tenant, queues, *said, **more)

    here = Asked.in_memory()
    app = lent(here)

    @app.task(queue="q", name="job")
    async def job() -> None: ...

    async def case() -> None:
        loop = asyncio.get_running_loop()
        contexts = Contexts(app, "worker", lambda work: lambda job, report: None)
        pool = AsyncPool(app, contexts, loop=loop, home=loop, ended=lambda works: None)
        front = Front(app, loop, pool, None, take=asked.append, adopt=lambda held, works: None)
        claim = asyncio.create_task(
            front.claim(lambda lease: [lease.queue, "last"], queues=["last", "q"], **SAID)
        )
        for number in (1, 2, 3):
            await waited(here)
            await here.push_one("default", "q", b"{}", (JobOptions(task="job"),))
            while len(asked) == number:  # noqa: ASYNC110 - the next turn will have done it
                await asyncio.sleep(0)
        claim.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claim
        await waited(here, 0)
        await here.close()

    run(case)
    assert asked[0] == ["last", "q"]
    assert asked[-1] == ["q", "last"]


@pytest.mark.parametrize("limited", [True, False])
def test_no_claim_follows_where_jobs_are_counted_first_or_nobody_waits_any_more(
    limited: bool,
) -> None:
    here = Bare.in_memory()
    app = lent(here)
    heard: list[object] = []

    @app.task(queue="q", name="job")
    async def job() -> None:
        if not limited:
            claim[0].cancel()

    claim: list[asyncio.Task[Lease | None]] = []

    async def case() -> None:
        loop = asyncio.get_running_loop()
        contexts = Contexts(app, "worker", lambda work: lambda job, report: None)
        pool = AsyncPool(app, contexts, loop=loop, home=loop, ended=heard.extend)
        adopt = lambda held, works: heard.append(held.lease.ids)  # noqa: E731
        front = Front(app, loop, pool, None, take=heard.append, adopt=adopt, follow=not limited)
        claim.append(asyncio.create_task(front.claim(queues=["q"], **SAID)))
        await waited(here)
        await here.push_one("default", "q", b"{}", (JobOptions(task="job"),))
        await asyncio.wait(claim)
        assert claim[0].cancelled() is not limited
        while len(heard) < 2:  # noqa: ASYNC110 - the next turn will have done it
            await asyncio.sleep(0)
        assert heard[0] == [1]
        assert not here.engine.waiting
        await here.close()

    run(case)


def test_a_job_that_holds_up_its_loop_is_heard_of_and_no_claim_follows_it() -> None:
    """The home thread extends its lease, and claims for others, from then on."""
    app: list[Penstock] = []
    entered, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    handlers = uvloop.new_event_loop()
    thread = threading.Thread(target=handlers.run_forever)
    thread.start()

    def there(call: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, handlers))

    async def opened() -> Bare:
        return Bare.in_memory()  # type: ignore[return-value]

    async def case() -> None:
        here = await there(opened())
        app.append(lent(here))

        @app[0].task(queue="q", name="job")
        async def job() -> None:
            entered.set()
            go_on.wait(60)

        home, adopted = asyncio.get_running_loop(), asyncio.Event()
        contexts = Contexts(app[0], "worker", lambda work: lambda job, report: None)
        pool = AsyncPool(
            app[0], contexts, loop=handlers, home=home, ended=lambda works: ended.set()
        )
        works: list[Work] = []

        def adopt(held: Held, begun: list[Work]) -> None:
            assert entered.is_set() and not go_on.is_set()
            works.extend(begun)
            adopted.set()

        front = Front(app[0], handlers, pool, 60, take=works.append, adopt=adopt)  # type: ignore[arg-type]
        claim = asyncio.create_task(front.claim(queues=["q"], **SAID))
        await there(waited(here))
        # Which goes on with the job at once, and so waits for it.
        pushed = there(here.push_one("default", "q", b"{}", (JobOptions(task="job"),)))
        await adopted.wait()
        lease = await claim
        assert lease is not None and lease.ids == [1]
        assert [work.outcome for work in works] == [None]
        go_on.set()
        assert await asyncio.to_thread(ended.wait, 60)
        assert [work.outcome for work in works] == [DONE]
        assert await pushed == 1
        assert not here.engine.waiting
        await there(here.close())

    try:
        run(case)
    finally:
        go_on.set()
        handlers.call_soon_threadsafe(handlers.stop)
        thread.join()
        handlers.close()


def test_a_job_that_ends_at_once_is_heard_of_first_also_when_another_ends_before_it() -> None:
    """In the same turn: the end of the other is about to be told already."""
    here = EmbeddedStore.in_memory()
    app = lent(here)
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
        front = Front(app, loop, pool, None, take=lambda lease: None, adopt=adopt, follow=False)
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
