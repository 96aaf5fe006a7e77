"""Who waits is found by the deadline, and who is gone is forgotten, whoever waits on."""

import asyncio
import gc
from typing import Any

import pytest

from penstock.kernel.commands import Claim
from penstock.model.job import JobSpec, Lease
from penstock.open import open_store
from penstock.stores.clock import ManualClock
from penstock.stores.prompt import Prompt
from penstock.stores.waiting import FAR, MANY, Awaited, Line, Waiter
from tests.unit.test_connection import looped

ROUNDS = 20 * MANY


def waiter(serial: int, deadline: int) -> Waiter:
    future: Prompt[Any] = Prompt(loop=asyncio.get_running_loop())
    return Waiter(Claim("t", ("q",), 1, "token"), deadline, future, serial, limited=False, since=0)


@looped
async def test_claims_that_were_served_are_forgotten_though_an_older_one_waits() -> None:
    line = Line()
    oldest = waiter(0, 10)
    line.join(oldest)
    for serial in range(1, ROUNDS):
        served = waiter(serial, 1_000 + serial)
        line.join(served)
        line.leave(served)
    assert len(line._deadlines) <= MANY + 3
    assert line.due() == 10
    last = waiter(ROUNDS, 5)
    line.join(last)
    assert list(line.lapsed(7)) == [last]
    line.leave(last)
    assert list(line.lapsed(10)) == [oldest]
    line.leave(oldest)
    assert line.due() == FAR


@looped
@pytest.mark.parametrize("together", [1, 2])
async def test_jobs_that_were_handed_over_are_not_kept_until_their_claims_would_have_ended(
    together: int,
) -> None:
    store = await open_store("memory://", clock=ManualClock())
    for _ in range(5):
        claims = [
            asyncio.create_task(store.claim("t", ["q"], wait_ms=1_000)) for _ in range(together)
        ]
        await asyncio.sleep(0)
        await store.push_jobs("t", "q", [JobSpec(payload=b"1")] * together)
        leases = await asyncio.gather(*claims)
        assert all(leases)
        del claims, leases
        await asyncio.sleep(0)
    gc.collect()
    kept = [each for each in gc.get_objects() if type(each) is Lease and each.queue == "q"]
    assert not kept
    await store.close()


@looped
async def test_results_that_were_answered_are_forgotten_though_an_older_caller_waits() -> None:
    awaited = Awaited()
    oldest = awaited.join(1, 10)
    for job in range(2, ROUNDS):
        future = awaited.join(job, 1_000 + job)
        for told in awaited.settle(job):
            told.set_result(None)
        awaited.leave(job, future)
    assert len(awaited._deadlines) <= MANY + 3
    assert list(awaited.lapsed(10)) == [oldest]
