"""Whoever waits for a job goes on within the turn that has one for it, and may do anything there."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.model.errors import LeaseLost, Unavailable
from penstock.model.event import Event
from penstock.model.job import JobOptions, JobSpec, Lease
from penstock.model.lifecycle import State
from penstock.model.policy import Caps
from penstock.stores.clock import ManualClock
from penstock.stores.embedded import EmbeddedStore
from tests.unit.served import turns
from tests.unit.test_connection import looped
from tests.unit.test_prompt import by_a_callback

T = "default"
HOUR = 3_600_000
PLAIN = (JobOptions(),)


def at_once(call: Awaitable[Any]) -> Any:
    """What a call answers that waits for nothing, made outside of every task, as a server makes it."""
    made = call.__await__()
    try:
        made.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits")


class Told:
    """What was written of events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def write(self, events: list[Event]) -> None:
        self.events += events

    def kinds(self) -> list[tuple[str, list[int]]]:
        return [(event.kind, list(event.ids)) for event in self.events]


Step = Callable[["Turn", Lease], Awaitable[None]]


class Turn:
    """A store with somebody who waits for a job, and does something in the step that has it."""

    def __init__(self, *, waiters: int = 100) -> None:
        self.told = Told()
        self.store = EmbeddedStore.in_memory(
            clock=ManualClock(), caps=Caps(waiters=waiters), events=self.told, seed=1
        )
        self.inside = False  # whether a push is under way

    async def waits(self, step: Step | None = None, n: int = 1) -> "asyncio.Task[Lease | None]":
        async def wait() -> Lease | None:
            lease = await self.store.claim(T, ["q"], n, wait_ms=HOUR)
            if lease is not None and step is not None:
                assert self.inside, "within the turn of the push"
                await step(self, lease)
            return lease

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        return task

    async def push(self, *payloads: bytes) -> list[int]:
        """By somebody who is no task."""
        ids: list[int] = []

        def push() -> None:
            self.inside = True
            if len(payloads) == 1:
                ids.append(at_once(self.store.push_one(T, "q", payloads[0], PLAIN)))
            else:
                specs = [JobSpec(payload=payload) for payload in payloads]
                (run,) = at_once(self.store.push_jobs(T, "q", specs)).runs
                ids.extend(range(run.first, run.first + run.count))
            self.inside = False

        await by_a_callback(push)
        await turns()
        return ids

    async def counts(self) -> dict[State, int]:
        infos = await self.store.queues(T, ["q"])
        return {state: count for info in infos for state, count in info.counts.items() if count}


def payloads(task: "asyncio.Task[Lease | None]") -> list[bytes]:
    lease = task.result()
    assert lease is not None
    return [job.payload for job in lease.jobs]


@looped
async def test_it_may_ack_what_it_has_got() -> None:
    async def ack(turn: Turn, lease: Lease) -> None:
        assert list((await turn.store.ack(T, lease.token)).acked) == lease.ids
        with pytest.raises(LeaseLost):
            await turn.store.ack(T, lease.token)

    turn = Turn()
    task = await turn.waits(ack)
    assert await turn.push(b"1") == [1]
    assert payloads(task) == [b"1"]
    assert turn.told.kinds() == [("pushed", [1]), ("claimed", [1]), ("completed", [1])]
    assert await turn.counts() == {State.COMPLETED: 1}
    await turn.store.close()


@looped
async def test_it_may_push_for_the_next_in_line() -> None:
    async def push(turn: Turn, lease: Lease) -> None:
        assert await turn.store.push_one(T, "q", b"2", PLAIN) == 2

    turn = Turn()
    first, second = await turn.waits(push), await turn.waits()
    assert await turn.push(b"1") == [1]
    assert (payloads(first), payloads(second)) == ([b"1"], [b"2"])
    kinds = [("pushed", [1]), ("claimed", [1]), ("pushed", [2]), ("claimed", [2])]
    assert turn.told.kinds() == kinds
    assert [event.position for event in turn.told.events] == sorted(
        event.position for event in turn.told.events
    )
    assert turn.store.engine.waiting == 0
    await turn.store.close()


@looped
async def test_it_may_wait_for_the_next_though_as_many_wait_as_may() -> None:
    """It waits no more itself."""

    async def wait(turn: Turn, lease: Lease) -> None:
        second = await turn.store.claim(T, ["q"], wait_ms=HOUR)
        assert second is not None
        assert [job.payload for job in second.jobs] == [b"2"]

    turn = Turn(waiters=1)
    task = await turn.waits(wait)
    assert await turn.push(b"1") == [1]
    assert turn.store.engine.waiting == 1
    assert await turn.push(b"2") == [2]
    assert payloads(task) == [b"1"]
    assert turn.store.engine.waiting == 0
    assert not turn.store.kernel.watching
    await turn.store.close()


@looped
async def test_it_may_give_it_back_to_the_next_in_line() -> None:
    async def release(turn: Turn, lease: Lease) -> None:
        await turn.store.release(T, lease.token)

    turn = Turn()
    first, second = await turn.waits(release), await turn.waits()
    await turn.push(b"1")
    assert payloads(first) == payloads(second) == [b"1"]
    assert [kind for kind, _ in turn.told.kinds()] == ["pushed", "claimed", "released", "claimed"]
    assert turn.store.engine.waiting == 0
    await turn.store.close()


@looped
async def test_it_may_cancel_others_who_wait() -> None:
    others: list[asyncio.Task[Lease | None]] = []

    async def cancel(turn: Turn, lease: Lease) -> None:
        others[0].cancel()
        await turn.store.push_one(T, "q", b"2", PLAIN)

    turn = Turn()
    first = await turn.waits(cancel)
    others += [await turn.waits(), await turn.waits()]
    await turn.push(b"1")
    assert payloads(first) == [b"1"]
    assert others[0].cancelled()
    assert payloads(others[1]) == [b"2"]
    assert turn.store.engine.waiting == 0
    await turn.store.close()


@looped
async def test_it_may_cancel_the_job_and_empty_the_queue() -> None:
    async def purge(turn: Turn, lease: Lease) -> None:
        await turn.store.cancel(T, lease.ids)
        await turn.store.purge(T, "q")

    turn = Turn()
    task = await turn.waits(purge)
    assert await turn.push(b"1") == [1]
    assert payloads(task) == [b"1"]
    assert [kind for kind, _ in turn.told.kinds()][:3] == ["pushed", "claimed", "cancelled"]
    assert await turn.counts() == {}
    waiting = await turn.waits()
    await turn.push(b"2")
    assert payloads(waiting) == [b"2"]
    await turn.store.close()


@looped
async def test_it_may_close_the_store_and_whoever_watches_has_heard_of_the_job() -> None:
    async def close(turn: Turn, lease: Lease) -> None:
        await turn.store.close()

    turn = Turn()
    watcher = turn.store.watch(T)
    first, second = await turn.waits(close), await turn.waits()
    assert await turn.push(b"1") == [1], "it was pushed"
    assert payloads(first) == [b"1"]
    assert isinstance(second.exception(), Unavailable)
    assert turn.told.kinds() == [("pushed", [1]), ("claimed", [1])]
    assert [event.kind async for event in watcher] == ["pushed", "claimed"]
    assert turn.store.engine.waiting == 0
