"""The loop that handlers run on, which none of them can stop.

`loop.stop()` ends whatever runs on a loop, and on this one that is other people's jobs: the run
would come back with its main task unfinished, and the worker die of it. A handler that calls it most
likely means its own program, which is not here. To end gracefully instead would let one job after
the other, each perhaps tried again elsewhere, take down a fleet. So nothing is stopped, the handler
goes on behind its call as if nothing had been said, and one line for each task tells who said it.
"""

import asyncio
import logging
import sys
from collections.abc import Awaitable
from inspect import unwrap
from types import CodeType
from typing import Any, Final, TypeVar

import uvloop

from penstock.client.app import Penstock

T = TypeVar("T")

log: Final = logging.getLogger("penstock.worker")


class HandlersLoop(uvloop.Loop):
    def __init__(self, app: Penstock) -> None:
        super().__init__()
        self._app = app
        self._main: asyncio.Future[Any] | None = None  # what it runs until the end of
        self._told: set[str] = set()  # who tried to stop it

    def run_until_complete(self, future: Awaitable[T]) -> T:  # type: ignore[override]
        self._main = main = asyncio.ensure_future(future, loop=self)
        try:
            return super().run_until_complete(main)
        finally:
            self._main = None

    def stop(self) -> None:
        """The end of what it runs stops it, and nothing else does."""
        if self._main is None or self._main.done():
            super().stop()
            return
        who = self._caller()
        if who not in self._told:
            self._told.add(who)
            log.error("%s tried to stop the event loop, which other jobs run on: it goes on", who)

    def _caller(self) -> str:
        """The task whose handler is being run. Looked for when it is asked: a note of who runs would
        be paid by every job."""
        tasks: dict[CodeType, str] = {}
        for task in self._app.tasks.values():
            code = getattr(unwrap(task.handler), "__code__", None)
            if code is not None:
                tasks[code] = task.name
        frame = sys._getframe()
        while frame.f_back is not None:
            frame = frame.f_back
            if frame.f_code in tasks:
                return f"task {tasks[frame.f_code]!r}"
        return "something that a handler left behind"
