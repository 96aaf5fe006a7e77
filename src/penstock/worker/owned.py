"""Tasks with an owner: whoever starts something on the side waits for it, and hears of its errors."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final

log: Final = logging.getLogger("penstock.worker")


class Owned:
    """Calls under way, of one loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, call: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(call)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("the worker made a mistake", exc_info=task.exception())

    async def settled(self, within_s: float) -> bool:
        """Whether everything came to its end in that time."""
        loop = asyncio.get_running_loop()
        until = loop.time() + within_s
        while self._tasks and (left := until - loop.time()) > 0:
            await asyncio.wait(self._tasks, timeout=left)
        return not self._tasks

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
