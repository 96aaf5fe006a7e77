"""`Telemetry`: a Store around a Store that times and counts every call, and changes nothing.

Each method makes the inner call and hands it to `_timed`; a coroutine in a coroutine is all that a
call costs more. What happened to jobs is counted by the `Meter`, by range: a call's answer does
not tell it (a repeated push adds nothing, a lease expires without a call).
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterable, Sequence
from time import perf_counter
from typing import Any, Final, TypeVar

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
from penstock.protocol.command import Figures
from penstock.telemetry.meter import Histogram, Meter

T = TypeVar("T")
Call = Coroutine[Any, Any, T]

# Upper ends, in seconds: a call into memory takes microseconds, one that waits for a disk longer.
CALL_BUCKETS_S: Final[tuple[float, ...]] = (
    *(0.00001, 0.00003, 0.0001, 0.0003),
    *(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
)
WAITING: Final = "_waiting"  # behind the name of a call that may wait for work: timed by itself
UNEXPECTED: Final = "internal"  # the code of an error that is none of ours


class Operation:
    """The calls of one method."""

    __slots__ = ("errors", "took")

    def __init__(self) -> None:
        self.took = Histogram(CALL_BUCKETS_S)
        self.errors: defaultdict[str, int] = defaultdict(int)  # by code


class Telemetry(Store):
    def __init__(self, store: Store, meter: Meter) -> None:
        self.inner = store
        self.meter = meter
        self.operations: defaultdict[str, Operation] = defaultdict(Operation)

    def figures(self, tenant: str) -> Figures:
        return self.meter.figures(tenant)

    def errors(self, code: str) -> int:
        """How many calls were refused with that code."""
        return sum(operation.errors[code] for operation in self.operations.values())

    async def _timed(self, name: str, call: Awaitable[T]) -> T:
        operation = self.operations[name]
        began = perf_counter()
        try:
            return await call
        except PenstockError as error:
            operation.errors[error.code] += 1
            raise
        except Exception:
            operation.errors[UNEXPECTED] += 1
            raise
        finally:
            operation.took.add(perf_counter() - began)

    # -- producing -------------------------------------------------------------------------------

    def push(
        self,
        tenant: str,
        runs: Sequence[Run],
        *,
        producer: str | None = None,
        sequence: int | None = None,
        bulk: str | None = None,
        part: str = "",
        durability: Durability | None = None,
    ) -> Call[Pushed]:
        call = self.inner.push(
            tenant,
            runs,
            producer=producer,
            sequence=sequence,
            bulk=bulk,
            part=part,
            durability=durability,
        )
        return self._timed("push", call)

    def open_bulk(
        self, tenant: str, name: str | None = None, *, deadline_ms: int = BULK_DEADLINE_MS
    ) -> Call[BulkInfo]:
        call = self.inner.open_bulk(tenant, name, deadline_ms=deadline_ms)
        return self._timed("open_bulk", call)

    def commit_bulk(
        self, tenant: str, bulk: str, parts: Sequence[str] | None = None
    ) -> Call[BulkInfo]:
        return self._timed("commit_bulk", self.inner.commit_bulk(tenant, bulk, parts))

    def abort_bulk(self, tenant: str, bulk: str) -> Call[BulkInfo]:
        return self._timed("abort_bulk", self.inner.abort_bulk(tenant, bulk))

    # -- working ---------------------------------------------------------------------------------

    def claim(
        self,
        tenant: str,
        queues: Sequence[str],
        n: int = 1,
        *,
        lease_ms: int | None = None,
        worker: str = "",
        wait_ms: int = 0,
    ) -> Call[Lease | None]:
        call = self.inner.claim(
            tenant, queues, n, lease_ms=lease_ms, worker=worker, wait_ms=wait_ms
        )
        return self._timed("claim" + WAITING if wait_ms else "claim", call)

    def ack(
        self,
        tenant: str,
        lease: str,
        ids: Iterable[int] | None = None,
        *,
        results: Ack | None = None,
        codec: Codec = "json",
    ) -> Call[Acked]:
        call = self.inner.ack(tenant, lease, ids, results=results, codec=codec)
        return self._timed("ack", call)

    def fail(
        self,
        tenant: str,
        lease: str,
        ids: Iterable[int] | None = None,
        *,
        error: JobError,
        retry_in_ms: int | None = None,
        dead: bool = False,
    ) -> Call[Failed]:
        call = self.inner.fail(tenant, lease, ids, error=error, retry_in_ms=retry_in_ms, dead=dead)
        return self._timed("fail", call)

    def release(self, tenant: str, lease: str, ids: Iterable[int] | None = None) -> Call[Released]:
        return self._timed("release", self.inner.release(tenant, lease, ids))

    def extend(self, tenant: str, lease: str, lease_ms: int | None = None) -> Call[Extended]:
        return self._timed("extend", self.inner.extend(tenant, lease, lease_ms))

    def report(
        self,
        tenant: str,
        lease: str,
        job_id: int,
        *,
        progress: int | None = None,
        message: str | None = None,
        logs: Sequence[LogLine] = (),
        partial: bytes | None = None,
    ) -> Call[None]:
        call = self.inner.report(
            tenant, lease, job_id, progress=progress, message=message, logs=logs, partial=partial
        )
        return self._timed("report", call)

    # -- looking ---------------------------------------------------------------------------------

    def get(self, tenant: str, ids: Sequence[int]) -> Call[list[Job | None]]:
        return self._timed("get", self.inner.get(tenant, ids))

    def find(
        self,
        tenant: str,
        queue: str,
        *,
        state: State | None = None,
        task: str | None = None,
        tag: str | None = None,
        cursor: int = 0,
        limit: int = 100,
    ) -> Call[Page]:
        call = self.inner.find(
            tenant, queue, state=state, task=task, tag=tag, cursor=cursor, limit=limit
        )
        return self._timed("find", call)

    def by_key(self, tenant: str, queue: str, key: str) -> Call[int | None]:
        return self._timed("by_key", self.inner.by_key(tenant, queue, key))

    def result(self, tenant: str, job_id: int, *, wait_ms: int = 0) -> Call[Result]:
        call = self.inner.result(tenant, job_id, wait_ms=wait_ms)
        return self._timed("result" + WAITING if wait_ms else "result", call)

    def logs(self, tenant: str, job_id: int) -> Call[list[LogLine]]:
        return self._timed("logs", self.inner.logs(tenant, job_id))

    def explain(self, tenant: str, job_id: int) -> Call[Explanation]:
        return self._timed("explain", self.inner.explain(tenant, job_id))

    def watch(
        self,
        tenant: str,
        *,
        queues: Sequence[str] | None = None,
        kinds: Sequence[EventKind] | None = None,
    ) -> AsyncIterator[Event]:
        """Not timed: it lasts as long as somebody listens."""
        return self.inner.watch(tenant, queues=queues, kinds=kinds)

    # -- changing --------------------------------------------------------------------------------

    def cancel(self, tenant: str, ids: Iterable[int], *, discard: bool = False) -> Call[Acked]:
        return self._timed("cancel", self.inner.cancel(tenant, ids, discard=discard))

    def edit(
        self,
        tenant: str,
        job_id: int,
        *,
        priority: int | None = None,
        run_at: int | None = None,
        delay_ms: int | None = None,
        payload: bytes | None = None,
        codec: Codec | None = None,
    ) -> Call[None]:
        call = self.inner.edit(
            tenant,
            job_id,
            priority=priority,
            run_at=run_at,
            delay_ms=delay_ms,
            payload=payload,
            codec=codec,
        )
        return self._timed("edit", call)

    def redrive(
        self,
        tenant: str,
        queue: str,
        *,
        ids: Iterable[int] | None = None,
        limit: int | None = None,
        fingerprint: str | None = None,
    ) -> Call[Redriven]:
        call = self.inner.redrive(tenant, queue, ids=ids, limit=limit, fingerprint=fingerprint)
        return self._timed("redrive", call)

    def purge_dead(self, tenant: str, queue: str, *, ids: Iterable[int] | None = None) -> Call[int]:
        return self._timed("purge_dead", self.inner.purge_dead(tenant, queue, ids=ids))

    # -- queues ----------------------------------------------------------------------------------

    def queues(self, tenant: str, names: Sequence[str] | None = None) -> Call[list[QueueInfo]]:
        return self._timed("queues", self.inner.queues(tenant, names))

    def configure(self, tenant: str, queue: str, config: QueueConfig) -> Call[None]:
        return self._timed("configure", self.inner.configure(tenant, queue, config))

    def configure_tenant(self, tenant: str, bounds: Bounds) -> Call[None]:
        return self._timed("configure_tenant", self.inner.configure_tenant(tenant, bounds))

    def drain(self, tenant: str, queue: str) -> Call[int]:
        return self._timed("drain", self.inner.drain(tenant, queue))

    def purge(self, tenant: str, queue: str) -> Call[int]:
        return self._timed("purge", self.inner.purge(tenant, queue))

    # -- schedules -------------------------------------------------------------------------------

    def put_cron(self, tenant: str, spec: CronSpec) -> Call[CronInfo]:
        return self._timed("put_cron", self.inner.put_cron(tenant, spec))

    def crons(self, tenant: str) -> Call[list[CronInfo]]:
        return self._timed("crons", self.inner.crons(tenant))

    def drop_cron(self, tenant: str, name: str) -> Call[bool]:
        return self._timed("drop_cron", self.inner.drop_cron(tenant, name))

    # -- time and life ---------------------------------------------------------------------------

    def tick(self) -> Call[None]:
        return self._timed("tick", self.inner.tick())

    def health(self) -> Call[Health]:
        return self._timed("health", self.inner.health())

    def close(self) -> Call[None]:
        """Not timed: nobody looks any more."""
        return self.inner.close()
