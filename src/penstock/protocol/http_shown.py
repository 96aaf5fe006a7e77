"""What answers of the HTTP interface show, and how the words of the model become that.

Payloads and results stand there as JSON values, or as base64 under a name of their own.
"""

from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from penstock.model.answers import (
    Acked,
    BulkInfo,
    Explanation,
    Extended,
    Failed,
    Pushed,
    Released,
    Result,
)
from penstock.model.job import Codec, Job, JobError, Lease, LogLine, Outcome
from penstock.model.lifecycle import DeadReason, State
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
    """Jobs by ascending id, or the newest first, whichever was asked for. A page may be short, even
    empty, and still have a cursor; without one there are no more."""

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
