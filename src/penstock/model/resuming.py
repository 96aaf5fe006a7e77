"""The rest of a coroutine whose first step was made by hand, in the task of whoever awaits it."""

import types
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")
Step = Callable[[], Any]


@types.coroutine
def resumed(
    call: Coroutine[Any, Any, T], awaited: Any, make: Callable[[Step], Any]
) -> Generator[Any, Any, T]:
    """What the call answers, which waits for `awaited`. `make` makes each further step."""
    step: Step
    while True:
        try:
            step = partial(call.send, (yield awaited))
        except GeneratorExit:
            call.close()
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it waited for ended with
            step = partial(call.throw, error)
        try:
            awaited = make(step)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
