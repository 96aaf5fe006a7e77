"""Telling events again that a crash kept from the event log.

The kernel decides at the replay what it decided before, so it tells the same events at the same
positions. A checkpoint waits until the event log has synced what the log in front of it could tell
(`Keeper`); hence nothing is missing, but where the store was open without an event log.
"""

import logging
import os
from queue import SimpleQueue
from typing import Final

from penstock.kernel.kernel import Kernel
from penstock.model.event import EventKeeper, Mark

log: Final = logging.getLogger("penstock.store")


class Retelling:
    def __init__(self, kernel: Kernel, keeper: EventKeeper, store: str, *, whole: bool) -> None:
        """`whole`: the event log was told everything since it was last begun."""
        self._kernel = kernel
        self._keeper = keeper
        self._store = store
        self._mark = keeper.begin(store)
        if not whole and kernel.position > self._mark.position:
            keeper.missed(self._mark.position + 1, kernel.position)
        kernel.events = []

    def applied(self) -> None:
        """The kernel has carried out a record."""
        events = self._kernel.events
        if not events:
            return
        self._kernel.events = []
        mark = self._mark
        if events[-1].position < mark.position:
            return
        fresh = [event for event in events if Mark(event.position, event.index) > mark]
        if fresh:
            self._keeper.make_room()
            self._keeper.write(fresh)

    def synced(self) -> bool:
        """Whether everything that was told is on stable storage; blocks until that is known."""
        answer: SimpleQueue[bool] = SimpleQueue()
        self._keeper.sync(answer.put)
        return answer.get()

    def end(self) -> str:
        """The kernel is as it was; answers the store's name in the event log from now on.

        Where the event log knows of more, the store is an older copy of itself: a backup, or what
        a power cut left of one with durability `os`. What happens now gets positions that are
        taken, so it happens in another store.
        """
        self._kernel.events = None
        if self._mark.position <= self._kernel.position:
            return self._store
        log.warning(
            "the event log has events up to position %d of store %s, which is back at %d: its"
            " events go on under another name",
            self._mark.position,
            self._store,
            self._kernel.position,
        )
        self._keeper.close()
        store = os.urandom(16).hex()
        self._keeper.begin(store)
        return store
