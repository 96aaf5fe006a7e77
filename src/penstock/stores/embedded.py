"""Kernel + payloads = a Store: the embedded store, here without a journal (`memory://`).

One event loop owns it; commands are applied in the order of the calls, there are no locks. The
kernel decides; this module checks input at the door, keeps the bytes, hands jobs to those who
wait, passes events on, and lets time pass when nobody calls.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from penstock.kernel import commands as c
from penstock.kernel import crons as kernel_crons
from penstock.kernel import explain, read
from penstock.kernel.codes import READY
from penstock.kernel.kernel import Kernel
from penstock.kernel.leases import LeaseRecord
from penstock.kernel.queue import Queue
from penstock.model import checks
from penstock.model.errors import (
    Deadline,
    NotFound,
    Overloaded,
    PenstockError,
    Unavailable,
)
from penstock.model.event import Event, EventKind, EventSink
from penstock.model.job import (
    ClaimedRun,
    Codec,
    Job,
    JobError,
    KeyClaim,
    Lease,
    LogLine,
    Run,
)
from penstock.model.lifecycle import State
from penstock.model.payload import check_payload, digest
from penstock.model.policy import BULK_DEADLINE_MS, DEFAULT_CAPS, Bounds, Caps, QueueConfig
from penstock.model.schedule import CronSpec, config_hash, instant_key, keep_key_ms, plan
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
from penstock.stores.clock import Clock, ManualClock, SystemClock
from penstock.stores.loading import bare, content, load_of
from penstock.stores.payloads import Payloads
from penstock.stores.waiting import Awaited, Line, Waiter
from penstock.stores.watching import Watcher

TURN: Final = 1_000  # steps of time that one turn of the loop takes at most


class EmbeddedStore(Store):
    def __init__(
        self,
        *,
        clock: Clock | None = None,
        caps: Caps = DEFAULT_CAPS,
        events: EventSink | None = None,
        seed: int | None = None,
    ) -> None:
        self.clock: Clock = clock or SystemClock()
        self.kernel = Kernel(int.from_bytes(os.urandom(8)) if seed is None else seed, caps)
        self.payloads = Payloads()
        self._sink = events
        self._watchers: dict[Watcher, None] = {}
        self._line = Line()
        self._awaited = Awaited()
        self._serial = 0
        self._closed = False
        self._paced = not isinstance(self.clock, ManualClock)
        self._timer: asyncio.TimerHandle | asyncio.Handle | None = None
        self._timer_at = 0.0
        self._listen()

    # -- the turn: one command, and everything that follows from it ----------------------------

    def _apply(self, command: c.Command) -> Any:
        if self._closed:
            raise Unavailable("the store is closed")
        clock = self.clock
        try:
            return self.kernel.apply(command, clock.now_ms(), clock.elapsed_ms())
        finally:
            self._follow_up()

    def _follow_up(self) -> None:
        kernel = self.kernel
        if kernel.ends:
            self._wake_awaited()
        if kernel.events:
            self._pass_on_events()
        if kernel.stirred:
            self._serve()
        if kernel.freed:
            for chunk in kernel.freed:
                if chunk not in kernel.chunks:  # else used again by the command that freed it
                    self.payloads.drop(chunk)
            kernel.freed.clear()
        if self._paced:
            self._pace()

    def _look(self) -> Kernel:
        """The kernel, brought to the present, for reading."""
        if self._closed:
            raise Unavailable("the store is closed")
        now, elapsed = self.clock.now_ms(), self.clock.elapsed_ms()
        kernel = self.kernel
        while kernel.is_due(now, elapsed):
            if self._apply(c.Tick(TURN)):
                break
        kernel.now = now
        kernel.elapsed = max(kernel.elapsed, elapsed)
        return kernel

    # -- producing -------------------------------------------------------------------------------

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
        checks.check_push(tenant, runs, producer, sequence, bulk, part, durability)
        loads = [self._load(tenant, run) for run in runs]
        command = c.Push(tenant=tenant, loads=loads)
        if producer is not None:
            command.producer = producer
            command.sequence = sequence or 0
            command.content = content(runs, bulk, part)
        if bulk is not None:
            command.bulk, command.part = bulk, part
        return self._apply_loads(command, loads)  # type: ignore[no-any-return]

    def _load(self, tenant: str, run: Run) -> c.Load:
        return load_of(run, *self.payloads.add(f"{tenant}/{run.queue}", run.data))

    def _apply_loads(self, command: c.Command, loads: Sequence[c.Load]) -> Any:
        """Apply a command whose payloads have been put down; take back those it did not want."""
        try:
            outcome = self._apply(command)
        except PenstockError:
            for load in reversed(loads):
                needed = load.chunk in self.kernel.chunks
                self.payloads.take_back(load.chunk, load.start, needed)
            raise
        for load in loads:
            if load.chunk not in self.kernel.chunks:
                self.payloads.drop(load.chunk)
        return outcome

    async def open_bulk(
        self, tenant: str, name: str | None = None, *, deadline_ms: int = BULK_DEADLINE_MS
    ) -> BulkInfo:
        checks.check_tenant(tenant)
        checks.check_bulk(name, deadline_ms)
        bulk = os.urandom(16).hex() if name is None else name
        return self._apply(c.OpenBulk(tenant, bulk, deadline_ms))  # type: ignore[no-any-return]

    async def commit_bulk(
        self, tenant: str, bulk: str, parts: Sequence[str] | None = None
    ) -> BulkInfo:
        checks.check_tenant(tenant)
        checks.check_name(bulk, "bulk")
        checks.check_parts(parts)
        return self._apply(c.CommitBulk(tenant, bulk, parts))  # type: ignore[no-any-return]

    async def abort_bulk(self, tenant: str, bulk: str) -> BulkInfo:
        checks.check_tenant(tenant)
        checks.check_name(bulk, "bulk")
        return self._apply(c.AbortBulk(tenant, bulk))  # type: ignore[no-any-return]

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
        names = tuple(dict.fromkeys(queues))
        if len(self._line):
            self._look()  # a job that is due now goes to those who waited for it
        lease = self._claim(tenant, names, n, lease_ms, worker)
        if lease is not None or not wait_ms:
            return lease
        if len(self._line) >= self.kernel.caps.waiters:
            raise Overloaded(f"{self.kernel.caps.waiters} claims are waiting", "wait_ms")
        return await self._wait_in_line(tenant, names, n, lease_ms, worker, wait_ms)

    def _claim(
        self, tenant: str, queues: tuple[str, ...], n: int, lease_ms: int | None, worker: str
    ) -> Lease | None:
        record = self._apply(c.Claim(tenant, queues, n, os.urandom(16).hex(), lease_ms, worker))
        return None if record is None else self._lease(record)

    def _lease(self, record: LeaseRecord) -> Lease:
        kernel = self.kernel
        runs = []
        for held in record.runs:
            cut = read.cut(held)
            if cut.stretch is not None:
                data: bytes = self.payloads.get(cut.stretch)
                ends = cut.ends
            else:
                assert cut.places is not None
                pieces = [self.payloads.get(place) for place in cut.places]
                data = b"".join(pieces)
                ends, total = [], 0
                for piece in pieces:
                    total += len(piece)
                    ends.append(total)
            runs.append(
                ClaimedRun(
                    ids=cut.ids,
                    data=data,
                    ends=ends,
                    options=cut.options,
                    option_of=cut.option_of,
                    created_at=cut.created_at,
                    run_at=cut.run_at,
                    individual=cut.individual,
                )
            )
        expires_at = kernel.now + record.expires - kernel.elapsed
        return Lease(
            token=record.token, queue=record.queue.name, expires_at=expires_at, runs=tuple(runs)
        )

    async def _wait_in_line(
        self,
        tenant: str,
        queues: tuple[str, ...],
        n: int,
        lease_ms: int | None,
        worker: str,
        wait_ms: int,
    ) -> Lease | None:
        future: asyncio.Future[Lease | None] = asyncio.get_running_loop().create_future()
        self._serial += 1
        deadline = self.clock.elapsed_ms() + wait_ms
        waiter = Waiter(tenant, queues, n, lease_ms, worker, deadline, future, self._serial)
        self._line.join(waiter)
        for name in queues:
            self._watch_queue(tenant, name, True)
        if self._paced:
            self._pace()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and not self._closed:
                lease = future.result()
                if lease is not None:  # handed over to somebody who is gone
                    self._apply(c.Release(tenant, lease.token))
            raise
        finally:
            self._leave(waiter)

    def _watch_queue(self, tenant: str, name: str, watched: bool) -> None:
        if watched:
            self.kernel.watching[tenant, name] = None
        else:
            self.kernel.watching.pop((tenant, name), None)
        known = self.kernel.tenants.get(tenant)
        queue = known.queues.get(name) if known is not None else None
        if queue is not None:
            queue.watched = watched

    def _leave(self, waiter: Waiter) -> None:
        for tenant, name in self._line.leave(waiter):
            self._watch_queue(tenant, name, False)

    def _serve(self) -> None:
        """Hand what became ready to those who wait, in the order in which they came."""
        kernel = self.kernel
        while kernel.stirred:
            queue = next(iter(kernel.stirred))
            del kernel.stirred[queue]
            spot = (queue.tenant.name, queue.name)
            while (waiter := self._line.first(spot)) is not None:
                if waiter.future.done():
                    self._leave(waiter)
                    continue
                command = c.Claim(
                    waiter.tenant,
                    waiter.queues,
                    waiter.n,
                    os.urandom(16).hex(),
                    waiter.lease_ms,
                    waiter.worker,
                )
                record = kernel.apply(command, self.clock.now_ms(), self.clock.elapsed_ms())
                if record is None:
                    break
                self._leave(waiter)
                waiter.future.set_result(self._lease(record))
        if kernel.events:
            self._pass_on_events()

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
        chosen = None if ids is None else checks.check_ids(ids)
        values = checks.check_results(results, codec)
        if not values:
            return self._apply(c.Ack(tenant, lease, chosen))  # type: ignore[no-any-return]
        chunk, start = self.payloads.add(f"{tenant}//results", b"".join(values.values()))
        places = {}
        at = start
        for job_id, value in values.items():
            places[job_id] = (chunk, at, at + len(value))
            at += len(value)
        load = bare(chunk, start)
        return self._apply_loads(  # type: ignore[no-any-return]
            c.Ack(tenant, lease, chosen, places, codec), [load]
        )

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
        chosen = None if ids is None else checks.check_ids(ids)
        error = checks.check_error(error)
        checks.check_fail(retry_in_ms, dead)
        command = c.Fail(tenant, lease, error, chosen, retry_in_ms, dead)
        return self._apply(command)  # type: ignore[no-any-return]

    async def release(self, tenant: str, lease: str, ids: Iterable[int] | None = None) -> Released:
        checks.check_tenant(tenant)
        checks.check_lease(lease)
        chosen = None if ids is None else checks.check_ids(ids)
        return self._apply(c.Release(tenant, lease, chosen))  # type: ignore[no-any-return]

    async def extend(self, tenant: str, lease: str, lease_ms: int | None = None) -> Extended:
        checks.check_tenant(tenant)
        checks.check_lease(lease)
        checks.check_lease_ms(lease_ms)
        return self._apply(c.Extend(tenant, lease, lease_ms))  # type: ignore[no-any-return]

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
        said = None if partial is None else partial.decode("utf-8", "backslashreplace")
        self._apply(
            c.Report(
                tenant=tenant,
                lease=lease,
                job_id=job_id,
                progress=progress,
                message=message,
                logs=logs,
                partial=said,
            )
        )

    # -- looking ---------------------------------------------------------------------------------

    def _job(self, kernel: Kernel, place: tuple[Any, int]) -> Job:
        seen = read.view(kernel, *place)
        result = None if seen.result is None else self.payloads.get(seen.result)
        return Job(payload=self.payloads.get(seen.payload), result=result, **seen.facts)

    async def get(self, tenant: str, ids: Sequence[int]) -> list[Job | None]:
        checks.check_tenant(tenant)
        wanted = checks.check_id_list(ids, empty_ok=True)
        kernel = self._look()
        jobs = {}
        for job_id in wanted:
            found = kernel.locate(tenant, job_id)
            jobs[job_id] = None if found is None else self._job(kernel, found)
        return [jobs[job_id] for job_id in ids]

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
    ) -> Page:
        checks.check_tenant(tenant)
        checks.check_queue(queue)
        checks.check_find(state, task, tag, cursor, limit)
        kernel = self._look()
        places, after = read.find(kernel, tenant, queue, state, task, tag, cursor, limit)
        return Page(tuple(self._job(kernel, place) for place in places), after)

    async def by_key(self, tenant: str, queue: str, key: str) -> int | None:
        checks.check_tenant(tenant)
        checks.check_queue(queue)
        checks.check_name(key, "key")
        kernel = self._look()
        known = kernel.tenants.get(tenant)
        place = known.queues.get(queue) if known is not None else None
        record = place.keys.find(key, kernel.now) if place is not None else None
        return None if record is None else record.id

    async def result(self, tenant: str, job_id: int, *, wait_ms: int = 0) -> Result:
        checks.check_tenant(tenant)
        checks.check_job_id(job_id)
        checks.check_wait_ms(wait_ms)
        kernel = self._look()
        found = kernel.locate(tenant, job_id)
        if found is None:
            raise NotFound(f"job {job_id} is not known", "job_id")
        end = read.result_of(*found)
        if end is not None:
            return self._result(end)
        if not wait_ms:
            raise Deadline(f"job {job_id} has not ended", "wait_ms")
        return await self._wait_for_end(job_id, wait_ms)

    async def _wait_for_end(self, job_id: int, wait_ms: int) -> Result:
        if len(self._awaited) >= self.kernel.caps.waiters:
            raise Overloaded(f"{self.kernel.caps.waiters} callers are waiting", "wait_ms")
        future = self._awaited.join(job_id, self.clock.elapsed_ms() + wait_ms)
        self.kernel.awaited[job_id] = 1
        if self._paced:
            self._pace()
        try:
            ended = await future
        finally:
            if self._awaited.leave(job_id, future):
                self.kernel.awaited.pop(job_id, None)
        if ended is None:
            raise Deadline(f"job {job_id} has not ended within {wait_ms} ms", "wait_ms")
        assert isinstance(ended, Result)
        return ended

    def _wake_awaited(self) -> None:
        ends = self.kernel.ends
        for job_id, end in ends.items():
            self.kernel.awaited.pop(job_id, None)
            if end is None:
                self._awaited.fail(job_id, NotFound(f"job {job_id} was purged", "job_id"))
            else:
                self._awaited.wake(job_id, self._result(end))
        ends.clear()

    def _result(self, end: read.End) -> Result:
        value = None if end.result is None else self.payloads.get(end.result)
        return Result(
            state=end.state,
            value=value,
            codec=end.codec,
            error=end.error,
            dead_reason=end.dead_reason,
        )

    async def logs(self, tenant: str, job_id: int) -> list[LogLine]:
        block, offset = self._known(tenant, job_id)
        side = block.sides.get(offset)
        return list(side.logs or ()) if side is not None else []

    async def explain(self, tenant: str, job_id: int) -> Explanation:
        return explain.explain(self.kernel, *self._known(tenant, job_id))

    def _known(self, tenant: str, job_id: int) -> tuple[Any, int]:
        checks.check_tenant(tenant)
        checks.check_job_id(job_id)
        found = self._look().locate(tenant, job_id)
        if found is None:
            raise NotFound(f"job {job_id} is not known", "job_id")
        return found

    # -- changing --------------------------------------------------------------------------------

    async def cancel(self, tenant: str, ids: Iterable[int], *, discard: bool = False) -> Acked:
        checks.check_tenant(tenant)
        checks.check_bool(discard, "discard")
        return self._apply(c.Cancel(tenant, checks.check_ids(ids), discard))  # type: ignore[no-any-return]

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
        command = c.Edit(
            tenant=tenant, job_id=job_id, priority=priority, run_at=run_at, delay_ms=delay_ms
        )
        if payload is None:
            self._apply(command)
            return
        found = self._look().locate(tenant, job_id)
        if found is None:
            raise NotFound(f"job {job_id} is not known", "job_id")
        codec = codec or found[0].options_of(found[1]).codec
        check_payload(codec, payload)
        chunk, start = self.payloads.add(f"{tenant}/{found[0].queue.name}", payload)
        command.payload = (chunk, start, start + len(payload))
        command.digest = digest(codec, payload)
        command.codec = codec
        load = bare(chunk, start)
        self._apply_loads(command, [load])

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
        checks.check_redrive(limit, fingerprint)
        chosen = None if ids is None else checks.check_ids(ids)
        return self._apply(  # type: ignore[no-any-return]
            c.Redrive(tenant=tenant, queue=queue, ids=chosen, limit=limit, fingerprint=fingerprint)
        )

    async def purge_dead(self, tenant: str, queue: str, *, ids: Iterable[int] | None = None) -> int:
        checks.check_tenant(tenant)
        checks.check_queue(queue)
        chosen = None if ids is None else checks.check_ids(ids)
        return self._apply(c.PurgeDead(tenant, queue, chosen))  # type: ignore[no-any-return]

    # -- queues ----------------------------------------------------------------------------------

    async def queues(self, tenant: str, names: Sequence[str] | None = None) -> list[QueueInfo]:
        checks.check_tenant(tenant)
        for name in names or ():
            checks.check_queue(name)
        return read.queues(self._look(), tenant, None if names is None else list(names))

    async def configure(self, tenant: str, queue: str, config: QueueConfig) -> None:
        checks.check_tenant(tenant)
        checks.check_queue(queue)
        checks.check_config(config)
        self._apply(c.Configure(tenant, queue, config))

    async def configure_tenant(self, tenant: str, bounds: Bounds) -> None:
        checks.check_tenant(tenant)
        checks.check_bounds(bounds)
        self._apply(c.ConfigureTenant(tenant, bounds))

    async def drain(self, tenant: str, queue: str) -> int:
        checks.check_tenant(tenant)
        checks.check_queue(queue)
        return self._apply(c.Drain(tenant, queue))  # type: ignore[no-any-return]

    async def purge(self, tenant: str, queue: str) -> int:
        checks.check_tenant(tenant)
        checks.check_queue(queue)
        return self._apply(c.Purge(tenant, queue))  # type: ignore[no-any-return]

    # -- schedules -------------------------------------------------------------------------------

    async def put_cron(self, tenant: str, spec: CronSpec) -> CronInfo:
        checks.check_tenant(tenant)
        checks.check_cron(spec)
        kernel = self._look()
        marker = config_hash(spec)
        known = kernel.crons.get((tenant, spec.name))
        if known is not None and known.config_hash != marker:
            known = None
        until = known.installed_until if known is not None else None
        instants = plan(spec, now_ms=kernel.now, installed_until_ms=until).instants
        if spec.limit is not None:
            used = known.executions + len(known.pending) if known is not None else 0
            instants = instants[: max(spec.limit - used, 0)]
        load = None
        if instants:
            keys = [instant_key(spec.name, marker, instant) for instant in instants]
            run = Run(
                queue=spec.queue,
                data=spec.payload * len(instants),
                ends=[len(spec.payload) * (i + 1) for i in range(len(instants))],
                options=(msgspec.structs.replace(spec.options, codec=spec.codec),),
                run_at=list(instants),
                more_keys=[
                    (KeyClaim(key, "return", keep_key_ms(instant, kernel.now)),)
                    for key, instant in zip(keys, instants, strict=True)
                ],
            )
            load = self._load(tenant, run)
        command = c.PutCron(
            tenant=tenant, spec=spec, config_hash=marker, instants=instants, load=load
        )
        return self._apply_loads(command, [load] if load else [])  # type: ignore[no-any-return]

    async def crons(self, tenant: str) -> list[CronInfo]:
        checks.check_tenant(tenant)
        return [
            kernel_crons.info(record)
            for (owner, _), record in sorted(self._look().crons.items(), key=lambda item: item[0])
            if owner == tenant
        ]

    async def drop_cron(self, tenant: str, name: str) -> bool:
        checks.check_tenant(tenant)
        checks.check_name(name, "name")
        return self._apply(c.DropCron(tenant, name))  # type: ignore[no-any-return]

    # -- events ----------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Have the kernel tell events exactly while somebody hears them."""
        wanted = self._sink is not None or bool(self._watchers)
        if wanted and self.kernel.events is None:
            self.kernel.events = []
        elif not wanted:
            self.kernel.events = None

    def _pass_on_events(self) -> None:
        events = self.kernel.events
        if not events:
            return
        if self._sink is not None:
            self._sink.write(list(events))
        for watcher in list(self._watchers):
            watcher.offer(events)
        events.clear()

    def watch(
        self,
        tenant: str,
        *,
        queues: Sequence[str] | None = None,
        kinds: Sequence[EventKind] | None = None,
    ) -> AsyncIterator[Event]:
        watcher = Watcher(self._unwatch, tenant, queues, kinds)
        try:
            checks.check_tenant(tenant)
            checks.check_watch(queues, kinds)
            if len(self._watchers) >= self.kernel.caps.subscribers:
                raise Overloaded(f"{self.kernel.caps.subscribers} watchers are listening")
        except PenstockError as error:
            watcher.end(error)  # told where every other call tells it: when it is awaited
            return watcher
        self._watchers[watcher] = None
        self._listen()
        return watcher

    def _unwatch(self, watcher: Watcher) -> None:
        self._watchers.pop(watcher, None)
        self._listen()

    # -- time and life ---------------------------------------------------------------------------

    async def tick(self) -> None:
        done = self._apply(c.Tick(TURN))
        while not done:
            await asyncio.sleep(0)
            done = self._apply(c.Tick(TURN))
        self._end_waits()

    def _metered(self) -> Iterator[Queue]:
        """Queues in which somebody waits and a rate limit lets jobs pass as time goes by."""
        for tenant, name in self.kernel.watching:
            known = self.kernel.tenants.get(tenant)
            queue = known.queues.get(name) if known is not None else None
            if queue is not None and queue.meter is not None and queue.counts[READY]:
                yield queue

    def _end_waits(self) -> None:
        """Those who have waited as long as they wanted get their answer."""
        elapsed = self.clock.elapsed_ms()
        self.kernel.stirred |= dict.fromkeys(self._metered())
        if self.kernel.stirred:
            self._serve()
        for waiter in self._line:
            if waiter.deadline <= elapsed and not waiter.future.done():
                waiter.future.set_result(None)
        for future in self._awaited.lapsed(elapsed):
            if not future.done():
                future.set_result(None)

    def _pace(self) -> None:
        """Have the loop call us when something is due, whoever calls or not."""
        kernel = self.kernel
        due_in = min(
            kernel.wall_due - self.clock.now_ms(), kernel.elapsed_due - self.clock.elapsed_ms()
        )
        for deadline in (self._line.due(), self._awaited.due()):
            if deadline is not None:
                due_in = min(due_in, deadline - self.clock.elapsed_ms())
        for queue in self._metered():
            assert queue.meter is not None
            elapsed = self.clock.elapsed_ms()
            due_in = min(due_in, queue.meter.next_at(elapsed) - elapsed)
        loop = asyncio.get_running_loop()
        # A jump of the wall clock must not make us sleep through it.
        at = loop.time() + min(max(due_in, 0), 500) / 1000
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = loop.call_at(at, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        if self._closed:
            return
        kernel = self.kernel
        if kernel.is_due(self.clock.now_ms(), self.clock.elapsed_ms()):
            self._apply(c.Tick(TURN))
        self._end_waits()
        self._pace()

    async def health(self) -> Health:
        kernel = self._look()
        return Health(
            ok=True,
            store="memory",
            durability="memory",
            detail={
                "queues": kernel.queue_count,
                "leases": len(kernel.leases),
                "waiting_claims": len(self._line),
                "chunks": len(self.payloads),
                "payload_bytes": self.payloads.size,
            },
        )

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        gone = Unavailable("the store is closed")
        for waiter in self._line:
            if not waiter.future.done():
                waiter.future.set_exception(gone)
        self._awaited.fail_all(gone)
        for watcher in list(self._watchers):
            watcher.end(None)

    def rebuild(self) -> None:
        """Put a kernel made from its own encoded form in the place of the running one."""
        before = self.kernel
        self.kernel = Kernel.decode(before.encode(), before.caps)
        self.kernel.now, self.kernel.elapsed = before.now, before.elapsed
        self.kernel.awaited = dict.fromkeys(self._awaited.ids(), 1)
        for waiter in self._line:
            for name in waiter.queues:
                self._watch_queue(waiter.tenant, name, True)
        self._listen()
