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

    def settle(self, answer: T) -> None:
        """Set the result. What awaits it has gone on when this returns, if it could."""
        resume, within = self._resume, self._within
        if resume is None or within is None or asyncio.current_task(self.get_loop()) is not None:
            self.set_result(answer)
            return
        self.remove_done_callback(resume)
        self.set_result(answer)
        try:
            within.run(resume, self)
        except RuntimeError:  # of a context that this very callback runs in; a task's are its own
            self.get_loop().call_soon(resume, self, context=within)
