"""Compatible commands that look at jobs. None of them changes anything; a job that is not there is
answered with null, as clients of this wire expect, and not refused."""

from collections.abc import AsyncIterator, Sequence
from typing import ClassVar, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from penstock.model.answers import QueueInfo
from penstock.model.errors import Invalid, NotFound
from penstock.model.job import Job
from penstock.model.lifecycle import State
from penstock.model.policy import DAY_MS
from penstock.protocol.command import Answer, Request, Session
from penstock.protocol.compatible_jobs import (
    CUSTOM,
    STATES,
    WireJob,
    failure_of,
    state_of,
    wire_job,
)
from penstock.protocol.compatible_reach import (
    Caller,
    Counted,
    Done,
    job_of,
    jobs_of,
    queue_of,
    queues_of,
    standing_of,
    standings_of,
    unknown,
)
from penstock.protocol.transcode import shown

WAIT_MS: Final = 30_000
MAX_PAGE: Final = 1_000
MAX_OFFSET: Final = 10_000  # an offset is walked to; the native wire has cursors
MAX_LOOKS: Final = 100  # at stretches of a queue, for one page


class JobAndState(Done, kw_only=True):
    job: WireJob | None
    state: str | None


class StateOf(Done, kw_only=True):
    id: int
    state: str | None


class ResultOf(Done, kw_only=True):
    id: int
    result: Raw  # null until it has completed, and where it has none
    error: str | UnsetType = UNSET  # of a job that failed


class WireJobs(Done, kw_only=True):
    jobs: list[WireJob]


class JobsAndTotal(Done, kw_only=True):
    jobs: list[WireJob]  # by id
    total: int  # of all pages


class JobCounts(Done, kw_only=True):
    waiting: int
    active: int
    delayed: int
    completed: int
    failed: int


class ProgressSaid(msgspec.Struct, kw_only=True):
    id: int
    progress: int
    message: str | None


class ProgressOf(Done, kw_only=True):
    progress: ProgressSaid


class WireLog(msgspec.Struct, kw_only=True):
    timestamp: int
    message: str
    level: str


class LogsOf(Done, kw_only=True):
    id: int
    logs: list[WireLog]  # oldest first


class ChildrenOf(Done, kw_only=True):
    parent_id: int
    children: list[WireJob]  # those still known
    completed: int
    total: int


def _with_state(job: Job | None, who: Caller) -> JobAndState:
    if job is None or job.state not in STATES:
        return JobAndState(job=None, state=None)
    return JobAndState(job=wire_job(job, who.encoding), state=STATES[job.state])


class GetJob(Request, tag="GETJOB", kw_only=True):
    """A job and its state."""

    answer: ClassVar[type[Answer]] = JobAndState
    large: ClassVar[bool] = True
    id: int

    async def call(self, session: Session) -> JobAndState:
        who = Caller.of(session)
        return _with_state(await job_of(who, self.id), who)


class GetState(Request, tag="GETSTATE", kw_only=True):
    """The state of a job."""

    answer: ClassVar[type[Answer]] = StateOf
    id: int

    async def call(self, session: Session) -> StateOf:
        who = Caller.of(session)
        (standing,) = await standings_of(who, (self.id,))
        return StateOf(id=self.id, state=None if standing is None else STATES.get(standing.state))


class GetResult(Request, tag="GETRESULT", kw_only=True):
    """What a job that has completed gave back, or why one failed."""

    answer: ClassVar[type[Answer]] = ResultOf
    id: int

    async def call(self, session: Session) -> ResultOf:
        who = Caller.of(session)
        job = await job_of(who, self.id)
        encoding = who.encoding
        if job is None:
            return ResultOf(id=self.id, result=shown(None, None, encoding))
        wire = wire_job(job, encoding)
        result = shown(None, None, encoding) if wire.result is UNSET else wire.result
        return ResultOf(id=self.id, result=result, error=wire.error)


class GetJobByCustomId(Request, tag="GETJOBBYCUSTOMID", kw_only=True):
    """The job that was pushed with this `job_id`, and its state.

    Custom ids belong to their queues. Without a queue all that are in sight are asked, one after
    the other, and the newest job answers.
    """

    answer: ClassVar[type[Answer]] = JobAndState
    large: ClassVar[bool] = True
    job_id: str = ""
    job_id_camel: str = msgspec.field(name="jobId", default="")
    custom_id: str = msgspec.field(name="customId", default="")
    queue: str | None = None

    async def call(self, session: Session) -> JobAndState:
        who = Caller.of(session)
        custom_id = self.job_id or self.job_id_camel or self.custom_id
        if not custom_id:
            raise Invalid("is missing; give the id that the job was pushed with", "job_id")
        if self.queue is None:
            queues = [info.queue for info in await queues_of(who)]
        else:
            who.principal.require_sight(self.queue)
            queues = [self.queue]
        tenant, key = who.tenant, CUSTOM + custom_id
        found = [await who.store.by_key(tenant, queue, key) for queue in queues]
        newest = max((job_id for job_id in found if job_id is not None), default=0)
        return _with_state(await job_of(who, newest), who)


class GetJobsBatch(Request, tag="GETJOBSBATCH", kw_only=True):
    """Jobs by their ids, with their states; those that are not there are left out."""

    answer: ClassVar[type[Answer]] = WireJobs
    large: ClassVar[bool] = True
    ids: list[int]

    async def call(self, session: Session) -> WireJobs:
        who = Caller.of(session)
        jobs = await jobs_of(who, self.ids)
        return WireJobs(jobs=_listed(jobs, who))


def _listed(jobs: Sequence[Job | None], who: Caller) -> list[WireJob]:
    return [
        wire_job(job, who.encoding, with_state=True)
        for job in jobs
        if job is not None and job.state in STATES
    ]


class GetJobs(Request, tag="GETJOBS", kw_only=True):
    """Jobs of a queue, or of all that are in sight, by id: those from `offset` on."""

    answer: ClassVar[type[Answer]] = JobsAndTotal
    large: ClassVar[bool] = True
    queue: str | None = None
    state: str | None = None  # waiting, delayed, waiting-children, active, completed or failed
    limit: int | None = None  # 100; at most 1000
    offset: int | None = None  # 0; at most 10000

    async def call(self, session: Session) -> JobsAndTotal:
        who = Caller.of(session)
        limit = 100 if self.limit is None else self.limit
        offset = self.offset or 0
        if not 1 <= limit <= MAX_PAGE:
            raise Invalid(f"{limit} is not in 1 to {MAX_PAGE}", "limit")
        if not 0 <= offset <= MAX_OFFSET:
            raise Invalid(f"{offset} is not in 0 to {MAX_OFFSET}", "offset")
        state = None if self.state is None else state_of(self.state)
        if self.queue is None:
            queues = await queues_of(who)
        else:
            who.principal.require_sight(self.queue)
            queues = [await queue_of(who, self.queue)]
        states = tuple(STATES) if state is None else (state,)
        total = sum(info.counts[each] for info in queues for each in states)
        jobs: list[Job] = []
        async for job in _from(who, queues, state, offset):
            jobs.append(job)
            if len(jobs) == limit:
                break
        return JobsAndTotal(jobs=_listed(jobs, who), total=total)


async def _from(
    who: Caller, queues: list[QueueInfo], state: State | None, offset: int
) -> AsyncIterator[Job]:
    """Jobs that this wire knows, from the offset on, as far as a bounded number of looks goes."""
    tenant = who.tenant
    looks = 0
    for info in queues:
        known = sum(info.counts.values()) if state is None else info.counts[state]
        if not known:
            continue
        if state is not None and offset >= known:
            offset -= known
            continue
        cursor: int | None = 0
        while cursor is not None and looks < MAX_LOOKS:
            looks += 1
            page = await who.store.find(
                tenant, info.queue, state=state, cursor=cursor, limit=MAX_PAGE
            )
            for job in page.jobs:
                if job.state not in STATES:
                    continue
                if offset:
                    offset -= 1
                else:
                    yield job
            cursor = page.cursor


class GetJobCounts(Request, tag="GETJOBCOUNTS", kw_only=True):
    """How many jobs of a queue are in which state."""

    answer: ClassVar[type[Answer]] = JobCounts
    queue: str

    async def call(self, session: Session) -> JobCounts:
        who = Caller.of(session)
        who.principal.require_sight(self.queue)
        counts = (await queue_of(who, self.queue)).counts
        return JobCounts(
            waiting=counts[State.READY],
            active=counts[State.ACTIVE],
            delayed=counts[State.SCHEDULED],
            completed=counts[State.COMPLETED],
            failed=counts[State.DEAD],
        )


class Count(Request, tag="COUNT", kw_only=True):
    """How many jobs of a queue wait: now, for their time, or for children."""

    answer: ClassVar[type[Answer]] = Counted
    queue: str

    async def call(self, session: Session) -> Counted:
        who = Caller.of(session)
        who.principal.require_sight(self.queue)
        return Counted(count=pending((await queue_of(who, self.queue)).counts))


def pending(counts: dict[State, int]) -> int:
    return counts[State.READY] + counts[State.SCHEDULED] + counts[State.BLOCKED]


class WaitedFor(Done, kw_only=True):
    result: Raw | UnsetType = UNSET  # of a job that completed; null if it has none
    error: str | UnsetType = UNSET  # of one that failed, was cancelled or has expired


class WaitJob(Request, tag="WAITJOB", kw_only=True):
    """Wait for the end of a job. Refused (deadline) if that does not come in time."""

    answer: ClassVar[type[Answer]] = WaitedFor
    waits: ClassVar[bool] = True
    id: int
    timeout: int | None = None  # 30000 ms

    async def call(self, session: Session) -> WaitedFor:
        who = Caller.of(session)
        wait_ms = WAIT_MS if self.timeout is None else self.timeout
        if not 0 <= wait_ms <= DAY_MS:
            raise Invalid(f"{wait_ms} is not in 0 to {DAY_MS} ms", "timeout")
        await standing_of(who, self.id)
        try:
            result = await who.store.result(who.tenant, self.id, wait_ms=wait_ms)
        except NotFound as error:  # forgotten meanwhile
            raise unknown(self.id) from error
        if result.state is State.COMPLETED:
            return WaitedFor(result=shown(result.value, result.codec, who.encoding))
        return WaitedFor(error=failure_of(result))


class GetProgress(Request, tag="GETPROGRESS", kw_only=True):
    """How far a job said that it has got."""

    answer: ClassVar[type[Answer]] = ProgressOf
    id: int

    async def call(self, session: Session) -> ProgressOf:
        who = Caller.of(session)
        job = await job_of(who, self.id)
        if job is None:
            raise unknown(self.id)
        said = ProgressSaid(id=job.id, progress=job.progress or 0, message=job.progress_message)
        return ProgressOf(progress=said)


class GetLogs(Request, tag="GETLOGS", kw_only=True):
    """The last lines of a job's log."""

    answer: ClassVar[type[Answer]] = LogsOf
    id: int

    async def call(self, session: Session) -> LogsOf:
        who = Caller.of(session)
        await standing_of(who, self.id)
        lines = await who.store.logs(who.tenant, self.id)
        logs = [
            WireLog(timestamp=line.at, message=line.message, level=line.level) for line in lines
        ]
        return LogsOf(id=self.id, logs=logs)


class GetChildren(Request, tag="GETCHILDREN", kw_only=True):
    """The jobs that a parent waits, or waited, for. One that is forgotten, or out of sight, counts
    as completed."""

    answer: ClassVar[type[Answer]] = ChildrenOf
    parent_id: int

    async def call(self, session: Session) -> ChildrenOf:
        who = Caller.of(session)
        parent = await job_of(who, self.parent_id)
        if parent is None:
            raise NotFound(f"job {self.parent_id} is not known", "parent_id")
        standings = await standings_of(who, parent.depends_on)
        ended = [each is None or each.state is State.COMPLETED for each in standings]
        children = await jobs_of(who, parent.depends_on)
        return ChildrenOf(
            parent_id=parent.id,
            children=_listed(children, who),
            completed=sum(ended),
            total=len(parent.depends_on),
        )


LOOK: Final = (
    GetJob,
    GetState,
    GetResult,
    GetJobByCustomId,
    GetJobsBatch,
    GetJobs,
    GetJobCounts,
    Count,
    WaitJob,
    GetProgress,
    GetLogs,
    GetChildren,
)
