"""`Recorder`: a store whose every call is written down, before it is made and when it is answered.

It offers what a workload needs and answers what the store answers. Payloads come from
`Recorder.payloads`, so that each carries a serial of its own; pushing one of them again (the repeat
of an idempotent producer, a `match`) says the same serial again, as it should.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from penstock.model.answers import (
    Acked,
    BulkInfo,
    Durability,
    Extended,
    Failed,
    Pushed,
    Redriven,
    Released,
    Result,
)
from penstock.model.errors import Deadline, PenstockError, Unavailable
from penstock.model.job import Ids, Job, JobError, JobOptions, Lease, Outcome, Run
from penstock.model.policy import QueueConfig
from penstock.model.store import Store
from penstock.stores.clock import Clock, SystemClock
from tests.history import record as r

T = TypeVar("T")

BROKE = JobError(kind="Broke", message="as drawn")


class Recorder:
    def __init__(
        self,
        store: Store,
        log: r.Log,
        *,
        tenant: str = "default",
        name: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.store = store
        self.tenant = tenant
        self.name = os.urandom(4).hex() if name is None else name  # never that of another run
        self.clock = clock or SystemClock()
        self._log = log
        self._operations = 0
        self._numbers = 0
        log.append(r.Opened(run=self.name, now=self.clock.now_ms(), at=self.clock.elapsed_ms()))

    def payloads(self, count: int) -> list[bytes]:
        """Payloads that nobody has pushed before."""
        first = self._numbers + 1
        self._numbers += count
        return [r.payload_of((self.name, first + index)) for index in range(count)]

    async def _record(
        self, call: r.Call, doing: Awaitable[T], answer: Callable[[T], r.Answer]
    ) -> T:
        self._operations += 1
        op, run, clock = self._operations, self.name, self.clock
        self._log.append(
            r.Invoked(run=run, now=clock.now_ms(), at=clock.elapsed_ms(), op=op, call=call)
        )
        try:
            got = await doing
        except (Unavailable, Deadline, asyncio.CancelledError) as error:
            why = f"{type(error).__name__}: {error}"
            self._log.append(
                r.Lost(run=run, now=clock.now_ms(), at=clock.elapsed_ms(), op=op, why=why)
            )
            raise
        except PenstockError as error:
            now, at = clock.now_ms(), clock.elapsed_ms()
            self._log.append(
                r.Refused(run=run, now=now, at=at, op=op, code=error.code, message=str(error))
            )
            raise
        now, at = clock.now_ms(), clock.elapsed_ms()
        self._log.append(r.Answered(run=run, now=now, at=at, op=op, answer=answer(got)))
        return got

    # -- producing -------------------------------------------------------------------------------

    async def push(
        self,
        runs: Sequence[Run],
        *,
        producer: str | None = None,
        sequence: int | None = None,
        bulk: str | None = None,
        part: str = "",
        durability: Durability | None = None,
    ) -> Pushed:
        call = r.Push([said_run(run) for run in runs], producer, sequence, bulk, part)
        doing = self.store.push(
            self.tenant,
            runs,
            producer=producer,
            sequence=sequence,
            bulk=bulk,
            part=part,
            durability=durability,
        )
        return await self._record(call, doing, made)

    async def open_bulk(self, name: str, *, deadline_ms: int = 3_600_000) -> BulkInfo:
        doing = self.store.open_bulk(self.tenant, name, deadline_ms=deadline_ms)
        return await self._record(r.OpenBulk(name), doing, bulk)

    async def commit_bulk(self, name: str, parts: Sequence[str] | None = None) -> BulkInfo:
        call = r.CommitBulk(name, None if parts is None else list(parts))
        return await self._record(call, self.store.commit_bulk(self.tenant, name, parts), bulk)

    async def abort_bulk(self, name: str) -> BulkInfo:
        return await self._record(r.AbortBulk(name), self.store.abort_bulk(self.tenant, name), bulk)

    # -- working ---------------------------------------------------------------------------------

    async def claim(
        self,
        queues: Sequence[str],
        n: int = 1,
        *,
        lease_ms: int | None = None,
        worker: str = "",
        wait_ms: int = 0,
    ) -> Lease | None:
        call = r.Claim(list(queues), n, lease_ms, worker, wait_ms)
        doing = self.store.claim(
            self.tenant, queues, n, lease_ms=lease_ms, worker=worker, wait_ms=wait_ms
        )
        return await self._record(call, doing, leased)

    async def ack(
        self,
        lease: str,
        ids: Iterable[int] | None = None,
        *,
        results: Mapping[int, bytes] | None = None,
    ) -> Acked:
        chosen = None if ids is None else list(ids)
        told = {job_id: value.decode() for job_id, value in (results or {}).items()}
        doing = self.store.ack(self.tenant, lease, chosen, results=results)
        call = r.Ack(lease, _spans(chosen), told)
        return await self._record(call, doing, lambda got: _touched(got.acked, got.lost))

    async def fail(
        self,
        lease: str,
        ids: Iterable[int] | None = None,
        *,
        error: JobError = BROKE,
        retry_in_ms: int | None = None,
        dead: bool = False,
    ) -> Failed:
        chosen = None if ids is None else list(ids)
        doing = self.store.fail(
            self.tenant, lease, chosen, error=error, retry_in_ms=retry_in_ms, dead=dead
        )
        call = r.Fail(lease, _spans(chosen), retry_in_ms, dead)
        return await self._record(call, doing, failed)

    async def release(self, lease: str, ids: Iterable[int] | None = None) -> Released:
        chosen = None if ids is None else list(ids)
        doing = self.store.release(self.tenant, lease, chosen)
        call = r.Release(lease, _spans(chosen))
        return await self._record(call, doing, lambda got: _touched(got.released, got.lost))

    async def extend(self, lease: str, lease_ms: int | None = None) -> Extended:
        doing = self.store.extend(self.tenant, lease, lease_ms)
        call = r.Extend(lease, lease_ms)
        return await self._record(call, doing, lambda got: r.Extended(r.spans(got.lost)))

    # -- changing --------------------------------------------------------------------------------

    async def cancel(self, ids: Iterable[int], *, discard: bool = False) -> Acked:
        chosen = list(ids)
        doing = self.store.cancel(self.tenant, chosen, discard=discard)
        call = r.Cancel(r.spans(chosen), discard)
        return await self._record(call, doing, lambda got: _touched(got.acked, got.lost))

    async def redrive(
        self, queue: str, *, ids: Iterable[int] | None = None, limit: int | None = None
    ) -> Redriven:
        chosen = None if ids is None else list(ids)
        doing = self.store.redrive(self.tenant, queue, ids=chosen, limit=limit)
        call = r.Redrive(queue, _spans(chosen), limit)
        return await self._record(call, doing, lambda got: r.Redriven(r.spans(got.ids)))

    async def purge_dead(self, queue: str, *, ids: Iterable[int] | None = None) -> int:
        chosen = None if ids is None else list(ids)
        doing = self.store.purge_dead(self.tenant, queue, ids=chosen)
        return await self._record(r.PurgeDead(queue, _spans(chosen)), doing, done)

    async def drain(self, queue: str) -> int:
        return await self._record(r.Drain(queue), self.store.drain(self.tenant, queue), done)

    async def purge(self, queue: str) -> int:
        return await self._record(r.Purge(queue), self.store.purge(self.tenant, queue), done)

    async def configure(self, queue: str, config: QueueConfig) -> None:
        doing = self.store.configure(self.tenant, queue, config)
        await self._record(r.Configure(queue, config), doing, done)

    # -- looking ---------------------------------------------------------------------------------

    async def get(self, ids: Sequence[int]) -> list[Job | None]:
        return await self._record(r.Get(r.spans(ids)), self.store.get(self.tenant, ids), shown)

    async def result(self, job_id: int) -> Result:
        doing = self.store.result(self.tenant, job_id)
        return await self._record(r.ReadResult(job_id), doing, ended)


# -- what was said, what was answered --------------------------------------------------------------


def said_run(run: Run) -> r.SaidRun:
    """A run as stretches: jobs that differ only by their number are one."""
    jobs: list[r.Said] = []
    last: tuple[object, ...] = ()
    for said, alike in _said(run):
        before = jobs[-1] if jobs else None
        if before is not None and alike == last and said.first == before.first + before.count:
            jobs[-1] = msgspec.structs.replace(before, count=before.count + 1)
        else:
            jobs.append(said)
        last = alike
    return r.SaidRun(run.queue, jobs)


def _said(run: Run) -> Iterator[tuple[r.Said, tuple[object, ...]]]:
    """Each job, and everything but its number."""
    for index, payload in enumerate(run.payloads()):
        maker, number = r.serial_of(payload)
        options: JobOptions = run.options[run.option_of[index] if run.option_of is not None else 0]
        facts = {
            "delay_ms": _at(run.delay_ms, index),
            "run_at": _at(run.run_at, index),
            "key": None if run.keys is None else run.keys[index],
            "group": None if run.groups is None else run.groups[index],
            "depends": run.depends_on is not None and bool(run.depends_on[index]),
        }
        for name in _SHARED:
            facts[name] = getattr(options, name)
        yield (
            r.Said(maker=maker, first=number, **facts),  # type: ignore[arg-type]
            (maker, *facts.values()),
        )


_SHARED = (
    "on_conflict",
    "keep_key",
    "max_attempts",
    "lease_ms",
    "timeout_ms",
    "ttl_ms",
    "retain_ms",
    "retain_dead_ms",
)


def _at(column: int | Sequence[int | None] | None, index: int) -> int | None:
    return column if column is None or isinstance(column, int) else column[index]


def made(pushed: Pushed) -> r.Made:
    runs = []
    for run in pushed.runs:
        joined: list[tuple[int, int, Outcome]] = []
        for job_id, outcome in run:
            if joined and joined[-1][2] == outcome and job_id == joined[-1][0] + joined[-1][1]:
                joined[-1] = (joined[-1][0], joined[-1][1] + 1, outcome)
            else:
                joined.append((job_id, 1, outcome))
        runs.append(joined)
    return r.Made(runs)


def leased(lease: Lease | None) -> r.Answer:
    if lease is None:
        return r.Done()
    jobs: list[r.Handed] = []
    for job in lease.jobs:
        maker, number = r.serial_of(job.payload)
        last = jobs[-1] if jobs else None
        alike = last is not None and (
            (last.maker, last.attempt, last.group) == (maker, job.attempt, job.group)
            and (last.id + last.count, last.first + last.count) == (job.id, number)
        )
        count = last.count + 1 if last is not None and alike else 1
        if alike:
            jobs.pop()
        jobs.append(
            r.Handed(
                id=job.id - count + 1,
                count=count,
                maker=maker,
                first=number - count + 1,
                attempt=job.attempt,
                group=job.group,
            )
        )
    return r.Leased(lease.token, lease.queue, jobs)


def failed(got: Failed) -> r.FailedJobs:
    return r.FailedJobs(
        [r.FailedOne(job.id, job.state, job.run_at) for job in got.jobs], r.spans(got.lost)
    )


def seen(job: Job) -> r.Seen:
    maker, number = r.serial_of(job.payload)
    return r.Seen(
        id=job.id,
        queue=job.queue,
        maker=maker,
        number=number,
        state=job.state,
        attempt=job.attempt,
        run_at=job.run_at,
        finished_at=job.finished_at,
        key=job.key,
        group=job.group,
        result=None if job.result is None else job.result.decode(errors="replace"),
        dead_reason=job.dead_reason,
    )


def shown(jobs: list[Job | None]) -> r.Shown:
    return r.Shown([seen(job) for job in jobs if job is not None])


def ended(result: Result) -> r.Ended:
    value = None if result.value is None else result.value.decode(errors="replace")
    return r.Ended(result.state, value)


def bulk(info: BulkInfo) -> r.Bulk:
    return r.Bulk(info.state)


def done(_: object) -> r.Done:
    return r.Done()


def _touched(ids: Ids, lost: Ids) -> r.Touched:
    return r.Touched(r.spans(ids), r.spans(lost))


def _spans(ids: list[int] | None) -> list[r.Span] | None:
    return None if ids is None else r.spans(ids)
