"""A disk that takes its time, counted in turns of the loop, so that a play can be repeated.

Threads answer whenever the machine lets them, which on an idle one is nearly always at once. Here
each write begins, is answered, and each read is done, at a turn that is drawn: orders of events
that a loaded machine would show once in a thousand plays, every time.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from random import Random
from typing import Any, Final
from unittest.mock import patch

from penstock.stores import keeper, payloads, stored_payloads
from penstock.stores.journal.base import Batch, Journal
from penstock.stores.journal.space import Ballast
from penstock.stores.journal.writer import Done, Writer, Written

Draw = Callable[[], int]

PATIENCE_S: Final = 30


def drawn(seed: int, most: int) -> Draw:
    """As often at once as at any of so many turns."""
    random = Random(seed)
    return lambda: random.choice((0, random.randint(0, most)))


@contextmanager
def late_disk(turns: Draw, reads: Draw | None = None) -> Iterator[None]:
    """Stores that are opened meanwhile have such a disk. In half of the plays nearly every batch is
    handed over before the one in front of it is written."""
    hasty = turns() % 2
    with (
        patch.object(keeper, "AHEAD", 1 if hasty else keeper.AHEAD),
        patch.object(stored_payloads, "SMALL", 16 if hasty else payloads.SMALL),
        patch.object(keeper, "Writer", partial(LateWriter, turns)),
        patch.object(stored_payloads, "OneThread", lambda _: LateReader(reads or turns)),
    ):
        yield


def _in(turns: int, call: Callable[[], Any]) -> None:
    """Make a call so many turns of the loop later."""
    if turns:
        asyncio.get_running_loop().call_soon(_in, turns - 1, call)
    else:
        call()


class LateWriter(Writer):
    """Its thread writes; the loop stands still meanwhile, so that the turns decide alone."""

    def __init__(
        self,
        turns: Draw,
        journal: Journal,
        ballast: Ballast,
        done: Done,
        synced: Callable[[int], None],
        check_there: Callable[[], None],
    ) -> None:
        self._turns = turns
        self._told = done
        self._line: deque[Batch] = deque()  # submitted and not begun
        self._answers: SimpleQueue[Written] = SimpleQueue()
        self._answered: deque[Written] = deque()  # and not told
        self._closed = False
        super().__init__(journal, ballast, lambda _: None, synced, check_there)

    def submit(self, batch: Batch) -> None:
        self._line.append(batch)
        _in(self._turns(), self._begin)

    def _begin(self) -> None:
        if self._closed:
            return  # it went with the process
        super().submit(self._line.popleft())
        self._answered.append(self._answers.get(timeout=PATIENCE_S))
        _in(1 + self._turns(), self._answer)  # a thread is never heard at once

    def _answer(self) -> None:
        self._told(self._answered.popleft())

    def _write(self, batch: Batch) -> Written:
        try:
            written = super()._write(batch)
        except Exception as error:
            self._answers.put(Written(batch, error=error))
            raise
        self._answers.put(written)
        return written

    def close(self) -> None:
        self._closed = True
        super().close()


class LateReader(Executor):
    """One read after the other; they are done on the loop itself."""

    def __init__(self, turns: Draw) -> None:
        self._turns = turns
        self._waiting: list[tuple[Future[Any], Callable[[], Any]]] = []
        self._closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **options: Any) -> "Future[Any]":
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[Any] = Future()
        self._waiting.append((future, partial(fn, *args, **options)))
        if len(self._waiting) == 1:
            _in(self._turns(), self._read)
        return future

    def _read(self) -> None:
        if not self._waiting:
            return  # it was closed
        self._next()
        if self._waiting:
            _in(self._turns(), self._read)

    def _next(self) -> None:
        future, read = self._waiting.pop(0)
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(read())
            except Exception as error:  # noqa: BLE001 -- whoever waits is told
                future.set_exception(error)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._closed = True
        while self._waiting:
            self._next()
