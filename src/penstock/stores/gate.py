"""The gate before a store that is served: it can be shut to claims while everything else goes on.

A server that stops hands out nothing new, lets workers finish what they hold, and only then ends.
All its transports share one gate, so that one word shuts them all.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from penstock.model.errors import PenstockError
from penstock.model.event import Event, EventKind
from penstock.model.job import Codec, Job, JobError, Lease, LogLine, Run
from penstock.model.lifecycle import State
from penstock.model.policy import BULK_DEADLINE_MS, Bounds, QueueConfig
from penstock.model.schedule import CronSpec
from penstock.model.store import (
    Ack,
    Acked,
    BulkInfo,
    CronInfo,
    Durability,
    Explanation,
    Extended,
    Failed,
    Health,
    Page,
    Pushed,
    QueueInfo,
    Redriven,
    Released,
    Result,
    Store,
)
from penstock.stores.eager import begin

LOOK_S: Final = 0.05  # how often we look whether anything is still active


class Gate(Store):
    def __init__(self, store: Store) -> None:
        self.inner = store
        self._shut = False
        self._waiting: set[asyncio.Task[Lease | None]] = set()
        self._claimed: set[tuple[str, str]] = set()  # (tenant, queue) that claims were served from

    def shut(self) -> None:
        """From now on claims find nothing, and those that wait are told so."""
        self._shut = True
        for task in self._waiting:
            task.cancel()

    async def idle(self, within_s: float) -> bool:
        """Wait until nothing is active in the queues that were claimed from here.

        That may include what others claimed from a store that they share with us. False if
        something still is when the time is up.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while await self._active():
            left = deadline - loop.time()
            if left <= 0:
                return False
            await asyncio.sleep(min(LOOK_S, left))
        return True

    async def _active(self) -> bool:
        queues: dict[str, list[str]] = {}
        for tenant, queue in self._claimed:
            queues.setdefault(tenant, []).append(queue)
        for tenant, names in queues.items():
            for info in await self.inner.queues(tenant, names):
                if info.counts[State.ACTIVE]:
                    return True
                self._claimed.discard((tenant, info.queue))
        return False

    async def claim(
        self,
        tenant: str,
        queues: Sequence[str],
        n: int = 1,
        *,
        lease_ms: int | None = None,
        worker: str = "",
        wait_ms: int = 0,
    ) -> Lease | None:
        if self._shut:
            return None
        call = self.inner.claim(
            tenant, queues, n, lease_ms=lease_ms, worker=worker, wait_ms=wait_ms
        )
        lease = await self._unless_shut(tenant, begin(call)) if wait_ms else await call
        if lease is not None:
            self._claimed.add((tenant, lease.queue))
        return lease

    async def _unless_shut(
        self, tenant: str, claim: "Lease | asyncio.Task[Lease | None] | None"
    ) -> Lease | None:
        if not isinstance(claim, asyncio.Task):
            return claim
        self._waiting.add(claim)
        try:
            return await claim
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is None or not caller.cancelling():
                return None
            if claim.done() and not claim.cancelled() and claim.exception() is None:
                lease = claim.result()
                if lease is not None:  # handed over to somebody who is gone
                    with suppress(PenstockError):
                        await self.inner.release(tenant, lease.token)
            raise
        finally:
            self._waiting.discard(claim)

    # -- everything else goes on -----------------------------------------------------------------

    async def push(
        self,
        tenant: str,
        runs: Sequence[Run],
        *,
        producer: str | None = None,
        sequence: int | None = None,
        bulk: str | None = None,
        part: str = "",
        durability: Durability | None = None,
    ) -> Pushed:
        return await self.inner.push(
            tenant,
            runs,
            producer=producer,
            sequence=sequence,
            bulk=bulk,
            part=part,
            durability=durability,
        )

    async def open_bulk(
        self, tenant: str, name: str | None = None, *, deadline_ms: int = BULK_DEADLINE_MS
    ) -> BulkInfo:
        return await self.inner.open_bulk(tenant, name, deadline_ms=deadline_ms)

    async def commit_bulk(
        self, tenant: str, bulk: str, parts: Sequence[str] | None = None
    ) -> BulkInfo:
        return await self.inner.commit_bulk(tenant, bulk, parts)

    async def abort_bulk(self, tenant: str, bulk: str) -> BulkInfo:
        return await self.inner.abort_bulk(tenant, bulk)

    async def ack(
        self,
        tenant: str,
        lease: str,
        ids: Iterable[int] | None = None,
        *,
        results: Ack | None = None,
        codec: Codec = "json",
    ) -> Acked:
        return await self.inner.ack(tenant, lease, ids, results=results, codec=codec)

    async def fail(
        self,
        tenant: str,
        lease: str,
        ids: Iterable[int] | None = None,
        *,
        error: JobError,
        retry_in_ms: int | None = None,
        dead: bool = False,
    ) -> Failed:
        return await self.inner.fail(
            tenant, lease, ids, error=error, retry_in_ms=retry_in_ms, dead=dead
        )

    async def release(self, tenant: str, lease: str, ids: Iterable[int] | None = None) -> Released:
        return await self.inner.release(tenant, lease, ids)

    async def extend(self, tenant: str, lease: str, lease_ms: int | None = None) -> Extended:
        return await self.inner.extend(tenant, lease, lease_ms)

    async def report(
        self,
        tenant: str,
        lease: str,
        job_id: int,
        *,
        progress: int | None = None,
        message: str | None = None,
        logs: Sequence[LogLine] = (),
        partial: bytes | None = None,
    ) -> None:
        await self.inner.report(
            tenant, lease, job_id, progress=progress, message=message, logs=logs, partial=partial
        )

    async def get(self, tenant: str, ids: Sequence[int]) -> list[Job | None]:
        return await self.inner.get(tenant, ids)

    async def find(self, tenant: str, queue: str, **how: Any) -> Page:
        return await self.inner.find(tenant, queue, **how)

    async def by_key(self, tenant: str, queue: str, key: str) -> int | None:
        return await self.inner.by_key(tenant, queue, key)

    async def result(self, tenant: str, job_id: int, *, wait_ms: int = 0) -> Result:
        return await self.inner.result(tenant, job_id, wait_ms=wait_ms)

    async def logs(self, tenant: str, job_id: int) -> list[LogLine]:
        return await self.inner.logs(tenant, job_id)

    async def explain(self, tenant: str, job_id: int) -> Explanation:
        return await self.inner.explain(tenant, job_id)

    def watch(
        self,
        tenant: str,
        *,
        queues: Sequence[str] | None = None,
        kinds: Sequence[EventKind] | None = None,
    ) -> AsyncIterator[Event]:
        return self.inner.watch(tenant, queues=queues, kinds=kinds)

    async def cancel(self, tenant: str, ids: Iterable[int], *, discard: bool = False) -> Acked:
        return await self.inner.cancel(tenant, ids, discard=discard)

    async def edit(self, tenant: str, job_id: int, **change: Any) -> None:
        await self.inner.edit(tenant, job_id, **change)

    async def redrive(self, tenant: str, queue: str, **which: Any) -> Redriven:
        return await self.inner.redrive(tenant, queue, **which)

    async def purge_dead(self, tenant: str, queue: str, *, ids: Iterable[int] | None = None) -> int:
        return await self.inner.purge_dead(tenant, queue, ids=ids)

    async def queues(self, tenant: str, names: Sequence[str] | None = None) -> list[QueueInfo]:
        return await self.inner.queues(tenant, names)

    async def configure(self, tenant: str, queue: str, config: QueueConfig) -> None:
        await self.inner.configure(tenant, queue, config)

    async def configure_tenant(self, tenant: str, bounds: Bounds) -> None:
        await self.inner.configure_tenant(tenant, bounds)

    async def drain(self, tenant: str, queue: str) -> int:
        return await self.inner.drain(tenant, queue)

    async def purge(self, tenant: str, queue: str) -> int:
        return await self.inner.purge(tenant, queue)

    async def put_cron(self, tenant: str, spec: CronSpec) -> CronInfo:
        return await self.inner.put_cron(tenant, spec)

    async def crons(self, tenant: str) -> list[CronInfo]:
        return await self.inner.crons(tenant)

    async def drop_cron(self, tenant: str, name: str) -> bool:
        return await self.inner.drop_cron(tenant, name)

    async def tick(self) -> None:
        await self.inner.tick()

    async def health(self) -> Health:
        return await self.inner.health()

    async def close(self) -> None:
        await self.inner.close()
