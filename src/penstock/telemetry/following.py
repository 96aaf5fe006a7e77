"""What happens in a store, for whoever counts it, whichever process the store is in.

A store that is this process's tells its observer everything as it happens. One that is another's
(the owner of a path, a server) tells only those who watch it, of one tenant each. `Following` is the
observer of both: it passes on what it is told directly, and while the store is somebody else's it
watches the tenants that it was given.

No event is passed on twice. A new watch begins behind everything that an earlier one told, so the
only way to hear of an event again would be to watch a store that has become our own; its events are
known by their position. Some may be missed: a watch that ends, with a connection or because it fell
behind, leaves a gap until the next one, and how often that was is counted.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

from penstock.model.errors import PenstockError
from penstock.model.event import Event, EventKind, EventSink
from penstock.model.store import Store
from penstock.stores.again import Again

LOOK_S: Final = 0.5  # how often we look whether the store has changed hands
TURN: Final = 256  # events that are passed on before others have a turn

log: Final = logging.getLogger("penstock.telemetry")


class Following:
    """An `EventSink` for a store's `observer`. Have it `run` with that store as long as it is open."""

    def __init__(
        self,
        observer: EventSink,
        tenants: Iterable[str],
        kinds: Sequence[EventKind] | None = None,  # that a watch is about; None: all
    ) -> None:
        self._observer = observer
        self._kinds = kinds
        self._gaps = dict.fromkeys(tenants, 0)
        self._said: dict[str, str] = {}  # by tenant: why its watch ended, until another one tells
        self._watches: dict[str, Any] = {}  # the present ones, by tenant
        self._ours: int | None = None  # position of the first event of a store that is our own
        # Behind the first event of our own store nothing stands between it and the observer.
        self.write: Callable[[list[Event]], None] = self._first

    @property
    def gaps(self) -> Mapping[str, int]:
        """By tenant: how often a watch has ended. What happened until the next one is not known."""
        return self._gaps

    def _first(self, events: list[Event]) -> None:
        self._ours = events[0].position
        self.write = self._observer.write
        self._observer.write(events)

    async def run(self, store: Store) -> None:
        """Watch the store whenever it is another's. What happens from the first step on is heard."""
        if not store.owned:
            log.info(
                "the store is another process's: what happens to jobs is counted by watching it,"
                " for the tenants %s and no others",
                ", ".join(self._gaps),
            )
        try:
            while True:
                if not store.owned:
                    await self._watch(store)
                    log.info("the store is this process's now: everything that happens is counted")
                while store.owned:  # noqa: ASYNC110 - nobody would tell
                    await asyncio.sleep(LOOK_S)
        except Exception:
            log.exception("what happens to jobs is not counted any more")
            raise

    async def _watch(self, store: Store) -> None:
        """Until the store is our own."""
        self._ours = None
        self.write = self._first
        async with asyncio.TaskGroup() as group:
            following = [
                group.create_task(self._follow(store, tenant, self._begin(store, tenant)))
                for tenant in self._gaps
            ]
            while not all(task.done() for task in following):
                await asyncio.sleep(LOOK_S)
                if store.owned:
                    for watch in list(self._watches.values()):
                        await watch.aclose()  # what it has heard by now is passed on all the same

    def _begin(self, store: Store, tenant: str) -> AsyncIterator[Event]:
        watch = self._watches[tenant] = store.watch(tenant, kinds=self._kinds)
        return watch

    async def _follow(self, store: Store, tenant: str, watch: AsyncIterator[Event]) -> None:
        again = Again(asyncio.get_running_loop().time)
        while True:
            again.begin()
            why = await self._hear(store, tenant, watch)
            if why is None and store.owned:
                return  # by us
            self._count_gap(tenant, why or "it was ended")
            # At once if it had lasted: whoever asks first of a new owner misses the least.
            await asyncio.sleep(again.pause_s())
            if store.owned:
                return
            watch = self._begin(store, tenant)

    async def _hear(self, store: Store, tenant: str, watch: AsyncIterator[Event]) -> str | None:
        """Pass on what is told until there is no more; answers what went wrong, if anything did."""
        heard = 0
        try:
            async with aclosing(watch) as events:  # type: ignore[type-var]
                async for event in events:
                    if self._ours is not None and event.position >= self._ours and store.owned:
                        continue
                    self._observer.write([event])
                    self._said.pop(tenant, None)
                    heard += 1
                    if heard % TURN == 0:
                        await asyncio.sleep(0)
        except PenstockError as error:
            return str(error)
        return None

    def _count_gap(self, tenant: str, why: str) -> None:
        self._gaps[tenant] += 1
        if self._said.get(tenant) != why:  # else it is what it was when we last asked
            self._said[tenant] = why
            log.warning(
                "what happens to jobs of the tenant %s is not counted until it can be watched"
                " again: %s",
                tenant,
                why,
            )
