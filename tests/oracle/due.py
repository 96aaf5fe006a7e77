"""Time passes: what is due takes effect, first by the elapsed clock, then by the wall clock.

Each clock's instants come one after the other, earliest first; after each one groups take seats.
"""

from fractions import Fraction
from math import ceil

from penstock.model.job import JobError
from penstock.model.lifecycle import State
from penstock.model.policy import BULK_MEMORY_MS, PRODUCER_IDLE_MS
from tests.oracle import bulks, crons, groups, life
from tests.oracle.world import OracleJob, World


def settle(world: World, now: int, elapsed: int) -> None:
    """Bring the world up to these readings of the two clocks."""
    by_elapsed_clock(world, now, elapsed)
    world.now = now
    by_wall_clock(world)
    crons.let_go(world)
    forget_empty_queues(world)


# -- the elapsed clock: leases, timeouts, bulk deadlines, tokens ---------------------------------


def by_elapsed_clock(world: World, now: int, elapsed: int) -> None:
    while True:
        instants = [at for at in elapsed_instants(world) if at <= elapsed]
        if not instants:
            break
        world.elapsed = min(instants)
        world.now = now - (elapsed - world.elapsed)
        for job in by_id(world):
            if job.timeout_at is not None and job.timeout_at <= world.elapsed:
                error = JobError(kind="timeout", message="the attempt ran longer than it may")
                life.fail(world, job, error, world.now, lost=True)
        for lease in list(world.leases.values()):
            if lease.ends <= world.elapsed:
                for job in sorted(world.held(lease), key=lambda job: job.id):
                    error = JobError(kind="lease_expired", message="the lease ended")
                    life.fail(world, job, error, world.now, lost=True)
                del world.leases[lease.token]
        for (tenant, name), bulk in world.bulks.items():
            if bulk.state == "open" and bulk.ends <= world.elapsed:
                bulks.drop(world, tenant, name, bulk)
        groups.take_seats(world)
    world.elapsed = elapsed


def elapsed_instants(world: World) -> list[int]:
    instants = [job.timeout_at for job in world.jobs.values() if job.timeout_at is not None]
    instants += [lease.ends for lease in world.leases.values()]
    instants += [bulk.ends for bulk in world.bulks.values() if bulk.state == "open"]
    return instants + token_instants(world)


def token_instants(world: World) -> list[int]:
    """When each group that has a head but no token gets its next one."""
    instants = []
    for tenant, queue in world.configs:
        rate = world.config(tenant, queue).limits.group_rate
        if rate is None:
            continue
        for group in groups.groups_of(world, tenant, queue):
            missing = 1 - world.tokens(("group", tenant, queue, group), rate)
            if missing > 0:
                wait = ceil(missing * Fraction(rate.per_ms, rate.tokens))
                instants.append(world.elapsed + wait)
    return instants


# -- the wall clock: delays, retries, ttl, retention, kept keys ----------------------------------


def by_wall_clock(world: World) -> None:
    crons.cancel_missed(world)
    while True:
        instants = [at for at in wall_instants(world) if at <= world.now]
        if not instants:
            break
        at = min(instants)
        for job in by_id(world):
            if job.state is State.SCHEDULED and job.run_at <= at:
                life.come_due(job)
                crons.came_due(world, job, at)
        for job in by_id(world):
            if job.ttl_ends is not None and job.ttl_ends <= at:
                life.end(world, job, State.EXPIRED, job.ttl_ends)
        groups.take_seats(world)
        sweep(world, at)
    sweep(world, world.now)


def wall_instants(world: World) -> list[int]:
    delays = [job.run_at for job in world.jobs.values() if job.state is State.SCHEDULED]
    return delays + [job.ttl_ends for job in world.jobs.values() if job.ttl_ends is not None]


def sweep(world: World, at: int) -> None:
    """Forget what is kept no longer at `at`."""
    for lease in list(world.leases.values()):
        if not world.held(lease):
            del world.leases[lease.token]
    while True:
        gone = [job for job in kept_no_longer(world, at) if not life.depended_on(world, job)]
        for job in gone:
            life.forget(world, job)
        if not gone:
            break
    for key, record in list(world.keys.items()):
        if record.until is not None and record.until <= at:
            del world.keys[key]
    for name, producer in list(world.producers.items()):
        if producer.used_at + PRODUCER_IDLE_MS <= at:
            del world.producers[name]
    for name, bulk in list(world.bulks.items()):
        if bulk.state != "open" and bulk.finished_at + BULK_MEMORY_MS <= at:
            del world.bulks[name]


def kept_no_longer(world: World, at: int) -> list[OracleJob]:
    """Ended jobs whose retention is over by age or by count, the oldest ends first."""
    ended = [job for job in world.jobs.values() if job.finished_at is not None]
    ended.sort(key=lambda job: (job.finished_at, job.end_order))
    over = {job.id for job in ended if job.outlived or too_old(world, job, at)}
    for tenant, queue in {(job.tenant, job.queue) for job in ended}:
        counted = [
            job.id
            for job in ended
            if (job.tenant, job.queue) == (tenant, queue)
            and job.state is not State.DEAD
            and job.said.options.retain_ms is None
            and job.id not in over
        ]
        surplus = len(counted) - world.config(tenant, queue).retain_count
        over |= set(counted[: max(surplus, 0)])
    found = [job for job in ended if job.id in over]
    for job in found:
        job.outlived = True
    return found


def too_old(world: World, job: OracleJob, at: int) -> bool:
    assert job.finished_at is not None
    config = world.config(job.tenant, job.queue)
    if job.state is State.DEAD:
        own, default = job.said.options.retain_dead_ms, config.retain_dead_ms
    else:
        own, default = job.said.options.retain_ms, config.retain_ms
    retain_ms = default if own is None else own
    return retain_ms == 0 or job.finished_at + retain_ms <= at


def forget_empty_queues(world: World) -> None:
    for tenant, queue in list(world.latest_ready):
        if not exists(world, tenant, queue):
            del world.latest_ready[tenant, queue]


def exists(world: World, tenant: str, queue: str) -> bool:
    """Does the queue hold jobs, kept keys or configuration?"""
    if (tenant, queue) in world.configs:
        return True
    if any(job.queue == queue and job.tenant == tenant for job in world.jobs.values()):
        return True
    return any(place[:2] == (tenant, queue) for place in world.keys)


def by_id(world: World) -> list[OracleJob]:
    return sorted(world.jobs.values(), key=lambda job: job.id)
