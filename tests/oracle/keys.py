"""Keys: which job a key stands for, and until when."""

from dataclasses import replace

from penstock.model.errors import Conflict, Overloaded
from penstock.model.job import Outcome
from penstock.model.policy import Caps
from tests.oracle.world import KeptKey, OracleJob, Version, World


def kept(world: World, record: KeptKey) -> bool:
    """Does the key still stand for its job?"""
    if record.until is not None:
        return world.now < record.until
    job = world.jobs.get(record.job_id)
    if job is None:
        return False
    if record.keep == "retained":
        return True
    if record.keep == "started":
        return not job.ended and (job.waiting is not None or not job.claimed)
    return not job.ended


def holder(world: World, tenant: str, queue: str, key: str) -> KeptKey | None:
    record = world.keys.get((tenant, queue, key))
    return record if record is not None and kept(world, record) else None


def take(world: World, job: OracleJob, version: Version, at: int, *, new: bool = False) -> Version:
    """The job carries the version's keys from `at` on; answers the version with those it got.

    Of several keys, those that stand for another job stay with it; but a new job takes over
    what it may replace from one that has ended.
    """
    mine = []
    for claim in version.keys:
        other = holder(world, job.tenant, job.queue, claim.key)
        free = other is None or other.job_id == job.id
        if not free and not (new and claim.on_conflict == "replace" and over(world, other)):
            continue
        mine.append(claim)
        world.keys[job.tenant, job.queue, claim.key] = KeptKey(
            job_id=job.id,
            keep=claim.keep_key,
            until=at + claim.keep_key if isinstance(claim.keep_key, int) else None,
            payload=(version.options.codec, version.payload),
        )
    for place, record in list(world.keys.items()):  # its other keys stand for the same job
        if record.job_id == job.id:
            now_is = (version.options.codec, version.payload)
            world.keys[place] = replace(record, payload=now_is)
    return replace(version, keys=tuple(mine))


def joined(before: Version, after: Version) -> Version:
    """The new version with the job's other keys too: a replace takes none away."""
    new = {claim.key: claim for claim in after.keys}
    old = {claim.key: claim for claim in before.keys}
    return replace(after, keys=tuple((old | new).values()))


def over(world: World, record: KeptKey | None) -> bool:
    """Has the key outlived its job?"""
    job = None if record is None else world.jobs.get(record.job_id)
    return job is None or job.ended


def let_go(world: World, job: OracleJob) -> None:
    """After a claim, an end or forgetting: free those of its keys that are no longer kept.

    Freed for good: a job that lives again takes its keys anew.
    """
    for claim in job.last_said.keys:
        place = (job.tenant, job.queue, claim.key)
        record = world.keys.get(place)
        if record is not None and record.job_id == job.id and not kept(world, record):
            del world.keys[place]


def check_room(world: World, caps: Caps) -> None:
    """May keys that can outlive their job be as many as they now are?"""
    lasting = [each for each in world.keys.values() if each.keep not in ("live", "started")]
    if len(lasting) > caps.kept_keys:
        raise Overloaded(f"{len(lasting)} keys are kept beyond their jobs", "key")


def decide(world: World, tenant: str, queue: str, version: Version) -> tuple[Outcome, int] | None:
    """What becomes of a job with these keys: None to create it, or what is answered instead.

    `updated` here means: the job of that id is to be replaced.
    """
    for claim in version.keys:
        record = holder(world, tenant, queue, claim.key)
        if record is None:
            continue
        if claim.on_conflict == "reject":
            raise Conflict(f"the key {claim.key!r} is taken by job {record.job_id}", "key")
        if claim.on_conflict == "match":
            if record.payload != (version.options.codec, version.payload):
                raise Conflict(f"the key {claim.key!r} stands for another payload", "key")
            return "ignored", record.job_id
        if claim.on_conflict == "return":
            return "ignored", record.job_id
        return None if over(world, record) else ("updated", record.job_id)
    return None


def identical(job: OracleJob, version: Version) -> bool:
    """Would a replace by `version` change nothing?"""
    last = replace(job.last_said, keys=version.keys, key=version.key)
    if job.waiting is None and job.priority != job.said.options.priority:
        return False  # edited
    if last.delay_ms is not None or version.delay_ms is not None:
        return False
    return last == version
