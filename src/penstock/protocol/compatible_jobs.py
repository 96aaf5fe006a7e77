"""The job object of the compatible wire, and the words that it has for states.

The fields are those of the Job struct in seeds/000; instants and durations are milliseconds, 0
where one does not apply. Jobs that were cancelled or have expired, and those held in a bulk, have
no state on this wire: they are no longer, or not yet, there.
"""

from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from penstock.model.answers import Result
from penstock.model.errors import Invalid
from penstock.model.job import Job, JobOptions, Lease
from penstock.model.lifecycle import ENDED, State
from penstock.model.policy import LEASE_MS
from penstock.protocol.command import Encoding
from penstock.protocol.transcode import shown

STATES: Final[dict[State, str]] = {
    State.READY: "waiting",
    State.SCHEDULED: "delayed",
    State.BLOCKED: "waiting-children",
    State.ACTIVE: "active",
    State.COMPLETED: "completed",
    State.DEAD: "failed",
}
BY_WORD: Final[dict[str, State]] = {word: state for state, word in STATES.items()}

# `unique_key`, `debounce_id` and `job_id` are keys in three spaces of their queue.
UNIQUE: Final = "u:"
DEBOUNCE: Final = "d:"
CUSTOM: Final = "c:"


def state_of(word: str) -> State:
    state = BY_WORD.get(word)
    if state is None:
        raise Invalid(f"{word[:60]!r} is not one of {', '.join(BY_WORD)}", "state")
    return state


class WireJob(msgspec.Struct, kw_only=True):
    id: int
    queue: str
    data: Raw
    priority: int
    created_at: int
    run_at: int
    started_at: int  # of the running or last attempt
    last_heartbeat: int  # while active: the pull, or the last HEARTBEAT
    attempts: int  # attempts that failed; the running one is not among them
    max_attempts: int  # 0: without end
    backoff: int  # before the first retry; doubles with each
    ttl: int
    timeout: int
    stall_timeout: int  # how long it may go without HEARTBEAT
    unique_key: str | None
    custom_id: str | None  # the `job_id` that it was pushed with
    depends_on: tuple[int, ...]
    parent_id: int | None  # the first job that waits, or waited, for this one; not told by PULL
    children_ids: tuple[int, ...]  # the same as depends_on: to this wire, dependencies are children
    group_id: str | None
    progress: int
    progress_msg: str | None
    tags: tuple[str, ...]
    lifo: bool
    remove_on_complete: bool
    remove_on_fail: bool
    keep_completed_age: int
    keep_completed_count: int  # always 0: by its queue
    completed_at: int  # when it ended, well or not
    state: str | UnsetType = UNSET  # in listings
    result: Raw | UnsetType = UNSET  # of a completed job
    error: str | UnsetType = UNSET  # of a failed one: why its last attempt did


def wire_job(job: Job, encoding: Encoding, *, with_state: bool = False) -> WireJob:
    """All that is known of a job."""
    wire = _of_options(job.options)
    unique_key, custom_id = _keys(job)
    state = job.state
    running_or_done = state in (State.ACTIVE, State.COMPLETED)
    wire.id = job.id
    wire.queue = job.queue
    wire.data = shown(job.payload, job.options.codec, encoding)
    wire.priority = job.priority
    wire.created_at = job.created_at
    wire.run_at = job.run_at
    wire.started_at = job.started_at or 0
    wire.last_heartbeat = job.last_heartbeat or 0
    wire.attempts = job.attempt - 1 if running_or_done else job.attempt
    wire.unique_key = unique_key
    wire.custom_id = custom_id
    wire.depends_on = wire.children_ids = job.depends_on
    wire.parent_id = job.dependants[0] if job.dependants else None
    wire.group_id = job.group
    wire.progress = job.progress or 0
    wire.progress_msg = job.progress_message
    wire.completed_at = job.finished_at or 0
    if with_state:
        wire.state = STATES.get(state, UNSET)
    if state is State.COMPLETED:
        wire.result = shown(job.result, job.result_codec, encoding)
    elif state in ENDED:
        wire.error = _message(job)
    return wire


def pulled(leases: list[Lease], encoding: Encoding) -> Iterator[WireJob]:
    """Jobs just claimed, each on a lease of its own."""
    last: JobOptions | None = None
    like: WireJob | None = None
    for lease in leases:
        (run,) = lease.runs
        options = run.options[0]
        if like is None or options is not last:  # neighbours mostly share their options
            last, like = options, _of_options(options)
            like.queue = lease.queue
        wire = msgspec.structs.replace(like)
        (wire.id,) = run.ids
        wire.data = shown(run.data, options.codec, encoding)
        created_at, run_at = run.created_at, run.run_at
        wire.created_at = created_at if isinstance(created_at, int) else created_at[0]
        wire.run_at = run_at if isinstance(run_at, int) else run_at[0]
        # Nobody else says how long these leases are: their jobs do.
        wire.started_at = wire.last_heartbeat = lease.expires_at - wire.stall_timeout
        if run.individual:
            own = lease.jobs[0]
            wire.priority = own.priority
            wire.attempts = own.attempt - 1
            wire.unique_key, wire.custom_id = _keys(own)
            wire.depends_on = wire.children_ids = own.depends_on
            wire.group_id = own.group
        yield wire


def failure_of(result: Result) -> str:
    """Why a job that has ended did not complete."""
    if result.error is not None:
        return result.error.message or result.error.kind
    return str(result.dead_reason or result.state)


def _message(job: Job) -> str:
    error = job.errors[-1] if job.errors else None
    return failure_of(Result(state=job.state, error=error, dead_reason=job.dead_reason))


def _keys(job: Job) -> tuple[str | None, str | None]:
    """The unique key and the custom id among a job's keys."""
    if job.key is None:
        return None, None
    unique_key = custom_id = None
    for key in (job.key, *job.more_keys):
        if key.startswith(UNIQUE):
            unique_key = key.removeprefix(UNIQUE)
        elif key.startswith(CUSTOM):
            custom_id = key.removeprefix(CUSTOM)
    return unique_key, custom_id


def _of_options(options: JobOptions) -> WireJob:
    """What jobs with these options have in common; the rest is as of a job just pulled."""
    return WireJob(
        id=0,
        queue="",
        data=Raw(b""),
        priority=options.priority,
        created_at=0,
        run_at=0,
        started_at=0,
        last_heartbeat=0,
        attempts=0,
        max_attempts=options.max_attempts,
        backoff=0 if options.backoff.kind == "none" else options.backoff.base_ms,
        ttl=options.ttl_ms or 0,
        timeout=options.timeout_ms or 0,
        stall_timeout=options.lease_ms or LEASE_MS,
        unique_key=None,
        custom_id=None,
        depends_on=(),
        parent_id=None,
        children_ids=(),
        group_id=None,
        progress=0,
        progress_msg=None,
        tags=options.tags,
        lifo=options.lifo,
        remove_on_complete=options.retain_ms == 0,
        remove_on_fail=options.retain_dead_ms == 0,
        keep_completed_age=options.retain_ms or 0,
        keep_completed_count=0,
        completed_at=0,
    )
