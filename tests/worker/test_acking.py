"""Acks are told together where that costs nobody anything, and an idle worker never waits to fill one.

Held by what the store is asked and in which turn of the loop, never by how long something took.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from penstock import Penstock
from penstock.client.execute import DONE, Completed
from penstock.client.home import Home
from penstock.model.answers import Acked
from penstock.model.job import JobSpec
from penstock.model.store import Ack, Store
from penstock.model.wrapper import Wrapper
from penstock.open import open_store
from penstock.worker.acking import Acker
from penstock.worker.counts import Counts
from penstock.worker.held import Held, Work
from penstock.worker.owned import Owned
from tests.worker.harness import closing, ending, eventually, run, working

WHOLE = None  # a lease that is acked without naming a job


class Slow(Wrapper):
    """A store that notes what acks tell, and answers each of them when the test says so."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.asked: list[list[int] | None] = []  # the ids, or that it is the whole lease
        self.results: list[Ack | None] = []
        self._answers: asyncio.Queue[None] = asyncio.Queue()

    @property
    def inner(self) -> Store:
        return self._store

    def answer(self) -> None:
        """One more ack, under way or to come, is answered."""
        self._answers.put_nowait(None)

    async def ack(
        self, tenant: str, lease: str, ids: Iterable[int] | None = None, **said: Any
    ) -> Acked:
        named = WHOLE if ids is None else list(ids)
        self.asked.append(named)
        self.results.append(said["results"])
        answer = await self._store.ack(tenant, lease, named, **said)
        await self._answers.get()
        return answer


class Ends:
    """The jobs of one lease, whose ends an acker is told as a worker's home thread tells them."""

    def __init__(self, store: Slow, held: Held) -> None:
        self.store = store
        self.held = held
        self.ids = held.lease.ids
        self.counts = Counts()
        self.over: list[Held] = []
        self.owned = Owned()
        self._acker = Acker(store, "default", "w", self.counts, self.owned, self.over.append)

    def heard(self, *places: int, result: bytes | None = None) -> None:
        """The end of these jobs is heard, in one turn."""
        for place in places:
            work = Work(self.held, None, self.held.lease.jobs[place])
            work.outcome = DONE if result is None else Completed(result=result)
            self._acker.ended(work)
        self._acker.flush(self.held)

    async def answered(self) -> None:
        """An ack is answered, and everything that follows from it at once has happened."""
        self.store.answer()
        for _ in range(5):
            await asyncio.sleep(0)


@asynccontextmanager
async def claimed(jobs: int) -> AsyncIterator[Ends]:
    store = await open_store("memory://")
    try:
        await store.push_jobs("default", "q", [JobSpec(payload=b"1")] * jobs)
        lease = await store.claim("default", ["q"], jobs)
        assert lease is not None
        yield Ends(Slow(store), Held(lease, None))
    finally:
        await store.close()


def test_the_ack_of_a_lone_job_leaves_in_the_turn_after_its_end_is_heard() -> None:
    """The task that asks is begun by the loop's next turn: there is no timer in between."""

    async def case() -> None:
        async with claimed(1) as ends:
            ends.heard(0)
            await asyncio.sleep(0)
            assert ends.store.asked == [WHOLE]
            assert ends.over == []
            await ends.answered()
            assert ends.counts.completed == 1
            assert ends.over == [ends.held]

    run(case)


def test_the_first_end_of_a_lease_does_not_wait_for_the_others() -> None:
    async def case() -> None:
        async with claimed(3) as ends:
            ends.heard(0)
            await asyncio.sleep(0)
            assert ends.store.asked == [[ends.ids[0]]]
            await ends.answered()
            assert ends.counts.completed == 1
            assert ends.over == []

    run(case)


def test_each_of_jobs_that_end_far_apart_is_told_at_once() -> None:
    """What was batched before has no say in it: nothing was under way when the next one ended."""

    async def case() -> None:
        async with claimed(4) as ends:
            for place, job_id in enumerate(ends.ids):
                ends.heard(place)
                await asyncio.sleep(0)
                assert ends.store.asked[-1] == [job_id]
                await ends.answered()
            assert len(ends.store.asked) == ends.counts.completed == 4

    run(case)


def test_what_ends_while_an_ack_is_under_way_is_told_together_in_the_next_one() -> None:
    async def case() -> None:
        async with claimed(6) as ends:
            first, *during, last = ends.ids
            ends.heard(0)
            await asyncio.sleep(0)
            ends.heard(1)
            ends.heard(2, 3, result=b"7")
            await asyncio.sleep(0)
            ends.heard(4)
            await asyncio.sleep(0)
            assert ends.store.asked == [[first]], "one ack of a lease at a time"
            await ends.answered()
            assert ends.store.asked == [[first], during]
            assert ends.store.results == [None, dict.fromkeys(during[1:3], b"7")]
            ends.heard(5)
            await ends.answered()
            assert ends.store.asked == [[first], during, [last]]
            await ends.answered()
            assert ends.counts.completed == 6
            assert ends.over == [ends.held]

    run(case)


def test_leases_do_not_wait_for_each_other() -> None:
    async def case() -> None:
        async with claimed(2) as ends:
            other = await ends.store.inner.push_jobs("default", "q", [JobSpec(payload=b"2")])
            lease = await ends.store.inner.claim("default", ["q"])
            assert lease is not None
            assert lease.ids == [other.ids[0]]
            ends.heard(0)
            await asyncio.sleep(0)
            ends.held = Held(lease, None)
            ends.heard(0)
            await asyncio.sleep(0)
            assert ends.store.asked == [[ends.ids[0]], WHOLE]
            await ends.answered()
            await ends.answered()

    run(case)


def test_a_worker_tells_the_first_end_at_once_and_those_meanwhile_together() -> None:
    """The same of a whole worker. The handlers end when the test says so, so that nothing but the
    first end can have sent the first ack."""
    app = Penstock("memory://")
    jobs = 20
    slow: list[Slow] = []
    began = asyncio.Semaphore(0)
    go_on = [asyncio.Event() for _ in range(jobs)]

    async def opened() -> Store:
        slow.append(Slow(await open_store("memory://")))
        return slow[0]

    app.home = Home("memory://", app.tenant, opened)

    @app.task
    async def ends(n: int) -> None:
        began.release()
        await go_on[n].wait()

    async def case() -> None:
        async with closing(app):
            pushed = await ends.apush_many((n,) for n in range(jobs))
            ids = [job.id for job in pushed]
            async with working(app, concurrency=jobs) as worker:
                (store,) = slow
                for _ in range(jobs):
                    await began.acquire()
                go_on[3].set()
                await asked(store, 1)
                assert store.asked == [[ids[3]]]
                for event in go_on[:-1]:
                    event.set()
                await told_home(app)
                assert len(store.asked) == 1, "one ack of a lease at a time"
                app.home.loop.call_soon_threadsafe(store.answer)
                await asked(store, 2)
                assert store.asked[1] == ids[:3] + ids[4:-1]
                app.home.loop.call_soon_threadsafe(store.answer)
                assert await ending(pushed[0]) == "None"
                await told_home(app)
                assert len(store.asked) == 2
                go_on[-1].set()
                await asked(store, 3)
                assert store.asked[2] == [ids[-1]]
                app.home.loop.call_soon_threadsafe(store.answer)
            assert worker.counts.completed == jobs

    run(case)


async def asked(store: Slow, acks: int) -> None:
    async def look() -> bool:
        return len(store.asked) >= acks

    await eventually(look)


async def told_home(app: Penstock) -> None:
    """Until the home thread has heard what ended on this loop, and what it does about it is begun."""

    async def turns() -> None:
        for _ in range(3):
            await asyncio.sleep(0)

    await turns()
    await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(turns(), app.home.loop))
