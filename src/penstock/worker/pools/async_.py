"""Asynchronous handlers on one loop.

The loop is not the one that keeps the leases. Work comes over from the home thread in lists, and
goes back in lists: what ends in one turn of the loop is told together.

A task costs more than most short handlers do. So one task begins with the handlers of a list, one
after the other, for as long as they end without waiting for anything. The first one that waits has
that task for itself from there on, as if it had been made for it, and another goes on with the
list. Each handler has context variables of its own all the same.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any

from penstock.client.app import Penstock
from penstock.client.execute import (
    INTERRUPTED,
    Batch,
    BatchOutcome,
    Outcome,
    Prepared,
    gathered,
)
from penstock.model.resuming import resumed
from penstock.worker.contexts import Contexts
from penstock.worker.held import BatchWork, Work


class AsyncPool:
    def __init__(
        self,
        app: Penstock,
        contexts: Contexts,
        *,
        loop: asyncio.AbstractEventLoop,
        home: asyncio.AbstractEventLoop,
        ended: Callable[[list[Work]], None],
    ) -> None:
        self._executor = app.executor
        self._contexts = contexts
        self._watched = contexts.watched
        self._loop = loop  # of the handlers
        self._home = home
        self._tell = ended
        self.begun = 0  # handlers, so far
        self._given: deque[deque[Work]] = deque()  # lists of work, of which some may not have begun
        self._done: list[Work] = []  # in this turn
        self._flushing: asyncio.Handle  # at whose end they are told

    # -- on the home thread ----------------------------------------------------------------------

    def start(self, works: list[Work]) -> None:
        given = deque(works)
        self.lend(given)
        self._loop.call_soon_threadsafe(self.begin, given)

    def lend(self, works: deque[Work]) -> None:
        """The loop takes the first of them, one at a time, until there is none."""
        while self._given and not self._given[0]:
            self._given.popleft()
        self._given.append(works)

    def take_back(self) -> list[Work]:
        """What has not begun, and will not. Either side takes what it gets: nothing is had twice."""
        found = []
        for works in self._given:
            with suppress(IndexError):
                while True:
                    found.append(works.popleft())
        self._given.clear()
        return found

    def interrupt(self, work: Work) -> None:
        self._loop.call_soon_threadsafe(self._cancel, work)

    async def close(self) -> None:
        """Its loop is its owner's."""

    # -- on the handlers' loop -------------------------------------------------------------------

    def begin(self, works: deque[Work]) -> None:
        self._loop.create_task(self.run(works))

    async def run(self, works: deque[Work], begun: Callable[[], object] | None = None) -> None:
        """Run the first of them that waits for something, and those before it; begin the others.
        `begun` is called behind the first step of all, and before any end is told."""
        task: asyncio.Task[Any] | None = None  # this one, once somebody asks
        call: Coroutine[Any, Any, Any] | None
        waited = False  # then another task has the rest
        while works and not waited:
            try:
                work = works.popleft()
            except IndexError:  # taken back in this instant
                return
            self.begun += 1
            try:
                if work.why is None and work.task.unseen and not self._watched:
                    # Nearly all of them: `_called` without the call of it.
                    job = work.job
                    call = self._executor.run_unseen(work.task, job.options.codec, job.payload)
                else:
                    call = self._called(work)
                if call is not None:
                    context = copy_context()
                    awaited = context.run(call.send, None)
                    if begun is not None:
                        self.tell_first(begun)
                        begun = None
                    work.handle = asyncio.current_task(self._loop)
                    waited = True
                    self._begin_rest(works)
                    work.outcome = await resumed(call, awaited, context.run)
            except StopIteration as done:
                work.outcome = done.value
            except GeneratorExit:  # the loop has ended, and there is nobody to tell
                raise
            except BaseException as error:  # noqa: BLE001 - not the handler's: ours, or beside it
                work.broke(error)
            if begun is not None:
                self.tell_first(begun)
                begun = None
            self._ended(work)
            task = task or asyncio.current_task(self._loop)
            if task is not None and task.cancelling():  # by a handler, for itself alone
                self._begin_rest(works)
                return

    async def go_on(
        self, work: Work, call: Coroutine[Any, Any, Outcome], awaited: Any, within: Context
    ) -> None:
        """The rest of a call whose first step was made elsewhere, in this task; none, if there is an
        outcome."""
        if work.outcome is None:
            work.handle = asyncio.current_task(self._loop)
            try:
                work.outcome = await resumed(call, awaited, within.run)
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001 - not the handler's: ours, or beside it
                work.broke(error)
        self._ended(work)

    def _begin_rest(self, works: deque[Work]) -> None:
        if works:
            self.begin(works)

    def _called(self, work: Work) -> Coroutine[Any, Any, Any] | None:
        """The call of its handler that somebody looks at, not begun; None if it ends without one."""
        if work.why is not None:  # stopped before its first step
            work.outcome = INTERRUPTED
            return None
        work.context = context = self._contexts.of(work)
        prepared: Prepared | Batch | Outcome | BatchOutcome
        if isinstance(work, BatchWork):
            codec = work.job.options.codec
            prepared = gathered(work.task, codec, work.payloads, context)
        else:
            prepared = self._executor.prepare(work.task, context)
        if isinstance(prepared, Prepared | Batch):
            return self._executor.run(prepared)
        work.outcome = prepared
        return None

    def _cancel(self, work: Work) -> None:
        """What has not begun is not begun: see there."""
        if work.context is not None:
            work.context.cancelled = True
        if work.handle is not None:
            work.handle.cancel()

    def tell_first(self, begun: Callable[[], object]) -> None:
        """Of what has begun: before its end is told."""
        begun()
        if self._done:  # others have ended in this turn, and what has begun may end with them
            self._flushing.cancel()
            self._flushing = self._loop.call_soon(self._flush)

    def _ended(self, work: Work) -> None:
        if not self._done:
            self._flushing = self._loop.call_soon(self._flush)
        self._done.append(work)

    def _flush(self) -> None:
        done, self._done = self._done, []
        self._home.call_soon_threadsafe(self._tell, done)
