"""Server-sent events: what happens in a tenant, and what happened a moment ago.

One listener per tenant reads the store's events into a bounded ring, from the first subscriber on
and for a while after the last. Subscribers read from the ring, each at its own pace, so a slow one
costs nothing but its place: who falls out of the ring, or asks for something older than it, is
told that there is a gap.
"""

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, Final, NamedTuple

import msgspec

from penstock.model.errors import Invalid, Overloaded, PenstockError
from penstock.model.event import Event
from penstock.model.store import Store
from penstock.protocol.http_shown_server import EventShown

RING_EVENTS: Final = 10_000
RING_BYTES: Final = 16 * 1024 * 1024
KEEP_S: Final = 300.0  # how long a ring goes on being filled when nobody reads it
CHUNK_BYTES: Final = 64 * 1024  # sent at once

_encode: Final = msgspec.json.Encoder().encode

Place = tuple[int, int]  # position of a command in the store's history, index of its event


class Entry(NamedTuple):
    serial: int
    place: Place
    event: Event
    frame: bytes


def place_of(said: str) -> Place:
    """The id of an event, as it was sent."""
    position, dot, index = said.partition(".")
    if not (dot and position.isascii() and index.isascii()):
        raise Invalid(f"{said[:60]!r} is no id of an event", "Last-Event-ID")
    if not (position.isdigit() and index.isdigit() and len(said) <= 40):
        raise Invalid(f"{said[:60]!r} is no id of an event", "Last-Event-ID")
    return int(position), int(index)


class Feed:
    """The recent events of one tenant."""

    def __init__(self, store: Store, tenant: str) -> None:
        self._store = store
        self._tenant = tenant
        self._ring: deque[Entry] = deque()
        self._size = 0
        self._next = 0  # serial of the next event
        self._left: Place | None = None  # of the latest event that is in the ring no more
        self._more = asyncio.Event()
        self._ended = False
        self.readers = 0
        self.timer: asyncio.TimerHandle | None = None  # until it is given up
        # Begun here and not in the task: what happens from now on is in the ring.
        self.task = asyncio.create_task(self._listen(store.watch(tenant)))

    async def _listen(self, events: AsyncIterator[Event]) -> None:
        try:
            while not await self._follow(events):
                self._skip()
                events = self._store.watch(self._tenant)
        except PenstockError:  # the store has ended
            return
        finally:
            self._ended = True
            self._tell()

    async def _follow(self, events: AsyncIterator[Event]) -> bool:
        """Take events until there are no more; False if we fell behind and some were lost."""
        try:
            async for event in events:
                self._add(event)
        except Overloaded:
            return False
        finally:
            await _close(events)
        return True

    def _add(self, event: Event) -> None:
        place = (event.position, event.index)
        shown = _encode(EventShown.of(event))
        frame = b"id: %d.%d\nevent: %b\ndata: %b\n\n" % (*place, event.kind.encode(), shown)
        self._ring.append(Entry(self._next, place, event, frame))
        self._next += 1
        self._size += len(frame)
        while len(self._ring) > RING_EVENTS or self._size > RING_BYTES:
            gone = self._ring.popleft()
            self._size -= len(gone.frame)
            self._left = gone.place
        self._tell()

    def _skip(self) -> None:
        self._ring.clear()
        self._size = 0
        self._left = None
        self._next += 1
        self._tell()

    def _tell(self) -> None:
        self._more.set()
        self._more.clear()

    @property
    def _begin(self) -> int:
        return self._ring[0].serial if self._ring else self._next

    def after(self, place: Place) -> tuple[int, bool]:
        """The serial to go on from behind that event, and whether something may be missing."""
        if place == self._left:
            return self._begin, False
        if not self._ring or place < self._ring[0].place:
            return self._begin, True
        if place > self._ring[-1].place:  # of another history
            return self._next, True
        index = bisect_right(self._ring, place, key=lambda entry: entry.place)
        return self._begin + index, False

    async def read(
        self, since: Place | None, wanted: Callable[[Event], bool], heartbeat_s: float
    ) -> AsyncGenerator[bytes, None]:
        """Frames from behind that event on (None: from now on), without end."""
        serial, gap = (self._next, False) if since is None else self.after(since)
        yield b"retry: 1000\n\n"
        while True:
            if gap or serial < self._begin:
                yield b'event: gap\ndata: {"reason":"events are missing here"}\n\n'
                serial, gap = max(serial, self._begin), False
            frames, size = [], 0
            for index in range(serial - self._begin, len(self._ring)):
                entry = self._ring[index]
                serial = entry.serial + 1
                if wanted(entry.event):
                    frames.append(entry.frame)
                    size += len(entry.frame)
                    if size > CHUNK_BYTES:
                        break
            if frames:
                yield b"".join(frames)
                continue
            if self._ended:
                return
            try:
                async with asyncio.timeout(heartbeat_s):
                    await self._more.wait()
            except TimeoutError:
                yield b": still here\n\n"


async def _close(events: AsyncIterator[Event]) -> None:
    close: Any = getattr(events, "aclose", None)
    if close is not None:
        await close()


class Feeds:
    """The feeds that somebody reads, or read until a moment ago."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._feeds: dict[str, Feed] = {}

    async def subscribe(
        self,
        tenant: str,
        since: Place | None,
        wanted: Callable[[Event], bool],
        heartbeat_s: float,
    ) -> AsyncGenerator[bytes, None]:
        feed = self._feeds.get(tenant)
        if feed is None or feed.task.done():
            feed = self._feeds[tenant] = Feed(self._store, tenant)
        if feed.timer is not None:
            feed.timer.cancel()
            feed.timer = None
        feed.readers += 1
        try:
            frames = feed.read(since, wanted, heartbeat_s)
            try:
                async for frame in frames:
                    yield frame
            finally:
                await frames.aclose()
        finally:
            feed.readers -= 1
            if not feed.readers:
                loop = asyncio.get_running_loop()
                feed.timer = loop.call_later(KEEP_S, self._give_up, tenant, feed)

    def _give_up(self, tenant: str, feed: Feed) -> None:
        feed.task.cancel()
        if self._feeds.get(tenant) is feed:
            del self._feeds[tenant]

    async def close(self) -> None:
        feeds = list(self._feeds.values())
        self._feeds.clear()
        for feed in feeds:
            if feed.timer is not None:
                feed.timer.cancel()
            feed.task.cancel()
        await asyncio.gather(*(feed.task for feed in feeds), return_exceptions=True)
