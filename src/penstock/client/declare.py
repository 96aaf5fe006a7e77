"""How a function becomes a task, as type checkers see it.

`@app.task` and `@app.task(queue=…)` keep the handler's signature. A `Context` that is the handler's
first parameter is given by whoever runs the job, so it is not among the arguments of a push.
"""

from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Protocol, TypeVar, overload

from penstock.client.context import Context
from penstock.client.task import P, T, Task

I = TypeVar("I")  # noqa: E741 - an item of a batch


class Anything:
    """What nobody annotates a parameter with: a handler that takes it first takes anything there,
    be it that it has no annotations. It asks for no Context, and its arguments are not checked."""


class Declare(Protocol):
    """What `@app.task(…)` is, waiting for its function."""

    @overload
    def __call__(
        self, handler: Callable[Concatenate[Anything, ...], Coroutine[Any, Any, T]], /
    ) -> "Task[..., T, Coroutine[Any, Any, T]]": ...
    @overload
    def __call__(
        self, handler: Callable[Concatenate[Anything, ...], T], /
    ) -> "Task[..., T, T]": ...
    @overload
    def __call__(
        self, handler: Callable[Concatenate[Context, P], Coroutine[Any, Any, T]], /
    ) -> "Task[P, T, Coroutine[Any, Any, T]]": ...
    @overload
    def __call__(self, handler: Callable[Concatenate[Context, P], T], /) -> "Task[P, T, T]": ...
    @overload
    def __call__(
        self, handler: Callable[P, Coroutine[Any, Any, T]], /
    ) -> "Task[P, T, Coroutine[Any, Any, T]]": ...
    @overload
    def __call__(self, handler: Callable[P, T], /) -> "Task[P, T, T]": ...


class DeclareBatch(Protocol):
    """What `@app.task(batch=…)` is: the handler takes a list, a push one item of it."""

    @overload
    def __call__(
        self, handler: Callable[[Context, list[I]], Coroutine[Any, Any, T]], /
    ) -> "Task[[I], Any, Coroutine[Any, Any, T]]": ...
    @overload
    def __call__(self, handler: Callable[[Context, list[I]], T], /) -> "Task[[I], Any, T]": ...
    @overload
    def __call__(
        self, handler: Callable[[list[I]], Coroutine[Any, Any, T]], /
    ) -> "Task[[I], Any, Coroutine[Any, Any, T]]": ...
    @overload
    def __call__(self, handler: Callable[[list[I]], T], /) -> "Task[[I], Any, T]": ...
