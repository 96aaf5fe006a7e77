"""Where an app's store lives: opened on first use, on a thread of its own, reachable from anywhere.

One `Penstock` may be used from many threads, from any running loop, and after a fork. A remote store
has a connection per loop, so asynchronous callers speak to it directly; one on a path is owned by
the home thread (or by another process) and everybody else here is its client, so that a handler
which blocks its loop blocks nobody's store. A store in memory belongs to the home thread alone, and
calls travel there.

Synchronous calls run on the home thread while their caller waits. Inside a running loop that would
stop everything else, so there they are refused.
"""

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, TypeVar

import uvloop

from penstock.client.errors import BlocksTheLoop
from penstock.model.errors import Unavailable
from penstock.model.event import Event, EventKind
from penstock.model.store import Store
from penstock.model.wrapper import Call, Wrapper
from penstock.open import open_store

T = TypeVar("T")
Opener = Callable[[], Awaitable[Store]]

CLOSE_S: Final = 5.0  # at the end of the process


class Home:
    """The store of one app and tenant, and the thread that it lives on."""

    def __init__(self, url: str, tenant: str, opener: Opener | None = None) -> None:
        self.url = url
        self.tenant = tenant
        self._opener = opener or (lambda: open_store(url))
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opened: Future[Store] | None = None

    # -- asynchronous callers --------------------------------------------------------------------

    async def store(self) -> Store:
        """The store, for use on the running loop."""
        opened = self._opened
        if opened is None or self._pid != os.getpid():
            opened = self._open()
        if opened.done():
            return opened.result()
        return await asyncio.wrap_future(opened)

    # -- synchronous callers ---------------------------------------------------------------------

    def run(self, call: Coroutine[Any, Any, T], said: str, instead: str) -> T:
        """What the call answers, made on the home thread while this one waits."""
        if asyncio._get_running_loop() is not None:
            call.close()
            raise BlocksTheLoop(said, instead)
        future = asyncio.run_coroutine_threadsafe(call, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # interrupted while it waited: nobody waits any more
            raise

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop of the home thread, running."""
        loop = self._loop
        if loop is None or self._pid != os.getpid():
            self._open()
            loop = self._loop
            assert loop is not None
        return loop

    # -- life ------------------------------------------------------------------------------------

    def _open(self) -> "Future[Store]":
        """Start the thread and have it open the store; again after a fork, and if it failed."""
        with self._lock:
            if self._pid != os.getpid():
                if self._opened is not None and self.url == "memory://":
                    raise Unavailable(
                        f"the jobs of a store in memory are in process {self._pid}, which this one"
                        " was forked from: use sqlite:///path or a server to share them"
                    )
                self._loop = self._opened = None
                self._pid = os.getpid()
            if self._opened is None or _failed(self._opened):
                if self._loop is None:
                    self._loop = _started()
                    atexit.register(_close_at_exit, weakref.ref(self))
                self._opened = asyncio.run_coroutine_threadsafe(self._make(), self._loop)
            return self._opened

    async def _make(self) -> Store:
        store = await self._opener()
        if self.url == "memory://":
            return _Reached(store, asyncio.get_running_loop())
        return store

    async def aclose(self) -> None:
        """Close the store. The next use opens it again."""
        ending = self._end()
        if ending is not None:
            await asyncio.wrap_future(ending)

    def close(self) -> None:
        ending = self._end()
        if ending is not None:
            ending.result()

    def _end(self) -> "Future[None] | None":
        with self._lock:
            loop, opened = self._loop, self._opened
            self._loop = self._opened = None
            if loop is None or self._pid != os.getpid():
                return None
        return asyncio.run_coroutine_threadsafe(_closed(opened, loop), loop)


def _failed(opened: "Future[Store]") -> bool:
    return opened.done() and (opened.cancelled() or opened.exception() is not None)


def _started() -> asyncio.AbstractEventLoop:
    """A loop that runs on a new thread until it is stopped, and is closed then."""
    loop = uvloop.new_event_loop()

    def live() -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            loop.close()

    threading.Thread(target=live, name="penstock-home", daemon=True).start()
    return loop


async def _closed(opened: "Future[Store] | None", loop: asyncio.AbstractEventLoop) -> None:
    if opened is not None:
        with suppress(Exception):  # one that could not be opened needs no closing
            store = await asyncio.wrap_future(opened)
            await store.close()
    # Behind the answer to whoever waits for this.
    loop.call_soon(loop.call_soon, loop.stop)


def _close_at_exit(home: "weakref.ref[Home]") -> None:
    living = home()
    if living is not None:
        ending = living._end()
        if ending is not None:
            with suppress(Exception):
                ending.result(CLOSE_S)


class _Reached(Wrapper):
    """A store of another thread: calls are made there, and their answers come back here."""

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        self._inner = store
        self._there = loop

    @property
    def inner(self) -> Store:
        return self._inner

    def _made(self, name: str, call: Call[T]) -> Call[T]:
        return self._hop(call)

    async def _hop(self, call: Call[T]) -> T:
        if asyncio.get_running_loop() is self._there:
            return await call
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._there))

    async def watch(
        self,
        tenant: str,
        *,
        queues: Sequence[str] | None = None,
        kinds: Sequence[EventKind] | None = None,
    ) -> AsyncIterator[Event]:
        events = self._inner.watch(tenant, queues=queues, kinds=kinds)
        try:
            while True:
                try:
                    yield await self._hop(_next(events))
                except StopAsyncIteration:
                    return
        finally:
            close = getattr(events, "aclose", None)
            if close is not None:
                await self._hop(close())

    async def close(self) -> None:
        await self._hop(self._inner.close())


async def _next(events: AsyncIterator[Event]) -> Event:
    return await anext(events)
