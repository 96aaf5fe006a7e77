"""Calls that begin at once: no task unless they wait, and a task like any other from then on."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from penstock.stores.eager import begin

Loop = Callable[[], asyncio.AbstractEventLoop]
loops = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])


def run(loop: Loop, case: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(case)


async def waited(future: "asyncio.Future[str]", log: list[str]) -> str:
    log.append("begun")
    try:
        return await future
    except asyncio.CancelledError:
        log.append("cancelled")
        raise
    finally:
        log.append("over")


@loops
def test_what_does_not_wait_never_becomes_a_task(loop: Loop) -> None:
    async def case() -> None:
        async def seven() -> int:
            return 7

        async def deep() -> int:
            return await seven()

        before = asyncio.all_tasks()
        assert begin(deep()) == 7
        assert asyncio.all_tasks() == before

    run(loop, case())


@loops
def test_what_fails_at_once_is_raised_at_once(loop: Loop) -> None:
    async def case() -> None:
        async def wrong() -> None:
            raise KeyError("it")

        with pytest.raises(KeyError):
            begin(wrong())

    run(loop, case())


@loops
def test_what_waits_goes_on_in_a_task(loop: Loop) -> None:
    async def case() -> None:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        tasks: list[Any] = []

        async def call() -> str:
            value = await future
            tasks.append(asyncio.current_task())
            await asyncio.sleep(0)
            async with asyncio.timeout(60):
                await asyncio.sleep(0)
            return value + "!"

        task = begin(call())
        assert isinstance(task, asyncio.Task)
        future.set_result("so")
        assert await task == "so!"
        assert tasks == [task]

    run(loop, case())


@loops
def test_a_bare_step_aside_is_a_wait_like_any_other(loop: Loop) -> None:
    async def case() -> None:
        async def call() -> int:
            for _ in range(3):
                await asyncio.sleep(0)
            return 3

        task = begin(call())
        assert isinstance(task, asyncio.Task)
        assert await task == 3

    run(loop, case())


@loops
def test_many_may_wait_for_one_future(loop: Loop) -> None:
    async def case() -> None:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        tasks = [begin(waited(future, [])) for _ in range(5)]
        await asyncio.sleep(0)
        tasks += [begin(waited(future, [])) for _ in range(5)]
        future.set_result("all")
        tasks += [begin(waited(future, []))]
        assert tasks.pop() == "all"
        assert await asyncio.gather(*tasks) == ["all"] * 10  # type: ignore[arg-type]

    run(loop, case())


@loops
def test_an_error_of_what_it_waits_for_reaches_the_call(loop: Loop) -> None:
    async def case() -> None:
        for turns in range(3):
            future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            log: list[str] = []
            task = begin(waited(future, log))
            assert isinstance(task, asyncio.Task)
            for _ in range(turns):
                await asyncio.sleep(0)
            future.set_exception(OSError("no"))
            with pytest.raises(OSError, match="no"):
                await task
            assert log == ["begun", "over"]

    run(loop, case())


@loops
@pytest.mark.parametrize("turns", range(4))
def test_a_cancelled_call_is_told_whenever_that_happens(loop: Loop, turns: int) -> None:
    async def case() -> None:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        log: list[str] = []
        task = begin(waited(future, log))
        assert isinstance(task, asyncio.Task)
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert log == ["begun", "cancelled", "over"]
        assert future.cancelled(), "what it waited for is cancelled first, as by any task"
        assert task.cancelled()

    run(loop, case())


@loops
@pytest.mark.parametrize("turns", range(4))
def test_a_task_that_it_waits_for_is_cancelled_with_it(loop: Loop, turns: int) -> None:
    async def case() -> None:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        log: list[str] = []
        inner = begin(waited(future, log))
        assert isinstance(inner, asyncio.Task)
        outer = begin(waited(inner, log))
        assert isinstance(outer, asyncio.Task)
        for _ in range(turns):
            await asyncio.sleep(0)
        outer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await outer
        assert log == ["begun", "begun", "cancelled", "over", "cancelled", "over"]

    run(loop, case())


@loops
@pytest.mark.parametrize("turns", range(3))
def test_a_call_cancelled_after_its_answer_came_is_still_told(loop: Loop, turns: int) -> None:
    async def case() -> None:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        log: list[str] = []
        task = begin(waited(future, log))
        assert isinstance(task, asyncio.Task)
        for _ in range(turns):
            await asyncio.sleep(0)
        future.set_result("late")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert log == ["begun", "cancelled", "over"]

    run(loop, case())
