"""Calls that begin at once: one that finishes without waiting never becomes a task.

A task costs several times what most commands do, and nearly all commands of a store in memory
finish in their first step. So that step is made by hand, and only what is left is given to a task.

Until it first waits, such a call has no task: `asyncio.current_task()` is not its own, and
`asyncio.timeout()` cannot be entered. After that it is a task like any other, and it may be
cancelled from the first instant on.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")


def begin(call: Coroutine[Any, Any, T]) -> "T | asyncio.Task[T]":
    """What the call answers, or a task for what is left of it once it waits."""
    try:
        awaited = call.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    if awaited is not None:
        # A future is marked when it is awaited and unmarked by the task that takes it up. That is
        # a turn from now; others may await the same one until then, and must not find it marked.
        awaited._asyncio_future_blocking = False
    return asyncio.get_running_loop().create_task(Rest(call, awaited))


class Rest(Coroutine[Any, Any, T]):
    """A coroutine that has made its first step, and waits for what that gave."""

    __slots__ = ("_awaited", "_call", "_told", "over")

    def __init__(self, call: Coroutine[Any, Any, T], awaited: Any) -> None:
        self._call = call
        self._awaited = awaited
        self._told = False  # whether the task knows what it waits for
        # Whoever is to hear in the last step itself how it ended, a turn of the loop before the
        # callbacks of the task: (answer, None), or (None, what was raised). Its task answers
        # nothing then.
        self.over: Callable[[Any, BaseException | None], None] | None = None

    def send(self, value: Any) -> Any:
        if not self._told:
            return self._tell()
        if self.over is None:
            return self._call.send(value)
        try:
            return self._call.send(value)
        except BaseException as end:  # noqa: BLE001 - told to whoever wants to know
            self._end(end)

    def _tell(self) -> Any:
        self._told = True
        awaited, self._awaited = self._awaited, None
        if awaited is not None:
            awaited._asyncio_future_blocking = True
        return awaited

    def _end(self, end: BaseException) -> NoReturn:
        over, self.over = self.over, None  # which knows our task: nothing is to keep itself alive
        assert over is not None
        if isinstance(end, StopIteration):
            over(end.value, None)
        else:
            over(None, end)
        raise StopIteration from None

    def throw(self, *error: Any) -> Any:
        if not self._told and self._awaited is not None and self._awaited.cancel():
            # The task was cancelled before it knew what it waits for. Had it known, that would
            # have been cancelled first, and the call been told by it.
            return self._tell()
        self._told = True
        self._awaited = None
        if self.over is None:
            return self._call.throw(*error)
        try:
            return self._call.throw(*error)
        except BaseException as end:  # noqa: BLE001
            self._end(end)

    def close(self) -> None:
        self._call.close()

    def __await__(self) -> Generator[Any, Any, T]:
        raise TypeError("a task drives this, nobody awaits it")
