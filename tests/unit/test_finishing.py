"""Work in threads, where there are none any more."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.model.errors import Unavailable
from penstock.stores.finishing import in_a_thread, until_cancelled
from tests.unit.test_connection import looped


@pytest.mark.parametrize("given", [in_a_thread, until_cancelled])
@looped
async def test_a_process_that_ends_does_what_is_under_way_all_the_same(
    given: Callable[..., Awaitable[Any]],
) -> None:
    """As a client of a path finds it whose owner ends in the instant in which it does."""
    await asyncio.get_running_loop().shutdown_default_executor()
    assert await given(lambda *_: 5) == 5
    with pytest.raises(ZeroDivisionError):
        await given(lambda *_: 1 / 0)


@pytest.mark.parametrize("given", [in_a_thread, until_cancelled])
@looped
async def test_a_process_that_begins_no_thread_any_more_says_so(
    given: Callable[..., Awaitable[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    await asyncio.get_running_loop().shutdown_default_executor()
    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(Unavailable, match="the process is ending"):
        await given(lambda *_: None)


@looped
async def test_whoever_ends_a_loop_by_cancelling_every_task_waits_for_the_thread() -> None:
    said: list[str] = []

    def work(stop: threading.Event) -> None:
        stop.wait(30)
        for _ in range(2):
            go_on.acquire(timeout=30)
        said.append("over")

    go_on = threading.Semaphore(0)
    task = asyncio.ensure_future(until_cancelled(work))
    for _ in range(5):
        await asyncio.sleep(0)
        for each in asyncio.all_tasks() - {asyncio.current_task()}:
            each.cancel()
    go_on.release(2)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert said == ["over"]
