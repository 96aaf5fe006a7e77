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
from asyncio import get_running_loop
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

import uvloop

from penstock.client.errors import BlocksTheLoop
from penstock.descriptors import occupy_standard
from penstock.model.errors import Conflict, Unavailable
from penstock.model.event import Event, EventKind
from penstock.model.store import Store
from penstock.model.wrapper import Call, Wrapper

T = TypeVar("T")
Opener = Callable[[], Awaitable[Store]]

CLOSE_S: Final = 5.0  # at the end of the process
LAST_TURNS: Final = 2  # of a loop that ends, in which its transports let go of their sockets


async def _open_store(url: str) -> Store:
    # Stores are half of the package; who only declares tasks, or runs them for a worker, needs none.
    from penstock.open import open_store

    return await open_store(url)


class Home:
    """The store of one app and tenant, and the thread that it lives on."""

    patient = True  # whether waiting for a job's end makes sense

    def __init__(self, url: str, tenant: str, opener: Opener | None = None) -> None:
        self.url = url
        self.tenant = tenant
        self._opener = opener or (lambda: _open_store(url))
        self._lock = threading.Lock()
        self._thread: _Thread | None = None
        self._opened: Future[Store] | None = None
        self.ready: Store | None = None  # the store, once it is open
        self._visits: dict[asyncio.AbstractEventLoop, AsyncIterator[None]] = {}  # of other loops
        self._workers = 0  # that run on it, and would end with it
        self._left_behind: Any = None  # by a fork: the other process's, and not to be let go of
        _homes.add(self)

    # -- asynchronous callers --------------------------------------------------------------------

    def at_hand(self) -> Store | None:
        """The store, if it is open and the running loop has come to it before: nothing to wait for."""
        return self.ready if get_running_loop() in self._visits else None

    async def store(self) -> Store:
        """The store, for use on the running loop."""
        store = self.ready
        if store is not None:
            if asyncio.get_running_loop() not in self._visits:
                await self._visited(store)
            return store
        opened = self._open()
        # Shielded: it is opened for everybody, not for whoever came first and was cancelled.
        store = await asyncio.shield(asyncio.wrap_future(opened))
        with self._lock:
            if self._opened is opened:  # still
                self.ready = store
        await self._visited(store)
        return store

    async def _visited(self, store: Store) -> None:
        """When the running loop ends, its connection to the store does.

        Nothing tells us about the end of a loop, but `asyncio.run` closes the asynchronous
        generators that were begun in it.
        """
        loop = asyncio.get_running_loop()
        thread = self._thread
        # Another task of this loop may have come first: a visit that is replaced would end, and take
        # the connection of all of them with it.
        if loop not in self._visits and (thread is None or loop is not thread.loop):
            for other in [each for each in self._visits if each.is_closed()]:
                self._visits.pop(other, None)
            visit = self._visits[loop] = _visit(self._visits, loop, store)
            await anext(visit)

    def give_up(self) -> None:
        """Nobody wants the store any more that is being opened, if it still is."""
        with self._lock:
            opened = self._opened
        if opened is not None:
            opened.cancel()

    # -- synchronous callers ---------------------------------------------------------------------

    def run(self, call: Coroutine[Any, Any, T], said: str, instead: str) -> T:
        """What the call answers, made on the home thread while this one waits."""
        try:
            self.may_block(said, instead)
        except BlocksTheLoop:
            call.close()
            raise
        return self.wait(call)

    def may_block(self, said: str, instead: str) -> None:
        """Raises BlocksTheLoop where a synchronous call must not be made."""
        if asyncio._get_running_loop() is not None:
            raise BlocksTheLoop(said, instead)

    def wait(self, call: Coroutine[Any, Any, T]) -> T:
        with self._lock:  # so that the thread does not end between here and there
            future = asyncio.run_coroutine_threadsafe(call, self._started().loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # interrupted while it waited: nobody waits any more
            raise

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop of the home thread, running."""
        with self._lock:
            return self._started().loop

    # -- life ------------------------------------------------------------------------------------

    def _started(self) -> "_Thread":
        if self._thread is None:
            self._thread = _Thread()
            _open.add(self)
        return self._thread

    def _open(self) -> "Future[Store]":
        """Have the home thread open the store; again if that failed."""
        with self._lock:
            if self._opened is None or _failed(self._opened):
                loop = self._started().loop
                self._opened = asyncio.run_coroutine_threadsafe(self._make(), loop)
            return self._opened

    async def _make(self) -> Store:
        if self.url == "memory://" and self._left_behind is not None:
            raise Unavailable(
                "the jobs of a store in memory are in the process that this one was forked from:"
                " use sqlite:///path or a server to share them"
            )
        store = await self._opener()
        if self.url == "memory://":
            return _Reached(store, asyncio.get_running_loop())
        return store

    async def aclose(self) -> None:
        """Close the store. The next use opens it again. Raises Conflict while a worker runs here."""
        self._may_close()
        ending = self._end()
        if ending is not None:
            thread, closed = ending
            await asyncio.shield(asyncio.wrap_future(closed))
            thread.join()  # which has nothing left to do

    def close(self) -> None:
        self._may_close()
        self.may_block("close()", "aclose()")
        self._close(None)

    @contextmanager
    def worked(self) -> Iterator[None]:
        """While this lasts it stays open: handlers have the app at hand that their worker lives by.
        The end of the process closes it all the same."""
        self._workers += 1
        try:
            yield
        finally:
            self._workers -= 1

    def _may_close(self) -> None:
        if self._workers:
            raise Conflict("a worker runs this app, which stays open until that ends")

    def _close(self, timeout: float | None) -> None:
        ending = self._end()
        if ending is not None:
            thread, closed = ending
            closed.result(timeout)
            thread.join(timeout)

    def _end(self) -> "tuple[_Thread, Future[None]] | None":
        with self._lock:
            thread, opened = self._thread, self._opened
            self._thread = self._opened = self.ready = None
            self._visits = {}
            _open.discard(self)
            if thread is None:
                return None
            return thread, asyncio.run_coroutine_threadsafe(_closed(opened), thread.loop)

    def _forked(self) -> None:
        """In the child: whatever was open is the parent's. Letting go of it would touch its loop,
        and whoever held the lock is not here."""
        self._lock = threading.Lock()
        self._workers = 0
        if self._opened is not None or self._thread is not None:
            self._left_behind = (self._left_behind, self._thread, self._opened, self._visits)
            self._thread = self._opened = self.ready = None
            self._visits = {}


_homes: Final["weakref.WeakSet[Home]"] = weakref.WeakSet()
_open: Final[set[Home]] = (
    set()
)  # kept until they are closed, at the end of the process if not before


def _after_fork() -> None:
    _open.clear()
    for home in list(_homes):
        home._forked()


def _at_exit() -> None:
    for home in list(_open):
        with suppress(Exception):
            home._close(CLOSE_S)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)


def _failed(opened: "Future[Store]") -> bool:
    return opened.done() and (opened.cancelled() or opened.exception() is not None)


class _Thread(threading.Thread):
    """Runs a loop until it is stopped."""

    def __init__(self) -> None:
        super().__init__(name="penstock-home", daemon=True)
        occupy_standard()
        self.loop = uvloop.new_event_loop()
        self.start()

    def run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()


async def _closed(opened: "Future[Store] | None") -> None:
    if opened is not None:
        # One that could not be opened needs no closing.
        with suppress(Exception, asyncio.CancelledError):
            store = await asyncio.wrap_future(opened)
            await store.close()
    # Whoever still waits for something here waits in vain.
    loop = asyncio.get_running_loop()
    others = asyncio.all_tasks(loop) - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await loop.shutdown_default_executor()  # a store reads its files there
    loop.call_soon(loop.call_soon, loop.stop)  # behind the answer to whoever waits for this


async def _visit(
    visits: dict[asyncio.AbstractEventLoop, AsyncIterator[None]],
    loop: asyncio.AbstractEventLoop,
    store: Store,
) -> AsyncIterator[None]:
    leave = getattr(store, "leave", None)  # of those that have something for every loop
    try:
        yield
    finally:
        visits.pop(loop, None)
        if leave is not None:
            await leave()
            for _ in range(LAST_TURNS):
                await asyncio.sleep(0)


class _Reached(Wrapper):
    """A store of another thread: calls are made there, and their answers come back here."""

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        self._inner = store
        self.there = loop

    @property
    def inner(self) -> Store:
        return self._inner

    def _made(self, name: str, call: Call[T]) -> Call[T]:
        return self.hop(call)

    async def hop(self, call: Call[T]) -> T:
        if asyncio.get_running_loop() is self.there:
            return await call
        try:
            future = asyncio.run_coroutine_threadsafe(call, self.there)
        except RuntimeError:  # its loop has ended
            call.close()
            raise Unavailable("the store is closed") from None
        return await asyncio.wrap_future(future)

    def watch(
        self,
        tenant: str,
        *,
        queues: Sequence[str] | None = None,
        kinds: Sequence[EventKind] | None = None,
    ) -> AsyncIterator[Event]:
        return _Events(self, lambda: self._inner.watch(tenant, queues=queues, kinds=kinds))

    async def close(self) -> None:
        await self.hop(self._inner.close())


class _Events(AsyncIterator[Event]):
    """Events of a store of another thread, from the instant at which they were asked for."""

    def __init__(self, store: _Reached, watch: Callable[[], AsyncIterator[Event]]) -> None:
        self._hop = store.hop
        self._events: Future[AsyncIterator[Event]] = Future()
        # Behind what was said before this, and ahead of whatever is said next.
        store.there.call_soon_threadsafe(lambda: self._events.set_result(watch()))

    async def __anext__(self) -> Event:
        return await self._hop(self._next())

    async def aclose(self) -> None:
        await self._hop(self._close())

    # On the other thread.

    async def _next(self) -> Event:
        events: AsyncIterator[Event] = await asyncio.wrap_future(self._events)
        return await anext(events)

    async def _close(self) -> None:
        events: Any = await asyncio.wrap_future(self._events)
        await events.aclose()
