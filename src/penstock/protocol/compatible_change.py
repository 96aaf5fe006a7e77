"""Compatible commands that change jobs: those of owners and operators, all of them audited."""

from typing import ClassVar, Final

from msgspec import Raw

from penstock.model.errors import Conflict, Invalid, NotFound
from penstock.model.job import JobError
from penstock.model.lifecycle import State
from penstock.protocol.command import Answer, Request, Session
from penstock.protocol.compatible_jobs import wire_job
from penstock.protocol.compatible_look import MAX_PAGE, WireJobs
from penstock.protocol.compatible_reach import (
    Caller,
    Counted,
    Done,
    in_their_words,
    job_of,
    standing_of,
    unknown,
)
from penstock.protocol.transcode import NOTHING, written

DEAD_LETTERS: Final = 100


class Cancel(Request, tag="CANCEL", kw_only=True):
    """End a job that has not ended; one that is being worked on, too."""

    audited: ClassVar[bool] = True
    id: int

    async def call(self, session: Session) -> Done:
        who = Caller.of(session)
        return await _end(who, self.id, discard=False)


class Discard(Request, tag="DISCARD", kw_only=True):
    """End a job that has not ended, and put it among the dead letters."""

    audited: ClassVar[bool] = True
    id: int

    async def call(self, session: Session) -> Done:
        who = Caller.of(session)
        return await _end(who, self.id, discard=True)


async def _end(who: Caller, job_id: int, *, discard: bool) -> Done:
    await standing_of(who, job_id, "admin")
    ended = await who.store.cancel(who.tenant, (job_id,), discard=discard)
    if not ended.acked:
        raise Conflict(f"job {job_id} has ended", "id")
    return Done()


class UpdateJob(Request, tag="UPDATEJOB", kw_only=True):
    """Give a job that has not been pulled other data."""

    audited: ClassVar[bool] = True
    id: int
    data: Raw = NOTHING

    async def call(self, session: Session) -> Done:
        who = Caller.of(session)
        await standing_of(who, self.id, "admin")
        data = written(self.data, who.encoding)
        with in_their_words():
            await who.store.edit(who.tenant, self.id, payload=data, codec=who.encoding)
        return Done()


class Update(UpdateJob, tag="UPDATE", kw_only=True):
    """The same as UPDATEJOB."""


class ChangePriority(Request, tag="CHANGEPRIORITY", kw_only=True):
    """Give a job that has not been pulled another priority."""

    audited: ClassVar[bool] = True
    id: int
    priority: int

    async def call(self, session: Session) -> Done:
        who = Caller.of(session)
        await standing_of(who, self.id, "admin")
        await who.store.edit(who.tenant, self.id, priority=self.priority)
        return Done()


class Promote(Request, tag="PROMOTE", kw_only=True):
    """Let a delayed job run now."""

    audited: ClassVar[bool] = True
    id: int

    async def call(self, session: Session) -> Done:
        who = Caller.of(session)
        await standing_of(who, self.id, "admin")
        await who.store.edit(who.tenant, self.id, delay_ms=0)
        return Done()


class MoveToDelayed(Request, tag="MOVETODELAYED", kw_only=True):
    """Put a job off. Of one that is being worked on, the attempt ends and counts; the last one
    cannot be put off that way, for there would be none left to run it (conflict)."""

    audited: ClassVar[bool] = True
    id: int
    delay: int  # ms from now

    async def call(self, session: Session) -> Done:
        who = Caller.of(session)
        standing = await standing_of(who, self.id)
        tenant = who.tenant
        with in_their_words():
            if standing.lease is None:
                who.principal.require("admin", standing.queue)
                await who.store.edit(tenant, self.id, delay_ms=self.delay)
            else:
                who.principal.require("claim", standing.queue)
                await self._fail(who, tenant, standing.lease)
        return Done()

    async def _fail(self, who: Caller, tenant: str, lease: str) -> None:
        """Not a release and then an edit: between the two a waiting worker would have it again."""
        job = await job_of(who, self.id)
        if job is None:
            raise unknown(self.id)
        if job.attempt == job.options.max_attempts:
            raise Conflict(f"this is the last attempt of job {self.id}", "id")
        error = JobError(kind="moved_to_delayed", message=f"put off by {self.delay} ms")
        await who.store.fail(tenant, lease, (self.id,), error=error, retry_in_ms=self.delay)


# -- dead letters ----------------------------------------------------------------------------------


class Dlq(Request, tag="DLQ", kw_only=True):
    """The dead letters of a queue, by id."""

    answer: ClassVar[type[Answer]] = WireJobs
    large: ClassVar[bool] = True
    queue: str
    count: int | None = None  # 100; at most 1000

    async def call(self, session: Session) -> WireJobs:
        who = Caller.of(session)
        who.principal.require_sight(self.queue)
        limit = DEAD_LETTERS if self.count is None else self.count
        if not 1 <= limit <= MAX_PAGE:
            raise Invalid(f"{limit} is not in 1 to {MAX_PAGE}", "count")
        page = await who.store.find(who.tenant, self.queue, state=State.DEAD, limit=limit)
        return WireJobs(jobs=[wire_job(job, who.encoding, with_state=True) for job in page.jobs])


class RetryDlq(Request, tag="RETRYDLQ", kw_only=True):
    """Let dead letters run again, their attempts afresh: one, or all of the queue. One whose
    unique key has been taken meanwhile stays, and is not counted."""

    audited: ClassVar[bool] = True
    answer: ClassVar[type[Answer]] = Counted
    queue: str
    id: int | None = None

    async def call(self, session: Session) -> Counted:
        who = Caller.of(session)
        who.principal.require("admin", self.queue)
        tenant = who.tenant
        if self.id is None:
            return Counted(count=len((await who.store.redrive(tenant, self.queue)).ids))
        standing = await standing_of(who, self.id)
        if standing.queue != self.queue or standing.state is not State.DEAD:
            raise NotFound(f"job {self.id} is no dead letter of this queue", "id")
        redriven = await who.store.redrive(tenant, self.queue, ids=(self.id,))
        if redriven.conflicts:
            raise Conflict(f"a key of job {self.id} has been taken by another", "id")
        return Counted(count=len(redriven.ids))


class PurgeDlq(Request, tag="PURGEDLQ", kw_only=True):
    """Forget the dead letters of a queue."""

    audited: ClassVar[bool] = True
    answer: ClassVar[type[Answer]] = Counted
    queue: str

    async def call(self, session: Session) -> Counted:
        who = Caller.of(session)
        who.principal.require("admin", self.queue)
        return Counted(count=await who.store.purge_dead(who.tenant, self.queue))


CHANGE: Final = (
    Cancel,
    Discard,
    UpdateJob,
    Update,
    ChangePriority,
    Promote,
    MoveToDelayed,
    Dlq,
    RetryDlq,
    PurgeDlq,
)
