"""What workers and operators do to jobs: claim, ack, fail, release, cancel, edit, redrive …"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import floor

import msgspec

from penstock.model.answers import Acked, Extended, Failed, FailedJob, Redriven, Released
from penstock.model.errors import Conflict, Invalid, LeaseLost, NotFound, Overloaded
from penstock.model.fingerprint import fingerprint
from penstock.model.job import (
    ClaimedRun,
    Codec,
    IdRun,
    Ids,
    Individual,
    JobError,
    Lease,
    LogLine,
)
from penstock.model.lifecycle import ENDED, DeadReason, State
from penstock.model.payload import check_payload
from penstock.model.policy import DEFAULT_CONFIG, LEASE_MS, Bounds, Caps, QueueConfig
from tests.oracle import groups, keys, life, pushing
from tests.oracle.world import OracleJob, OracleLease, World

LOGS_KEPT = 100


# -- claims --------------------------------------------------------------------------------------


def claim(
    world: World,
    tenant: str,
    queues: Sequence[str],
    n: int,
    *,
    lease_ms: int | None,
    worker: str,
    token: str,
) -> Lease | None:
    """Take from the first queue that can give something."""
    for queue in queues:
        lease = OracleLease(
            token=token, tenant=tenant, queue=queue, worker=worker, ids=(), length_ms=0, ends=0
        )
        taken = take_jobs(world, lease, min(n, room(world, tenant, queue)))
        if taken:
            lease.ids = tuple(job.id for job in taken)
            wishes = [job.said.options.lease_ms or LEASE_MS for job in taken]
            lease.length_ms = max(wishes) if lease_ms is None else lease_ms
            lease.ends = world.elapsed + lease.length_ms
            world.leases[token] = lease
            return hand_over(world, lease, taken)
    return None


def room(world: World, tenant: str, queue: str) -> int:
    """How many more jobs the queue as a whole may run now."""
    config = world.config(tenant, queue)
    if config.paused:
        return 0
    jobs = world.of_queue(tenant, queue)
    most = len(jobs)
    if config.limits.rate is not None:
        most = min(most, floor(world.tokens(("rate", tenant, queue), config.limits.rate)))
    if config.limits.concurrency is not None:
        active = sum(job.state is State.ACTIVE for job in jobs)
        most = min(most, config.limits.concurrency - active)
    return max(most, 0)


def take_jobs(world: World, lease: OracleLease, n: int) -> list[OracleJob]:
    """Start up to `n` jobs, in the order of service."""
    tenant, queue = lease.tenant, lease.queue
    if not groups.groups_of(world, tenant, queue):
        taken = groups.ungrouped_ready(world, tenant, queue)[:n]
        for job in taken:
            spend_tokens(world, job)
            life.start(world, job, lease)
        return taken
    taken = []
    while len(taken) < n:
        following = groups.pick(world, tenant, queue)
        if following is None:
            break
        spend_tokens(world, following)
        life.start(world, following, lease)
        groups.take_seats_in(world, tenant, queue)
        taken.append(following)
    return taken


def spend_tokens(world: World, job: OracleJob) -> None:
    limits = world.config(job.tenant, job.queue).limits
    if limits.rate is not None:
        world.spend(("rate", job.tenant, job.queue), limits.rate, 1)
    if limits.group_rate is not None and job.said.group is not None:
        world.spend(("group", job.tenant, job.queue, job.said.group), limits.group_rate, 1)


def hand_over(world: World, lease: OracleLease, jobs: list[OracleJob]) -> Lease:
    runs = [
        ClaimedRun(
            ids=IdRun(job.id, 1),
            data=job.said.payload,
            ends=(len(job.said.payload),),
            options=(job.said.options,),
            option_of=None,
            created_at=job.created_at,
            run_at=job.run_at,
            individual={
                job.id: Individual(
                    attempt=job.attempt,
                    priority=job.priority,
                    key=job.said.keys[0].key if job.said.keys else None,
                    more_keys=tuple(each.key for each in job.said.keys[1:]),
                    group=job.said.group,
                    headers=job.said.headers,
                    depends_on=job.said.depends_on,
                )
            },
        )
        for job in jobs
    ]
    return Lease(
        token=lease.token,
        queue=lease.queue,
        expires_at=world.now + lease.length_ms,
        runs=tuple(runs),
    )


# -- leases --------------------------------------------------------------------------------------


def lease_of(world: World, tenant: str, token: str) -> OracleLease:
    lease = world.leases.get(token)
    if lease is None or lease.tenant != tenant:
        raise LeaseLost("the lease has ended, or never was")
    return lease


def held_of(
    world: World, tenant: str, token: str, ids: Sequence[int] | None
) -> tuple[list[OracleJob], Ids]:
    """The jobs meant and held, and the ids meant and not held."""
    lease = lease_of(world, tenant, token)
    still = {job.id: job for job in world.held(lease)}
    named = list(still) if ids is None else list(dict.fromkeys(ids))
    held = [still[job_id] for job_id in named if job_id in still]
    if not held:
        raise LeaseLost("the lease holds none of these jobs")
    return held, Ids.of(job_id for job_id in named if job_id not in still)


def ack(
    world: World,
    tenant: str,
    token: str,
    ids: Sequence[int] | None,
    results: Mapping[int, bytes],
    codec: Codec,
) -> Acked:
    held, lost = held_of(world, tenant, token, ids)
    acked = {job.id for job in held}
    still = {job.id for job in world.held(lease_of(world, tenant, token))}
    for job_id in results:
        if job_id in still - acked:
            raise Invalid(f"job {job_id} is not acked by this call", "results")
    lost = Ids.of(dict.fromkeys((*lost, *(job_id for job_id in results if job_id not in still))))
    for job in sorted(held, key=lambda job: job.id):
        if job.id in results and job.waiting is None:
            job.result = results[job.id]
            job.result_codec = codec
        life.complete(world, job, world.now)
    return Acked(Ids.of(job.id for job in held), lost)


def fail(
    world: World,
    tenant: str,
    token: str,
    ids: Sequence[int] | None,
    *,
    error: JobError,
    retry_in_ms: int | None,
    dead: bool,
) -> Failed:
    held, lost = held_of(world, tenant, token, ids)
    for job in sorted(held, key=lambda job: job.id):
        life.fail(world, job, error, world.now, lost=False, retry_in_ms=retry_in_ms, dead=dead)
    return Failed(
        tuple(FailedJob(job.id, job.state, None if job.ended else job.run_at) for job in held),
        lost,
    )


def release(world: World, tenant: str, token: str, ids: Sequence[int] | None) -> Released:
    held, lost = held_of(world, tenant, token, ids)
    for job in held:
        life.give_back(world, job, world.now)
    return Released(Ids.of(job.id for job in held), lost)


def extend(world: World, tenant: str, token: str, lease_ms: int | None) -> Extended:
    lease = lease_of(world, tenant, token)
    length_ms = lease.length_ms if lease_ms is None else lease_ms
    lease.ends = world.elapsed + length_ms
    for job in world.held(lease):
        job.heartbeat_at = world.now
        world.tell("extended", job, world.now)
    return Extended(world.now + length_ms, Ids.of(lease.lost))


def report(
    world: World,
    tenant: str,
    token: str,
    job_id: int,
    *,
    progress: int | None,
    message: str | None,
    logs: Sequence[LogLine],
    partial: bytes | None,
) -> None:
    lease = lease_of(world, tenant, token)
    job = world.known(tenant, job_id)
    if job is None or job.lease != lease.token:
        raise LeaseLost(f"the lease does not hold job {job_id}")
    if progress is not None:
        job.progress = progress
    if message is not None:
        job.progress_message = message
    if progress is not None or message is not None:
        data = msgspec.json.encode({"progress": progress, "message": message})
        world.tell("progress", job, world.now, data=data.decode())
    for line in logs:
        at = line.at or world.now
        job.logs = (*job.logs, LogLine(at, line.message, line.level))[-LOGS_KEPT:]
        world.tell("log", job, at, data=line.message)
    if partial is not None:
        world.tell("partial", job, world.now, data=partial.decode(errors="replace"))


# -- operators -----------------------------------------------------------------------------------


def cancel(world: World, tenant: str, ids: Iterable[int], *, discard: bool) -> Acked:
    named = list(dict.fromkeys(ids))
    known = [world.known(tenant, job_id) for job_id in named]
    jobs = [job for job in known if job is not None and not job.ended]
    for job in jobs:
        job.state = State.CANCELLED  # all at once: none of them fails as another's dependant
    for job in sorted(jobs, key=lambda job: job.id):
        if discard:
            life.die(world, job, DeadReason.DISCARDED, world.now)
        else:
            life.end(world, job, State.CANCELLED, world.now)
    done = [job.id for job in jobs]
    return Acked(Ids.of(done), Ids.of(job_id for job_id in named if job_id not in done))


def edit(
    world: World,
    tenant: str,
    job_id: int,
    *,
    priority: int | None,
    run_at: int | None,
    delay_ms: int | None,
    payload: bytes | None,
    codec: Codec | None,
) -> None:
    job = world.known(tenant, job_id)
    if job is None:
        raise NotFound(f"no job has the id {job_id}", "job_id")
    if job.ended or job.state in (State.ACTIVE, State.HELD):
        raise Conflict(f"job {job_id} is {job.state}")
    if payload is not None:
        options = msgspec.structs.replace(job.said.options, codec=codec or job.said.options.codec)
        if options.codec == "json":
            check_payload(options.codec, payload)
        before = pushing.sizes(world, tenant)
        was, job.said = job.said, replace(job.said, payload=payload, options=options)
        try:
            pushing.check_bounds(world, tenant, before, [])
        except Overloaded:
            job.said = was
            raise
        for claim_of in job.said.keys:
            record = keys.holder(world, tenant, job.queue, claim_of.key)
            if record is not None and record.job_id == job.id:
                record.payload = (options.codec, payload)
    if priority is not None:
        job.priority = priority
    if run_at is not None or delay_ms is not None:
        job.said = replace(job.said, run_at=run_at, delay_ms=delay_ms)
        wanted = world.now + delay_ms if delay_ms is not None else run_at
        job.run_at = max(world.now, wanted or 0)
        job.delayed = job.run_at > world.now
        if job.state is State.BLOCKED and not job.delayed:
            job.run_at = job.created_at  # as if it had never been delayed
        life.wait_or_ready(world, job, world.now)
    world.tell("edited", job, world.now, run_at=job.run_at)


def redrive(
    world: World,
    tenant: str,
    queue: str,
    *,
    ids: Sequence[int] | None,
    limit: int | None,
    mark: str | None,
) -> Redriven:
    """Dead jobs live again, by the instant of their end; `mark`: those with that last error."""
    dead = [
        job
        for job in world.of_queue(tenant, queue)
        if job.state is State.DEAD
        and (ids is None or job.id in ids)
        and (mark is None or (job.errors != () and fingerprint(job.errors[-1]) == mark))
    ]
    done: list[int] = []
    conflicts: list[int] = []
    for job in sorted(dead, key=lambda job: (job.finished_at, job.id)):
        if limit is not None and len(done) == limit:
            break
        if any(taken_by_other(world, job, each.key) for each in job.said.keys):
            conflicts.append(job.id)
            continue
        done.append(job.id)
        job.dead_reason = job.finished_at = None
        job.outlived = False
        job.attempt = 0
        job.claimed, job.redriven = False, True
        job.ttl_ends = None
        job.run_at = world.now
        life.make_ready(world, job, world.now)
        take_back(world, job)
        world.tell("redriven", job, world.now)
    return Redriven(tuple(done), tuple(conflicts))


def taken_by_other(world: World, job: OracleJob, key: str) -> bool:
    record = keys.holder(world, job.tenant, job.queue, key)
    return record is not None and record.job_id != job.id


def take_back(world: World, job: OracleJob) -> None:
    """A duration runs from the push: over or not, a redrive does not change it."""
    for each in job.said.keys:
        if not isinstance(each.keep_key, int):
            keys.take(world, job, replace(job.said, keys=(each,)), world.now)


def purge_dead(world: World, tenant: str, queue: str, ids: Sequence[int] | None) -> int:
    dead = [job for job in world.of_queue(tenant, queue) if job.state is State.DEAD]
    chosen = [job for job in dead if ids is None or job.id in ids]
    for job in chosen:
        life.forget(world, job)
    return len(chosen)


def drain(world: World, tenant: str, queue: str) -> int:
    waiting = (State.READY, State.SCHEDULED, State.BLOCKED)
    jobs = [job for job in world.of_queue(tenant, queue) if job.state in waiting]
    for job in jobs:
        job.state = State.CANCELLED  # all at once: none of them fails as another's dependant
    for job in jobs:
        life.end(world, job, State.CANCELLED, world.now)
        life.forget(world, job)
    world.tell_of_queue("drained", tenant, queue)
    return len(jobs)


def clean(
    world: World, tenant: str, queue: str, state: State, older_ms: int, limit: int | None
) -> int:
    before = world.now - older_ms
    jobs = [job for job in world.of_queue(tenant, queue) if job.state is state]
    if state in ENDED:
        old = sorted(
            (job for job in jobs if (job.finished_at or 0) <= before),
            key=lambda job: (job.finished_at, job.id),
        )[:limit]
    else:
        old = [job for job in jobs if job.created_at <= before][:limit]
        for job in old:
            job.state = State.CANCELLED  # all at once, as in a drain
        for job in old:
            life.end(world, job, State.CANCELLED, world.now)
    for job in old:
        life.forget(world, job)
    return len(old)


def purge(world: World, tenant: str, queue: str) -> int:
    jobs = world.of_queue(tenant, queue)
    for job in jobs:
        life.leave_lease(world, job, lost=True)
        life.forget(world, job)
    for job in jobs:
        if not job.ended:
            life.tell_dependants(world, job, world.now, failed=True)
    for place in [place for place in world.keys if place[:2] == (tenant, queue)]:
        del world.keys[place]
    world.tell_of_queue("purged", tenant, queue)
    return len(jobs)


# -- settings ------------------------------------------------------------------------------------


def configure(world: World, caps: Caps, tenant: str, queue: str, config: QueueConfig) -> None:
    """A limit that changes starts full; one that stays goes on."""
    if config != DEFAULT_CONFIG:
        pushing.check_room_for_queues(world, caps, tenant, [queue])
    before = world.config(tenant, queue)
    if config.limits.rate != before.limits.rate:
        world.buckets.pop(("rate", tenant, queue), None)
    if config.bounds.push_rate != before.bounds.push_rate:
        world.buckets.pop(("push", tenant, queue), None)
    if config.limits.group_rate != before.limits.group_rate:
        for bucket in [each for each in world.buckets if each[:3] == ("group", tenant, queue)]:
            del world.buckets[bucket]
    if config == DEFAULT_CONFIG:
        world.configs.pop((tenant, queue), None)
    else:
        world.configs[tenant, queue] = config
    world.tell_of_queue("configured", tenant, queue)


def configure_tenant(world: World, tenant: str, bounds: Bounds) -> None:
    if bounds.push_rate != world.bounds.get(tenant, Bounds()).push_rate:
        world.buckets.pop(("push", tenant), None)
    world.bounds[tenant] = bounds
