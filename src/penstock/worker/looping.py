"""The loop that handlers run on, which none of them can stop or leave.

`loop.stop()` ends whatever runs on a loop, and on this one that is other people's jobs: the run
would come back with its main task unfinished, and the worker die of it. A handler that calls it most
likely means its own program, which is not here. To end gracefully instead would let one job after
the other, each perhaps tried again elsewhere, take down a fleet. So nothing is stopped, the handler
goes on behind its call as if nothing had been said, and one line for each task tells who said it.

`SystemExit` and `KeyboardInterrupt` leave a loop through whatever runs on it. Out of the handler itself
they never get so far: they are how its attempt ends. Out of a task that a handler has made, or out of
a callback, they do, and mean as little: signals have handlers of their own, so that no interrupt is
anybody's Ctrl-C. The loop is entered again where it was left. Nothing is lost by that: the task has
ended with the exception, for whoever awaits it, and what was ready to run still is.
"""

import asyncio
import logging
import sys
from collections.abc import Awaitable, Iterable
from inspect import unwrap
from traceback import format_exception_only, walk_stack, walk_tb
from types import CodeType, FrameType
from typing import Any, Final, TypeVar

import uvloop

from penstock.client.app import Penstock

T = TypeVar("T")

log: Final = logging.getLogger("penstock.worker")

LEFT_BEHIND: Final = "something that a handler left behind"


class HandlersLoop(uvloop.Loop):
    def __init__(self, app: Penstock) -> None:
        super().__init__()
        self._app = app
        self._main: asyncio.Future[Any] | None = None  # what it runs until the end of
        self._told: set[tuple[str, str]] = set()  # who tried to stop or leave it

    def run_until_complete(self, future: Awaitable[T]) -> T:  # type: ignore[override]
        self._main = main = asyncio.ensure_future(future, loop=self)
        try:
            while True:
                try:
                    return super().run_until_complete(main)
                except (SystemExit, KeyboardInterrupt) as error:
                    if main.done() and not main.cancelled() and main.exception() is error:
                        raise
                    self._went_on(error)
        finally:
            self._main = None

    def stop(self) -> None:
        """The end of what it runs stops it, and nothing else does."""
        if self._main is None or self._main.done():
            super().stop()
            return
        # Looked for when it is asked: a note of who runs would be paid by every job.
        who = (
            task_within(self._app, (frame.f_code for frame, _ in walk_stack(sys._getframe())))
            or LEFT_BEHIND
        )
        self._tell(who, "tried to stop the event loop, which other jobs run on: it goes on")

    def _went_on(self, error: BaseException) -> None:
        """Tell who tried to end the process, and where, as far as that can be seen."""
        trace = error.__traceback__
        while trace is not None and _passed(trace.tb_frame):
            trace = trace.tb_next
        error.__traceback__ = trace  # the job that fails of it is told its own frames
        who = task_within(self._app, (frame.f_code for frame, _ in walk_tb(trace)))
        if who is None and trace is not None:
            code = trace.tb_frame.f_code
            who = f"{code.co_qualname} ({code.co_filename}:{trace.tb_lineno})"
        said = format_exception_only(error)[-1].strip()
        self._tell(
            who or LEFT_BEHIND,
            "raised %s; other jobs run on this loop, and nothing ends by it",
            said,
        )

    def _tell(self, who: str, what: str, *said: str) -> None:
        if (who, what) not in self._told:
            self._told.add((who, what))
            log.error(f"%s {what}", who, *said)


def task_within(app: Penstock, codes: Iterable[CodeType]) -> str | None:
    """The task whose handler, or a function within it, is among these."""
    handlers = {
        code: task.name
        for task in app.tasks.values()
        if (code := getattr(unwrap(task.handler), "__code__", None)) is not None
    }
    for code in codes:
        for handler, name in handlers.items():
            within = code.co_qualname.startswith(f"{handler.co_qualname}.<locals>.")
            if code is handler or (within and code.co_filename == handler.co_filename):
                return f"task {name!r}"
    return None


def _passed(frame: FrameType) -> bool:
    """Whether it runs what handlers have made, and an exception of theirs only passes it."""
    name = frame.f_globals.get("__name__", "")
    return name.partition(".")[0] in ("penstock", "uvloop", "asyncio")
