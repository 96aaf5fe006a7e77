"""What answers of the HTTP interface show, and how the words of the model become that.

Payloads and results stand there as JSON values, or as base64 under a name of their own.
"""

from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from penstock.model.event import Event, EventKind
from penstock.model.fingerprint import masked
from penstock.model.job import Codec, Ids, Job, JobError, Lease, LogLine, Outcome
from penstock.model.lifecycle import DeadReason, State
from penstock.model.policy import QueueConfig, Rate
from penstock.model.schedule import Cron, Daily, Every, Missed, Overlap
from penstock.model.store import (
    Acked,
    BulkInfo,
    CronInfo,
    Explanation,
    Extended,
    Failed,
    Pushed,
    QueueInfo,
    Redriven,
    Released,
    Result,
)
from penstock.protocol.command import Figures
from penstock.protocol.http_said import BackoffSaid
from penstock.protocol.json_values import shown

_NULL = Raw(b"null")


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """Every shape that goes out."""


class Problem(Shown, frozen=True, kw_only=True):
    """What went wrong, as RFC 9457 has it; `code` is the same on every transport."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    field: str | UnsetType = UNSET  # which value of the request is to blame


# -- producing -----------------------------------------------------------------------------------


class PushedJob(Shown, frozen=True, kw_only=True):
    id: int
    outcome: Outcome


class PushedJobs(Shown, frozen=True, kw_only=True):
    """Every job's id and what became of it, in the order in which they were said."""

    jobs: tuple[PushedJob, ...]

    @classmethod
    def of(cls, pushed: Pushed) -> "PushedJobs":
        return cls(jobs=tuple(PushedJob(id=i, outcome=o) for i, o in pushed.jobs))


class FlowPushed(Shown, frozen=True, kw_only=True):
    """The ids by the names that the jobs have in the flow."""

    jobs: dict[str, int]


class BulkShown(Shown, frozen=True, kw_only=True):
    """A bulk as it was opened, or found under its name."""

    bulk: str
    state: str
    expires_at: int

    @classmethod
    def of(cls, info: BulkInfo) -> "BulkShown":
        return cls(bulk=info.bulk, state=info.state, expires_at=info.expires_at)


class BulkEnded(Shown, frozen=True, kw_only=True):
    """How many jobs a bulk published, and how many it dropped."""

    bulk: str
    state: str
    jobs: int
    dropped: int

    @classmethod
    def of(cls, info: BulkInfo) -> "BulkEnded":
        return cls(bulk=info.bulk, state=info.state, jobs=info.jobs, dropped=info.dropped)


# -- jobs ----------------------------------------------------------------------------------------


class JobClaimed(Shown, frozen=True, kw_only=True):
    """A job as its worker gets it."""

    id: int
    queue: str
    payload: Raw | UnsetType = UNSET
    payload_base64: bytes | UnsetType = UNSET
    codec: Codec
    attempt: int
    max_attempts: int
    priority: int
    task: str
    key: str | None
    group: str | None
    tags: tuple[str, ...]
    headers: dict[str, str] | None
    created_at: int
    run_at: int
    redelivered: bool


def _claimed(job: Job) -> dict[str, Any]:
    options = job.options
    payload, encoded = shown(job.payload, options.codec)
    return {
        "id": job.id,
        "queue": job.queue,
        "payload": payload,
        "payload_base64": encoded,
        "codec": options.codec,
        "attempt": job.attempt,
        "max_attempts": options.max_attempts,
        "priority": job.priority,
        "task": options.task,
        "key": job.key,
        "group": job.group,
        "tags": options.tags,
        "headers": job.headers,
        "created_at": job.created_at,
        "run_at": job.run_at,
        "redelivered": job.redelivered,
    }


class Claimed(Shown, frozen=True, kw_only=True):
    """A lease and the jobs that it holds."""

    lease: str
    expires_at: int
    jobs: tuple[JobClaimed, ...]

    @classmethod
    def of(cls, lease: Lease) -> "Claimed":
        jobs = tuple(JobClaimed(**_claimed(job)) for job in lease.jobs)
        return cls(lease=lease.token, expires_at=lease.expires_at, jobs=jobs)


class ErrorShown(Shown, frozen=True, kw_only=True):
    """Why an attempt failed."""

    kind: str = msgspec.field(name="class")
    message: str
    trace: str
    at: int
    worker: str
    attempt: int

    @classmethod
    def of(cls, error: JobError) -> "ErrorShown":
        return cls(
            kind=error.kind,
            message=error.message,
            trace=error.trace,
            at=error.at,
            worker=error.worker,
            attempt=error.attempt,
        )


class JobRead(JobClaimed, frozen=True, kw_only=True):
    """Everything that is known of a job.

    `children` are the jobs that it waits or waited for, `parent` is the first that waits or
    waited for it.
    """

    state: State
    dead_reason: DeadReason | None
    attempts: int
    lease_expires_at: int | None
    last_heartbeat: int | None
    worker: str | None
    progress: int | None
    progress_message: str | None
    result: Raw | UnsetType = UNSET
    result_base64: bytes | UnsetType = UNSET
    errors: tuple[ErrorShown, ...]
    started_at: int | None
    finished_at: int | None
    children: tuple[int, ...]
    parent: int | None

    @classmethod
    def of(cls, job: Job) -> "JobRead":
        result, encoded = _result(job.result, job.result_codec)
        return cls(
            **_claimed(job),
            state=job.state,
            dead_reason=job.dead_reason,
            attempts=job.attempt,
            lease_expires_at=job.lease_expires_at,
            last_heartbeat=job.last_heartbeat,
            worker=job.worker,
            progress=job.progress,
            progress_message=job.progress_message,
            result=result,
            result_base64=encoded,
            errors=tuple(map(ErrorShown.of, job.errors)),
            started_at=job.started_at,
            finished_at=job.finished_at,
            children=job.depends_on,
            parent=job.dependants[0] if job.dependants else None,
        )


def _result(value: bytes | None, codec: Codec | None) -> tuple[Raw | UnsetType, bytes | UnsetType]:
    return (_NULL, UNSET) if value is None or codec is None else shown(value, codec)


class JobPage(Shown, frozen=True, kw_only=True):
    """Jobs by ascending id. A page may be short, even empty, and still have a cursor."""

    jobs: tuple[JobRead, ...]
    cursor: int | None


class ResultShown(Shown, frozen=True, kw_only=True):
    """How a job ended: with a result if it was completed, else with its last error, if any."""

    state: State
    result: Raw | UnsetType = UNSET
    result_base64: bytes | UnsetType = UNSET
    error: ErrorShown | UnsetType | None = UNSET
    dead_reason: DeadReason | UnsetType = UNSET

    @classmethod
    def of(cls, result: Result) -> "ResultShown":
        if result.state is State.COMPLETED:
            value, encoded = _result(result.value, result.codec)
            return cls(state=result.state, result=value, result_base64=encoded)
        error = None if result.error is None else ErrorShown.of(result.error)
        return cls(state=result.state, error=error, dead_reason=result.dead_reason or UNSET)


class LogShown(Shown, frozen=True, kw_only=True):
    at: int
    message: str
    level: str


class Logs(Shown, frozen=True, kw_only=True):
    """The last lines that workers wrote about a job."""

    logs: tuple[LogShown, ...]

    @classmethod
    def of(cls, lines: list[LogLine]) -> "Logs":
        return cls(logs=tuple(LogShown(at=o.at, message=o.message, level=o.level) for o in lines))


class ExplanationShown(Shown, frozen=True, kw_only=True):
    """Why a job is not running: codes, and by code the limit, group or jobs that hold it."""

    id: int
    state: State
    reasons: tuple[str, ...]
    detail: dict[str, Any]
    ahead: int | None
    start_at: int | None

    @classmethod
    def of(cls, said: Explanation) -> "ExplanationShown":
        return cls(
            id=said.id,
            state=said.state,
            reasons=said.reasons,
            detail=said.detail,
            ahead=said.ahead,
            start_at=said.start_at,
        )


# -- working -------------------------------------------------------------------------------------


class AckedShown(Shown, frozen=True, kw_only=True):
    acked: tuple[int, ...]
    lost: tuple[int, ...]

    @classmethod
    def of(cls, answer: Acked) -> "AckedShown":
        return cls(acked=tuple(answer.acked), lost=tuple(answer.lost))


class FailedJobShown(Shown, frozen=True, kw_only=True):
    id: int
    state: State
    run_at: int | None


class FailedShown(Shown, frozen=True, kw_only=True):
    """What became of the jobs: when the next attempt is due, or dead."""

    jobs: tuple[FailedJobShown, ...]
    lost: tuple[int, ...]

    @classmethod
    def of(cls, answer: Failed) -> "FailedShown":
        jobs = (FailedJobShown(id=j.id, state=j.state, run_at=j.run_at) for j in answer.jobs)
        return cls(jobs=tuple(jobs), lost=tuple(answer.lost))


class ReleasedShown(Shown, frozen=True, kw_only=True):
    released: tuple[int, ...]
    lost: tuple[int, ...]

    @classmethod
    def of(cls, answer: Released) -> "ReleasedShown":
        return cls(released=tuple(answer.released), lost=tuple(answer.lost))


class ExtendedShown(Shown, frozen=True, kw_only=True):
    """When the lease ends now, and which of its jobs were taken from it."""

    expires_at: int
    lost: tuple[int, ...]

    @classmethod
    def of(cls, answer: Extended) -> "ExtendedShown":
        return cls(expires_at=answer.expires_at, lost=tuple(answer.lost))


# -- queues --------------------------------------------------------------------------------------


class RateShown(Shown, frozen=True, kw_only=True):
    tokens: int
    per_ms: int
    burst: int

    @classmethod
    def of(cls, rate: Rate | None) -> "RateShown | None":
        if rate is None:
            return None
        return cls(tokens=rate.tokens, per_ms=rate.per_ms, burst=rate.burst or rate.tokens)


class LimitsShown(Shown, frozen=True, kw_only=True):
    rate: RateShown | None
    concurrency: int | None
    group_rate: RateShown | None
    group_concurrency: int

    @classmethod
    def of(cls, config: QueueConfig) -> "LimitsShown":
        limits = config.limits
        return cls(
            rate=RateShown.of(limits.rate),
            concurrency=limits.concurrency,
            group_rate=RateShown.of(limits.group_rate),
            group_concurrency=limits.group_concurrency,
        )


class BoundsShown(Shown, frozen=True, kw_only=True):
    jobs: int | None
    bytes: int | None
    push_rate: RateShown | None

    @classmethod
    def of(cls, config: QueueConfig) -> "BoundsShown":
        bounds = config.bounds
        return cls(jobs=bounds.jobs, bytes=bounds.bytes, push_rate=RateShown.of(bounds.push_rate))


class Counts(Shown, frozen=True, kw_only=True):
    held: int = 0
    blocked: int = 0
    scheduled: int = 0
    ready: int = 0
    active: int = 0
    completed: int = 0
    dead: int = 0
    cancelled: int = 0
    expired: int = 0

    @classmethod
    def of(cls, counts: dict[State, int]) -> "Counts":
        return cls(**{state.value: count for state, count in counts.items()})


class QueueShown(Shown, frozen=True, kw_only=True):
    queue: str
    paused: bool
    counts: Counts
    limits: LimitsShown
    bounds: BoundsShown
    oldest_ready_ms: int | None

    @classmethod
    def of(cls, info: QueueInfo) -> "QueueShown":
        return cls(
            queue=info.queue,
            paused=info.config.paused,
            counts=Counts.of(info.counts),
            limits=LimitsShown.of(info.config),
            bounds=BoundsShown.of(info.config),
            oldest_ready_ms=info.oldest_ready_ms,
        )


class Queues(Shown, frozen=True, kw_only=True):
    """The queues that hold jobs, kept keys or configuration, by name."""

    queues: tuple[QueueShown, ...]


class ConfigShown(Shown, frozen=True, kw_only=True):
    """A queue's configuration as it is from now on."""

    limits: LimitsShown
    bounds: BoundsShown
    retain_ms: int
    retain_count: int
    retain_dead_ms: int

    @classmethod
    def of(cls, config: QueueConfig) -> "ConfigShown":
        return cls(
            limits=LimitsShown.of(config),
            bounds=BoundsShown.of(config),
            retain_ms=config.retain_ms,
            retain_count=config.retain_count,
            retain_dead_ms=config.retain_dead_ms,
        )


class Counted(Shown, frozen=True, kw_only=True):
    """How many jobs it was."""

    count: int


class RedrivenShown(Shown, frozen=True, kw_only=True, omit_defaults=True):
    """How many jobs are ready again; `conflicts` are those whose key is taken meanwhile."""

    count: int
    conflicts: tuple[int, ...] = ()

    @classmethod
    def of(cls, answer: Redriven) -> "RedrivenShown":
        return cls(count=len(answer.ids), conflicts=answer.conflicts)


class DeadGroup(Shown, frozen=True, kw_only=True):
    """Dead jobs that died of the same error, as far as this page has looked."""

    fingerprint: str
    kind: str = msgspec.field(name="class")
    message: str  # with what varies from job to job replaced by the name of its kind
    count: int
    first_id: int
    last_id: int
    last_at: int  # when the last of them failed

    @classmethod
    def begin(cls, fingerprint: str, error: JobError, job_id: int) -> "DeadGroup":
        return cls(
            fingerprint=fingerprint,
            kind=error.kind,
            message=masked(error.message),
            count=1,
            first_id=job_id,
            last_id=job_id,
            last_at=error.at,
        )


class DeadGroups(Shown, frozen=True, kw_only=True):
    """Dead letters by their error, most frequent first, over the jobs from one cursor to the next:
    groups of several pages with the same fingerprint are one."""

    groups: tuple[DeadGroup, ...]
    cursor: int | None


# -- schedules -----------------------------------------------------------------------------------


class CronShown(Shown, frozen=True, kw_only=True):
    """A cron, its next instants, and how many have come due."""

    name: str
    queue: str
    payload: Raw | UnsetType = UNSET
    payload_base64: bytes | UnsetType = UNSET
    codec: Codec
    task: str
    lease_ms: int | None
    priority: int
    max_attempts: int
    backoff: BackoffSaid
    timeout_ms: int | None
    ttl_ms: int | None
    lifo: bool
    tags: tuple[str, ...]
    retain_ms: int | None
    retain_dead_ms: int | None
    expression: str | UnsetType = UNSET
    every_ms: int | UnsetType = UNSET
    daily: tuple[str, ...] | UnsetType = UNSET
    tz: str | UnsetType = UNSET
    overlap: Overlap
    missed: Missed
    limit: int | None
    next_run: int | None
    pending: tuple[int, ...]
    executions: int

    @classmethod
    def of(cls, info: CronInfo) -> "CronShown":
        spec, options = info.spec, info.spec.options
        payload, encoded = shown(spec.payload, spec.codec)
        when: dict[str, Any]
        match spec.schedule:
            case Cron(expression=expression, tz=tz):
                when = {"expression": expression, "tz": tz}
            case Every(every_ms=every_ms):
                when = {"every_ms": every_ms}
            case Daily(at=at, tz=tz):
                when = {"daily": at, "tz": tz}
        return cls(
            name=spec.name,
            queue=spec.queue,
            payload=payload,
            payload_base64=encoded,
            codec=spec.codec,
            task=options.task,
            lease_ms=options.lease_ms,
            priority=options.priority,
            max_attempts=options.max_attempts,
            backoff=BackoffSaid(**msgspec.structs.asdict(options.backoff)),
            timeout_ms=options.timeout_ms,
            ttl_ms=options.ttl_ms,
            lifo=options.lifo,
            tags=options.tags,
            retain_ms=options.retain_ms,
            retain_dead_ms=options.retain_dead_ms,
            overlap=spec.overlap,
            missed=spec.missed,
            limit=spec.limit,
            next_run=min(info.pending, default=None),
            pending=info.pending,
            executions=info.executions,
            **when,
        )


class Crons(Shown, frozen=True, kw_only=True):
    crons: tuple[CronShown, ...]


# -- the server ----------------------------------------------------------------------------------


class Stats(Shown, frozen=True, kw_only=True):
    """The tenant's jobs by state, and what this server has counted since it started."""

    queues: int
    counts: Counts
    pushed: int
    completed: int
    failed: int
    timed_out: int
    jobs_per_second: float
    latency_ms: float

    @classmethod
    def of(cls, queues: list[QueueInfo], figures: Figures) -> "Stats":
        totals = {state: sum(info.counts[state] for info in queues) for state in State}
        return cls(queues=len(queues), counts=Counts.of(totals), **msgspec.structs.asdict(figures))


class History(Shown, frozen=True, kw_only=True):
    """What was measured every `interval_ms`, oldest first; each point has its instant, `at`."""

    interval_ms: int
    points: tuple[dict[str, Any], ...]


class Alive(Shown, frozen=True, kw_only=True):
    """The server answers."""

    ok: bool = True


class Ready(Shown, frozen=True, kw_only=True):
    """The store answers, too."""

    ok: bool
    store: str
    durability: str


# -- events --------------------------------------------------------------------------------------


class EventShown(Shown, frozen=True, kw_only=True, omit_defaults=True):
    """What happened to jobs of one queue; what does not apply is left out."""

    kind: EventKind
    queue: str
    at: int
    ids: tuple[tuple[int, int], ...]  # stretches: the first and the last id of each
    attempt: int = 0
    pushed_at: int = 0
    ready_at: int = 0
    claimed_at: int = 0
    run_at: int = 0
    worker: str = ""
    task: str = ""
    priority: int = 0
    bytes: int = 0
    reason: str = ""
    error_class: str = ""
    error_message: str = ""
    held: bool = False
    data: str = ""

    @classmethod
    def of(cls, event: Event) -> "EventShown":
        return cls(
            kind=event.kind,
            queue=event.queue,
            at=event.at,
            ids=stretches(event.ids),
            attempt=event.attempt,
            pushed_at=event.pushed_at,
            ready_at=event.ready_at,
            claimed_at=event.claimed_at,
            run_at=event.run_at,
            worker=event.worker,
            task=event.task,
            priority=event.priority,
            bytes=event.bytes,
            reason=event.reason,
            error_class=event.error_kind,
            error_message=event.error_message,
            held=event.held,
            data=event.data,
        )


def stretches(ids: Ids) -> tuple[tuple[int, int], ...]:
    """(first, last) of every stretch of neighbours."""
    found: list[tuple[int, int]] = []
    for run in ids.runs:
        if run.mask is None:
            found.append((run.first, run.first + run.span - 1))
        else:
            found += [(one.first, one.first + one.span - 1) for one in Ids.of(run).runs]
    return tuple(found)
