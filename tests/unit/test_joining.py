"""Pushes of one turn travel together, and nobody can tell but by the time that it takes."""

import asyncio
from array import array
from collections.abc import Awaitable, Callable

import pytest

from penstock.model.answers import Pushed
from penstock.model.errors import Invalid, Overloaded, PenstockError
from penstock.model.job import JobOptions, Run
from penstock.model.policy import Bounds, QueueConfig
from penstock.stores.clock import ManualClock
from penstock.telemetry.store import Telemetry
from tests.served import ServedStore

T = "default"
BYTES = (JobOptions(codec="bytes"),)


def run_of(*payloads: bytes, queue: str = "q", options: tuple[JobOptions, ...] = BYTES) -> Run:
    return Run.pack(queue, payloads, options[0])


def served(case: Callable[[ServedStore], Awaitable[None]]) -> None:
    async def play() -> None:
        store = await ServedStore.open("tcp", clock=ManualClock(1_000_000))
        try:
            async with asyncio.timeout(30):
                await case(store)
        finally:
            await store.close()

    asyncio.run(play())


def pushes_seen(store: ServedStore) -> int:
    telemetry = store.listener.gate.inner
    assert isinstance(telemetry, Telemetry)
    return telemetry.operations["push"].took.count


async def payloads(store: ServedStore, queue: str = "q") -> list[bytes]:
    return [job.payload for job in (await store.find(T, queue, limit=1_000)).jobs]


def test_pushes_of_one_turn_are_joined_and_each_gets_its_own_ids() -> None:
    async def case(store: ServedStore) -> None:
        said = [b"%d" % number for number in range(200)]
        pushed = await asyncio.gather(*(store.push(T, [run_of(one)]) for one in said))
        ids = [job_id for one in pushed for job_id in one.ids]
        assert ids == list(range(ids[0], ids[0] + 200))
        assert [one.jobs[0][1] for one in pushed] == ["created"] * 200
        assert await payloads(store) == said
        assert pushes_seen(store) == 2  # the first goes ahead, the others together

    served(case)


def test_single_jobs_of_one_turn_are_joined_with_whatever_is_like_them() -> None:
    async def case(store: ServedStore) -> None:
        said = [b"%d" % number for number in range(200)]
        await asyncio.gather(
            *(
                store.push_one(T, "q", one, BYTES) if number % 2 else store.push(T, [run_of(one)])
                for number, one in enumerate(said)
            )
        )
        ids = await asyncio.gather(*(store.push_one(T, "q", one, BYTES) for one in said))
        assert ids == list(range(ids[0], ids[0] + 200))
        assert await payloads(store) == said + said
        assert pushes_seen(store) == 4  # the first goes ahead, the others together; twice

    served(case)


def test_runs_of_several_jobs_are_put_end_to_end() -> None:
    async def case(store: ServedStore) -> None:
        runs = [run_of(b"0"), run_of(b"a", b"", b"bcd"), run_of(b""), run_of(b"e", b"fg")]
        pushed = await asyncio.gather(*(store.push(T, [run]) for run in runs))
        assert [len(one.ids) for one in pushed] == [1, 3, 1, 2]
        assert await payloads(store) == [b"0", b"a", b"", b"bcd", b"", b"e", b"fg"]
        assert pushes_seen(store) == 2

    served(case)


def test_what_differs_goes_apart() -> None:
    async def case(store: ServedStore) -> None:
        urgent = (JobOptions(codec="bytes", priority=9),)
        await asyncio.gather(
            store.push(T, [run_of(b"0")]),
            store.push(T, [run_of(b"1")]),
            store.push(T, [run_of(b"2", queue="other")]),
            store.push(T, [run_of(b"3", options=urgent)]),
            store.push("another", [run_of(b"4")]),
            store.push(T, [run_of(b"5")]),
        )
        assert await payloads(store) == [b"0", b"1", b"5", b"3"]
        assert await payloads(store, "other") == [b"2"]
        assert pushes_seen(store) == 5

    served(case)


def test_whoever_is_refused_is_refused_alone() -> None:
    async def case(store: ServedStore) -> None:
        await store.configure(T, "q", QueueConfig(bounds=Bounds(jobs=5)))
        calls = (store.push(T, [run_of(b"%d" % number)]) for number in range(8))
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(one) for one in found] == [Pushed] * 5 + [Overloaded] * 3
        assert await payloads(store) == [b"%d" % number for number in range(5)]

    served(case)


def test_a_payload_that_is_no_json_is_its_own_push_s_fault() -> None:
    async def case(store: ServedStore) -> None:
        json = (JobOptions(),)
        said = [b"1", b"{", b"3"]
        calls = (store.push(T, [run_of(one, options=json)]) for one in said)
        good, bad, other = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(good, Pushed)
        assert isinstance(other, Pushed)
        assert isinstance(bad, Invalid)
        assert await payloads(store) == [b"1", b"3"]

    served(case)


@pytest.mark.parametrize("ends", [(), (1,), (3,), (2, 1, 2)])
def test_ends_that_are_not_those_of_the_data_spoil_no_other(ends: tuple[int, ...]) -> None:
    async def case(store: ServedStore) -> None:
        wrong = Run(queue="q", data=b"xy", ends=array("I", ends), options=BYTES)
        first, bad, last = await asyncio.gather(
            store.push(T, [run_of(b"a")]),
            store.push(T, [wrong]),
            store.push(T, [run_of(b"b")]),
            return_exceptions=True,
        )
        assert isinstance(bad, PenstockError)
        assert isinstance(first, Pushed)
        assert isinstance(last, Pushed)
        assert await payloads(store) == [b"a", b"b"]

    served(case)


def test_what_came_before_goes_before() -> None:
    async def case(store: ServedStore) -> None:
        keyed = Run.pack("q", [b"2"], BYTES[0], keys=["k"])
        plain, middle, later = await asyncio.gather(
            store.push(T, [run_of(b"1")]),
            store.push(T, [keyed]),
            store.push(T, [run_of(b"3")]),
        )
        assert plain.ids < middle.ids < later.ids
        lease = (await asyncio.gather(store.push(T, [run_of(b"4")]), store.claim(T, ["q"], 9)))[1]
        assert lease is not None
        assert [job.payload for job in lease.jobs] == [b"1", b"2", b"3", b"4"]

    served(case)


def test_a_push_given_up_in_its_turn_is_never_made() -> None:
    async def case(store: ServedStore) -> None:
        kept = asyncio.ensure_future(store.push(T, [run_of(b"1")]))
        dropped = asyncio.ensure_future(store.push(T, [run_of(b"2")]))
        asyncio.get_running_loop().call_soon(dropped.cancel)
        await asyncio.gather(kept, dropped, return_exceptions=True)
        assert dropped.cancelled()
        assert await payloads(store) in ([b"1"], [b"1", b"2"])
        assert len((await kept).ids) == 1

    served(case)


def test_more_than_a_batch_holds_goes_in_several() -> None:
    async def case(store: ServedStore) -> None:
        run = run_of(*([b"x"] * 100))
        pushed = await asyncio.gather(*(store.push(T, [run]) for _ in range(150)))
        ids = [job_id for one in pushed for job_id in one.ids]
        assert len(set(ids)) == 15_000
        assert pushes_seen(store) == 3

    served(case)
