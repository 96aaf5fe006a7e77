"""Handlers in threads, one each: plain functions, and asynchronous ones on a loop per thread.

A thread is stopped by raising an exception in it (`PyThreadState_SetAsyncExc`), which it notices
between two steps of Python: one that waits in C, for a socket or a lock, notices when that returns.
An exception is only ever set while its work is what the thread runs, under a lock, and whatever was
not noticed by the end of that work is taken back: the next one never pays for it.

There is a thread for every work that has been started, and one queue for all of them: a thread that
has ended its work goes on with the next, and none has to be woken for it. To wake one for each costs
more than most short handlers do.
"""

import asyncio
import ctypes
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Final

from penstock.client.app import Penstock
from penstock.client.errors import SoftTimeout
from penstock.client.execute import (
    INTERRUPTED,
    Batch,
    BatchOutcome,
    Outcome,
    Prepared,
    gathered,
)
from penstock.worker.contexts import Contexts
from penstock.worker.held import BatchWork, Work
from penstock.worker.looping import HandlersLoop
from penstock.worker.pools.running import SOON_S, runs

_set_async_exc: Final = ctypes.pythonapi.PyThreadState_SetAsyncExc


class _Seat:
    """One thread, and what it runs."""

    def __init__(self, number: int, main: Callable[["_Seat"], None]) -> None:
        self.lock = threading.Lock()
        self.taken: Work | None = None  # what it has in hand
        self.work: Work | None = None  # … and may be interrupted
        self.runner: asyncio.Runner | None = None  # made for its first asynchronous handler
        self.task: asyncio.Task[None] | None = None  # of that loop, while one runs
        self.thread = threading.Thread(
            target=main, args=(self,), name=f"penstock-handler-{number}", daemon=True
        )

    def raise_in(self, work: Work, error: type[BaseException]) -> bool:
        """Raise it in the handler, if that runs. Answers whether it does."""
        with self.lock:
            if self.work is not work:
                return False
            if self.task is not None and self.runner is not None:
                self.runner.get_loop().call_soon_threadsafe(self.task.cancel)
            else:
                _raise(self.thread, error)
            return True

    def time_out(self, work: Work) -> bool:
        """Raise SoftTimeout in the handler, if it is what the thread is at. Answers whether it is.

        Nothing keeps the thread from going on between the look and the raising, so that the one
        follows the other at once: whoever ends within these microseconds is still hit behind its end.
        """
        with self.lock:
            if self.work is not work:
                return False
            handler, thread = work.task.handler, self.thread
            if not runs(handler, sys._current_frames().get(thread.ident or 0)):
                return False
            _raise(thread, SoftTimeout)
            return True

    def settle(self) -> None:
        """The work has ended: nothing can be raised here any more."""
        with self.lock:
            self.work = self.task = None
            _raise(self.thread, None)


def _raise(thread: threading.Thread, error: type[BaseException] | None) -> None:
    ident = ctypes.c_ulong(thread.ident or 0)
    _set_async_exc(ident, None if error is None else ctypes.py_object(error))


class ThreadPool:
    def __init__(
        self,
        app: Penstock,
        contexts: Contexts,
        *,
        home: asyncio.AbstractEventLoop,
        ended: Callable[[list[Work]], None],
    ) -> None:
        self._app = app
        self._executor = app.executor
        self._contexts = contexts
        self._home = home
        self._tell = ended
        self._inbox: SimpleQueue[Work | None] = SimpleQueue()
        self._busy = 0  # how many works there are in it and in hand
        self._seats: list[_Seat] = []
        self._timers: dict[Work, asyncio.TimerHandle] = {}
        self._done: deque[Work] = deque()
        self._called = False  # whether the home thread has been told to look

    # -- on the home thread ----------------------------------------------------------------------

    def start(self, works: list[Work]) -> None:
        self._busy += len(works)
        while len(self._seats) < self._busy:
            seat = _Seat(len(self._seats) + 1, self._serve)
            self._seats.append(seat)
            seat.thread.start()
        for work in works:
            soft_ms = work.task.plan.soft_timeout_ms
            if soft_ms is not None and not work.task.is_async:
                self._timers[work] = self._home.call_later(soft_ms / 1_000, self._time_out, work)
            self._inbox.put(work)

    def _time_out(self, work: Work) -> None:
        if work.handle is None or not work.handle.time_out(work):
            # Its handler has not begun; or it has ended, and we shall hear of it before this.
            self._timers[work] = self._home.call_later(SOON_S, self._time_out, work)

    def interrupt(self, work: Work) -> None:
        if work.context is not None:
            work.context.cancelled = True
        if work.handle is not None:
            work.handle.raise_in(work, asyncio.CancelledError)

    def _collect(self) -> None:
        self._called = False
        ended: list[Work] = []
        while self._done:
            work = self._done.popleft()
            timer = self._timers.pop(work, None)
            if timer is not None:
                timer.cancel()
            self._busy -= 1
            ended.append(work)
        if ended:
            self._tell(ended)

    async def close(self) -> None:
        for _ in self._seats:
            self._inbox.put(None)
        for seat in self._seats:
            if (
                seat.taken is None
            ):  # the others run what cannot be stopped, and end with the process
                seat.thread.join()

    # -- on the threads --------------------------------------------------------------------------

    def _serve(self, seat: _Seat) -> None:
        try:
            while (work := self._inbox.get()) is not None:
                seat.taken = work
                try:
                    self._run(seat, work)
                except (asyncio.CancelledError, SoftTimeout):
                    seat.settle()  # it reached us behind the handler's end
                except BaseException as error:  # noqa: BLE001 - ours; the thread and the job go on
                    seat.settle()
                    work.broke(error)
                if work.outcome is None:
                    work.outcome = INTERRUPTED
                seat.taken = None
                self._done.append(work)
                if not self._called:
                    self._called = True
                    self._home.call_soon_threadsafe(self._collect)
        finally:
            if seat.runner is not None:
                seat.runner.close()

    def _run(self, seat: _Seat, work: Work) -> None:
        work.handle = seat
        context = work.context = self._contexts.of(work)
        call: Prepared | Batch | Outcome | BatchOutcome
        if isinstance(work, BatchWork):
            codec = work.job.options.codec
            call = gathered(work.task, codec, work.payloads, context)
        else:
            call = self._executor.prepare(work.task, context)
        if not isinstance(call, Prepared | Batch):
            work.outcome = call
            return
        if work.task.is_async:
            self._run_async(seat, work, call)
            return
        with seat.lock:
            if work.why is not None:
                return
            seat.work = work
        try:
            work.outcome = self._executor.run_here(call)
        finally:
            seat.settle()

    def _run_async(self, seat: _Seat, work: Work, call: Prepared | Batch) -> None:
        if seat.runner is None:
            seat.runner = asyncio.Runner(loop_factory=partial(HandlersLoop, self._app))

        async def run() -> None:
            with seat.lock:
                if work.why is not None:
                    return
                seat.work, seat.task = work, asyncio.current_task()
            work.outcome = await self._executor.run(call)

        try:
            seat.runner.run(run(), context=copy_context())  # else all of them have the runner's
        finally:
            seat.settle()
