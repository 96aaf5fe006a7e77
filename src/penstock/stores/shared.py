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
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from penstock.model.errors import Unavailable
from penstock.model.store import Store
from penstock.model.wrapper import Wrapper
from penstock.protocol.access import OpenToAll
from penstock.protocol.native import NATIVE
from penstock.stores.journal.ownership import Owned
from penstock.stores.link import Target
from penstock.stores.remote import RemoteStore
from penstock.stores.serving import Listener
from penstock.stores.unix import short

log: Final = logging.getLogger("penstock.store")

PATIENCE_S: Final = 60.0  # for an owner that recovers a large store
RETRY_S: Final = 0.05


class SharedStore(Wrapper):
    def __init__(self, path: Path, own: Callable[[], Awaitable[Store]]) -> None:
        self._own = own  # opens the store, or raises Owned
        self._address = short(path.with_name(path.name + ".sock"))
        self._remote = RemoteStore(
            Target(path=self._address), patience_s=PATIENCE_S, before=self._take_over, keep=True
        )
        self._home: tuple[int, asyncio.AbstractEventLoop] | None = None  # while we own the path
        self._stores: list[Store] = []  # ours is the last; others are our parents', kept untouched
        self._listener: Listener | None = None
        self._changed: asyncio.Future[None] | None = None  # of whoever waits to own the path
        self._taking = False
        self._closed = False

    async def open(self) -> None:
        """Own the path, or be connected to whoever does."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_S
        await self._take_over()
        while not self.owned:
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
            self._changed = asyncio.get_running_loop().create_future()
            await self._changed

    @property
    def owned(self) -> bool:
        """Whether the path is this process's and the store this loop's."""
        return self._home == (os.getpid(), asyncio.get_running_loop())

    @property
    def inner(self) -> Store:
        return self._stores[-1] if self.owned else self._remote

    # -- changing hands --------------------------------------------------------------------------

    async def _take_over(self) -> None:
        """Own the path if nobody does. Before each attempt to connect, so that whoever is left
        without an owner either finds the next one or becomes it."""
        ours = self._home is not None and self._home[0] == os.getpid()
        if ours or self._taking or self._closed:
            return
        self._taking = True
        try:
            store = await self._own()
            listener = Listener(store, NATIVE, OpenToAll())
            try:
                await listener.listen_unix(self._address, replace=True)
            except BaseException:
                await store.close()
                raise
            self._stores.append(store)
            self._listener = listener
            self._home = (os.getpid(), asyncio.get_running_loop())
            if self._changed is not None and not self._changed.done():
                self._changed.set_result(None)
        except Owned:
            return  # another one was faster
        finally:
            self._taking = False

    async def leave(self) -> None:
        """This loop, which does not own the store, needs it no more; others go on."""
        await self._remote.leave()

    async def close(self) -> None:
        """The last word of this process about the path: another one may own it afterwards."""
        self._closed = True
        await self._remote.close()
        if self.owned:
            assert self._listener is not None, "whoever owns the path listens"
            await self._listener.hand_over()
            await self._stores.pop().close()
            self._home = None
