"""What a connection has in its hands: requests that wait, places in line for their answers, and work
that goes on until it is stopped."""

import asyncio
import logging
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock.protocol.command import Answer, Request
from penstock.stores.eager import begin

if TYPE_CHECKING:
    from penstock.stores.face import Face

log: Final = logging.getLogger("penstock.serving")

Sent = tuple[Request, "Face", Answer]  # what may have to be taken back


class Held:
    """A request that waits."""

    __slots__ = ("abandoned", "face", "reply", "request", "stopped", "task", "told")

    def __init__(self, request: Request, face: "Face", reply: "Reply | None") -> None:
        self.request = request
        self.face = face
        self.reply = reply  # its place in line, if it has no number
        self.abandoned = False
        self.stopped = False  # told to end
        self.told = False  # answered, though not at its end yet
        self.task: asyncio.Task[Answer] | None = None

    def cancel(self) -> None:
        if self.task is not None and not self.told:
            self.stopped = True
            self.task.cancel()


class Reply:
    """A place in line: the answer of a request without a number, once there is one."""

    __slots__ = ("data", "kept")

    def __init__(self) -> None:
        self.data: bytearray | None = None  # as it will be sent
        self.kept: Sent | None = None  # if it may be taken back


class Going:
    """What a connection was asked to go on with, like a watch, by its name."""

    def __init__(self) -> None:
        self._tasks: dict[object, asyncio.Task[None]] = {}

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def start(self, name: object, work: Coroutine[Any, Any, None], closing: bool) -> None:
        self.stop(name)
        # Begun at once: a task that is cancelled before its first step never learns of it, and
        # could not let go of what it was given.
        task = begin(work)
        if task is None:
            return
        if closing:
            task.cancel()
            return
        self._tasks[name] = task
        task.add_done_callback(partial(self._ended, name))

    def stop(self, name: object) -> bool:
        task = self._tasks.pop(name, None)
        if task is None:
            return False
        task.cancel()
        return True

    def cancel(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    def _ended(self, name: object, task: "asyncio.Task[None]") -> None:
        if self._tasks.get(name) is task:
            del self._tasks[name]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("what was started on a connection failed", exc_info=error)
