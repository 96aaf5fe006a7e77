"""A process that says a word per step on its standard output, so that nobody has to guess how far it is."""

import asyncio
import signal
from collections import Counter
from collections.abc import Callable
from typing import Final

PATIENCE_S: Final = 60.0  # for one word of one process


class News(asyncio.Condition):
    """Somebody has said something, or something else has happened that others may wait for."""

    async def tell(self) -> None:
        async with self:
            self.notify_all()

    async def until(self, true: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_S), self:
            await self.wait_for(true)


class Heard:
    """Such a process, and what it has said."""

    def __init__(self, role: str, process: asyncio.subprocess.Process, news: News) -> None:
        self.role = role
        self.process = process
        self.said: Counter[str] = Counter()
        self._news = news
        self._hearing = asyncio.ensure_future(self._hear())

    async def _hear(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            self.said[line.decode().strip()] += 1
            await self._news.tell()
        self.said["gone"] += 1
        await self._news.tell()

    async def hear(self, word: str, times: int = 1) -> None:
        """Wait until it has said the word so many more times; it must not end meanwhile."""
        enough = self.said[word] + times
        await self._news.until(lambda: self.said[word] >= enough or self.said["gone"])
        assert self.said[word] >= enough, f"the {self.role} ended by itself"

    async def end(self, number: signal.Signals) -> None:
        """End it, and see that it ended of that and of nothing else."""
        assert self.process.returncode is None, f"the {self.role} ended by itself"
        self.process.send_signal(number)
        async with asyncio.timeout(PATIENCE_S):
            code = await self.process.wait()
            await self._hearing
        assert code == (0 if number is signal.SIGTERM else -number)

    async def clear(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await self._hearing
