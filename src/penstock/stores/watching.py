"""Watchers: listeners to a store's events, each with a bounded backlog."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from penstock.model.errors import Overloaded, PenstockError
from penstock.model.event import Event, EventKind

BACKLOG: Final = 10_000  # events that a watcher may fall behind


class Watcher(AsyncIterator[Event]):
    """One listener with a bounded backlog."""

    def __init__(
        self,
        leave: "Callable[[Watcher], None]",
        tenant: str,
        queues: Sequence[str] | None,
        kinds: Sequence[EventKind] | None,
    ) -> None:
        self._leave = leave
        self._tenant = tenant
        self._queues = queues
        self._kinds = kinds
        self._backlog: deque[Event] = deque()
        self._wake = asyncio.Event()
        self._ended = False
        self._error: PenstockError | None = None

    def offer(self, events: list[Event]) -> None:
        for event in events:
            if (
                event.tenant == self._tenant
                and (self._queues is None or event.queue in self._queues)
                and (self._kinds is None or event.kind in self._kinds)
            ):
                self._backlog.append(event)
        if len(self._backlog) > BACKLOG:
            self._backlog.clear()
            self.end(Overloaded(f"the watcher fell more than {BACKLOG} events behind"))
        elif self._backlog:
            self._wake.set()

    def end(self, error: PenstockError | None) -> None:
        self._ended = True
        self._error = error
        self._wake.set()
        self._leave(self)

    async def aclose(self) -> None:
        self.end(None)

    async def __anext__(self) -> Event:
        while not self._backlog:
            if self._ended:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        return self._backlog.popleft()
