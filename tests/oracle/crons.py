"""Crons: instants become keyed jobs; some that come due are skipped."""

import msgspec

from penstock.model import schedule
from penstock.model.answers import CronInfo, PushedInstead
from penstock.model.errors import Invalid, NotFound, Overloaded
from penstock.model.job import KeyClaim, Run
from penstock.model.lifecycle import State
from penstock.model.policy import Caps
from penstock.model.schedule import CronSpec
from tests.oracle import keys, life, pushing
from tests.oracle.world import OracleCron, OracleJob, Version, World

LATE_MS = 60_000  # `missed="none"` cancels what is later than this


def put(world: World, caps: Caps, tenant: str, spec: CronSpec, refresh: bool = False) -> CronInfo:
    place = (tenant, spec.name)
    config_hash = schedule.config_hash(spec)
    with world.all_or_nothing():
        cron = world.crons.get(place)
        if refresh and (cron is None or cron.config_hash != config_hash):
            raise NotFound("was changed or dropped meanwhile")
        if cron is None and len(world.crons) >= caps.crons:
            raise Overloaded("too many crons")
        if cron is not None and cron.config_hash != config_hash:
            remove_instants(world, tenant, cron)
            cron = None
        if cron is None:
            cron = OracleCron(spec=spec, config_hash=config_hash)
            world.crons[place] = cron
        install(world, caps, tenant, cron)
        return info(world, cron)


def info(world: World, cron: OracleCron) -> CronInfo:
    return CronInfo(
        spec=cron.spec,
        config_hash=cron.config_hash,
        installed_until=cron.installed_until,
        pending=tuple(
            instant
            for instant, job_id in cron.instants
            if instant > world.now and job_id in world.jobs
        ),
        executions=cron.executions,
    )


def install(world: World, caps: Caps, tenant: str, cron: OracleCron) -> None:
    """Push the instants that the plan names."""
    spec = cron.spec
    created = []
    before = pushing.sizes(world, tenant)
    pushing.check_room_for_queues(world, caps, tenant, [spec.queue])
    plan = schedule.plan(spec, now_ms=world.now, installed_until_ms=cron.installed_until)
    planned = plan.instants
    if spec.limit is not None:
        planned = planned[: max(spec.limit - cron.executions - len(cron.instants), 0)]
    for instant in planned:
        key = schedule.instant_key(spec.name, cron.config_hash, instant)
        keep_key = schedule.keep_key_ms(instant, world.now)
        options = msgspec.structs.replace(spec.options, codec=spec.codec)
        version = Version(
            payload=spec.payload,
            options=options,
            key=key,
            keys=(KeyClaim(key, "return", keep_key),),
            run_at=instant,
        )
        job_id, what = pushing.push_one(world, tenant, spec.queue, version)
        if what == "created":
            world.jobs[job_id].cron = spec.name
            world.jobs[job_id].planned = True
            if options.ttl_ms is not None:
                world.jobs[job_id].ttl_ends = instant + options.ttl_ms
            cron.instants = (*cron.instants, (instant, job_id))
            created.append(world.jobs[job_id])
            if world.jobs[job_id].state is State.READY:
                came_due(world, world.jobs[job_id], world.now)
        cron.installed_until = instant
    pushing.check_bounds(world, tenant, before, created)
    keys.check_room(world, caps)


def drop(world: World, tenant: str, name: str) -> bool:
    cron = world.crons.pop((tenant, name), None)
    if cron is None:
        return False
    remove_instants(world, tenant, cron)
    return True


def remove_instants(world: World, tenant: str, cron: OracleCron) -> None:
    """Those that have not started are gone, keys too, as if they had never been."""
    for job in world.of_queue(tenant, cron.spec.queue):
        waits = job.state in (State.SCHEDULED, State.READY) and not job.claimed
        if job.cron == cron.spec.name and waits:
            vanish(world, job)


def vanish(world: World, job: OracleJob) -> None:
    life.end(world, job, State.CANCELLED, world.now)
    life.forget(world, job)
    for claim in job.said.keys:
        held = world.keys.get((job.tenant, job.queue, claim.key))
        if held is not None and held.job_id == job.id:
            del world.keys[job.tenant, job.queue, claim.key]


# -- instants that somebody else made up ---------------------------------------------------------


def put_instants(
    world: World, caps: Caps, tenant: str, name: str, config_hash: str, run: Run, refresh: bool
) -> PushedInstead:
    with world.all_or_nothing():
        known = instants_of(world, tenant, run.queue, name)
        others = [job for job, config in known if config != config_hash]
        if refresh:
            said = [claim.key for (claim,) in run.more_keys or ()]
            there = any(job.said.keys[0].key in said and stands(world, job) for job, _ in known)
            if not there and others and others[-1].id == max(job.id for job, _ in known):
                raise NotFound("another config was put after this one", "name")
            others = []
        for job in others:
            vanish(world, job)
        if not run.ends:
            return PushedInstead((), len(others))
        pushed = pushing.push(world, caps, tenant, [run], bulk=None, part="")
        return PushedInstead(pushed.runs, len(others))


def claims(
    world: World, name: str, config_hash: str, instants: list[int]
) -> list[tuple[KeyClaim, ...]]:
    """The key that each of them is pushed with."""
    return [
        (
            KeyClaim(
                schedule.instant_key(name, config_hash, instant),
                "return",
                schedule.keep_key_ms(instant, world.now),
            ),
        )
        for instant in instants
    ]


def drop_instants(world: World, tenant: str, queue: str, name: str, config_hash: str | None) -> int:
    gone = [
        job
        for job, config in instants_of(world, tenant, queue, name)
        if config_hash in (None, config)
    ]
    for job in gone:
        vanish(world, job)
    return len(gone)


def stands(world: World, job: OracleJob) -> bool:
    """Is its key still its own?"""
    record = keys.holder(world, job.tenant, job.queue, job.said.keys[0].key)
    return record is not None and record.job_id == job.id


def instants_of(world: World, tenant: str, queue: str, name: str) -> list[tuple[OracleJob, str]]:
    """Those that nobody has been given, nor brought back, and that no cron planned, by id, with
    their configs."""
    found = []
    for job in sorted(world.of_queue(tenant, queue), key=lambda job: job.id):
        waits = job.state in (State.SCHEDULED, State.READY, State.BLOCKED)
        if not waits or job.claimed or job.redriven or job.planned:
            continue
        try:
            whose, config, _ = schedule.parse_key(job.said.keys[0].key if job.said.keys else "")
        except Invalid:
            continue
        if whose == name:
            found.append((job, config))
    return found


def let_go(world: World) -> None:
    """An instant that ended is its cron's no longer, even if it is redriven."""
    for job in world.jobs.values():
        if job.ended:
            job.cron = None
    for cron in world.crons.values():
        cron.instants = tuple(
            (instant, job_id)
            for instant, job_id in cron.instants
            if job_id in world.jobs and not world.jobs[job_id].ended
        )


def of_job(world: World, job: OracleJob) -> OracleCron | None:
    for (tenant, _), cron in world.crons.items():
        if tenant == job.tenant and job.id in (job_id for _, job_id in cron.instants):
            return cron
    return None


def cancel_missed(world: World) -> None:
    """Of several instants that come due at once only some run."""
    for cron in list(world.crons.values()):
        due = [
            world.jobs[job_id]
            for instant, job_id in cron.instants
            if instant <= world.now
            and job_id in world.jobs
            and world.jobs[job_id].state is State.SCHEDULED
        ]
        for job in due:
            late = world.now - job.run_at > LATE_MS
            if (cron.spec.missed == "last" and job is not due[-1]) or (
                cron.spec.missed == "none" and late
            ):
                fired(world, cron, job)
                life.end(world, job, State.CANCELLED, job.run_at)


def came_due(world: World, job: OracleJob, at: int) -> None:
    """A job has become ready: if it is a cron's instant, count it, and skip it on overlap."""
    cron = of_job(world, job)
    if cron is None:
        return
    overlaps = cron.spec.overlap == "skip" and any(
        other.id != job.id
        and other.cron == cron.spec.name
        and (other.state in (State.READY, State.ACTIVE) or (other.claimed and not other.ended))
        for other in world.jobs.values()  # in whichever queue: the cron may have moved
        if other.tenant == job.tenant
    )
    fired(world, cron, job)
    if overlaps:
        life.end(world, job, State.CANCELLED, at)


def fired(world: World, cron: OracleCron, job: OracleJob) -> None:
    cron.executions += 1
    cron.instants = tuple(each for each in cron.instants if each[1] != job.id)
    if cron.spec.limit is not None and cron.executions >= cron.spec.limit:
        for place, known in list(world.crons.items()):
            if known is cron:
                del world.crons[place]
                for other in world.jobs.values():
                    if other.tenant == place[0] and other.cron == cron.spec.name:
                        other.cron = None  # what came due runs on its own
