"""Soft timeouts of asynchronous handlers: SoftTimeout is raised where the handler waits.

A task can only be cancelled. So the handler's steps are made by hand, and the one that follows the
timer's cancellation hands that on as what it means; any other cancellation goes through as it is.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from penstock.client.errors import SoftTimeout
from penstock.model.duration import say_ms
from penstock.model.resuming import Step, resumed

T = TypeVar("T")


async def within(call: Coroutine[Any, Any, T], soft_ms: int) -> T:
    """Await a handler; when its soft timeout is over, SoftTimeout is raised where it waits."""
    task = asyncio.current_task()
    assert task is not None
    over = False

    def interrupt() -> None:
        nonlocal over
        over = True
        task.cancel()

    def make(step: Step) -> Any:
        nonlocal over
        if not over:
            return step()
        over = False
        task.uncancel()
        return call.throw(SoftTimeout(f"it has run for {say_ms(soft_ms)}"))

    timer = asyncio.get_running_loop().call_later(soft_ms / 1_000, interrupt)
    try:
        awaited = call.send(None)
        return await resumed(call, awaited, make)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    finally:
        timer.cancel()
