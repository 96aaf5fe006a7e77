"""Which queue is next, how many jobs are asked for, what becomes of claims that get no answer."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import chain

import pytest

from penstock import Penstock
from penstock.model.errors import Invalid, Unavailable
from penstock.model.job import Lease
from penstock.model.store import Store
from penstock.stores.clock import SystemClock
from penstock.worker.claiming import Shares
from penstock.worker.dispatch import AHEAD_S, Pace
from penstock.worker.settings import said, weighted
from tests.served import ServedStore
from tests.worker.harness import claimer_of, closing, ending, eventually, run, working


def test_queues_are_said_with_weights() -> None:
    assert weighted(["emails:3,reports"]) == {"emails": 3, "reports": 1}
    assert weighted(["emails:3", "reports:2"]) == {"emails": 3, "reports": 2}
    for wrong in ("emails:0", "emails:x", "emails:", "", "a,a", "no good", "a:1001"):
        with pytest.raises(Invalid):
            weighted([wrong])


def test_settings_say_what_is_wrong_with_them() -> None:
    flags = {"where": "a:b", "pool": "async", "log_format": "text", "log_level": "info"}
    assert said({**flags, "lease": "2s"}).lease_ms == 2_000
    for name, value in (("pool", "green"), ("lease", "1ms"), ("lease", "soon"), ("log_level", "x")):
        with pytest.raises(Invalid) as error:
            said({**flags, name: value})
        assert error.value.field == name


def test_each_queue_gets_its_share_in_jobs() -> None:
    shares, got = Shares({"a": 3, "b": 1}), Counter[str]()
    for turn in range(400):
        queue = shares.order()[0]
        jobs = 5 if turn % 3 else 1  # whatever a claim gives
        got[queue] += jobs
        shares.served(queue, jobs)
    assert got["a"] == pytest.approx(3 * got["b"], rel=0.05)


def test_workers_that_are_replaced_after_one_claim_give_each_queue_its_share_too() -> None:
    firsts = Counter(Shares({"a": 3, "b": 1}).order()[0] for _ in range(2_000))
    assert 1_300 < firsts["a"] < 1_700


def test_a_queue_that_was_empty_does_not_save_up() -> None:
    shares = Shares({"a": 1, "b": 1})
    for _ in range(100):
        shares.served("a", 10)
    served = []
    for _ in range(10):
        queue = shares.order()[0]
        served.append(queue)
        shares.served(queue, 10)
    assert served.count("b") <= 6


def test_a_slow_worker_claims_nothing_ahead_and_a_quick_one_what_it_is_about_to_start() -> None:
    time = 0.0
    pace = Pace(lambda: time)
    time = 10.0
    pace.count(100)
    assert pace.within(AHEAD_S) == 0  # ten a second
    time = 10.1
    pace.count(1_000)
    assert pace.within(AHEAD_S) == 200


def test_jobs_of_weighted_queues_run_by_weight() -> None:
    app = Penstock("memory://")
    order: list[str] = []

    @app.task(queue="a")
    async def first() -> None:
        order.append("a")

    @app.task(queue="b")
    async def second() -> None:
        order.append("b")

    async def case() -> None:
        async with closing(app):
            jobs = [await task.apush_many(() for _ in range(400)) for task in (first, second)]
            async with working(app, queues={"a": 3, "b": 1}, concurrency=1):
                for job in chain(*jobs):
                    assert await ending(job) == "None"
        assert Counter(order[:200])["a"] == pytest.approx(150, abs=20)

    run(case)


@pytest.mark.parametrize("where", ["here", "at_a_server"])
def test_a_worker_that_has_room_waits_under_its_name_whether_it_holds_jobs_or_not(
    where: str,
) -> None:
    """At a server the claims of an idle worker are those of the handlers' loop."""

    async def case() -> None:
        began, go_on = asyncio.Semaphore(0), asyncio.Event()
        async with _placed(where) as app:

            @app.task(queue="q")
            async def holds() -> None:
                began.release()
                await go_on.wait()

            store = await app.store()

            async def there_is_room(n: int) -> None:
                async def look() -> bool:
                    told = await store.waiting(app.tenant)
                    said = [(claim.worker, claim.queues, claim.n) for claim in told.claims]
                    return said == ([("w", ("q",), n)] if n else [])

                await eventually(look)

            async with working(app, name="w", concurrency=2):
                await there_is_room(2)
                jobs = [await holds.apush()]
                await began.acquire()
                await there_is_room(1)
                jobs.append(await holds.apush())
                await began.acquire()
                await there_is_room(0)
                go_on.set()
                for job in jobs:
                    assert await ending(job) == "None"
                await there_is_room(2)
            await there_is_room(0)

    run(case)


@asynccontextmanager
async def _placed(where: str) -> AsyncIterator[Penstock]:
    """An app whose store is its own, or a server's."""
    if where == "here":
        async with closing(Penstock("memory://")) as app:
            yield app
        return
    served = await ServedStore.open("tcp", clock=SystemClock())
    try:
        async with closing(Penstock(str(served.target))) as app:
            yield app
    finally:
        await served.close()


def test_what_is_claimed_and_not_started_is_given_back_to_others() -> None:
    """One slot, long jobs: a second worker finds all but the one that runs."""
    app = Penstock("memory://")
    began, go_on = asyncio.Event(), asyncio.Event()

    @app.task
    async def long() -> None:
        began.set()
        await go_on.wait()

    async def case() -> None:
        async with closing(app):
            await long.apush_many(() for _ in range(10))
            async with working(app, concurrency=1) as worker:
                await began.wait()
                store = await app.store()
                lease = await store.claim(app.tenant, ["default"], 100)
                assert lease is not None
                assert len(lease) == 9
                assert worker.counts.claimed == 1
                await store.release(app.tenant, lease.token)
                go_on.set()

    run(case)


def test_queues_with_and_without_batches_are_asked_for_their_own_numbers() -> None:
    app, sizes = Penstock("memory://"), []

    @app.task(queue="rows", batch=500)
    async def rows(items: list[int]) -> None:
        sizes.append(len(items))

    @app.task(queue="plain")
    async def plain(n: int) -> int:
        return n

    async def case() -> None:
        async with closing(app):
            jobs = await rows.apush_many(range(1_000))
            one = await plain.apush(7)
            async with working(app, concurrency=2):
                assert await ending(one) == "7"
                assert await ending(jobs[999]) == "None"
        assert sizes == [500, 500]

    run(case)


class Flaky:
    """A store that does not answer a number of claims."""

    def __init__(self, store: Store, failures: int) -> None:
        self.store = store
        self.failures = failures

    async def claim(self, *args: object, **kwargs: object) -> Lease | None:
        if self.failures:
            self.failures -= 1
            raise Unavailable("gone")
        return await self.store.claim(*args, **kwargs)  # type: ignore[arg-type]


def test_claims_go_on_when_the_store_answers_again(caplog: pytest.LogCaptureFixture) -> None:
    app = Penstock("memory://")

    @app.task
    async def one() -> None: ...

    async def case() -> None:
        async with closing(app):
            await one.apush()
            taken: asyncio.Queue[Lease] = asyncio.Queue()
            flaky = Flaky(await app.store(), 2)
            claimer = claimer_of(flaky, take=taken.put_nowait)  # type: ignore[arg-type]
            running = asyncio.create_task(claimer.run())
            assert len(await taken.get()) == 1
            running.cancel()
            await asyncio.wait([running])

    run(case)
    assert caplog.text.count("no jobs can be claimed: gone") == 1
