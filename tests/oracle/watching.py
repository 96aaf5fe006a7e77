"""Watchers of the oracle's events."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import get_args

from penstock.model.checks_values import check_listed, check_one_of, check_queue, check_tenant
from penstock.model.errors import Invalid, Overloaded, PenstockError
from penstock.model.event import Event, EventKind

EVENTS_BEHIND = 10_000  # more than this many unread events end a watcher


class Watcher:
    """An iterator over events from its making on. `close` ends it with an error.

    What is wrong with the call is said, as all else, when the first event is asked for.
    """

    def __init__(
        self,
        watchers: "list[Watcher]",
        tenant: str,
        queues: Sequence[str] | None,
        kinds: Sequence[EventKind] | None,
    ) -> None:
        self.watchers = watchers
        self.tenant = tenant
        self.queues = queues
        self.kinds = kinds
        self.unread: deque[Event] = deque()
        self.news = asyncio.Event()
        self.error: PenstockError | None = None
        watchers.append(self)
        try:
            self.check()
        except Invalid as error:
            self.close(error)

    def check(self) -> None:
        check_tenant(self.tenant)
        if self.queues is not None:
            check_listed(self.queues, "queues")
            for queue in self.queues:
                check_queue(queue, "queues")
        if self.kinds is not None:
            check_listed(self.kinds, "kinds")
            for kind in self.kinds:
                check_one_of(kind, "kinds", get_args(EventKind))

    def hear(self, event: Event) -> None:
        wanted = self.queues is None or event.queue in self.queues
        wanted = wanted and (self.kinds is None or event.kind in self.kinds)
        if event.tenant == self.tenant and wanted:
            self.unread.append(event)
            if len(self.unread) > EVENTS_BEHIND:
                self.close(Overloaded("the watcher fell behind"))
            self.news.set()

    def close(self, error: PenstockError) -> None:
        self.error = error
        self.news.set()
        if self in self.watchers:
            self.watchers.remove(self)

    def __aiter__(self) -> "Watcher":
        return self

    async def __anext__(self) -> Event:
        while True:
            if self.error is not None:
                raise self.error
            if self.unread:
                return self.unread.popleft()
            self.news.clear()
            await self.news.wait()

    async def aclose(self) -> None:
        if self in self.watchers:
            self.watchers.remove(self)
