"""What the oracle answers about jobs and queues."""

from collections.abc import Sequence

from penstock.model.answers import Explanation, QueueInfo
from penstock.model.job import Job
from penstock.model.lifecycle import State
from penstock.model.policy import DEFAULT_CONFIG
from tests.oracle import groups, life
from tests.oracle.world import OracleJob, World


def view(world: World, job: OracleJob) -> Job:
    lease = world.leases[job.lease] if job.lease is not None else None
    keys = job.last_said.keys  # a version that waits has taken its keys already
    dependants = [o.id for o in life.dependants(world, job) if job.id in o.waited_for]
    return Job(
        id=job.id,
        queue=job.queue,
        payload=job.said.payload,
        options=job.said.options,
        attempt=job.attempt,
        created_at=job.created_at,
        run_at=job.run_at,
        key=keys[0].key if keys else None,
        more_keys=tuple(each.key for each in keys[1:]),
        group=job.said.group,
        headers=job.said.headers,
        depends_on=job.said.depends_on,
        state=job.state,
        priority=job.priority,
        dead_reason=job.dead_reason,
        lease_expires_at=None if lease is None else world.now + lease.ends - world.elapsed,
        last_heartbeat=job.heartbeat_at if job.state is State.ACTIVE else None,
        worker=job.worker,
        progress=job.progress,
        progress_message=job.progress_message,
        result=job.result,
        result_codec=job.result_codec,
        errors=job.errors,
        started_at=job.started_at,
        finished_at=job.finished_at,
        dependants=tuple(dependants),
    )


def queue_info(world: World, tenant: str, queue: str) -> QueueInfo:
    jobs = world.of_queue(tenant, queue)
    ready = [job for job in jobs if job.state is State.READY]
    first = min(ready, key=lambda job: job.ready_at, default=None)
    return QueueInfo(
        queue=queue,
        config=world.config(tenant, queue),
        counts={state: sum(job.state is state for job in jobs) for state in State},
        oldest_ready_ms=None if first is None else max(0, world.now - first.ready_at),
        groups=len(groups.groups_of(world, tenant, queue)),
    )


def queue_names(world: World, tenant: str, names: Sequence[str] | None) -> list[str]:
    if names is not None:
        return list(names)
    found = {job.queue for job in world.jobs.values() if job.tenant == tenant}
    found |= {queue for owner, queue, _ in world.keys if owner == tenant}
    found |= {
        queue
        for (owner, queue), config in world.configs.items()
        if owner == tenant and config != DEFAULT_CONFIG
    }
    return sorted(found)


def explain(world: World, job: OracleJob) -> Explanation:
    ahead = served_before(world, job) if job.state is State.READY else None
    reasons = tuple(reasons_of(world, job, ahead))
    return Explanation(id=job.id, state=job.state, reasons=reasons, ahead=ahead)


def served_before(world: World, job: OracleJob) -> int | None:
    """How many jobs come first if each ends as soon as it is served; None if it is not served."""
    saved = world.copy()
    count = 0
    while True:
        following = groups.pick(world, job.tenant, job.queue)
        if following is None or following.id == job.id:
            break
        count += 1
        following.state = State.COMPLETED
        following.owns_slot = False
        groups.take_seats_in(world, job.tenant, job.queue)
    world.__dict__.update(saved)
    return None if following is None else count


def reasons_of(world: World, job: OracleJob, ahead: int | None) -> list[str]:
    if job.state is State.SCHEDULED:
        return ["backoff" if job.attempt else "delayed"]
    if job.ended:
        return ["ended"]
    if job.state is not State.READY:
        return [job.state.value]
    return limits_of(world, job) or ["line" if ahead else "next"]


def limits_of(world: World, job: OracleJob) -> list[str]:
    """What forbids a ready job to be claimed, whoever is before it."""
    config = world.config(job.tenant, job.queue)
    limits = config.limits
    jobs = world.of_queue(job.tenant, job.queue)
    found = []
    if config.paused:
        found.append("paused")
    bucket = ("rate", job.tenant, job.queue)
    if limits.rate is not None and world.tokens(bucket, limits.rate) < 1:
        found.append("rate")
    active = sum(each.state is State.ACTIVE for each in jobs)
    if limits.concurrency is not None and active >= limits.concurrency:
        found.append("concurrency")
    group = job.said.group
    if group is not None:
        members = groups.groups_of(world, job.tenant, job.queue)[group]
        if not job.owns_slot and groups.free_slots(world, members, job.tenant, job.queue) < 1:
            found.append("group")
        if not groups.has_token(world, job.tenant, job.queue, group):
            found.append("group_rate")
    return found
