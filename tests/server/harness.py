"""A server on a free port of this machine, over a store in memory whose clock a test may move."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from penstock.model.errors import Unauthenticated
from penstock.model.lifecycle import State
from penstock.model.store import Store
from penstock.protocol.access import Grant, OpenToAll, Principal
from penstock.server.http import HttpLimits, HttpServer
from penstock.server.routes import ROUTES
from penstock.server.service import Service, Sources
from penstock.stores.clock import ManualClock, SystemClock
from penstock.stores.embedded import EmbeddedStore
from tests.server.client import Client


class Tokens:
    """An authenticator with a few tokens."""

    open_to_all = False

    def __init__(self, **tokens: Principal) -> None:
        self._tokens = tokens

    def authenticate(self, token: str) -> Principal:
        if token not in self._tokens:
            raise Unauthenticated("these credentials are not accepted")
        return self._tokens[token]


def principal(name: str, *scopes: str, tenant: str | None = "default") -> Principal:
    return Principal(name, tenant, tuple(map(Grant.of, scopes)))


class Running:
    """The server, its store and its clock."""

    def __init__(self, server: HttpServer, store: Store, clock: ManualClock | SystemClock) -> None:
        self.server = server
        self.store = store
        self.clock = clock
        self.address = server.address

    async def client(self, token: str | None = None) -> Client:
        return await Client.to(self.address, token)

    async def claims_wait(self, many: int) -> None:
        """Until so many claims wait for a job."""
        while (await self.store.health()).detail["waiting_claims"] != many:  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def jobs_are(self, state: State, many: int) -> None:
        """Until so many jobs of the queue `q` are in that state."""
        while await self.count(state) != many:  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def count(self, state: State) -> int:
        (info,) = await self.store.queues("default", ["q"])
        return info.counts[state]

    async def connections_are(self, many: int) -> None:
        while self.server.connections != many:  # noqa: ASYNC110 - nobody would tell
            await asyncio.sleep(0)

    async def kept(self, size: int) -> None:
        """Until the server holds so many bytes of bodies."""
        while self.server.kept != size:  # noqa: ASYNC110 - nobody would tell
            await asyncio.sleep(0)

    async def advance(self, ms: int) -> None:
        assert isinstance(self.clock, ManualClock)
        self.clock.advance(ms)
        await self.store.tick()


@asynccontextmanager
async def running(
    *,
    tokens: Mapping[str, Principal] | None = None,
    live: bool = False,
    limits: HttpLimits | None = None,
    store: Store | None = None,
    heartbeat_s: float = 15.0,
    idle: Callable[[float], Awaitable[object]] | None = None,
    **sources: Any,
) -> AsyncIterator[Running]:
    """`live` is on the machine's clock; otherwise time stands still until the test moves it."""
    clock = SystemClock() if live else ManualClock()
    store = store or EmbeddedStore.in_memory(clock=clock, seed=1)
    service = Service(
        store,
        ROUTES,
        authenticator=OpenToAll() if tokens is None else Tokens(**tokens),
        sources=Sources(**sources),
        heartbeat_s=heartbeat_s,
    )
    server = HttpServer(service, port=0, limits=limits, idle=idle)
    await server.start()
    up = Running(server, store, clock)
    try:
        yield up
    finally:
        await server.stop(0)
        await store.close()


@asynccontextmanager
async def asking(**options: Any) -> AsyncIterator[tuple[Running, Client]]:
    """A server and one connection to it."""
    async with running(**options) as up, await up.client() as client:
        yield up, client
