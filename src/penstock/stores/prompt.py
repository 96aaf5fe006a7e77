"""Futures whose settling resumes whoever awaits them at once, instead of in the next turn of the loop.

A turn costs what a small command does, and more than that after a rest: what the loop touches on
its way has left the caches by then. Somebody who waits for one thing, and is told of it by a
callback of the loop, can as well go on within that callback.
"""

import asyncio
from asyncio import Task, current_task
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def settle(future: "asyncio.Future[T]", answer: T, outside: bool = False) -> bool:
    """Set the result. The task that awaits it has gone on when this returns, if it could: where it has
    not come to wait yet, or we are in the midst of another one, it goes on in the next turn, as with
    any future, and so does whoever is no task. False if a signal has cancelled it in this very
    instant: then the answer reaches nobody.

    `outside`: no task is in the midst of anything, as in a callback of a transport. Should one be
    all the same, the loop says so when it is asked to go on with another.

    Of a plain future, as a task that awaits another kind of them pays for that twice: this is what
    an answer waits for that nobody has yet.
    """
    waiting = future._callbacks
    if not waiting or len(waiting) > 1:
        return tell(future, answer)
    ((resume, within),) = waiting
    if not isinstance(getattr(resume, "__self__", None), Task) or not (
        outside or current_task(future.get_loop()) is None
    ):
        return tell(future, answer)
    removed = future.remove_done_callback(resume)
    try:
        future.set_result(answer)
    except asyncio.InvalidStateError:
        if removed:  # else it is called already
            future.get_loop().call_soon(resume, future, context=within)
        return False
    try:
        within.run(resume, future)
    except RuntimeError:
        # Of a context that this very callback runs in, where a task's are its own; or of a task
        # that is in the midst of something. Whoever waits has not gone on yet.
        future.get_loop().call_soon(resume, future, context=within)
    except (SystemExit, KeyboardInterrupt) as error:
        # Meant for whoever runs the loop; a transport whose callback this is would keep it.
        future.get_loop().call_soon(_leave, error)
    return True


def tell(future: "asyncio.Future[T]", answer: T) -> bool:
    """The same, and whoever awaits it goes on in the next turn."""
    try:
        future.set_result(answer)
    except asyncio.InvalidStateError:
        return False
    return True


def _leave(error: BaseException) -> None:
    raise error


class Prompt(asyncio.Future[T]):
    """Of those that give out work."""

    # Told what is given before whoever awaits it goes on, or even before it is given. Answers
    # whether that was passed on.
    ahead: Callable[[Any], bool] | None = None
