"""A server in a thread of its own, for clients that block."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from penstock.model.answers import CronInfo, Result
from penstock.model.checks import MAX_WAIT_MS
from penstock.model.event import Event, EventKind
from penstock.model.job import Lease
from penstock.model.policy import MINUTE_MS
from penstock.model.schedule import CronSpec, Every
from penstock.stores.embedded import EmbeddedStore
from tests.server.harness import running


class Impatient(EmbeddedStore):
    """A store in which no wait takes longer than a moment, events end at once, and no cron fires
    a thousand times a second: for clients that try whatever is allowed."""

    async def put_cron(self, tenant: str, spec: CronSpec, *, refresh: bool = False) -> CronInfo:
        if isinstance(spec.schedule, Every) and 0 < spec.schedule.every_ms < MINUTE_MS:
            spec = msgspec.structs.replace(spec, schedule=Every(every_ms=MINUTE_MS))
        return await super().put_cron(tenant, spec, refresh=refresh)

    async def claim(self, *args: Any, wait_ms: int = 0, **options: Any) -> Lease | None:
        return await super().claim(*args, wait_ms=_brief(wait_ms), **options)

    async def result(self, tenant: str, job_id: int, *, wait_ms: int = 0) -> Result:
        return await super().result(tenant, job_id, wait_ms=_brief(wait_ms))

    def watch(
        self,
        tenant: str,
        *,
        queues: Sequence[str] | None = None,
        kinds: Sequence[EventKind] | None = None,
    ) -> AsyncIterator[Event]:
        return _nothing()


async def _nothing() -> AsyncIterator[Event]:
    return
    yield


def _brief(wait_ms: int) -> int:
    return min(wait_ms, 5) if 0 <= wait_ms <= MAX_WAIT_MS else wait_ms


@contextmanager
def served(**options: Any) -> Iterator[str]:
    """The base url of a server that runs until the end of the block."""
    started = threading.Event()
    said: dict[str, Any] = {}

    async def serve() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        async with running(live=True, **options) as up:
            said.update(
                url=f"http://{up.address[0]}:{up.address[1]}",
                stop=lambda: loop.call_soon_threadsafe(stop.set),
            )
            started.set()
            await stop.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        finally:
            started.set()

    thread = threading.Thread(target=run, name="server")
    thread.start()
    started.wait()
    try:
        yield said["url"]
    finally:
        said["stop"]()
        thread.join()
