"""Native commands of producers: runs of jobs, and bulks."""

from itertools import chain
from typing import ClassVar

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from penstock.model.answers import BulkInfo, Durability, Pushed, PushedRun
from penstock.model.errors import Invalid
from penstock.model.job import DEFAULT_OPTIONS, Codec, JobOptions, Run
from penstock.model.policy import BULK_DEADLINE_MS
from penstock.model.store import Number, Pusher
from penstock.protocol.command import Answer, Session
from penstock.protocol.native_base import Native
from penstock.protocol.reach import require_bulk, require_bulk_name, require_dependencies
from penstock.protocol.runs import PushedJobs, the_same
from penstock.protocol.short import KINDS


class RunPushed(Answer, kw_only=True):
    """What became of one run, or in `runs` of each of several."""

    first: int = 0  # the first id created; 0 if none was
    count: int = 0  # how many were created; their ids are contiguous
    ids: tuple[int, ...] | UnsetType = UNSET  # of every job, where any has a key
    outcomes: bytes | UnsetType = UNSET  # 0 created, 1 updated, 2 ignored; one byte per job
    runs: tuple[PushedRun, ...] | UnsetType = UNSET  # instead, where several runs were pushed

    @classmethod
    def of(cls, pushed: Pushed) -> "RunPushed":
        if len(pushed.runs) > 1:
            return cls(runs=pushed.runs)
        (run,) = pushed.runs
        if run.ids is None or run.outcomes is None:
            return cls(first=run.first, count=run.count)
        return cls(first=run.first, count=run.count, ids=run.ids, outcomes=run.outcomes)

    def pushed(self) -> Pushed:
        if self.runs is not UNSET:
            return Pushed(self.runs)
        if self.ids is UNSET or self.outcomes is UNSET:
            return Pushed((PushedRun(self.first, self.count),))
        return Pushed((PushedRun(self.first, self.count, self.ids, self.outcomes),))


class PushRun(Native, kw_only=True, tag="PUSHRUN"):
    """Add jobs, all or nothing: packed in `runs`, or one run of alike jobs in `payloads`."""

    answer: ClassVar[type[Answer]] = RunPushed

    runs: tuple[PushedJobs, ...] | None = None
    queue: str | None = None  # of `payloads`
    payloads: list[bytes] | None = None
    codec: Codec | None = None  # of `payloads`; left out: that of `options`
    options: JobOptions = DEFAULT_OPTIONS
    delay_ms: int | None = None
    run_at: int | None = None
    keys: list[str | None] | None = None
    groups: list[str | None] | None = None
    producer: str | None = None  # with `sequence`: a repeat adds nothing and answers the same
    sequence: int | None = None
    content: bytes | None = None  # 16 bytes that a repeat says again; left out: a digest is made
    bulk: str | None = None  # held until that bulk is committed
    part: str = ""
    durability: Durability | None = None
    kind: int | None = None  # 1 to 64: short frames on this connection may name it from now on

    async def call(self, session: Session) -> RunPushed:
        principal = session.principal
        tenant = principal.tenant_of(self.tenant)
        queue, payloads = self.queue, self.payloads
        if (  # one plain job, as our own clients say it: the short way
            queue is not None
            and payloads is not None
            and len(payloads) == 1
            and self.runs is None
            and self.codec is None
            and self.delay_ms is None
            and self.run_at is None
            and self.keys is None
            and self.groups is None
            and self.bulk is None
            and self.durability is None
            and not self.part
        ):
            principal.require("push", queue)
            number = (self.producer, self.sequence, self.content)
            options = the_same((self.options,))
            kinds = None if self.kind is None else self._kinds(session)
            first = await session.store.push_one(tenant, queue, payloads[0], options, number)
            if kinds is not None and self.kind is not None:
                push = session.store.pusher(tenant, queue, options, self.producer, self.content)
                kinds[self.kind] = PushKind(tenant, queue, options, number, push)
            return RunPushed(first=first, count=1)
        if self.kind is not None:
            raise Invalid("stands for one job of which nothing but its options is said", "kind")
        runs = [self._alike()] if self.runs is None else list(map(PushedJobs.run, self.runs))
        waits = False
        for run in runs:
            principal.require("push", run.queue)
            waits = waits or run.depends_on is not None
        if waits:
            named = chain.from_iterable(ids for run in runs for ids in run.depends_on or ())
            await require_dependencies(principal, session.store, tenant, named)
        if self.bulk is not None:
            await require_bulk(principal, session.store, tenant, self.bulk)
        pushed = await session.store.push(
            tenant,
            runs,
            producer=self.producer,
            sequence=self.sequence,
            content=self.content,
            bulk=self.bulk,
            part=self.part,
            durability=self.durability,
        )
        return RunPushed.of(pushed)

    def _kinds(self, session: Session) -> "dict[int, PushKind]":
        """Where the kind is to be noted. Raises Invalid before anything is pushed."""
        assert self.kind is not None
        if session.pushes is None:
            raise Invalid("is for connections that speak MessagePack in frames", "kind")
        if not 1 <= self.kind <= KINDS:
            raise Invalid(f"is {self.kind}, not from 1 to {KINDS}", "kind")
        if self.producer is None or self.content is None:
            raise Invalid("is for pushes that are numbered: say producer and content", "kind")
        return session.pushes

    def _alike(self) -> Run:
        if self.queue is None or self.payloads is None:
            raise Invalid("say runs, or queue and payloads", "runs")
        options = self.options
        if self.codec is not None and self.codec != options.codec:
            options = replace(options, codec=self.codec)
        return Run.pack(
            self.queue,
            self.payloads,
            options,
            delay_ms=self.delay_ms,
            run_at=self.run_at,
            keys=self.keys,
            groups=self.groups,
        )


class PushKind(msgspec.Struct):
    """What single jobs share that a connection pushes by short frames."""

    tenant: str
    queue: str
    options: tuple[JobOptions, ...]
    number: Number  # of the push that said it
    push: Pusher | None  # None: this store is told at length

    def request(self, req_id: int, sequence: int, payload: bytes) -> PushRun:
        """The same at length."""
        producer, _, content = self.number
        return PushRun(
            tenant=self.tenant,
            queue=self.queue,
            payloads=[payload],
            options=self.options[0],
            producer=producer,
            sequence=sequence,
            content=content,
            req_id=req_id,
        )


class Bulk(Answer, kw_only=True):
    bulk: BulkInfo


class BulkOpen(Native, kw_only=True, tag="BULKOPEN"):
    """Begin a two-phase push, or find the one of that name."""

    answer: ClassVar[type[Answer]] = Bulk

    name: str | None = None  # left out: one is made up
    deadline_ms: int = BULK_DEADLINE_MS  # renewed by each push; then it aborts

    async def call(self, session: Session) -> Bulk:
        tenant = self.where(session)
        await require_bulk_name(session.principal, session.store, tenant, self.name)
        info = await session.store.open_bulk(tenant, self.name, deadline_ms=self.deadline_ms)
        return Bulk(bulk=info)


class BulkCommit(Native, kw_only=True, tag="BULKCOMMIT"):
    """Publish the named parts at one instant and drop the rest."""

    answer: ClassVar[type[Answer]] = Bulk

    bulk: str
    parts: list[str] | None = None  # left out: all

    async def call(self, session: Session) -> Bulk:
        tenant = self.where(session)
        await require_bulk(session.principal, session.store, tenant, self.bulk)
        return Bulk(bulk=await session.store.commit_bulk(tenant, self.bulk, self.parts))


class BulkAbort(Native, kw_only=True, tag="BULKABORT"):
    """Drop everything that the bulk holds."""

    answer: ClassVar[type[Answer]] = Bulk

    bulk: str

    async def call(self, session: Session) -> Bulk:
        tenant = self.where(session)
        await require_bulk(session.principal, session.store, tenant, self.bulk)
        return Bulk(bulk=await session.store.abort_bulk(tenant, self.bulk))


PUSHING: tuple[type[Native], ...] = (PushRun, BulkOpen, BulkCommit, BulkAbort)
