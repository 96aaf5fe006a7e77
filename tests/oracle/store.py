"""`OracleStore`: the semantics as plainly as they can be written, with the face of a Store.

Every call reads the clock once, lets what is due take effect, does its work on the `World`, and
then serves who waits. The work itself is in the modules beside this one, by subject; nothing is
fast, so that everything can be read beside the contract. There are no timers: time passes when a
call, `tick` if no other, looks at the clock.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.model import checks
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
    WaitingClaim,
    WaitingClaims,
)
from penstock.model.checks_values import check_bool
from penstock.model.errors import Deadline, NotFound, Overloaded, Unavailable
from penstock.model.event import Event, EventKind
from penstock.model.job import MAX_ID, Codec, Job, JobError, Lease, LogLine, Run
from penstock.model.lifecycle import State
from penstock.model.policy import DEFAULT_CAPS, Bounds, Caps, QueueConfig
from penstock.model.schedule import CronSpec
from penstock.model.store import Ack, Store
from penstock.stores.clock import Clock
from tests.oracle import bulks, crons, due, groups, keys, life, looking, pushing, working
from tests.oracle.watching import Watcher
from tests.oracle.world import OracleJob, World, joined


@dataclass(kw_only=True)
class ClaimInLine:
    tenant: str
    queues: tuple[str, ...]
    n: int
    since: int  # wall clock
    lease_ms: int | None
    worker: str
    until: int  # elapsed
    future: "asyncio.Future[Lease | None]"


@dataclass(kw_only=True)
class WaitingResult:
    job_id: int
    until: int  # elapsed
    future: "asyncio.Future[Result]"


class OracleStore(Store):
    def __init__(
        self, *, clock: Clock, caps: Caps = DEFAULT_CAPS, seed: int = 0, first_id: int = 1
    ) -> None:
        self.clock = clock
        self.caps = caps
        self.world = World(seed=seed, first_id=first_id)
        self.claims: list[ClaimInLine] = []
        self.results: list[WaitingResult] = []
        self.watchers: list[Watcher] = []
        self.position = 0
        self.closed = False

    # -- every call ------------------------------------------------------------------------------

    @contextmanager
    def call(self) -> Iterator[World]:
        if self.closed:
            raise Unavailable("the store is closed")
        clocks = (self.clock.now_ms(), self.clock.elapsed_ms())
        if clocks != (self.world.now, self.world.elapsed):
            due.settle(self.world, *clocks)
            self.serve()
        try:
            yield self.world
        finally:
            groups.take_seats(self.world)
            due.settle(self.world, *clocks)
            self.serve()

    def serve(self) -> None:
        """Hand ready jobs to waiting claims, in the order in which these came."""
        for waiting in list(self.claims):
            if waiting.future.done():
                self.claims.remove(waiting)
                continue
            lease = self.take(waiting)
            if lease is None and waiting.until > self.world.elapsed:
                continue
            self.claims.remove(waiting)
            waiting.future.set_result(lease)
        self.spread_news()

    def take(self, waiting: ClaimInLine) -> Lease | None:
        return working.claim(
            self.world,
            waiting.tenant,
            waiting.queues,
            waiting.n,
            lease_ms=waiting.lease_ms,
            worker=waiting.worker,
            token=secrets.token_hex(16),
        )

    def spread_news(self) -> None:
        """Wake who waits for a result, and tell the watchers."""
        ended, self.world.ends = self.world.ends, []
        for job_id, result in ended:
            for waiting in [each for each in self.results if each.job_id == job_id]:
                self.results.remove(waiting)
                if waiting.future.done():
                    continue
                if result is None:
                    waiting.future.set_exception(NotFound(f"job {job_id} is forgotten", "job_id"))
                else:
                    waiting.future.set_result(result)
        for waiting in [each for each in self.results if each.until <= self.world.elapsed]:
            self.results.remove(waiting)
            if not waiting.future.done():
                waiting.future.set_exception(Deadline(f"job {waiting.job_id} still runs"))
        events, self.world.events = joined(self.world.events), []
        self.position += bool(events)
        for index, event in enumerate(events):
            for watcher in list(self.watchers):
                watcher.hear(_numbered(event, self.position, index))

    def known(self, tenant: str, job_id: int) -> OracleJob:
        job = self.world.known(tenant, job_id)
        if job is None:
            raise NotFound(f"no job has the id {job_id}", "job_id")
        return job

    # -- producing -------------------------------------------------------------------------------

    async def push(
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
    ) -> Pushed:
        checks.check_push(tenant, runs, producer, sequence, bulk, part, durability, content)
        with self.call() as world:
            return pushing.push_once(
                world,
                self.caps,
                tenant,
                runs,
                producer=producer,
                sequence=sequence,
                content=content,
                bulk=bulk,
                part=part,
            )

    async def open_bulk(
        self, tenant: str, name: str | None = None, *, deadline_ms: int = 3_600_000
    ) -> BulkInfo:
        checks.check_tenant(tenant)
        checks.check_bulk(name, deadline_ms)
        with self.call() as world:
            chosen = secrets.token_hex(16) if name is None else name
            return bulks.open_bulk(world, self.caps, tenant, chosen, deadline_ms)

    async def commit_bulk(
        self, tenant: str, bulk: str, parts: Sequence[str] | None = None
    ) -> BulkInfo:
        checks.check_tenant(tenant)
        checks.check_name(bulk, "bulk")
        checks.check_parts(parts)
        with self.call() as world:
            return bulks.commit(world, self.caps, tenant, bulk, parts)

    async def abort_bulk(self, tenant: str, bulk: str) -> BulkInfo:
        checks.check_tenant(tenant)
        checks.check_name(bulk, "bulk")
        with self.call() as world:
            return bulks.abort(world, tenant, bulk)

    # -- working ---------------------------------------------------------------------------------

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
        checks.check_tenant(tenant)
        checks.check_claim(queues, n, lease_ms, worker, wait_ms)
        with self.call() as world:
            waiting = ClaimInLine(
                tenant=tenant,
                queues=tuple(dict.fromkeys(queues)),
                n=n,
                since=world.now,
                lease_ms=lease_ms,
                worker=worker,
                until=world.elapsed + wait_ms,
                future=asyncio.get_running_loop().create_future(),
            )
            lease = self.take(waiting)
            if lease is not None or wait_ms == 0:
                return lease
            if len(self.claims) >= self.caps.waiters:
                raise Overloaded("too many claims wait")
            self.claims.append(waiting)
        try:
            return await waiting.future
        except asyncio.CancelledError:
            handed = waiting.future.result() if _answered(waiting.future) else None
            if handed is not None and handed.token in self.world.leases and not self.closed:
                with self.call() as world:
                    working.release(world, tenant, handed.token, None)
            raise

    async def ack(
        self,
        tenant: str,
        lease: str,
        ids: Iterable[int] | None = None,
        *,
        results: Ack | None = None,
        codec: Codec = "json",
    ) -> Acked:
        checks.check_tenant(tenant)
        checks.check_lease(lease)
        named = None if ids is None else checks.check_ids(ids)
        values = checks.check_results(results, codec)
        with self.call() as world:
            return working.ack(world, tenant, lease, named, values, codec)

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
        checks.check_tenant(tenant)
        checks.check_lease(lease)
        named = None if ids is None else checks.check_ids(ids)
        checks.check_fail(retry_in_ms, dead)
        cut = checks.check_error(error)
        with self.call() as world:
            return working.fail(
                world, tenant, lease, named, error=cut, retry_in_ms=retry_in_ms, dead=dead
            )

    async def release(self, tenant: str, lease: str, ids: Iterable[int] | None = None) -> Released:
        checks.check_tenant(tenant)
        checks.check_lease(lease)
        named = None if ids is None else checks.check_ids(ids)
        with self.call() as world:
            return working.release(world, tenant, lease, named)

    async def extend(self, tenant: str, lease: str, lease_ms: int | None = None) -> Extended:
        checks.check_tenant(tenant)
        checks.check_lease(lease)
        checks.check_lease_ms(lease_ms)
        with self.call() as world:
            return working.extend(world, tenant, lease, lease_ms)

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
        checks.check_tenant(tenant)
        checks.check_lease(lease)
        checks.check_job_id(job_id)
        checks.check_report(progress, message, logs, partial)
        with self.call() as world:
            working.report(
                world,
                tenant,
                lease,
                job_id,
                progress=progress,
                message=message,
                logs=logs,
                partial=partial,
            )

    # -- looking ---------------------------------------------------------------------------------

    async def get(self, tenant: str, ids: Sequence[int]) -> list[Job | None]:
        checks.check_tenant(tenant)
        named = checks.check_id_list(ids, empty_ok=True)
        with self.call() as world:
            jobs = [world.known(tenant, job_id) for job_id in named]
            return [None if job is None else looking.view(world, job) for job in jobs]

    async def standing(self, tenant: str, ids: Sequence[int]) -> list[Standing | None]:
        checks.check_tenant(tenant)
        named = checks.check_id_list(ids, empty_ok=True)
        with self.call() as world:
            jobs = [world.known(tenant, job_id) for job_id in named]
            return [
                None if job is None else Standing(job.queue, job.state, job.lease) for job in jobs
            ]

    async def reach(
        self, tenant: str, *, lease: str | None = None, bulk: str | None = None
    ) -> frozenset[str]:
        checks.check_tenant(tenant)
        checks.check_reach(lease, bulk)
        with self.call() as world:
            if lease is not None:
                jobs = [job for job in world.jobs.values() if job.lease == lease]
            else:
                known = world.bulks.get((tenant, bulk or ""))
                named = known.part_of if known is not None and known.state == "open" else ()
                jobs = [world.jobs[job_id] for job_id, _ in named if job_id in world.jobs]
            return frozenset(job.queue for job in jobs if job.tenant == tenant)

    async def find(
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
    ) -> Page:
        checks.check_tenant(tenant)
        checks.check_queue(queue)
        checks.check_find(state, task, tag, cursor, limit, newest)
        with self.call() as world:
            jobs = [
                looking.view(world, job)
                for job in world.of_queue(tenant, queue)
                if (job.id <= (cursor or MAX_ID) if newest else job.id >= cursor)
                and (state is None or job.state is state)
                and (task is None or job.said.options.task == task)
                and (tag is None or tag in job.said.options.tags)
            ]
            if newest:
                jobs.reverse()
            return Page(tuple(jobs[:limit]), jobs[limit].id if len(jobs) > limit else None)

    async def by_key(self, tenant: str, queue: str, key: str) -> int | None:
        checks.check_tenant(tenant)
        checks.check_queue(queue)
        checks.check_name(key, "key")
        with self.call() as world:
            record = keys.holder(world, tenant, queue, key)
            return None if record is None else record.job_id

    async def result(self, tenant: str, job_id: int, *, wait_ms: int = 0) -> Result:
        checks.check_tenant(tenant)
        checks.check_job_id(job_id)
        checks.check_wait_ms(wait_ms)
        with self.call() as world:
            job = self.known(tenant, job_id)
            if job.ended:
                return life.outcome(job)
            if wait_ms == 0:
                raise Deadline(f"job {job_id} still runs")
            if len(self.results) >= self.caps.waiters:
                raise Overloaded("too many calls wait for results")
            waiting = WaitingResult(
                job_id=job_id,
                until=world.elapsed + wait_ms,
                future=asyncio.get_running_loop().create_future(),
            )
            self.results.append(waiting)
        try:
            return await waiting.future
        finally:
            if waiting in self.results:
                self.results.remove(waiting)

    async def logs(self, tenant: str, job_id: int) -> list[LogLine]:
        checks.check_tenant(tenant)
        checks.check_job_id(job_id)
        with self.call():
            return list(self.known(tenant, job_id).logs)

    async def explain(self, tenant: str, job_id: int) -> Explanation:
        checks.check_tenant(tenant)
        checks.check_job_id(job_id)
        with self.call() as world:
            return looking.explain(world, self.known(tenant, job_id))

    async def waiting(self, tenant: str, *, limit: int = 1_000) -> WaitingClaims:
        checks.check_tenant(tenant)
        checks.check_waiting(limit)
        with self.call():
            claims = [
                WaitingClaim(worker=each.worker, queues=each.queues, n=each.n, since=each.since)
                for each in self.claims
                if each.tenant == tenant and not each.future.done()
            ]
        return WaitingClaims(tuple(claims[:limit]), len(claims) <= limit)

    def watch(
        self,
        tenant: str,
        *,
        queues: Sequence[str] | None = None,
        kinds: Sequence[EventKind] | None = None,
    ) -> AsyncIterator[Event]:
        if self.closed:
            raise Unavailable("the store is closed")
        if len(self.watchers) >= self.caps.subscribers:
            raise Overloaded("too many watchers")
        return Watcher(self.watchers, tenant, queues, kinds)

    # -- changing --------------------------------------------------------------------------------

    async def cancel(self, tenant: str, ids: Iterable[int], *, discard: bool = False) -> Acked:
        checks.check_tenant(tenant)
        named = checks.check_ids(ids)
        check_bool(discard, "discard")
        with self.call() as world:
            return working.cancel(world, tenant, named, discard=discard)

    async def edit(
        self,
        tenant: str,
        job_id: int,
        *,
        priority: int | None = None,
        run_at: int | None = None,
        delay_ms: int | None = None,
        payload: bytes | None = None,
        codec: Codec | None = None,
    ) -> None:
        checks.check_tenant(tenant)
        checks.check_job_id(job_id)
        checks.check_edit(priority, run_at, delay_ms, payload, codec)
        with self.call() as world:
            working.edit(
                world,
                tenant,
                job_id,
                priority=priority,
                run_at=run_at,
                delay_ms=delay_ms,
                payload=payload,
                codec=codec,
            )

    async def redrive(
        self,
        tenant: str,
        queue: str,
        *,
        ids: Iterable[int] | None = None,
        limit: int | None = None,
        fingerprint: str | None = None,
    ) -> Redriven:
        checks.check_tenant(tenant)
        checks.check_queue(queue)
        named = None if ids is None else checks.check_ids(ids)
        checks.check_redrive(limit, fingerprint)
        with self.call() as world:
            return working.redrive(world, tenant, queue, ids=named, limit=limit, mark=fingerprint)

    async def purge_dead(self, tenant: str, queue: str, *, ids: Iterable[int] | None = None) -> int:
        checks.check_tenant(tenant)
        checks.check_queue(queue)
        named = None if ids is None else checks.check_ids(ids)
        with self.call() as world:
            return working.purge_dead(world, tenant, queue, named)

    # -- queues ----------------------------------------------------------------------------------

    async def queues(self, tenant: str, names: Sequence[str] | None = None) -> list[QueueInfo]:
        checks.check_tenant(tenant)
        for name in names or ():
            checks.check_queue(name, "names")
        with self.call() as world:
            return [
                looking.queue_info(world, tenant, name)
                for name in looking.queue_names(world, tenant, names)
            ]

    async def configure(self, tenant: str, queue: str, config: QueueConfig) -> None:
        checks.check_tenant(tenant)
        checks.check_queue(queue)
        checks.check_config(config)
        with self.call() as world:
            working.configure(world, self.caps, tenant, queue, config)

    async def configure_tenant(self, tenant: str, bounds: Bounds) -> None:
        checks.check_tenant(tenant)
        checks.check_bounds(bounds)
        with self.call() as world:
            working.configure_tenant(world, tenant, bounds)

    async def drain(self, tenant: str, queue: str) -> int:
        checks.check_tenant(tenant)
        checks.check_queue(queue)
        with self.call() as world:
            return working.drain(world, tenant, queue)

    async def clean(
        self,
        tenant: str,
        queue: str,
        state: State,
        *,
        older_ms: int = 0,
        limit: int | None = None,
    ) -> int:
        checks.check_tenant(tenant)
        checks.check_queue(queue)
        checks.check_clean(state, older_ms, limit)
        with self.call() as world:
            return working.clean(world, tenant, queue, state, older_ms, limit)

    async def purge(self, tenant: str, queue: str) -> int:
        checks.check_tenant(tenant)
        checks.check_queue(queue)
        with self.call() as world:
            return working.purge(world, tenant, queue)

    # -- schedules -------------------------------------------------------------------------------

    async def put_cron(self, tenant: str, spec: CronSpec, *, refresh: bool = False) -> CronInfo:
        checks.check_tenant(tenant)
        checks.check_cron(spec)
        with self.call() as world:
            return crons.put(world, self.caps, tenant, spec, refresh)

    async def crons(self, tenant: str) -> list[CronInfo]:
        checks.check_tenant(tenant)
        with self.call() as world:
            return [
                crons.info(world, cron)
                for (owner, _), cron in sorted(world.crons.items())
                if owner == tenant
            ]

    async def drop_cron(self, tenant: str, name: str) -> bool:
        checks.check_tenant(tenant)
        checks.check_name(name, "name")
        with self.call() as world:
            return crons.drop(world, tenant, name)

    async def put_instants(
        self, tenant: str, name: str, config_hash: str, run: Run, *, refresh: bool = False
    ) -> PushedInstead:
        instants = checks.check_instants(tenant, name, config_hash, run)
        check_bool(refresh, "refresh")
        with self.call() as world:
            claims = crons.claims(world, name, config_hash, instants)
            keyed = msgspec.structs.replace(run, more_keys=claims)
            return crons.put_instants(world, self.caps, tenant, name, config_hash, keyed, refresh)

    async def drop_instants(
        self, tenant: str, queue: str, name: str, config_hash: str | None = None
    ) -> int:
        checks.check_tenant(tenant)
        checks.check_instants_of(queue, name, config_hash)
        with self.call() as world:
            return crons.drop_instants(world, tenant, queue, name, config_hash)

    # -- time and life ---------------------------------------------------------------------------

    async def tick(self) -> None:
        with self.call():
            pass

    async def health(self) -> Health:
        with self.call():
            return Health(ok=True, store="oracle", durability="memory")

    async def close(self) -> None:
        self.closed = True
        gone = Unavailable("the store is closed")
        futures: list[asyncio.Future[Any]] = [each.future for each in self.claims]
        futures += [each.future for each in self.results]
        for future in futures:
            if not future.done():
                future.set_exception(gone)
        for watcher in list(self.watchers):
            watcher.close(gone)


def _answered(future: "asyncio.Future[Any]") -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _numbered(event: Event, position: int, index: int) -> Event:
    return msgspec.structs.replace(event, position=position, index=index)
