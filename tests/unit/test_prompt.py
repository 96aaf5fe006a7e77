"""A future whose settling resumes the task that awaits it, there and then."""

import asyncio
import socket
import sys
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import Any

import pytest
import uvloop

from penstock.model.job import JobSpec
from penstock.open import open_store
from penstock.protocol.native_push import PushRun
from penstock.protocol.native_work import Claim
from penstock.stores.clock import ManualClock
from penstock.stores.prompt import Prompt, settle, tell
from tests.unit.served import Rig, turns
from tests.unit.test_connection import looped

T = "default"
HOUR = 3_600_000


async def by_a_callback(call: Callable[[], object]) -> None:
    """Make the call as the loop makes those of its transports: outside of every task."""
    made: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def make() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - for whoever asked for it
            made.set_exception(error)
        else:
            made.set_result(None)

    asyncio.get_running_loop().call_soon(make)
    await made


def prompt() -> Prompt[int]:
    return Prompt(loop=asyncio.get_running_loop())


@looped
async def test_who_waits_has_gone_on_when_it_is_settled() -> None:
    future, seen = prompt(), list[int]()

    async def wait() -> None:
        seen.append(await future)

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)

    def make() -> None:
        settle(future, 7)
        assert seen == [7]

    await by_a_callback(make)
    await task
    assert seen == [7]  # and once


@looped
@pytest.mark.parametrize("outside", [False, True])
async def test_within_another_task_it_is_a_future_like_any_other(outside: bool) -> None:
    """Also if somebody says that it is outside of every task."""
    future, seen = prompt(), list[int]()

    async def wait() -> None:
        seen.append(await future)

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    assert settle(future, 7, outside)
    assert seen == []
    await task
    assert seen == [7]


@looped
async def test_who_comes_later_finds_the_answer() -> None:
    future = prompt()
    await by_a_callback(lambda: settle(future, 7))
    assert await future == 7


@looped
async def test_what_goes_wrong_behind_it_is_the_tasks_own() -> None:
    future = prompt()

    async def wait() -> None:
        await future
        raise RuntimeError("mine")

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    await by_a_callback(lambda: settle(future, 7))
    with pytest.raises(RuntimeError, match="mine"):
        await task


@looped
async def test_a_task_that_is_cancelled_meanwhile_hears_of_that() -> None:
    future = prompt()

    async def wait() -> int:
        return await future

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert future.cancelled()


@looped
async def test_a_task_that_is_cancelled_as_it_is_settled_is_told_once() -> None:
    future, ends = prompt(), list[str]()

    async def wait() -> None:
        try:
            await future
            ends.append("settled")
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)

    def both() -> None:
        settle(future, 7)
        task.cancel()

    await by_a_callback(both)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ends == ["settled", "cancelled"]


@looped
async def test_context_variables_are_the_tasks_own() -> None:
    whose: ContextVar[str] = ContextVar("whose", default="nobody's")
    future, seen = prompt(), list[str]()

    async def wait() -> None:
        whose.set("the task's")
        await future
        seen.append(whose.get())

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)

    def make() -> None:
        whose.set("the callback's")
        settle(future, 7)
        assert whose.get() == "the callback's"

    await by_a_callback(make)
    await task
    assert seen == ["the task's"]


@looped
async def test_a_task_whose_context_is_in_use_goes_on_in_the_next_turn() -> None:
    future, seen, shared = prompt(), list[int](), copy_context()

    async def wait() -> None:
        seen.append(await future)

    task = asyncio.get_running_loop().create_task(wait(), context=shared)
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(settle, future, 7, context=shared)
    await task
    assert seen == [7]


@looped
async def test_a_second_one_settled_by_who_goes_on_has_its_own_turn() -> None:
    one, two, seen = prompt(), prompt(), list[str]()

    async def first() -> None:
        await one
        settle(two, 2)  # in the midst of this task: nobody runs within it
        seen.append("first")

    async def second() -> None:
        await two
        seen.append("second")

    tasks = asyncio.create_task(first()), asyncio.create_task(second())
    await asyncio.sleep(0)
    await by_a_callback(lambda: settle(one, 1))
    await asyncio.gather(*tasks)
    assert seen == ["first", "second"]


@looped
async def test_plain_callbacks_are_called_in_the_next_turn() -> None:
    future, seen = prompt(), list[int]()
    future.add_done_callback(lambda done: seen.append(done.result()))

    def make() -> None:
        settle(future, 7)
        assert seen == []

    await by_a_callback(make)
    await asyncio.sleep(0)
    assert seen == [7]


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_an_exit_behind_it_leaves_the_loop_as_any_other_does(run: Callable[..., None]) -> None:
    """Also where the callback is a transport's, which keeps whatever is raised in it to itself."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        future: Prompt[int] = Prompt(loop=loop)

        class Told(asyncio.Protocol):
            def data_received(self, data: bytes) -> None:
                settle(future, 7)

        transport, _ = await loop.create_connection(Told, sock=ours)
        theirs.send(b"1")
        try:
            await future
            sys.exit(3)
        finally:
            theirs.close()
            transport.close()

    with pytest.raises(SystemExit, match="3"):
        run(main())


@looped
async def test_a_signal_that_cancels_in_the_midst_of_it_is_told_and_the_answer_is_not() -> None:
    class Signalled(Prompt[int]):
        def remove_done_callback(self, callback: Any, /) -> int:
            removed = super().remove_done_callback(callback)
            task.cancel()  # as a handler of SIGINT does, between any two instructions
            return removed

    future = Signalled(loop=asyncio.get_running_loop())

    async def wait() -> int:
        return await future

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)

    def make() -> None:
        assert not settle(future, 7)

    await by_a_callback(make)
    with pytest.raises(asyncio.CancelledError):
        await task


@looped
async def test_who_was_cancelled_an_instant_before_hears_of_it_once() -> None:
    future, other, seen = prompt(), asyncio.get_running_loop().create_future(), list[str]()

    async def wait() -> None:
        try:
            await future
        except asyncio.CancelledError:
            seen.append("cancelled")
        await other
        seen.append("went on")

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)

    def make() -> None:
        future.cancel()
        assert not settle(future, 7)

    await by_a_callback(make)
    await turns()
    assert seen == ["cancelled"]
    other.set_result(None)
    await task
    assert seen == ["cancelled", "went on"]


@looped
async def test_where_nobody_awaits_it_yet_a_signal_is_told_too() -> None:
    future = prompt()
    future.cancel()
    assert not settle(future, 7)
    assert not tell(future, 7)


# -- where it is used ------------------------------------------------------------------------------


@looped
async def test_an_idle_worker_has_its_job_before_the_producer_is_answered() -> None:
    rig = Rig()
    worker, producer = rig.wire(), rig.wire()
    worker.say(Claim(queues=["q"], wait_ms=HOUR, req_id="claim"))
    await turns()

    def push() -> None:
        producer.say(PushRun(queue="q", payloads=[b"1"], req_id="push"))
        (claimed,) = worker.told()
        assert claimed["runs"][0]["data"] == b"1"

    await by_a_callback(push)
    assert [answer["reqId"] for answer in producer.told()] == ["push"]
    await rig.close()


@looped
async def test_a_job_for_somebody_whom_a_signal_cancels_meanwhile_is_given_to_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = await open_store("memory://", clock=ManualClock())
    removed = Prompt.remove_done_callback

    def signalled(future: Prompt[Any], callback: Any, /) -> int:
        gone.cancel()
        return removed(future, callback)

    gone = asyncio.create_task(store.claim(T, ["q"], wait_ms=HOUR))
    await asyncio.sleep(0)
    monkeypatch.setattr(Prompt, "remove_done_callback", signalled)

    def push() -> None:
        with pytest.raises(StopIteration):
            store.push_jobs(T, "q", [JobSpec(payload=b"1")]).send(None)

    await by_a_callback(push)
    with pytest.raises(asyncio.CancelledError):
        await gone
    lease = await store.claim(T, ["q"])
    assert lease is not None
    assert [job.payload for job in lease.jobs] == [b"1"]


@looped
async def test_jobs_for_several_of_whom_one_is_cancelled_meanwhile_reach_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = await open_store("memory://", clock=ManualClock())
    claims = [asyncio.create_task(store.claim(T, ["q"], wait_ms=HOUR)) for _ in range(3)]
    await asyncio.sleep(0)
    told = Prompt.set_result

    def signalled(future: Prompt[Any], answer: Any, /) -> None:
        claims[1].cancel()
        told(future, answer)

    monkeypatch.setattr(Prompt, "set_result", signalled)
    await store.push_jobs(T, "q", [JobSpec(payload=b"%d" % number) for number in range(3)])
    await turns()
    assert claims[1].cancelled()
    heard = [lease.jobs[0].payload for each in (0, 2) if (lease := claims[each].result())]
    assert heard == [b"0", b"2"]
    lease = await store.claim(T, ["q"])
    assert lease is not None
    assert [job.payload for job in lease.jobs] == [b"1"]
    await store.close()


@looped
async def test_many_idle_workers_are_given_theirs_in_the_next_turn() -> None:
    rig = Rig()
    workers, producer = [rig.wire() for _ in range(3)], rig.wire()
    for worker in workers:
        worker.say(Claim(queues=["q"], wait_ms=HOUR, req_id="claim"))
    await turns()

    def push() -> None:
        producer.say(PushRun(queue="q", payloads=[b"1", b"2", b"3"], req_id="push"))
        assert [answer["reqId"] for answer in producer.told()] == ["push"]
        assert not any(worker.writes for worker in workers)

    await by_a_callback(push)
    await turns()
    assert [worker.told()[0]["runs"][0]["data"] for worker in workers] == [b"1", b"2", b"3"]
    await rig.close()
