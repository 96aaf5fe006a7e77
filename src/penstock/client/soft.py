"""Soft timeouts of asynchronous handlers: SoftTimeout is raised where the handler waits.

A task can only be cancelled. So the handler is driven step by step, and the cancellation that the
timer caused is handed on to it as what it means; any other goes through as it is.
"""

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, TypeVar

from penstock.client.errors import SoftTimeout

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

    @types.coroutine
    def driven() -> Generator[Any, Any, T]:
        """Step by step, so that the cancellation that wakes it up arrives as what it means."""
        nonlocal over
        step: Callable[[], Any] = partial(call.send, None)
        while True:
            try:
                awaited = step()
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]
            try:
                step = partial(call.send, (yield awaited))
            except asyncio.CancelledError as error:
                if over:
                    over = False
                    task.uncancel()
                    step = partial(call.throw, SoftTimeout(f"it has run for {soft_ms} ms"))
                else:
                    step = partial(call.throw, error)
            except GeneratorExit:
                call.close()
                raise
            except BaseException as error:  # noqa: BLE001 - whatever it waited for ended with
                step = partial(call.throw, error)

    timer = asyncio.get_running_loop().call_later(soft_ms / 1_000, interrupt)
    try:
        return await driven()
    finally:
        timer.cancel()
