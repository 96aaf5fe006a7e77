"""What can happen to one job: begin, wait, be claimed, fail, end, be forgotten.

`at` is the wall-clock instant at which a thing takes effect, which may lie before the noticing.
"""

from dataclasses import replace
from typing import Any

from penstock.model.answers import Result
from penstock.model.job import JobError
from penstock.model.lifecycle import FAILED, DeadReason, State
from penstock.model.policy import backoff_ms
from tests.oracle import keys
from tests.oracle.world import OracleJob, OracleLease, Version, World

ERRORS_KEPT = 10
TRACE_BYTES = 16 * 1024


# -- beginning -----------------------------------------------------------------------------------


def begin(world: World, job: OracleJob, version: Version, *, at: int, said_at: int) -> None:
    """A version starts afresh at `at`; a relative delay counts from `said_at`."""
    job.said = version
    job.waiting = None
    job.priority = version.options.priority
    job.attempt = 0
    job.claimed = job.redriven = job.owns_slot = False
    job.errors = ()
    job.logs = ()
    job.progress = job.progress_message = job.result = job.result_codec = None
    job.worker = job.started_at = job.heartbeat_at = job.finished_at = None
    job.run_at = run_at_of(version, at, said_at)
    job.delayed = job.run_at > at
    ttl_ms = version.options.ttl_ms
    job.ttl_ends = None if ttl_ms is None else at + ttl_ms
    await_dependencies(world, job, version.depends_on)
    failed = [
        dep
        for dep in version.depends_on
        if has_failed(world, job.tenant, dep) or dep in job.doomed_by
    ]
    job.doomed_by = ()
    if failed and version.options.on_dependency_failure == "fail":
        fail_dependant(world, job, failed[0], at)
    else:
        wait_or_ready(world, job, at)


def run_at_of(version: Version, at: int, said_at: int) -> int:
    """Not before this instant; the past counts as now."""
    if version.delay_ms is not None:
        return max(at, said_at + version.delay_ms)
    return at if version.run_at is None else max(at, version.run_at)


def await_dependencies(world: World, job: OracleJob, depends_on: tuple[int, ...]) -> None:
    unmet = set()
    for dep in depends_on:
        world.dependants[dep] = (*world.dependants.get(dep, ()), job.id)
        # A negative one names a job later in the same push: it has no id yet.
        known = world.known(job.tenant, dep)
        if dep < 0 or (known is not None and not known.ended):
            unmet.add(dep)
    job.unmet = frozenset(unmet)
    job.waited_for |= frozenset(depends_on)


def has_failed(world: World, tenant: str, dependency: int) -> bool:
    job = world.known(tenant, dependency)
    return job is not None and job.state in FAILED


def wait_or_ready(world: World, job: OracleJob, at: int) -> None:
    if job.unmet:
        job.state = State.BLOCKED
    elif job.delayed and job.run_at > at:
        job.state = State.SCHEDULED
    else:
        make_ready(world, job, at)


def make_ready(world: World, job: OracleJob, at: int) -> None:
    """Ready from `at` on, but never before a job that its queue was given earlier."""
    place = (job.tenant, job.queue)
    job.state = State.READY
    job.ready_at = world.latest_ready[place] = max(at, world.latest_ready.get(place, 0))


def come_due(job: OracleJob) -> None:
    job.state = State.READY
    job.ready_at = job.run_at


# -- an attempt ----------------------------------------------------------------------------------


def start(world: World, job: OracleJob, lease: OracleLease) -> None:
    job.state = State.ACTIVE
    job.attempt += 1
    job.claimed = True
    job.owns_slot = False
    job.ttl_ends = None
    job.lease = lease.token
    timeout_ms = job.said.options.timeout_ms
    job.timeout_at = None if timeout_ms is None else world.elapsed + timeout_ms
    job.worker = lease.worker
    job.started_at = job.heartbeat_at = world.now
    keys.let_go(world, job)
    world.tell("claimed", job, world.now, claimed_at=world.now, ready_at=job.ready_at)


def leave_lease(world: World, job: OracleJob, *, lost: bool) -> None:
    """Out of `active`. `lost`: not by its holder's own ack, fail or release."""
    if job.lease is None:
        return
    if lost:
        lease = world.leases[job.lease]
        lease.lost = (*lease.lost, job.id)
    job.lease = job.timeout_at = None


def restart(world: World, job: OracleJob, at: int) -> bool:
    """If the job was replaced while active, its attempt's end starts the new version."""
    if job.waiting is None:
        return False
    job.created_at = at
    begin(world, job, job.waiting, at=at, said_at=job.waiting_since)
    # The new version has not been claimed yet: a key kept until then is its own again.
    again = [claim for claim in job.said.keys if claim.keep_key == "started"]
    keys.take(world, job, replace(job.said, keys=tuple(again)), at)
    return True


def complete(world: World, job: OracleJob, at: int) -> None:
    leave_lease(world, job, lost=False)
    if not restart(world, job, at):
        end(world, job, State.COMPLETED, at)


def give_back(world: World, job: OracleJob, at: int) -> None:
    leave_lease(world, job, lost=False)
    world.tell("released", job, at)
    if not restart(world, job, at):
        job.attempt -= 1
        job.state = State.READY


def fail(
    world: World,
    job: OracleJob,
    error: JobError,
    at: int,
    *,
    lost: bool,
    retry_in_ms: int | None = None,
    dead: bool = False,
) -> None:
    """The running attempt has failed: retry, or dead."""
    leave_lease(world, job, lost=lost)
    if restart(world, job, at):
        return
    remember(job, error, at, worker=job.worker or "")
    allowed = job.said.options.max_attempts
    cause = error.kind if lost else ""
    if dead:
        die(world, job, DeadReason.REJECTED, at)
    elif allowed != 0 and job.attempt >= allowed:
        die(world, job, DeadReason.MAX_ATTEMPTS, at, cause=cause)
    else:
        wait = retry_in_ms
        if wait is None:
            wait = backoff_ms(
                job.said.options.backoff, job.attempt, world.seed, world.jitter_id(job.id)
            )
        job.run_at = at + wait
        job.owns_slot = job.said.group is not None
        if wait:
            job.state = State.SCHEDULED
        else:
            come_due(job)
        world.tell(
            "retried",
            job,
            at,
            run_at=job.run_at,
            claimed_at=job.started_at or 0,
            error_kind=error.kind,
            error_message=error.message,
            cause=cause,
        )


def remember(job: OracleJob, error: JobError, at: int, *, worker: str) -> None:
    trace = error.trace.encode()[:TRACE_BYTES].decode(errors="ignore")
    kept = JobError(
        kind=error.kind,
        message=error.message,
        trace=trace,
        at=at,
        worker=worker,
        attempt=job.attempt,
    )
    job.errors = (*job.errors, kept)[-ERRORS_KEPT:]


# -- ending --------------------------------------------------------------------------------------


def die(world: World, job: OracleJob, reason: DeadReason, at: int, *, cause: str = "") -> None:
    job.dead_reason = reason
    end(world, job, State.DEAD, at, cause=cause)


def end(world: World, job: OracleJob, state: State, at: int, *, cause: str = "") -> None:
    """The job is over: its keys, slots and dependants learn."""
    leave_lease(world, job, lost=True)
    job.state = state
    job.waiting = None
    job.owns_slot = False
    job.unmet = frozenset()
    job.bulk = job.ttl_ends = None
    job.finished_at = at
    world.ends_so_far += 1
    job.end_order = world.ends_so_far
    keys.let_go(world, job)
    world.ends.append((job.id, outcome(job)))
    tell_end(world, job, at, cause)
    tell_dependants(world, job, at, failed=state in FAILED)


def tell_end(world: World, job: OracleJob, at: int, cause: str) -> None:
    more: dict[str, Any] = {"claimed_at": job.started_at or 0, "ready_at": job.ready_at}
    if job.state is State.COMPLETED:
        world.tell("completed", job, at, **more)
    elif job.state is State.CANCELLED:
        world.tell("cancelled", job, at, **more)
    elif job.state is State.EXPIRED:
        world.tell("expired", job, at, **more)
    else:
        more |= {"reason": str(job.dead_reason), "cause": cause}
        if job.errors and job.dead_reason is not DeadReason.DISCARDED:
            more["error_kind"] = job.errors[-1].kind
            more["error_message"] = job.errors[-1].message
        world.tell("dead", job, at, **more)


def outcome(job: OracleJob) -> Result:
    if job.state is State.COMPLETED:
        return Result(state=job.state, value=job.result, codec=job.result_codec)
    error = job.errors[-1] if job.errors and job.state is State.DEAD else None
    return Result(state=job.state, error=error, dead_reason=job.dead_reason)


def tell_dependants(world: World, job: OracleJob, at: int, *, failed: bool) -> None:
    """The job ended, or is forgotten as if it had: those blocked by it fail or go on.

    Those that fail end too, and so on down: `world.ended_just_now` keeps the order without
    a call within a call for each step.
    """
    world.ended_just_now.append((job, failed))
    if len(world.ended_just_now) > 1:
        return
    while world.ended_just_now:
        ended, failed = world.ended_just_now[0]
        for dependant in dependants(world, ended):
            if dependant.state is not State.BLOCKED or ended.id not in dependant.unmet:
                continue
            if failed and dependant.said.options.on_dependency_failure == "fail":
                fail_dependant(world, dependant, ended.id, at)
            else:
                dependant.unmet -= {ended.id}
                wait_or_ready(world, dependant, at)
        world.ended_just_now.pop(0)


def dependants(world: World, job: OracleJob) -> list[OracleJob]:
    """The known jobs of its tenant that ever named this one, by id."""
    named = sorted(set(world.dependants.get(job.id, ())))
    found = [world.known(job.tenant, dependant_id) for dependant_id in named]
    return [dependant for dependant in found if dependant is not None]


def fail_dependant(world: World, job: OracleJob, dependency: int, at: int) -> None:
    error = JobError(kind="dependency_failed", message=f"job {dependency} did not complete")
    remember(job, error, at, worker="")
    die(world, job, DeadReason.DEPENDENCY_FAILED, at)


# -- forgetting ----------------------------------------------------------------------------------


def forget(world: World, job: OracleJob) -> None:
    if not job.ended:
        world.ends.append((job.id, None))
    del world.jobs[job.id]
    keys.let_go(world, job)


def depended_on(world: World, job: OracleJob) -> bool:
    """Is there a job that depends on this one and has not ended?"""
    return any(
        job.id in (*dependant.said.depends_on, *dependant.last_said.depends_on)
        for dependant in dependants(world, job)
        if not dependant.ended
    )
