"""A store that stood still: what it could not hear meanwhile does not count against those who said it.

The clock here is the machine's, to the engine too, and is moved ahead between two turns of the
loop: as it is for a process that was stopped.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from penstock.model.errors import Deadline, LeaseLost
from penstock.model.event import Event
from penstock.model.job import JobOptions, JobSpec, Lease, Run
from penstock.model.lifecycle import State
from penstock.open import open_store
from penstock.stores.clock import SystemClock
from penstock.stores.embedded import EmbeddedStore
from tests.durable import replayed_digest

T = "acme"
LEASE_MS = 2_000
LONG_MS = 60_000
PATIENCE_S = 10


class Skipping(SystemClock):
    """Of a machine that is moved ahead in time."""

    def __init__(self) -> None:
        self.ahead = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead

    def elapsed_ms(self) -> int:
        return super().elapsed_ms() + self.ahead

    def instant(self) -> tuple[int, int]:
        return self.now_ms(), self.elapsed_ms()

    def boot_id(self) -> str:
        return "one"


Scenario = Callable[[EmbeddedStore, Skipping], Awaitable[None]]


@pytest.fixture(params=["memory", "sqlite"])
def on(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Scenario], None]:
    """Plays a scenario on a store that lives by a clock like the machine's."""
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db"

    def play(scenario: Scenario) -> None:
        async def whole() -> None:
            clock = Skipping()
            store = await open_store(url, clock=clock, share=False)
            assert isinstance(store, EmbeddedStore)
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await scenario(store, clock)
            finally:
                await store.close()

        asyncio.run(whole())

    return play


async def push(store: EmbeddedStore, **said: int) -> int:
    spec = JobSpec(payload=b"1", **said)  # type: ignore[arg-type]
    return (await store.push(T, [Run.of("q", [spec])])).ids[0]


async def claim(store: EmbeddedStore, lease_ms: int = LEASE_MS) -> Lease:
    lease = await store.claim(T, ["q"], lease_ms=lease_ms)
    assert lease is not None
    return lease


async def state(store: EmbeddedStore, job_id: int) -> State:
    (job,) = await store.get(T, [job_id])
    assert job is not None
    return job.state


async def gone_on(store: EmbeddedStore, clock: Skipping) -> None:
    """Until the loop has come round, and the store has left out what does not count."""
    engine = store.engine

    def counted() -> int:
        return clock.ahead - (engine.callers.elapsed_ms() - engine.clock.elapsed_ms())

    while counted() > LONG_MS // 2:  # noqa: ASYNC110 -- nobody tells
        await asyncio.sleep(0.01)


async def ended(store: EmbeddedStore, job_id: int) -> None:
    while await state(store, job_id) is State.ACTIVE:  # noqa: ASYNC110 -- nobody tells
        await asyncio.sleep(0.01)


async def looks(store: EmbeddedStore) -> None:
    await store.queues(T)


async def pushes(store: EmbeddedStore) -> None:
    await push(store)


async def pushes_one(store: EmbeddedStore) -> None:
    options = (JobOptions(),)
    for _ in range(2):  # the second goes the short way
        await store.push_one(T, "other", b"1", options)


async def claims(store: EmbeddedStore) -> None:
    await store.claim(T, ["other"])


async def ticks(store: EmbeddedStore) -> None:
    await store.tick()


async def sleeps(_: EmbeddedStore) -> None:
    await asyncio.sleep(0.6)


@pytest.mark.parametrize("first", [looks, pushes, pushes_one, claims, ticks, sleeps])
def test_a_lease_outlives_a_store_that_stood_still(
    on: Callable[[Scenario], None], first: Callable[[EmbeddedStore], Awaitable[None]]
) -> None:
    """Whatever it does first when it goes on."""

    async def scenario(store: EmbeddedStore, clock: Skipping) -> None:
        job_id = await push(store)
        lease = await claim(store)
        for _ in range(2):
            clock.ahead += LONG_MS
            await first(store)
            assert await state(store, job_id) is State.ACTIVE
            await gone_on(store, clock)
            assert not (await store.extend(T, lease.token)).lost
        assert list((await store.ack(T, lease.token)).acked) == [job_id]

    on(scenario)


def test_a_job_comes_to_one_who_waited_while_the_store_stood_still(
    on: Callable[[Scenario], None],
) -> None:
    """And its lease counts from there."""

    async def scenario(store: EmbeddedStore, clock: Skipping) -> None:
        await push(store)
        await claim(store)
        for _ in range(2):
            options = (JobOptions(),)
            waiting = asyncio.create_task(
                store.claim(T, ["other"], lease_ms=LEASE_MS, wait_ms=2 * LONG_MS)
            )
            while not store.engine.waiting:  # noqa: ASYNC110 -- nobody tells
                await asyncio.sleep(0)
            clock.ahead += LONG_MS
            job_id = await store.push_one(T, "other", b"1", options)
            lease = await waiting
            assert lease is not None
            await gone_on(store, clock)
            assert list((await store.ack(T, lease.token)).acked) == [job_id]

    on(scenario)


def test_the_lease_of_somebody_who_is_gone_ends_in_time_when_the_store_goes_on(
    on: Callable[[Scenario], None],
) -> None:
    async def scenario(store: EmbeddedStore, clock: Skipping) -> None:
        job_id = await push(store)
        lease = await claim(store)
        clock.ahead += LONG_MS
        await gone_on(store, clock)
        began = clock.elapsed_ms()
        await ended(store, job_id)
        # Of the time in which it stood half a second counts, at most.
        assert clock.elapsed_ms() - began >= LEASE_MS - 500 - 100
        with pytest.raises(LeaseLost):
            await store.ack(T, lease.token)

    on(scenario)


def test_an_attempt_does_not_time_out_while_the_store_stands_still(
    on: Callable[[Scenario], None],
) -> None:
    async def scenario(store: EmbeddedStore, clock: Skipping) -> None:
        job_id = await push(store, timeout_ms=LEASE_MS)
        lease = await claim(store, 10 * LONG_MS)
        clock.ahead += LONG_MS
        await gone_on(store, clock)
        assert await state(store, job_id) is State.ACTIVE
        await ended(store, job_id)
        with pytest.raises(LeaseLost):
            await store.ack(T, lease.token)

    on(scenario)


def test_what_runs_on_the_wall_clock_counts_it(on: Callable[[Scenario], None]) -> None:
    async def scenario(store: EmbeddedStore, clock: Skipping) -> None:
        held = await push(store)
        await claim(store)
        late = await push(store, delay_ms=LONG_MS)
        forgone = await push(store, delay_ms=2 * LONG_MS, ttl_ms=3 * LONG_MS)
        clock.ahead += LONG_MS
        assert [await state(store, job) for job in (held, late)] == [State.ACTIVE, State.READY]
        clock.ahead += 2 * LONG_MS
        assert await state(store, forgone) is State.EXPIRED
        assert await state(store, held) is State.ACTIVE

    on(scenario)


def test_a_loop_that_does_not_come_round_hears_nobody(on: Callable[[Scenario], None]) -> None:
    """However often the store is called meanwhile, and however short each time is."""

    async def scenario(store: EmbeddedStore, clock: Skipping) -> None:
        job_id = await push(store)
        lease = await claim(store)
        for _ in range(LONG_MS // 400):
            clock.ahead += 400
            store.engine.look()
        await gone_on(store, clock)
        assert list((await store.ack(T, lease.token)).acked) == [job_id]

    on(scenario)


def test_a_loop_that_comes_round_late_each_time_ends_leases_all_the_same(
    on: Callable[[Scenario], None],
) -> None:
    async def scenario(store: EmbeddedStore, clock: Skipping) -> None:
        job_id = await push(store)
        await claim(store)
        for _ in range(4):
            assert await state(store, job_id) is State.ACTIVE
            clock.ahead += LONG_MS
            await gone_on(store, clock)
        assert await state(store, job_id) is not State.ACTIVE

    on(scenario)


def test_less_than_a_second_counts_in_full(on: Callable[[Scenario], None]) -> None:
    async def scenario(store: EmbeddedStore, clock: Skipping) -> None:
        job_id = await push(store)
        await claim(store, 300)
        before = store.engine.clock
        clock.ahead += 400
        assert await state(store, job_id) is not State.ACTIVE
        await asyncio.sleep(0.6)
        assert store.engine.clock is before

    on(scenario)


def test_who_waits_has_waited_all_the_same(on: Callable[[Scenario], None]) -> None:
    async def scenario(store: EmbeddedStore, clock: Skipping) -> None:
        job_id = await push(store)
        await claim(store)

        async def result() -> None:
            with pytest.raises(Deadline):
                await store.result(T, job_id, wait_ms=LONG_MS)

        async def nothing() -> None:
            assert await store.claim(T, ["other"], wait_ms=LONG_MS) is None

        async with asyncio.TaskGroup() as both:
            both.create_task(result())
            both.create_task(nothing())
            while not (store.engine.waiting and store.kernel.awaited):  # noqa: ASYNC110
                await asyncio.sleep(0)
            clock.ahead += LONG_MS

    on(scenario)


def test_it_says_for_how_long_it_stood_still(
    on: Callable[[Scenario], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(store: EmbeddedStore, clock: Skipping) -> None:
        await push(store)
        await claim(store)
        with caplog.at_level(logging.WARNING, "penstock.store"):
            clock.ahead += LONG_MS
            await gone_on(store, clock)
        (line,) = [record.getMessage() for record in caplog.records]
        # All but what counts, and what it took to open the store.
        assert re.match(r"the store stood still for (59(\.\d)?s|1m): leases", line), line

    on(scenario)


def test_a_store_that_is_idle_has_nothing_to_say(
    on: Callable[[Scenario], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Before anything can come due it is not even looked at the clock."""

    async def scenario(store: EmbeddedStore, clock: Skipping) -> None:
        clock.ahead += LONG_MS
        job_id = await push(store)
        assert await state(store, job_id) is State.READY

    on(scenario)
    assert not [record for record in caplog.records if "stood still" in record.getMessage()]


def test_it_goes_on_from_there_after_a_restart_and_a_replay(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"

    async def case() -> None:
        clock = Skipping()

        async def opened() -> EmbeddedStore:
            store = await open_store(url, clock=clock, share=False)
            assert isinstance(store, EmbeddedStore)
            return store

        store = await opened()
        job_id = await push(store)
        lease = await claim(store, 10_000)
        clock.ahead += LONG_MS
        await gone_on(store, clock)
        elapsed = store.engine.clock.elapsed_ms()
        await store.close()
        live = store.kernel
        assert await replayed_digest(url, live, clock) == live.digest()
        # As long as it is closed counts, as ever; as long as it stood does not.
        clock.ahead += 5_000
        store = await opened()
        assert 5_000 <= store.engine.clock.elapsed_ms() - elapsed < LONG_MS
        assert await state(store, job_id) is State.ACTIVE
        assert not (await store.extend(T, lease.token)).lost
        await store.close()
        clock.ahead += 20_000
        store = await opened()
        assert await state(store, job_id) is not State.ACTIVE
        await store.close()

    asyncio.run(case())


# -- whatever becomes of the timer that comes round ------------------------------------------------


class Moody:
    """Whoever is told of events, and has a bad moment."""

    def __init__(self) -> None:
        self.bad = 1

    def write(self, events: Sequence[Event]) -> None:
        if self.bad and any(event.kind == "retried" for event in events):
            self.bad -= 1
            raise RuntimeError("a bad moment")


def test_leases_end_after_somebody_who_is_told_has_failed() -> None:
    async def whole() -> None:
        loop = asyncio.get_running_loop()
        failed: asyncio.Queue[Exception] = asyncio.Queue()
        loop.set_exception_handler(lambda _, context: failed.put_nowait(context["exception"]))
        store = await open_store("memory://", observer=Moody())
        assert isinstance(store, EmbeddedStore)
        async with asyncio.timeout(PATIENCE_S):
            first = await push(store)
            await claim(store, 200)
            assert str(await failed.get()) == "a bad moment"
            assert await state(store, first) is not State.ACTIVE
            second = await push(store)
            while (await claim(store)).jobs[0].id != second:
                pass
            await ended(store, second)
        await store.close()

    asyncio.run(whole())


def test_leases_end_on_a_loop_that_follows_another() -> None:
    clock = Skipping()

    async def first() -> tuple[EmbeddedStore, int]:
        store = await open_store("memory://", clock=clock)
        assert isinstance(store, EmbeddedStore)
        job_id = await push(store)
        await claim(store, 200)
        return store, job_id

    async def second(store: EmbeddedStore, job_id: int) -> None:
        clock.ahead += LONG_MS
        async with asyncio.timeout(PATIENCE_S):
            await ended(store, job_id)
            other = await push(store)
            while (await claim(store)).jobs[0].id != other:
                pass
            assert await state(store, other) is State.ACTIVE
            clock.ahead += LONG_MS  # and is counted by no more than before
            assert await state(store, other) is State.ACTIVE
            await ended(store, other)
        await store.close()

    asyncio.run(second(*asyncio.run(first())))
