"""A future that resumes whoever awaits it at once, instead of in the next turn of the loop.

A turn costs what a small command does, and more than that after a rest: what the loop touches on
its way has left the caches by then. Somebody who waits for one thing, and is told of it by a
callback of the loop, can as well go on within that callback.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")


class Prompt(asyncio.Future[T]):
    """Awaited by one task. Where that is not possible at once (the task has not come to wait yet, or
    we are in the midst of another one), it goes on in the next turn, as with any future."""

    _resume: Callable[[Any], object] | None = None
    _within: Context | None = None

    def add_done_callback(
        self, callback: Callable[[Any], object], /, *, context: Context | None = None
    ) -> None:
        self._resume, self._within = callback, context
        super().add_done_callback(callback, context=context)

    def settle(self, answer: T) -> bool:
        """Set the result. What awaits it has gone on when this returns, if it could. False if a
        signal has cancelled it in this very instant: then the answer reaches nobody."""
        resume, within, loop = self._resume, self._within, self.get_loop()
        if resume is None or within is None or asyncio.current_task(loop) is not None:
            self.set_result(answer)
            return True
        self.remove_done_callback(resume)
        try:
            self.set_result(answer)
        except asyncio.InvalidStateError:
            loop.call_soon(resume, self, context=within)
            return False
        try:
            within.run(resume, self)
        except RuntimeError:  # of a context that this very callback runs in; a task's are its own
            loop.call_soon(resume, self, context=within)
        except (SystemExit, KeyboardInterrupt) as error:
            # Meant for whoever runs the loop; a transport whose callback this is would keep it.
            loop.call_soon(_leave, error)
        return True


def _leave(error: BaseException) -> None:
    raise error
