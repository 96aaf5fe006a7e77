"""Clocks that jump by an hour, either way, while a store runs and while it does not.

Leases go by elapsed time and know nothing of it; delays go by the wall clock and never end early
by it. Elapsed time goes on across a restart within one boot, and stands still across a reboot.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest

from penstock.model.errors import LeaseLost
from penstock.model.job import JobSpec, Lease, Run
from penstock.model.lifecycle import State
from penstock.stores.clock import ManualClock
from penstock.stores.embedded import EmbeddedStore
from tests.faults.stores import each_store, in_both_runs, opened, url_of

pytestmark = in_both_runs
HOUR_MS: Final = 3_600_000
LEASE_MS: Final = 30_000
T = "default"

by_an_hour = pytest.mark.parametrize("jump", [HOUR_MS, -HOUR_MS], ids=["ahead", "back"])

Opened = Callable[[ManualClock], Awaitable[EmbeddedStore]]


@pytest.fixture
def store_of(scheme: str, tmp_path: Path) -> Opened:
    return lambda clock: opened(url_of(scheme, tmp_path), clock)


async def push(store: EmbeddedStore, **said: int) -> int:
    spec = JobSpec(payload=b"1", max_attempts=5, **said)  # type: ignore[arg-type]
    return (await store.push(T, [Run.of("q", [spec])])).ids[0]


async def claim(store: EmbeddedStore) -> Lease:
    lease = await store.claim(T, ["q"], lease_ms=LEASE_MS)
    assert lease is not None
    return lease


async def state(store: EmbeddedStore, job_id: int) -> State:
    (job,) = await store.get(T, [job_id])
    assert job is not None
    return job.state


def rebooted(clock: ManualClock, jump: int = 0, elapsed: int = 5) -> ManualClock:
    """The machine's clocks after a reboot: elapsed time begins anew."""
    after = ManualClock(clock.now + jump, elapsed)
    after.boot = "another"
    return after


# -- while it runs ---------------------------------------------------------------------------------


@by_an_hour
@each_store
def test_a_lease_neither_ends_nor_revives_by_a_jump(store_of: Opened, jump: int) -> None:
    async def case() -> None:
        clock = ManualClock()
        store = await store_of(clock)
        job_id = await push(store)
        lease = await claim(store)
        clock.jump(jump)
        await store.tick()
        clock.advance(LEASE_MS - 1)
        await store.tick()
        assert await state(store, job_id) is State.ACTIVE
        assert await store.claim(T, ["q"]) is None
        clock.advance(1)
        clock.jump(-jump)
        await store.tick()
        assert await state(store, job_id) is not State.ACTIVE
        clock.jump(-jump)
        with pytest.raises(LeaseLost):
            await store.ack(T, lease.token)
        await store.close()

    asyncio.run(case())


@by_an_hour
@each_store
def test_a_delayed_job_is_never_early_by_the_wall_clock(store_of: Opened, jump: int) -> None:
    async def case() -> None:
        clock = ManualClock()
        store = await store_of(clock)
        due = clock.now + 2 * HOUR_MS
        job_id = await push(store, delay_ms=2 * HOUR_MS)
        clock.jump(jump)
        await store.tick()
        assert await store.claim(T, ["q"]) is None
        clock.advance(due - 1 - clock.now)
        await store.tick()
        assert await store.claim(T, ["q"]) is None
        clock.advance(1)
        await store.tick()
        assert list((await claim(store)).ids) == [job_id]
        await store.close()

    asyncio.run(case())


# -- across a restart ------------------------------------------------------------------------------


@by_an_hour
@each_store
def test_a_lease_goes_on_across_a_restart_whatever_the_wall_clock_says(
    store_of: Opened, jump: int
) -> None:
    async def case() -> None:
        clock = ManualClock()
        store = await store_of(clock)
        job_id = await push(store)
        lease = await claim(store)
        clock.advance(10_000)
        await store.close()
        # As long as it was closed counts: the machine was up all the time.
        clock.advance(10_000)
        clock.jump(jump)
        store = await store_of(clock)
        clock.advance(LEASE_MS - 20_000 - 1)
        await store.tick()
        assert await state(store, job_id) is State.ACTIVE
        clock.advance(1)
        await store.tick()
        assert await state(store, job_id) is not State.ACTIVE
        await store.close()
        clock.jump(-jump)
        store = await store_of(clock)
        with pytest.raises(LeaseLost):
            await store.ack(T, lease.token)
        await store.close()

    asyncio.run(case())


@by_an_hour
@pytest.mark.parametrize("elapsed", [5, 10**12], ids=["less", "more"])
@each_store
def test_elapsed_time_stands_still_across_a_reboot(
    store_of: Opened, jump: int, elapsed: int
) -> None:
    async def case() -> None:
        clock = ManualClock()
        store = await store_of(clock)
        job_id = await push(store)
        lease = await claim(store)
        clock.advance(10_000)
        await store.tick()
        await push(store)  # so that the log knows what time it is
        await store.close()
        clock = rebooted(clock, jump, elapsed)
        store = await store_of(clock)
        clock.advance(LEASE_MS - 10_000 - 1)
        await store.tick()
        assert await state(store, job_id) is State.ACTIVE
        assert not (await store.extend(T, lease.token, LEASE_MS)).lost
        await store.close()
        # And once more, in the second boot: from now on its own time counts again.
        clock.advance(LEASE_MS - 1)
        store = await store_of(clock)
        await store.tick()
        assert await state(store, job_id) is State.ACTIVE
        clock.advance(1)
        await store.tick()
        assert await state(store, job_id) is not State.ACTIVE
        await store.close()

    asyncio.run(case())


@by_an_hour
@pytest.mark.parametrize("reboot", [False, True], ids=["restart", "reboot"])
@each_store
def test_a_delayed_job_is_not_early_after_a_restart(
    store_of: Opened, jump: int, reboot: bool
) -> None:
    async def case() -> None:
        clock = ManualClock()
        store = await store_of(clock)
        due = clock.now + 2 * HOUR_MS
        job_id = await push(store, delay_ms=2 * HOUR_MS)
        await store.close()
        if reboot:
            clock = rebooted(clock)
        clock.jump(jump)
        store = await store_of(clock)
        await store.tick()
        assert await store.claim(T, ["q"]) is None
        clock.advance(due - 1 - clock.now)
        await store.tick()
        assert await store.claim(T, ["q"]) is None
        clock.advance(1)
        await store.tick()
        assert list((await claim(store)).ids) == [job_id]
        await store.close()

    asyncio.run(case())
