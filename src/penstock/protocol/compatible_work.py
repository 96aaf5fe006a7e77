"""Compatible commands of workers: PULL, PULLB, ACK, ACKB, FAIL, HEARTBEAT, PROGRESS, LOG, PARTIAL.

Every pulled job is held on a lease of its own, as long as its `stall_timeout`, so that a HEARTBEAT
keeps one job. Whoever may claim from its queue may speak for a job, over any connection, also after
a restart of the server: the lease is looked up by the id. Hence the known limit of this wire: a
worker that comes too late ends the attempt of the one that took over.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import ClassVar, Final

from msgspec import Raw

from penstock.model.errors import BatchTooLarge, Invalid, PenstockError
from penstock.model.job import MAX_BATCH, JobError, Lease, LogLine
from penstock.model.policy import DAY_MS
from penstock.protocol.command import Answer, Request, Session
from penstock.protocol.compatible_jobs import WireJob, pulled
from penstock.protocol.compatible_reach import (
    Caller,
    Done,
    in_their_words,
    lease_of,
    standings_of,
)
from penstock.protocol.together import TURN, Together
from penstock.protocol.transcode import NOTHING, as_json, given

MAX_WAIT_MS: Final = DAY_MS


class Pulled(Done, kw_only=True):
    job: WireJob | None  # null: there was none in time


class PulledMany(Done, kw_only=True):
    jobs: list[WireJob]


class Pull(Request, tag="PULL", kw_only=True):
    """Take the next job of a queue."""

    answer: ClassVar[type[Answer]] = Pulled
    waits: ClassVar[bool] = True
    queue: str
    timeout: int | None = None  # 0; how long to wait for one, in ms

    async def call(self, session: Session) -> Pulled:
        who = Caller.of(session)
        who.principal.require("claim", self.queue)
        wait_ms = _wait_ms(self.timeout)
        lease = await who.store.claim(who.tenant, (self.queue,), 1, wait_ms=wait_ms)
        if lease is None:
            return Pulled(job=None)
        return Pulled(job=next(pulled([lease], who.encoding)))

    async def take_back(self, session: Session, answer: Answer) -> None:
        if isinstance(answer, Pulled) and answer.job is not None:
            await _take_back(session, [answer.job.id])


class PullB(Request, tag="PULLB", kw_only=True):
    """Take up to `count` jobs of a queue: it waits for the first and takes what else is there."""

    answer: ClassVar[type[Answer]] = PulledMany
    waits: ClassVar[bool] = True
    queue: str
    count: int
    timeout: int | None = None  # 0; how long to wait for the first, in ms

    async def call(self, session: Session) -> PulledMany:
        who = Caller.of(session)
        who.principal.require("claim", self.queue)
        if self.count > MAX_BATCH:
            raise BatchTooLarge(f"{self.count} jobs; at most {MAX_BATCH} at once", "count")
        if self.count < 1:
            raise Invalid(f"{self.count} is no number of jobs, at least 1", "count")
        wait_ms = _wait_ms(self.timeout)
        first = await who.store.claim(who.tenant, (self.queue,), 1, wait_ms=wait_ms)
        if first is None:
            return PulledMany(jobs=[])
        claims = Together()
        try:
            await self._take_more(who, claims)
        except BaseException:  # whoever was to have these jobs is gone
            await _release(who, [lease.token for lease in (first, *_granted(claims))])
            raise
        return PulledMany(jobs=list(pulled([first, *_granted(claims)], who.encoding)))

    async def _take_more(self, who: Caller, claims: Together) -> None:
        """Job by job, until there is none; a claim that gets nothing waits for nothing."""
        queues = (self.queue,)
        for number in range(1, self.count):
            ended = claims.begin(who.store.claim(who.tenant, queues, 1))
            if ended and not isinstance(claims.answers[-1], Lease):
                break
            if not number % TURN:
                await claims.others_first()
        await claims

    async def take_back(self, session: Session, answer: Answer) -> None:
        if isinstance(answer, PulledMany) and answer.jobs:
            await _take_back(session, [job.id for job in answer.jobs])


def _granted(claims: Together) -> Iterable[Lease]:
    return (answer for answer in claims.answers if isinstance(answer, Lease))


async def _release(who: Caller, leases: Iterable[str]) -> None:
    releases = Together()
    for lease in leases:
        releases.begin(who.store.release(who.tenant, lease))
    await releases


async def _take_back(session: Session, ids: list[int]) -> None:
    """Release jobs that were pulled just now and reached nobody."""
    who = Caller.of(session)
    with suppress(PenstockError):  # ended meanwhile, or the store is at its end
        standings = await who.store.standing(who.tenant, ids)
        leases = [each.lease for each in standings if each is not None]
        await _release(who, [lease for lease in leases if lease is not None])


def _wait_ms(timeout: int | None) -> int:
    if timeout is None:
        return 0
    if not 0 <= timeout <= MAX_WAIT_MS:
        raise Invalid(f"{timeout} is not in 0 to {MAX_WAIT_MS} ms", "timeout")
    return timeout


class Ack(Request, tag="ACK", kw_only=True):
    """The job is done."""

    id: int
    result: Raw = NOTHING  # kept with the job

    async def call(self, session: Session) -> Done:
        who = Caller.of(session)
        lease = await lease_of(who, self.id)
        tenant, encoding = who.tenant, who.encoding
        if given(self.result, encoding):
            results = {self.id: bytes(self.result)}
            with in_their_words():
                await who.store.ack(tenant, lease, (self.id,), results=results, codec=encoding)
        else:
            await who.store.ack(tenant, lease, (self.id,))
        return Done()


class AckedIds(Done, kw_only=True):
    count: int
    ids: list[int]  # those that were acked; the others are held by nobody, or unknown


class AckB(Request, tag="ACKB", kw_only=True):
    """Jobs are done. Those that nobody holds are left out of the answer; it is no mistake."""

    answer: ClassVar[type[Answer]] = AckedIds
    ids: list[int]

    async def call(self, session: Session) -> AckedIds:
        who = Caller.of(session)
        standings = await standings_of(who, self.ids)
        queues = {standing.queue for standing in standings if standing is not None}
        who.principal.require("claim", *queues)
        by_lease: dict[str, list[int]] = {}
        for job_id, standing in zip(self.ids, standings, strict=True):
            if standing is not None and standing.lease is not None:
                by_lease.setdefault(standing.lease, []).append(job_id)
        acks = Together()
        for number, (lease, ids) in enumerate(by_lease.items(), 1):
            acks.begin(who.store.ack(who.tenant, lease, ids))
            if not number % TURN:
                await acks.others_first()
        done: set[int] = set()
        for answer in await acks:
            if not isinstance(answer, PenstockError):
                done.update(answer.acked)
        acked = [job_id for job_id in dict.fromkeys(self.ids) if job_id in done]
        return AckedIds(count=len(acked), ids=acked)


class Fail(Request, tag="FAIL", kw_only=True):
    """The attempt has failed: the job is retried by its backoff, or goes to the dead letters."""

    id: int
    error: str | None = None

    async def call(self, session: Session) -> Done:
        who = Caller.of(session)
        lease = await lease_of(who, self.id)
        error = JobError(message=self.error or "")
        await who.store.fail(who.tenant, lease, (self.id,), error=error)
        return Done()


class Heartbeat(Request, tag="HEARTBEAT", kw_only=True):
    """The job is still being worked on: its `stall_timeout` begins anew."""

    id: int

    async def call(self, session: Session) -> Done:
        who = Caller.of(session)
        await who.store.extend(who.tenant, await lease_of(who, self.id))
        return Done()


class Progress(Request, tag="PROGRESS", kw_only=True):
    """How far the job has got."""

    id: int
    progress: int  # 0 to 100
    message: str | None = None

    async def call(self, session: Session) -> Done:
        who = Caller.of(session)
        lease = await lease_of(who, self.id)
        await who.store.report(
            who.tenant, lease, self.id, progress=self.progress, message=self.message
        )
        return Done()


class Log(Request, tag="LOG", kw_only=True):
    """A line for the job's log, of which the last 100 are kept."""

    id: int
    message: str
    level: str = "info"

    async def call(self, session: Session) -> Done:
        who = Caller.of(session)
        lease = await lease_of(who, self.id)
        line = LogLine(0, self.message, self.level)
        with in_their_words():
            await who.store.report(who.tenant, lease, self.id, logs=(line,))
        return Done()


class Partial(Request, tag="PARTIAL", kw_only=True):
    """A piece of the result before its end, for whoever is subscribed; it is not kept."""

    id: int
    data: Raw = NOTHING
    index: int | None = None  # which piece

    async def call(self, session: Session) -> Done:
        who = Caller.of(session)
        lease = await lease_of(who, self.id)
        index = b"null" if self.index is None else str(self.index).encode()
        data = as_json(self.data, who.encoding)
        said = b'{"index":%b,"data":%b}' % (index, data)
        await who.store.report(who.tenant, lease, self.id, partial=said)
        return Done()


WORK: Final = (Pull, PullB, Ack, AckB, Fail, Heartbeat, Progress, Log, Partial)
