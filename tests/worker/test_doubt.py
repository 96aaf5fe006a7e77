"""Ends that were told while the connection was lost: what the worker says became of them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock import Penstock, at_once
from penstock.client.home import Home
from penstock.model.errors import Forbidden, Unavailable
from penstock.model.job import Job
from penstock.model.lifecycle import State
from penstock.model.store import Store
from penstock.model.wrapper import Call, T, Wrapper
from penstock.open import open_store
from penstock.worker.counts import Counts
from penstock.worker.settings import WorkerSettings
from penstock.worker.worker import Worker
from tests.worker.harness import closing, run

Meanwhile = Callable[["Muffled"], Awaitable[object]]


class Muffled(Wrapper):
    """A store that hears the first call of a name, or does not, and gives no answer to it."""

    def __init__(self, store: Store, name: str, *, deaf: bool, meanwhile: Meanwhile | None) -> None:
        self._store = store
        self._name = name
        self._deaf = deaf
        self._meanwhile = meanwhile  # what happens before the worker asks again
        self.blind = False  # and refuses to show jobs

    @property
    def inner(self) -> Store:
        return self._store

    def _made(self, name: str, call: Call[T]) -> Call[T]:
        if name == "get" and self.blind:
            call.close()
            return self._refuse()
        if name != self._name:
            return call
        self._name = ""
        return self._muffle(call)

    async def _muffle(self, call: Call[T]) -> T:
        if self._deaf:
            call.close()
        else:
            await call
        if self._meanwhile is not None:
            await self._meanwhile(self)
        raise Unavailable("the connection was lost")

    async def _refuse(self) -> Any:
        raise Forbidden("not for you to see")


class Shop:
    """One job of a worker whose store is muffled, and what became of both."""

    def __init__(
        self, call: str, *, deaf: bool = False, meanwhile: Meanwhile | None = None
    ) -> None:
        self.app = Penstock("memory://", max_attempts=2, backoff=at_once())

        async def opened() -> Store:
            return Muffled(await open_store("memory://"), call, deaf=deaf, meanwhile=meanwhile)

        self.app.home = Home("memory://", self.app.tenant, opened)

    def case(self, task: Any, shutdown_s: float = 30) -> tuple[Counts, Job | None]:
        async def case() -> tuple[Counts, Job | None]:
            async with closing(self.app):
                pushed = await task.apush()
                settings = WorkerSettings(max_jobs=1, cron=False, shutdown_s=shutdown_s)
                counts = await Worker(self.app, settings).run()
                (job,) = await (await self.app.store()).get(self.app.tenant, [pushed.id])
                return counts, job

        return run(case)


def counted(counts: Counts) -> str:
    return str(counts).removeprefix("1 claimed, ")


def test_an_ack_that_was_heard_is_no_loss(caplog: pytest.LogCaptureFixture) -> None:
    shop = Shop("ack")

    @shop.app.task
    async def one() -> int:
        return 1

    counts, job = shop.case(one)
    assert counted(counts) == "1 completed"
    assert job is not None
    assert (job.state, job.result) == (State.COMPLETED, b"1")
    assert "lost," not in caplog.text


async def cancel(store: Muffled) -> None:
    await store.inner.cancel("default", [1])


async def hide(store: Muffled) -> None:
    store.blind = True


def test_an_ack_that_was_not_heard_in_time_is_one(caplog: pytest.LogCaptureFixture) -> None:
    shop = Shop("ack", deaf=True, meanwhile=cancel)

    @shop.app.task
    async def one() -> None: ...

    counts, job = shop.case(one)
    assert counted(counts) == "1 lost"
    assert job is not None
    assert job.state is State.CANCELLED
    assert "1 job was not ended by this worker: its ack came too late. " in caplog.text


@pytest.mark.parametrize("retain", ["0s", "1h"])
def test_what_cannot_be_known_is_not_claimed(retain: str, caplog: pytest.LogCaptureFixture) -> None:
    """The job is forgotten, or may not be seen."""
    shop = Shop("ack", meanwhile=None if retain == "0s" else hide)

    @shop.app.task(retain=retain)
    async def one() -> None: ...

    async def case() -> Counts:
        async with closing(shop.app):
            await one.apush()
            return await Worker(shop.app, WorkerSettings(max_jobs=1, cron=False)).run()

    assert counted(run(case)) == "1 doubtful"
    assert "is not known" in caplog.text
    assert "not ended by this worker" not in caplog.text


def test_a_version_that_took_its_place_says_nothing_about_it() -> None:
    """The new one starts when the old one ends, and whoever runs it may be done by then."""

    async def another_runs(store: Muffled) -> None:
        lease = await store.inner.claim("default", ["default"], worker=settings.name)
        assert lease is not None
        await store.inner.ack("default", lease.token)

    shop = Shop("ack", meanwhile=another_runs)
    settings = WorkerSettings(name="a worker", max_jobs=1, cron=False)

    @shop.app.task(key="k", on_conflict="replace")
    async def one(version: int) -> None:
        await one.apush(version + 1)

    async def case() -> Counts:
        async with closing(shop.app):
            await one.apush(1)
            return await Worker(shop.app, settings).run()

    assert counted(run(case)) == "1 doubtful"


def test_a_failure_that_was_heard_is_told_as_one(caplog: pytest.LogCaptureFixture) -> None:
    shop = Shop("fail")

    @shop.app.task
    async def one() -> None:
        raise ValueError("no")

    counts, job = shop.case(one)
    assert counted(counts) == "1 failed"
    assert job is not None
    assert (job.state, len(job.errors)) == (State.READY, 1)
    assert "job 1 failed: ValueError: no" in caplog.text
    assert "not ended by this worker" not in caplog.text


def test_jobs_that_were_given_back_unheard_are_no_loss(caplog: pytest.LogCaptureFixture) -> None:
    shop = Shop("release")

    @shop.app.task
    async def one() -> None:
        await asyncio.Event().wait()

    counts, job = shop.case(one, shutdown_s=0)
    assert counted(counts) == "1 released"
    assert job is not None
    assert (job.state, job.attempt) == (State.READY, 0)
    assert "not ended by this worker" not in caplog.text
