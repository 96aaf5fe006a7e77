"""The embedded store: the kernel in this process as a Store, with or without a journal.

This module is the door: each call is checked, made into a command, and given to the engine, which
applies it in its turn. What changes jobs that are there, queues and schedules is in
`embedded_managing.py`.
"""

import os
from array import array
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

from penstock.kernel import commands as c
from penstock.kernel import explain, read
from penstock.kernel.kernel import Kernel
from penstock.model import checks
from penstock.model.answers import (
    Acked,
    BulkInfo,
    Durability,
    Explanation,
    Extended,
    Failed,
    Health,
    Page,
    Pushed,
    Released,
    Result,
    Standing,
    WaitingClaims,
)
from penstock.model.errors import Deadline, Invalid, NotFound, PenstockError
from penstock.model.event import Event, EventKind, EventSink
from penstock.model.job import (
    MAX_ID,
    MAX_PAYLOAD,
    Codec,
    Job,
    JobError,
    JobOptions,
    Lease,
    LogLine,
    Run,
)
from penstock.model.lifecycle import State
from penstock.model.payload import check_json
from penstock.model.policy import BULK_DEADLINE_MS, DEFAULT_CAPS, Caps
from penstock.model.store import UNNUMBERED, Ack, Number, Pusher, run_of_one
from penstock.stores.clock import Clock, Instant, ManualClock, SystemClock
from penstock.stores.embedded_managing import EmbeddedManaging
from penstock.stores.engine import Engine
from penstock.stores.loading import bare, digest_of
from penstock.stores.payloads import Payloads, piece
from penstock.stores.watching import Watcher


class EmbeddedStore(EmbeddedManaging):
    def __init__(self, engine: Engine, scheme: str) -> None:
        self.engine = engine
        self._scheme = scheme
        self._door = checks.Door()

    @classmethod
    def in_memory(
        cls,
        *,
        clock: Clock | None = None,
        caps: Caps = DEFAULT_CAPS,
        events: EventSink | None = None,
        observer: EventSink | None = None,
        seed: int | None = None,
    ) -> "EmbeddedStore":
        draw = int.from_bytes(os.urandom(8)) if seed is None else seed
        time = clock or SystemClock()
        paced = not isinstance(time, ManualClock)
        kernel = Kernel(draw, caps)
        engine = Engine(time, kernel, Payloads(), events, paced=paced, observer=observer)
        return cls(engine, "memory")

    @property
    def failed(self) -> str | None:
        return self.engine.failed

    @property
    def owned(self) -> bool:
        return True

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
        self._door.check_push(tenant, runs, producer, sequence, bulk, part, durability, content)
        engine = self.engine
        keeper = engine.keeper
        level = None
        if keeper is not None or durability is not None:
            level = engine.admit(durability, sum([len(run.data) for run in runs]))
        loads = [self._load(tenant, run) for run in runs]
        command = c.Push(tenant=tenant, loads=loads)
        if producer is not None:
            command.producer = producer
            command.sequence = sequence or 0
            command.content = digest_of(runs, bulk, part) if content is None else content
        if bulk is not None:
            command.bulk, command.part = bulk, part
        if keeper is None:
            return engine.put(command, loads)  # type: ignore[no-any-return]
        return await engine.do_loads(command, loads, level)  # type: ignore[no-any-return]

    async def push_one(
        self,
        tenant: str,
        queue: str,
        payload: bytes,
        options: tuple[JobOptions, ...],
        number: Number = UNNUMBERED,
    ) -> int:
        if not self._door.knows(tenant, queue, payload, options, *number):
            return await super().push_one(tenant, queue, payload, options, number)
        engine = self.engine
        if engine.keeper is None:
            instant = engine.claims.foretell(tenant, queue, payload, options, number)
            return self._put_one(tenant, queue, payload, options, number, instant)
        engine.admit(None, len(payload))
        command = self._one(tenant, queue, payload, options, number)
        pushed = await engine.do_loads(command, command.loads)
        return pushed.runs[0].first  # type: ignore[no-any-return]

    def pusher(
        self,
        tenant: str,
        queue: str,
        options: tuple[JobOptions, ...],
        producer: str | None = None,
        content: bytes | None = None,
    ) -> Pusher | None:
        if self.engine.keeper is not None:
            return None  # there is nothing to answer until it is safe

        def check(payload: bytes, sequence: int | None) -> None:
            runs = [run_of_one(queue, payload, options)]
            checks.check_push(tenant, runs, producer, sequence, None, "", None, content)

        check(b"0", None if producer is None else 0)
        plain = options[0].codec == "json" and producer is not None
        foretell = self.engine.claims.foretell

        def push(payload: bytes, sequence: int | None) -> int:
            known = plain and type(sequence) is int and 0 <= sequence <= MAX_ID
            if known and len(payload) <= MAX_PAYLOAD:
                check_json(payload)
            else:
                check(payload, sequence)
            number = (producer, sequence, content)
            instant = foretell(tenant, queue, payload, options, number)
            return self._put_one(tenant, queue, payload, options, number, instant)

        return push

    def _put_one(
        self,
        tenant: str,
        queue: str,
        payload: bytes,
        options: tuple[JobOptions, ...],
        number: Number,
        instant: Instant | None,
    ) -> int:
        """One plain job that was looked at, into a store in memory. `instant`: at which somebody was
        told of it."""
        try:
            command = self._one(tenant, queue, payload, options, number)
            pushed = self.engine.put(command, command.loads, None, instant)
        except BaseException:
            if instant is not None:
                self.engine.claims.eat_words(tenant, queue)
            raise
        return pushed.runs[0].first  # type: ignore[no-any-return]

    def _one(
        self,
        tenant: str,
        queue: str,
        payload: bytes,
        options: tuple[JobOptions, ...],
        number: Number,
    ) -> c.Push:
        chunk, start = self.engine.payloads.add(f"{tenant}/{queue}", payload)
        ends = array("I", (len(payload),))
        load = c.Load(queue=queue, chunk=chunk, start=start, ends=ends, options=options)
        command = c.Push(tenant=tenant, loads=(load,))
        producer, sequence, content = number
        if producer is not None:
            command.producer = producer
            command.sequence = sequence or 0
            command.content = content or b""
        return command

    async def open_bulk(
        self, tenant: str, name: str | None = None, *, deadline_ms: int = BULK_DEADLINE_MS
    ) -> BulkInfo:
        checks.check_tenant(tenant)
        checks.check_bulk(name, deadline_ms)
        bulk = os.urandom(16).hex() if name is None else name
        return await self.engine.do(c.OpenBulk(tenant, bulk, deadline_ms))  # type: ignore[no-any-return]

    async def commit_bulk(
        self, tenant: str, bulk: str, parts: Sequence[str] | None = None
    ) -> BulkInfo:
        checks.check_tenant(tenant)
        checks.check_name(bulk, "bulk")
        checks.check_parts(parts)
        return await self.engine.do(c.CommitBulk(tenant, bulk, parts))  # type: ignore[no-any-return]

    async def abort_bulk(self, tenant: str, bulk: str) -> BulkInfo:
        checks.check_tenant(tenant)
        checks.check_name(bulk, "bulk")
        return await self.engine.do(c.AbortBulk(tenant, bulk))  # type: ignore[no-any-return]

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
        return await self.engine.claims.claim(tenant, names, n, lease_ms, worker, wait_ms)

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
            return await self.engine.do(c.Ack(tenant, lease, chosen))  # type: ignore[no-any-return]
        chunk, start = self.engine.payloads.add(f"{tenant}//results", b"".join(values.values()))
        places = {}
        at = start
        for job_id, value in values.items():
            places[job_id] = (chunk, at, at + len(value))
            at += len(value)
        load = bare(chunk, start)
        return await self.engine.do_loads(  # type: ignore[no-any-return]
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
        return await self.engine.do(command)  # type: ignore[no-any-return]

    async def release(self, tenant: str, lease: str, ids: Iterable[int] | None = None) -> Released:
        checks.check_tenant(tenant)
        checks.check_lease(lease)
        chosen = None if ids is None else checks.check_ids(ids)
        return await self.engine.do(c.Release(tenant, lease, chosen))  # type: ignore[no-any-return]

    async def extend(self, tenant: str, lease: str, lease_ms: int | None = None) -> Extended:
        checks.check_tenant(tenant)
        checks.check_lease(lease)
        checks.check_lease_ms(lease_ms)
        return await self.engine.do(c.Extend(tenant, lease, lease_ms))  # type: ignore[no-any-return]

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
        await self.engine.do(
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

    async def _jobs(self, views: Sequence[read.JobView]) -> list[Job]:
        """What was seen, with its payloads and results."""
        wanted = {view.payload[0] for view in views}
        wanted.update(view.result[0] for view in views if view.result is not None)
        chunks = await self.engine.fetch(list(wanted))
        return [
            Job(
                payload=piece(chunks, view.payload),
                result=None if view.result is None else piece(chunks, view.result),
                **view.facts,
            )
            for view in views
        ]

    async def get(self, tenant: str, ids: Sequence[int]) -> list[Job | None]:
        checks.check_tenant(tenant)
        wanted = checks.check_id_list(ids, empty_ok=True)
        kernel = self.engine.look()
        places = [place for job_id in wanted if (place := kernel.locate(tenant, job_id))]
        jobs = await self._jobs([read.view(kernel, *place) for place in places])
        known = {job.id: job for job in jobs}
        return [known.get(job_id) for job_id in ids]

    async def standing(self, tenant: str, ids: Sequence[int]) -> list[Standing | None]:
        checks.check_tenant(tenant)
        wanted = checks.check_id_list(ids, empty_ok=True)
        locate = self.engine.look().locate
        places = [locate(tenant, job_id) for job_id in wanted]
        return [None if place is None else read.standing(*place) for place in places]

    async def reach(
        self, tenant: str, *, lease: str | None = None, bulk: str | None = None
    ) -> frozenset[str]:
        checks.check_tenant(tenant)
        checks.check_reach(lease, bulk)
        return read.reach(self.engine.look(), tenant, lease, bulk)

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
        kernel = self.engine.look()
        places, after = read.find(kernel, tenant, queue, state, task, tag, cursor, limit, newest)
        jobs = await self._jobs([read.view(kernel, *place) for place in places])
        return Page(tuple(jobs), after)

    async def by_key(self, tenant: str, queue: str, key: str) -> int | None:
        checks.check_tenant(tenant)
        checks.check_queue(queue)
        checks.check_name(key, "key")
        kernel = self.engine.look()
        known = kernel.tenants.get(tenant)
        place = known.queues.get(queue) if known is not None else None
        record = place.keys.find(key, kernel.now) if place is not None else None
        return None if record is None else record.id

    async def result(self, tenant: str, job_id: int, *, wait_ms: int = 0) -> Result:
        checks.check_tenant(tenant)
        checks.check_job_id(job_id)
        checks.check_wait_ms(wait_ms)
        kernel = self.engine.look()
        found = kernel.locate(tenant, job_id)
        if found is None:
            raise NotFound(f"job {job_id} is not known", "job_id")
        end = read.result_of(*found)
        if end is not None:
            return await self.engine.ends.result(end)
        if not wait_ms:
            raise Deadline(f"job {job_id} has not ended", "wait_ms")
        return await self.engine.ends.wait(job_id, wait_ms)

    async def logs(self, tenant: str, job_id: int) -> list[LogLine]:
        block, offset = self._known(tenant, job_id)
        side = block.sides.get(offset)
        return list(side.logs or ()) if side is not None else []

    async def explain(self, tenant: str, job_id: int) -> Explanation:
        return explain.explain(self.engine.kernel, *self._known(tenant, job_id))

    async def waiting(self, tenant: str, *, limit: int = 1_000) -> WaitingClaims:
        checks.check_tenant(tenant)
        checks.check_waiting(limit)
        return self.engine.claims.waiting(tenant, limit)

    def _known(self, tenant: str, job_id: int) -> tuple[Any, int]:
        checks.check_tenant(tenant)
        checks.check_job_id(job_id)
        found = self.engine.look().locate(tenant, job_id)
        if found is None:
            raise NotFound(f"job {job_id} is not known", "job_id")
        return found

    # -- events ----------------------------------------------------------------------------------

    def watch(
        self,
        tenant: str,
        *,
        queues: Sequence[str] | None = None,
        kinds: Sequence[EventKind] | None = None,
    ) -> AsyncIterator[Event]:
        watcher = Watcher(self.engine.telling.unwatch, tenant, queues, kinds)
        try:
            checks.check_tenant(tenant)
            checks.check_watch(queues, kinds)
            self.engine.telling.watch(watcher)
        except PenstockError as error:
            watcher.end(error)  # told where every other call tells it: when it is awaited
        return watcher

    # -- time and life ---------------------------------------------------------------------------

    async def health(self) -> Health:
        kernel = self.engine.look()
        keeper = self.engine.keeper
        detail = {
            "queues": kernel.queue_count,
            "leases": len(kernel.leases),
            "waiting_claims": self.engine.waiting,
            "limited_claims": self.engine.claims.limited,
            "limited_pushes": self.engine.limited,
            "chunks": len(kernel.chunks),
            "payload_bytes": self.engine.payloads.size,  # in memory
        }
        detail |= self.engine.health()
        durability: Durability = "memory" if keeper is None else keeper.durability
        return Health(ok=True, store=self._scheme, durability=durability, detail=detail)

    async def backup(self, directory: str | Path, keep: int = 0) -> Path:
        """A compressed copy of the present state, taken while serving; answers its path. Of those
        in the directory the newest `keep` stay; 0: all."""
        if self.engine.keeper is None:
            raise Invalid("a store in memory has nothing to back up", "url")
        return await self.engine.keeper.backups.take(Path(directory), keep)

    async def tick(self) -> None:
        await self.engine.tick()

    async def close(self) -> None:
        await self.engine.close()

    def abandon(self) -> None:
        """What is left to do when the loop has ended without closing the store."""
        self.engine.abandon()

    @property
    def kernel(self) -> Kernel:
        return self.engine.kernel

    def rebuild(self) -> None:
        """Put a kernel made from its own encoded form in the place of the running one."""
        self.engine.rebuild()
