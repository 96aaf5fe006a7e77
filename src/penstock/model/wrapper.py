"""A Store around a Store: everything goes on to the inner one.

Whoever adds something to a store (telemetry, a gate, a path that changes hands) extends this and
says what is different. `_made` is given every call but `watch` and `close`; a coroutine in a
coroutine is all that a wrapper costs more, and nothing where `_made` is left as it is.
"""

from abc import abstractmethod
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from typing import Any, Final, TypeVar

from penstock.model.answers import (
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
    PushedInstead,
    QueueInfo,
    Redriven,
    Released,
    Result,
    Standing,
    WaitingClaims,
)
from penstock.model.event import Event, EventKind
from penstock.model.job import Codec, Job, JobError, Lease, LogLine, Run
from penstock.model.lifecycle import State
from penstock.model.policy import BULK_DEADLINE_MS, Bounds, QueueConfig
from penstock.model.schedule import CronSpec
from penstock.model.store import Ack, Store

T = TypeVar("T")
Call = Coroutine[Any, Any, T]

WAITING: Final = "_waiting"  # behind the name of a call that may wait for work
# Calls that are made for every job: worth a shortcut.
FREQUENT: Final = ("push", "ack", "fail", "release", "extend")
# As well; a wrapper that leaves them as they are sees a push.
PUSH_ONE: Final = "push_one"
PUSHER: Final = "pusher"


class Wrapper(Store):
    @property
    @abstractmethod
    def inner(self) -> Store:
        """Where calls go."""

    @property
    def failed(self) -> str | None:
        return self.inner.failed

    @property
    def owned(self) -> bool:
        return self.inner.owned

    def _made(self, name: str, call: Call[T]) -> Call[T]:
        """The call that this method's caller gets in the place of the inner one."""
        return call

    # -- producing -------------------------------------------------------------------------------

    def push(
        self,
        tenant: str,
        runs: Sequence[Run],
        *,
        producer: str | None = None,
        sequence: int | None = None,
        content: bytes | None = None,
        bulk: str | None = None,
        part: str = "",
        durability: Durability | None = None,
    ) -> Call[Pushed]:
        call = self.inner.push(
            tenant,
            runs,
            producer=producer,
            sequence=sequence,
            content=content,
            bulk=bulk,
            part=part,
            durability=durability,
        )
        return self._made("push", call)

    def open_bulk(
        self, tenant: str, name: str | None = None, *, deadline_ms: int = BULK_DEADLINE_MS
    ) -> Call[BulkInfo]:
        call = self.inner.open_bulk(tenant, name, deadline_ms=deadline_ms)
        return self._made("open_bulk", call)

    def commit_bulk(
        self, tenant: str, bulk: str, parts: Sequence[str] | None = None
    ) -> Call[BulkInfo]:
        return self._made("commit_bulk", self.inner.commit_bulk(tenant, bulk, parts))

    def abort_bulk(self, tenant: str, bulk: str) -> Call[BulkInfo]:
        return self._made("abort_bulk", self.inner.abort_bulk(tenant, bulk))

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
        return self._made("claim" if not wait_ms else "claim" + WAITING, call)

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
        return self._made("ack", call)

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
        return self._made("fail", call)

    def release(self, tenant: str, lease: str, ids: Iterable[int] | None = None) -> Call[Released]:
        return self._made("release", self.inner.release(tenant, lease, ids))

    def extend(self, tenant: str, lease: str, lease_ms: int | None = None) -> Call[Extended]:
        return self._made("extend", self.inner.extend(tenant, lease, lease_ms))

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
        return self._made("report", call)

    # -- looking ---------------------------------------------------------------------------------

    def get(self, tenant: str, ids: Sequence[int]) -> Call[list[Job | None]]:
        return self._made("get", self.inner.get(tenant, ids))

    def standing(self, tenant: str, ids: Sequence[int]) -> Call[list[Standing | None]]:
        return self._made("standing", self.inner.standing(tenant, ids))

    def reach(
        self, tenant: str, *, lease: str | None = None, bulk: str | None = None
    ) -> Call[frozenset[str]]:
        return self._made("reach", self.inner.reach(tenant, lease=lease, bulk=bulk))

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
        newest: bool = False,
    ) -> Call[Page]:
        call = self.inner.find(
            tenant,
            queue,
            state=state,
            task=task,
            tag=tag,
            cursor=cursor,
            limit=limit,
            newest=newest,
        )
        return self._made("find", call)

    def by_key(self, tenant: str, queue: str, key: str) -> Call[int | None]:
        return self._made("by_key", self.inner.by_key(tenant, queue, key))

    def result(self, tenant: str, job_id: int, *, wait_ms: int = 0) -> Call[Result]:
        call = self.inner.result(tenant, job_id, wait_ms=wait_ms)
        return self._made("result" if not wait_ms else "result" + WAITING, call)

    def logs(self, tenant: str, job_id: int) -> Call[list[LogLine]]:
        return self._made("logs", self.inner.logs(tenant, job_id))

    def explain(self, tenant: str, job_id: int) -> Call[Explanation]:
        return self._made("explain", self.inner.explain(tenant, job_id))

    def waiting(self, tenant: str, *, limit: int = 1_000) -> Call[WaitingClaims]:
        return self._made("waiting", self.inner.waiting(tenant, limit=limit))

    def watch(
        self,
        tenant: str,
        *,
        queues: Sequence[str] | None = None,
        kinds: Sequence[EventKind] | None = None,
    ) -> AsyncIterator[Event]:
        return self.inner.watch(tenant, queues=queues, kinds=kinds)

    # -- changing --------------------------------------------------------------------------------

    def cancel(self, tenant: str, ids: Iterable[int], *, discard: bool = False) -> Call[Acked]:
        return self._made("cancel", self.inner.cancel(tenant, ids, discard=discard))

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
        return self._made("edit", call)

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
        return self._made("redrive", call)

    def purge_dead(self, tenant: str, queue: str, *, ids: Iterable[int] | None = None) -> Call[int]:
        return self._made("purge_dead", self.inner.purge_dead(tenant, queue, ids=ids))

    # -- queues ----------------------------------------------------------------------------------

    def queues(self, tenant: str, names: Sequence[str] | None = None) -> Call[list[QueueInfo]]:
        return self._made("queues", self.inner.queues(tenant, names))

    def configure(self, tenant: str, queue: str, config: QueueConfig) -> Call[None]:
        return self._made("configure", self.inner.configure(tenant, queue, config))

    def configure_tenant(self, tenant: str, bounds: Bounds) -> Call[None]:
        return self._made("configure_tenant", self.inner.configure_tenant(tenant, bounds))

    def drain(self, tenant: str, queue: str) -> Call[int]:
        return self._made("drain", self.inner.drain(tenant, queue))

    def clean(
        self,
        tenant: str,
        queue: str,
        state: State,
        *,
        older_ms: int = 0,
        limit: int | None = None,
    ) -> Call[int]:
        call = self.inner.clean(tenant, queue, state, older_ms=older_ms, limit=limit)
        return self._made("clean", call)

    def purge(self, tenant: str, queue: str) -> Call[int]:
        return self._made("purge", self.inner.purge(tenant, queue))

    # -- schedules -------------------------------------------------------------------------------

    def put_cron(self, tenant: str, spec: CronSpec, *, refresh: bool = False) -> Call[CronInfo]:
        return self._made("put_cron", self.inner.put_cron(tenant, spec, refresh=refresh))

    def crons(self, tenant: str) -> Call[list[CronInfo]]:
        return self._made("crons", self.inner.crons(tenant))

    def drop_cron(self, tenant: str, name: str) -> Call[bool]:
        return self._made("drop_cron", self.inner.drop_cron(tenant, name))

    def put_instants(
        self, tenant: str, name: str, config_hash: str, run: Run, *, refresh: bool = False
    ) -> Call[PushedInstead]:
        call = self.inner.put_instants(tenant, name, config_hash, run, refresh=refresh)
        return self._made("put_instants", call)

    def drop_instants(
        self, tenant: str, queue: str, name: str, config_hash: str | None = None
    ) -> Call[int]:
        call = self.inner.drop_instants(tenant, queue, name, config_hash)
        return self._made("drop_instants", call)

    # -- time and life ---------------------------------------------------------------------------

    def tick(self) -> Call[None]:
        return self._made("tick", self.inner.tick())

    def health(self) -> Call[Health]:
        return self._made("health", self.inner.health())

    def close(self) -> Call[None]:
        return self.inner.close()
