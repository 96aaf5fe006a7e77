"""Waiting for what must not be left half done.

A thread cannot be stopped, and a store that is half closed keeps its lock: whoever is cancelled
while one of these is under way stays until it is over, and is cancelled then.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from penstock.model.errors import Unavailable
from penstock.stores.one_thread import OneThread

T = TypeVar("T")


async def finished(work: Awaitable[T]) -> T:
    """What it answers. Cancelled, we wait all the same; then nobody learns what it answered."""
    future = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await _over(future)
        raise


async def _over(future: "asyncio.Future[Any]") -> None:
    """Until it is, however often we are cancelled; by nobody else's hands: whoever ends a loop cancels
    every task in it, also one that would only wait for us."""
    while not future.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([future])
    if not future.cancelled():
        future.exception()  # has been seen


async def in_a_thread(work: Callable[..., T], *said: Any) -> T:
    """Nothing is closed, and no lock let go, under the hands of a thread that still works."""
    return await finished(_given_to_a_thread(partial(work, *said)))


def _given_to_a_thread(work: Callable[[], T]) -> "asyncio.Future[T]":
    loop = asyncio.get_running_loop()
    try:
        return loop.run_in_executor(None, work)
    except RuntimeError:
        pass  # the process begins to end
    try:
        last = OneThread("penstock-last")
    except RuntimeError as error:  # from Python 3.12 on
        raise Unavailable("the process is ending") from error
    try:
        return loop.run_in_executor(last, work)
    finally:
        last.shutdown(wait=False)


async def until_cancelled(work: Callable[..., T], *said: Any) -> T:
    """The same for work that can be told to end: cancelled, we set the event that it is given last,
    and stay until it has."""
    stop = threading.Event()
    future = _given_to_a_thread(partial(work, *said, stop))
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        stop.set()
        await _over(future)
        raise
