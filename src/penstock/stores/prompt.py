"""A future that resumes whoever awaits it at once, instead of in the next turn of the loop.

A turn costs what a small command does, and more than that after a rest: what the loop touches on
its way has left the caches by then. Somebody who waits for one thing, and is told of it by a
callback of the loop, can as well go on within that callback.
"""

import asyncio
from asyncio import current_task
from collections.abc import Callable
from contextvars import Context
from typing import Any, Final, TypeVar

T = TypeVar("T")

_add: Final = asyncio.Future.add_done_callback  # `super()` would be two calls more for each answer


class Prompt(asyncio.Future[T]):
    """Awaited by one task. Where that is not possible at once (the task has not come to wait yet, or
    we are in the midst of another one), it goes on in the next turn, as with any future."""

    # Of those that give out work: told what is given before whoever awaits it goes on.
    ahead: Callable[[Any], None] | None = None
    _resume: Callable[[Any], object]
    _within: Context | None = None  # of `_resume`; unset until a task awaits it

    def add_done_callback(
        self, callback: Callable[[Any], object], /, *, context: Context | None = None
    ) -> None:
        self._resume, self._within = callback, context
        _add(self, callback, context=context)

    def settle(self, answer: T, outside: bool = False) -> bool:
        """Set the result. What awaits it has gone on when this returns, if it could. False if a
        signal has cancelled it in this very instant: then the answer reaches nobody.

        `outside`: no task is in the midst of anything, as in a callback of a transport. Should one be
        all the same, the loop says so when it is asked to go on with another."""
        within = self._within
        if within is None or not (outside or current_task(self.get_loop()) is None):
            return self.tell(answer)
        resume = self._resume
        removed = self.remove_done_callback(resume)
        try:
            self.set_result(answer)
        except asyncio.InvalidStateError:
            if removed:  # else it is called already
                self.get_loop().call_soon(resume, self, context=within)
            return False
        try:
            within.run(resume, self)
        except RuntimeError:
            # Of a context that this very callback runs in, where a task's are its own; or of a task
            # that is in the midst of something. Whoever waits has not gone on yet.
            self.get_loop().call_soon(resume, self, context=within)
        except (SystemExit, KeyboardInterrupt) as error:
            # Meant for whoever runs the loop; a transport whose callback this is would keep it.
            self.get_loop().call_soon(_leave, error)
        return True

    def tell(self, answer: T) -> bool:
        """The same, and what awaits it goes on in the next turn."""
        try:
            self.set_result(answer)
        except asyncio.InvalidStateError:
            return False
        return True


def _leave(error: BaseException) -> None:
    raise error
