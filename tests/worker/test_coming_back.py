"""A server that goes away and comes back: how soon whoever waits for it goes on.

By a clock that jumps to whatever is due next, so that an outage of minutes takes no time.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from itertools import pairwise
from typing import Any, Final, cast

import pytest

from penstock import Penstock
from penstock.model.answers import Acked
from penstock.model.errors import Unavailable
from penstock.model.store import Store
from penstock.stores.again import FIRST_S, LAST_S, Again
from penstock.stores.remote import RemoteStore
from penstock.stores.target import Target
from penstock.worker.acking import Acker
from penstock.worker.counts import Counts
from penstock.worker.owned import Owned
from penstock.worker.reaching import reached
from tests.worker.harness import claimer_of

AWAY_S: Final = 200.0  # several times as long as a call waits for a connection


class Jumping(asyncio.SelectorEventLoop):
    """A loop that never waits: its clock goes to the next timer. Nobody answers on its network."""

    def __init__(self) -> None:
        super().__init__(selectors.SelectSelector())
        self._passed = 0.0
        self.attempts: list[float] = []  # to connect
        select = self._selector.select  # type: ignore[attr-defined]

        def jump(timeout: float | None = None) -> Any:
            self._passed += timeout or 0.0
            return select(0)

        self._selector.select = jump  # type: ignore[attr-defined]

    def time(self) -> float:
        return self._passed

    async def create_connection(self, *_: Any, **__: Any) -> Any:
        self.attempts.append(self.time())
        raise ConnectionRefusedError(111, "Connection refused")


def jumping(case: Callable[[Jumping], Coroutine[Any, Any, None]]) -> list[float]:
    """When it tried to connect, of a case that is ended by the end of its time."""

    async def within(loop: Jumping) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(AWAY_S):
                await case(loop)

    with asyncio.Runner(loop_factory=Jumping) as runner:
        loop = cast(Jumping, runner.get_loop())
        runner.run(within(loop))
        return loop.attempts


def at_least_every_second(attempts: list[float]) -> None:
    """Whenever a server comes back it is found within a second; and nobody hammers at it."""
    assert attempts[0] == 0.0
    gaps = [after - before for before, after in pairwise([*attempts, AWAY_S])]
    assert max(gaps) <= LAST_S + 1e-6
    assert len(attempts) < 3 * AWAY_S
    assert len({round(gap, 6) for gap in gaps}) > len(gaps) / 2, "at times of its own"


def test_a_claim_is_on_its_way_within_a_second() -> None:
    """Whoever claims does not wait on top of what its connection has waited."""

    async def case(_: Jumping) -> None:
        await claimer_of(RemoteStore(Target(host="gone", port=1))).run()

    at_least_every_second(jumping(case))


class Away:
    """A store that answers nothing, and says so at once."""

    def __init__(self, loop: Jumping) -> None:
        self._loop = loop
        self.url = "penstock://gone"
        self.home = self

    async def ack(self, *_: object, **__: object) -> Acked:
        self._loop.attempts.append(self._loop.time())
        raise Unavailable("nobody is there")

    claim = store = ack


def test_claims_of_a_store_that_refuses_at_once_come_as_often() -> None:
    async def case(loop: Jumping) -> None:
        await claimer_of(cast(Store, Away(loop))).run()

    at_least_every_second(jumping(case))


def test_an_end_is_told_within_a_second(caplog: pytest.LogCaptureFixture) -> None:
    async def case(loop: Jumping) -> None:
        store = Away(loop)
        acker = Acker(cast(Store, store), "default", "w", Counts(), Owned(), lambda _: None)
        await acker.repeated(store.ack)

    at_least_every_second(jumping(case))
    assert caplog.text.count("the store does not answer, and is asked again") == 1


def test_a_worker_that_was_started_first_finds_it_within_a_second() -> None:
    async def case(loop: Jumping) -> None:
        await reached(cast(Penstock, Away(loop)), asyncio.Event(), alone=True)

    at_least_every_second(jumping(case))


def test_an_attempt_that_waited_by_itself_is_followed_at_once() -> None:
    now = 0.0
    again = Again(lambda: now)
    pauses = []
    for _ in range(20):
        again.begin()
        pauses.append(again.pause_s())
    assert FIRST_S / 2 <= pauses[0] <= FIRST_S
    assert all(LAST_S / 2 <= each <= LAST_S for each in pauses[10:])
    again.begin()
    now = LAST_S
    assert again.pause_s() == 0.0
    again.answered()
    again.begin()
    assert 0.0 < again.pause_s() <= FIRST_S
