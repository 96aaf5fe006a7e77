"""Calls that begin at once: one that finishes without waiting never becomes a task.

A task costs several times what most commands do, and nearly all commands of a store in memory
finish in their first step. So that step is made by hand, and only what is left is given to a task.

Until it first waits, such a call has no task: `asyncio.current_task()` is not its own, and
`asyncio.timeout()` cannot be entered. After that it is a task like any other, and it may be
cancelled from the first instant on.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

from penstock.stores.prompt import Prompt

T = TypeVar("T")
Over = Callable[[Any, BaseException | None], None]


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
    return asyncio.get_running_loop().create_task(_Rest(call, awaited))


def tell(task: "asyncio.Task[Any]", over: Over, ahead: Callable[[Any], bool] | None = None) -> None:
    """Have `over` hear how a task that `begin` made ends, in its last step: a turn of the loop before
    the callbacks of the task. It is told (answer, None), or (None, what was raised); the task itself
    answers nothing then. `ahead` hears what the call waits for, before it goes on with it, if it
    waits for work; to be said in the turn in which the task was made."""
    rest = task.get_coro()
    assert isinstance(rest, _Rest)
    rest.over = over
    if ahead is not None and isinstance(rest.awaited, Prompt):
        rest.awaited.ahead = ahead


class _Rest(Coroutine[Any, Any, T]):
    """A coroutine that has made its first step, and waits for what that gave."""

    __slots__ = ("_call", "_told", "awaited", "over")

    def __init__(self, call: Coroutine[Any, Any, T], awaited: Any) -> None:
        self._call = call
        self.awaited = awaited
        self._told = False  # whether the task knows what it waits for
        self.over: Over | None = None

    def send(self, value: Any) -> Any:
        if not self._told:
            return self._tell()
        try:
            return self._call.send(value)
        except BaseException as end:  # noqa: BLE001 - told to whoever wants to know
            return self._ended(end)

    def _tell(self) -> Any:
        self._told = True
        awaited, self.awaited = self.awaited, None
        if awaited is not None:
            awaited._asyncio_future_blocking = True
        return awaited

    def _ended(self, end: BaseException) -> Any:
        over = self.over
        if over is None:
            raise end
        self.over = None  # it knows our task: nothing is to keep itself alive
        if type(end) is StopIteration:
            over(end.value, None)
        else:
            over(None, end)
        raise StopIteration from None

    def throw(self, *error: Any) -> Any:
        if not self._told and self.awaited is not None and self.awaited.cancel():
            # The task was cancelled before it knew what it waits for. Had it known, that would
            # have been cancelled first, and the call been told by it.
            return self._tell()
        self._told = True
        self.awaited = None
        try:
            return self._call.throw(*error)
        except BaseException as end:  # noqa: BLE001 - told to whoever wants to know
            return self._ended(end)

    def close(self) -> None:
        self._call.close()

    def __await__(self) -> Generator[Any, Any, T]:
        raise TypeError("a task drives this, nobody awaits it")
