"""A listener in the loop of the test, over a store in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from penstock.kernel import read
from penstock.kernel.audit import findings
from penstock.model.lifecycle import State
from penstock.protocol.access import OpenToAll
from penstock.server.tcp import COMMANDS
from penstock.stores.clock import Clock, ManualClock, SystemClock
from penstock.stores.connection import Connection
from penstock.stores.embedded import EmbeddedStore
from penstock.stores.serving import Listener, ServingLimits
from penstock.telemetry.meter import Meter
from penstock.telemetry.store import Telemetry
from tests.server.hostile.wire import PATIENCE_S, Address, Client


class Counting(Listener):
    """A listener that knows how many connections have ended."""

    ended = 0

    def forget(self, connection: Connection) -> None:
        super().forget(connection)
        self.ended += 1


class Served:
    """The listener, its store, a good client, and whatever nobody caught."""

    address: Address
    good: Client

    def __init__(self, store: EmbeddedStore, clock: Clock, listener: Counting) -> None:
        self.store = store
        self.clock = clock
        self.listener = listener
        self.unhandled: list[dict[str, Any]] = []

    async def check(self) -> None:
        """Somebody else is served as ever, everybody before is gone, and nothing is broken."""
        good = self.good
        pushed = await good.say("PUSHRUN", tenant="good", queue="q", payloads=[b"1", b"2"])
        claimed = await good.say("CLAIM", tenant="good", queues=["q"], n=5)
        (run,) = claimed["runs"]
        assert (run["first"], run["span"], run["data"]) == (pushed["first"], 2, b"12")
        await good.say("COMPLETE", tenant="good", lease=claimed["lease"])
        await self.connections_are(1)
        assert list(findings(self.store.engine.kernel)) == []
        assert self.unhandled == []

    async def connections_are(self, many: int) -> None:
        await until(lambda: len(self.listener) == many)

    async def claims_wait(self, many: int) -> None:
        """Until so many claims wait for a job."""
        await until(lambda: self.store.engine.waiting == many)

    def count(self, queue: str, state: State) -> int:
        (info,) = read.queues(self.store.engine.look(), "default", [queue])
        return info.counts[state]

    async def jobs_are(self, queue: str, state: State, many: int) -> None:
        await until(lambda: self.count(queue, state) == many)


async def until(holds: Callable[[], bool]) -> None:
    """Let everybody have their turns until that holds: there is nobody who would tell."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0)


@asynccontextmanager
async def serving(*, live: bool = True, **limits: Any) -> AsyncIterator[Served]:
    """Not `live`: time stands still."""
    meter = Meter()
    clock = SystemClock() if live else ManualClock()
    store = EmbeddedStore.in_memory(observer=meter, seed=1, clock=clock)
    listener = Counting(
        Telemetry(store, meter), COMMANDS, OpenToAll(), limits=ServingLimits(**limits)
    )
    server = Served(store, clock, listener)
    server.address = await listener.listen_tcp("127.0.0.1", 0)
    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: server.unhandled.append(context)
    )
    server.good = await Client.to(server.address)
    await server.good.say("HELLO")
    try:
        yield server
    finally:
        await server.good.close()
        await listener.close()
        await store.close()
