"""One path, many processes: whoever owns the path serves the others; nobody configures anything.

A web process, a worker and the CLI open the same `sqlite:///jobs.db`. The first gets the lock,
recovers, and listens on `path.sock` for the others, which are its clients. When the owner ends or
dies, its clients notice by their connection; one of them gets the lock, recovers and serves, the
others connect to it. Calls in flight that are safe to repeat are repeated; a push never twice.

A store belongs to one loop of one process. Other threads of the owner, and processes forked from
it, are clients like everybody else.
"""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import msgspec

from penstock.model.answers import Health
from penstock.model.duration import about_ms
from penstock.model.errors import Unavailable
from penstock.model.job import JobOptions
from penstock.model.store import UNNUMBERED, Number, Store
from penstock.model.wrapper import Call, Wrapper
from penstock.protocol.access import OpenToAll
from penstock.protocol.native import NATIVE
from penstock.protocol.native_own import OWNING
from penstock.stores.embedded import EmbeddedStore
from penstock.stores.finishing import finished
from penstock.stores.journal.ownership import Owned
from penstock.stores.remote import RemoteStore
from penstock.stores.serving import Listener
from penstock.stores.target import Target
from penstock.stores.unix import short

log: Final = logging.getLogger("penstock.store")

PATIENCE_S: Final = 60.0  # for an owner that recovers a large store
RETRY_S: Final = 0.05
RESTS: Final = 10  # times as long as an attempt that failed we wait for the next one


class Tenure:
    """What owning the path consists of: the store, and a listener for everybody else.

    It ends when it is told to, or with its loop: `asyncio.run` cancels whatever is left when it
    returns, and the path is handed over then as well, though nobody closed the store.
    """

    def __init__(
        self, store: EmbeddedStore, listener: Listener, leave: Callable[[], Awaitable[None]]
    ) -> None:
        self.store = store
        self.pid = os.getpid()
        self.loop = asyncio.get_running_loop()
        self._listener = listener
        self._leave = leave  # the loop's connection to itself is not to be made again
        self._over = asyncio.Event()
        self._task = self.loop.create_task(self._last())
        _living.add(self)  # also if nobody has the store any more

    @property
    def lives(self) -> bool:
        return not self._task.done() and not self.loop.is_closed()

    async def _last(self) -> None:
        try:
            await self._over.wait()
        except asyncio.CancelledError:
            if self.pid == os.getpid():
                await self._hand_over()
            raise
        # Not in a `finally`: a task whose loop is gone is closed by whoever collects the garbage,
        # in the midst of another loop.
        await self._hand_over()

    async def _hand_over(self) -> None:
        try:
            await self._leave()
            await self._listener.hand_over()
        finally:
            await self.store.close()
            _living.discard(self)

    async def end(self) -> None:
        """Hand the path over, from whichever loop. Whoever is cancelled meanwhile only stops
        waiting for it."""
        if self.loop is asyncio.get_running_loop():
            self._over.set()
            await asyncio.wait([self._task])
            if not self._task.cancelled():
                self._task.result()
        elif self.loop.is_running():
            ending = asyncio.run_coroutine_threadsafe(self.end(), self.loop)
            await asyncio.wrap_future(ending)
        else:
            self.abandon()

    def abandon(self) -> None:
        """Free the path of a loop that runs no more."""
        _living.discard(self)
        self.store.abandon()


_living: Final[set[Tenure]] = set()


class SharedStore(Wrapper):
    def __init__(self, path: Path, own: Callable[[], Awaitable[EmbeddedStore]]) -> None:
        self._path = path
        self._own = own  # opens the store, or raises Owned
        self._address = short(path.with_name(path.name + ".sock"))
        self._remote = RemoteStore(
            Target(path=self._address), patience_s=PATIENCE_S, before=self._take_over, keep=True
        )
        self._tenure: Tenure | None = None  # ours, or of the process that we were forked from
        self._owner: Owned | None = None  # what we were last told about somebody else's
        self._waiting: list[asyncio.Future[None]] = []  # to own the path
        self._taking = 0  # the process that is about to
        self._failed: Unavailable | None = None  # why it could not, when it last tried
        self._not_before = 0.0  # when it may try again
        self._opened = False
        self._closed = False

    async def open(self) -> None:
        """Own the path, or be connected to whoever does."""
        try:
            await self._open()
            self._opened = True
        except BaseException:
            await finished(self.close())  # nobody else will
            raise

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_S
        while True:
            await self._take_over()
            if self.owned:
                return
            try:
                await self._remote.connect()
            except Unavailable:
                if loop.time() >= deadline:
                    raise
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def changed_hands(self) -> None:
        """Wait until this loop owns the store, if it does not."""
        while not self.owned:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            try:
                await future
            finally:
                self._waiting.remove(future)

    @property
    def owned(self) -> bool:
        """Whether the path is this process's and the store this loop's."""
        tenure = self._tenure
        return (
            tenure is not None
            and tenure.loop is asyncio.get_running_loop()
            and tenure.pid == os.getpid()
        )

    @property
    def inner(self) -> Store:
        tenure = self._tenure
        return tenure.store if tenure is not None and self.owned else self._remote

    def push_one(
        self,
        tenant: str,
        queue: str,
        payload: bytes,
        options: tuple[JobOptions, ...],
        number: Number = UNNUMBERED,
    ) -> Call[int]:
        return self.inner.push_one(tenant, queue, payload, options, number)

    async def health(self) -> Health:
        role = "owner" if self.owned else "client"
        health = await self.inner.health()
        return msgspec.structs.replace(health, detail={**health.detail, "role": role})

    async def backup(self, directory: str | Path, keep: int = 0) -> Path:
        """A compressed copy of the present state, taken by the owner while it serves; answers its
        path. Of those in the directory the newest `keep` stay; 0: all."""
        where = _from_anywhere(directory)
        tenure = self._tenure
        if tenure is not None and self.owned:
            return await tenure.store.backup(where, keep)
        return await self._remote.backup(where, keep)

    # -- changing hands --------------------------------------------------------------------------

    async def _take_over(self) -> str:
        """Own the path if nobody does. Before each attempt to connect, so that whoever is left
        without an owner either finds the next one or becomes it. Answers who owns it otherwise."""
        pid = os.getpid()
        tenure = self._tenure
        if tenure is not None and tenure.pid == pid:
            if tenure.lives:
                return ""
            tenure.abandon()
            self._tenure = None
        if self._closed or self._taking == pid:
            return ""
        began = time.monotonic()
        if self._failed is not None and began < self._not_before:
            raise self._failed
        self._taking = pid
        try:
            await self._begin(await self._own())
        except Owned as error:
            self._owner = error  # was faster
            return error.message
        except (Unavailable, OSError) as error:
            raise self._fail(error, time.monotonic() - began) from error
        finally:
            self._taking = 0
        self._failed = None
        if self._owner is not None:
            log.info(
                "%s: process %d took it over from process %d in %s",
                self._path,
                pid,
                self._owner.owner,
                about_ms((time.monotonic() - began) * 1_000),
            )
        return ""

    def _fail(self, error: Exception, took_s: float) -> Unavailable:
        """It could not be opened here. Perhaps another process can, or we can later: that may be
        found out as long as the process is not busy with nothing else."""
        why = str(error)
        # Whoever opens it is told by the error; later on there may be nobody to tell.
        if self._opened and (self._failed is None or str(self._failed) != why):
            log.warning("%s cannot be owned by process %d: %s", self._path, os.getpid(), why)
        self._failed = error if isinstance(error, Unavailable) else Unavailable(why)
        self._not_before = time.monotonic() + RESTS * took_s
        return self._failed

    async def _begin(self, store: EmbeddedStore) -> None:
        """The path is ours, and the store is open: serve the others."""
        listener = Listener(store, NATIVE + OWNING, OpenToAll(), backup=store.backup)

        async def undo() -> None:
            try:
                await listener.close()
            finally:
                await store.close()

        try:
            await listener.listen_unix(self._address, replace=True)
            if self._closed:  # meanwhile
                raise Unavailable("the store is closed")
        except BaseException:
            await finished(undo())
            raise
        tenure = self._tenure = Tenure(store, listener, self._remote.leave)
        for future in self._waiting:
            if future.get_loop() is tenure.loop and not future.done():
                future.set_result(None)

    async def leave(self) -> None:
        """This loop needs the store no more; others go on."""
        await self._remote.leave()
        if self.owned:
            await self._end()

    async def close(self) -> None:
        """The last word of this process about the path: another one may own it afterwards."""
        self._closed = True
        await self._remote.close()
        await self._end()

    async def _end(self) -> None:
        tenure = self._tenure
        if tenure is not None and tenure.pid == os.getpid():
            await tenure.end()
            self._tenure = None


def _from_anywhere(directory: str | Path) -> Path:
    """The same for an owner with another working directory."""
    return Path(directory).absolute()
