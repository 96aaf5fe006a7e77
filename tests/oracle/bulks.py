"""Two-phase pushes: open, commit, abort."""

from collections.abc import Sequence
from typing import Any

from penstock.model.answers import BulkInfo
from penstock.model.errors import Conflict, Invalid, NotFound, Overloaded
from penstock.model.lifecycle import State
from penstock.model.policy import Caps
from tests.oracle import groups, keys, life, pushing
from tests.oracle.world import Bulk, OracleJob, World


def info(world: World, name: str, bulk: Bulk) -> BulkInfo:
    state: Any = bulk.state
    expires_at = world.now + bulk.ends - world.elapsed if bulk.state == "open" else 0
    return BulkInfo(
        bulk=name, state=state, expires_at=expires_at, jobs=bulk.jobs, dropped=bulk.dropped
    )


def open_bulk(world: World, caps: Caps, tenant: str, name: str, deadline_ms: int) -> BulkInfo:
    known = world.bulks.get((tenant, name))
    if known is None or known.state == "aborted":
        if known is None and len(world.bulks) >= caps.bulks:
            raise Overloaded("too many bulks")
        known = Bulk(state="open", deadline_ms=deadline_ms, ends=world.elapsed + deadline_ms)
        world.bulks[tenant, name] = known
    return info(world, name, known)


def find(world: World, tenant: str, name: str) -> Bulk:
    bulk = world.bulks.get((tenant, name))
    if bulk is None:
        raise NotFound(f"there is no bulk {name!r}", "bulk")
    return bulk


def commit(
    world: World, caps: Caps, tenant: str, name: str, parts: Sequence[str] | None
) -> BulkInfo:
    with world.all_or_nothing():
        bulk = find(world, tenant, name)
        if bulk.state == "committed":
            return info(world, name, bulk)
        if bulk.state == "aborted":
            raise Conflict(f"the bulk {name!r} is aborted", "bulk")
        chosen = bulk.parts if parts is None else tuple(parts)
        for part in chosen:
            if part not in bulk.parts:
                raise Invalid(f"nothing was pushed into the part {part!r}", "parts")
        bulk.state = "committed"
        bulk.finished_at = world.now
        held = [world.jobs[i] for i, _ in bulk.part_of if i in world.jobs]
        held = [job for job in held if job.state is State.HELD]
        part_of = dict(bulk.part_of)
        left_out = [job for job in held if part_of[job.id] not in chosen]
        published = [job for job in held if part_of[job.id] in chosen]
        for job in left_out:
            drop_part(world, job, published)
        bulk.dropped = len(left_out)
        changed: set[int] = set()
        for job in sorted(published, key=lambda job: job.id):
            if job.state is State.HELD and publish(world, job, changed):
                bulk.jobs += 1
            else:
                bulk.dropped += 1
        if pushing.has_cycle(world, {i for i in changed if i in world.jobs}):
            raise Invalid("the dependencies form a cycle", "depends_on")
        keys.check_room(world, caps)
        groups.take_seats(world)
        return info(world, name, bulk)


def drop_part(world: World, job: OracleJob, published: list[OracleJob]) -> None:
    """Forget a held job; those published that depend on it fare as if it had been cancelled."""
    for other in published:
        if job.id in other.said.depends_on:
            other.doomed_by = (*other.doomed_by, job.id)
    life.forget(world, job)


def publish(world: World, job: OracleJob, changed: set[int]) -> bool:
    """Decide a held job's keys and begin it; False if it is dropped. Adds to what has changed."""
    version = job.said
    decided = keys.decide(world, job.tenant, job.queue, version)
    if decided is not None:
        what, holder_id = decided
        del world.jobs[job.id]
        world.ends.append((job.id, None))
        if what == "updated":
            pushing.replace_job(world, world.jobs[holder_id], version)
            changed.add(holder_id)
        for other_id in sorted(set(world.dependants.get(job.id, ()))):
            if other_id in world.jobs:
                pushing.rename_dependency(world, world.jobs[other_id], job.id, holder_id)
        return False
    changed.add(job.id)
    job.bulk = None
    job.created_at = world.now
    version = keys.take(world, job, version, world.now, new=True)
    world.tell("committed", job, world.now)
    life.begin(world, job, version, at=world.now, said_at=world.now)
    return True


def drop(world: World, tenant: str, name: str, bulk: Bulk) -> None:
    """Everything held in it is forgotten."""
    bulk.state = "aborted"
    bulk.finished_at = world.now
    for job in list(world.jobs.values()):
        if job.tenant == tenant and job.bulk == name:
            bulk.dropped += 1
            life.forget(world, job)


def abort(world: World, tenant: str, name: str) -> BulkInfo:
    bulk = find(world, tenant, name)
    if bulk.state == "committed":
        raise Conflict(f"the bulk {name!r} is committed", "bulk")
    if bulk.state == "open":
        drop(world, tenant, name, bulk)
    return info(world, name, bulk)
