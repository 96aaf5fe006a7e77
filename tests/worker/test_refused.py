"""A token that is revoked, or loses a scope, while a worker runs."""

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from penstock import Penstock
from penstock.client.flow import chain
from penstock.client.home import Home
from penstock.model.errors import Forbidden, PenstockError, Unauthenticated
from penstock.model.store import Store
from penstock.model.wrapper import WAITING, Call, T, Wrapper
from penstock.open import open_store
from penstock.worker.counts import Counts
from penstock.worker.settings import WorkerSettings
from penstock.worker.worker import Worker
from tests.worker.harness import closing, ending, run, working

LEASE_MS = 100
CLAIM = "claim" + WAITING

Refuses = Callable[[str, int], bool]


class Guarded(Wrapper):
    """A store that refuses some calls of a worker, by their name and how many there were before."""

    def __init__(self, store: Store, error: PenstockError, refuses: Refuses) -> None:
        self._store = store
        self._error = error
        self._refuses = refuses
        self.asked: Counter[str] = Counter()

    @property
    def inner(self) -> Store:
        return self._store

    def _made(self, name: str, call: Call[T]) -> Call[T]:
        self.asked[name] += 1
        if self._refuses(name, self.asked[name]):
            call.close()
            return self._refuse()
        return call

    async def _refuse(self) -> Any:
        raise self._error


class Shop:
    def __init__(self, error: type[PenstockError], refuses: Refuses) -> None:
        self.app = Penstock("memory://")
        self.store: Guarded | None = None

        async def opened() -> Store:
            self.store = Guarded(await open_store("memory://"), error("not for you"), refuses)
            return self.store

        self.app.home = Home("memory://", self.app.tenant, opened)

    async def work(self, lease_ms: int | None = LEASE_MS, shutdown_s: float = 30) -> Counts:
        settings = WorkerSettings(max_jobs=1, cron=False, lease_ms=lease_ms, shutdown_s=shutdown_s)
        return await Worker(self.app, settings).run()


@pytest.mark.parametrize("error", [Forbidden, Unauthenticated])
@pytest.mark.parametrize("how", ["ack", "fail"])
def test_an_end_that_is_refused_for_a_whole_lease_is_given_up(
    error: type[PenstockError], how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody extends the lease meanwhile: it is over, and others have the job."""
    shop = Shop(error, lambda name, _: name in ("ack", "fail", "extend", "report", "get"))

    @shop.app.task
    async def one() -> None:
        if how == "fail":
            raise ValueError

    async def case() -> None:
        async with closing(shop.app):
            await one.apush()
            counts = await shop.work()
            assert str(counts) == "1 claimed, 1 doubtful"
            assert shop.store is not None
            assert 1 < shop.store.asked[how] < 10, "not asked without a pause"

    run(case)
    assert caplog.text.count("the store refuses to hear how jobs ended: not for you; ") == 1
    assert caplog.text.count("a lease could not be extended") <= 1
    assert "with the scope claim" in caplog.text
    assert re.search(r"whether the \w+ of 1 job was heard is not known: \[1\]", caplog.text)


def test_an_end_that_is_refused_for_a_while_is_heard_when_it_may_be_said_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shop = Shop(Unauthenticated, lambda name, count: name == "ack" and count <= 3)

    @shop.app.task
    async def one() -> int:
        return 1

    async def case() -> None:
        async with closing(shop.app):
            pushed = await one.apush()
            assert str(await shop.work(lease_ms=None)) == "1 claimed, 1 completed"
            assert await ending(pushed) == "1"

    run(case)
    assert caplog.text.count("the store refuses to hear how jobs ended") == 1


def test_jobs_that_cannot_be_given_back_are_left_to_their_lease() -> None:
    shop = Shop(Forbidden, lambda name, _: name in ("release", "extend"))

    @shop.app.task
    async def one() -> None:
        await asyncio.Event().wait()

    async def case() -> None:
        async with closing(shop.app):
            await one.apush()
            assert str(await shop.work(shutdown_s=0)) == "1 claimed, 1 doubtful"

    run(case)


def test_results_that_may_not_be_seen_fail_the_attempt() -> None:
    """It would hold its slot for ever otherwise."""
    shop = Shop(Forbidden, lambda name, _: name == "get")

    @shop.app.task(max_attempts=1)
    async def one(n: int) -> int:
        return n

    async def case() -> None:
        async with closing(shop.app):
            flow = await chain(one.s(1), one.s()).apush()
            async with working(shop.app):
                assert await ending(flow.jobs[-1]) == "dead Forbidden"

    run(case)


def test_claims_that_are_refused_are_made_again_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A token that was taken away may be put back."""
    refusals = 5
    shop = Shop(Unauthenticated, lambda name, count: name == CLAIM and count <= refusals)

    @shop.app.task
    async def one() -> int:
        return 1

    async def case() -> None:
        async with closing(shop.app):
            pushed = await one.apush()
            async with working(shop.app):
                assert await ending(pushed) == "1"

    run(case)
    assert caplog.text.count("no jobs can be claimed: not for you; the worker needs a token") == 1
    assert caplog.text.count("not for you") == 1
    assert shop.store is not None
    assert shop.store.asked[CLAIM] > refusals
