"""Calls that are begun one after the other and awaited together, without a task for each.

A command that is about many jobs, each under a lease of its own, makes one call to the store for
each of them. Awaited in turn, each would wait for a commit of its own; a task for each costs more
than what it does (20 µs against 10). Here each call runs as far as it gets, which in a store in
memory is to its end, and in one on a disk to where it waits for the commit that all of them share.

This knows no event loop: what a call waits for is handed up to whoever runs us, as `await` does.
"""

from collections.abc import Coroutine, Generator
from contextlib import suppress
from types import coroutine
from typing import Any, Final

from penstock.model.errors import PenstockError

TURN: Final = 256  # calls begun before others have a turn


@coroutine
def others_first() -> Generator[None, None, None]:
    """Let everybody else who can go on do so."""
    yield


class Together:
    def __init__(self) -> None:
        self.answers: list[Any] = []  # in the order of the calls; refusals are answers, too
        self._waiting: dict[int, tuple[Coroutine[Any, Any, Any], Any]] = {}

    def begin(self, call: Coroutine[Any, Any, Any]) -> bool:
        """Let a call run as far as it gets; whether that is to its end."""
        self.answers.append(None)
        return self._go_on(len(self.answers) - 1, call)

    def _go_on(self, place: int, call: Coroutine[Any, Any, Any]) -> bool:
        try:
            awaited = call.send(None)
        except StopIteration as end:
            self.answers[place] = end.value
        except PenstockError as error:
            self.answers[place] = error
        else:
            self._waiting[place] = (call, awaited)
            return False
        return True

    def __await__(self) -> Generator[Any, None, list[Any]]:
        try:
            while self._waiting:
                place = next(iter(self._waiting))
                call, awaited = self._waiting[place]
                yield awaited
                del self._waiting[place]
                self._go_on(place, call)
        except BaseException as error:
            yield from self._end(error)
            raise
        return self.answers

    @coroutine
    def others_first(self) -> Generator[Any, None, None]:
        """The same in the midst of beginning calls."""
        try:
            yield
        except BaseException as error:
            yield from self._end(error)
            raise

    def _end(self, error: BaseException) -> Generator[Any, None, None]:
        """Cancelled, or one of them broke: the others are told, and may clean up."""
        while self._waiting:
            _, (call, _) = self._waiting.popitem()
            yield from _ended(call, error)


def _ended(call: Coroutine[Any, Any, Any], error: BaseException) -> Generator[Any, None, None]:
    with suppress(BaseException):  # what it says of its end is less than why it has to end
        awaited = call.throw(error)
        while True:
            yield awaited
            awaited = call.send(None)
