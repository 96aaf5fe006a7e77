"""What a compatible command reaches: the tenant, jobs by their id, the lease that holds one.

This wire names jobs and never leases: the server looks up which lease holds a job. A job in a
queue that the principal does not see does not exist, in the same words as one that never was.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec

from penstock.model.answers import QueueInfo, Standing
from penstock.model.errors import LeaseLost, NotFound, PenstockError
from penstock.model.job import MAX_ID, Job
from penstock.model.store import Store
from penstock.protocol.access import Principal, Scope
from penstock.protocol.command import Answer, Encoding, Session

# What this wire calls otherwise than the store does.
FIELDS: Final = {
    "payload": "data",
    "delay_ms": "delay",
    "ttl_ms": "ttl",
    "timeout_ms": "timeout",
    "lease_ms": "stall_timeout",
    "backoff.base_ms": "backoff",
    "retain_ms": "keep_completed_age",
    "keep_key": "debounce_ttl",
    "group": "group_id",
    "runs": "jobs",
    "results": "result",
    "logs.message": "message",
    "logs.level": "level",
    "limits.rate.tokens": "limit",
    "limits.concurrency": "limit",
    "older_ms": "grace",
    "expression": "schedule",
    "every_ms": "repeat_every",
    "job_id": "id",
}


@contextmanager
def in_their_words() -> Iterator[None]:
    """A refusal names its field as this wire does."""
    try:
        yield
    except PenstockError as error:
        if error.field not in FIELDS:
            raise
        raise type(error)(error.message, FIELDS[error.field]) from error


class Done(Answer, kw_only=True):
    """It was done. Every answer of this wire says so twice."""

    success: bool = True


class Counted(Done, kw_only=True):
    count: int


class Caller(msgspec.Struct, frozen=True):
    """Who asks, as of when the request came: a connection may be asked in its other encoding while
    a request waits."""

    store: Store
    principal: Principal
    tenant: str
    encoding: Encoding

    @classmethod
    def of(cls, session: Session) -> "Caller":
        principal = session.principal
        return cls(session.store, principal, principal.tenant_of(), session.encoding)


async def standing_of(who: Caller, job_id: int, scope: Scope | None = None) -> Standing:
    """Where that job stands. Raises NotFound, or Forbidden if it is seen but out of scope."""
    (standing,) = await standings_of(who, (job_id,))
    if standing is None:
        raise unknown(job_id)
    if scope is not None:
        who.principal.require(scope, standing.queue)
    return standing


async def standings_of(who: Caller, ids: Sequence[int]) -> list[Standing | None]:
    principal = who.principal
    principal.require_sight()
    wanted = [job_id for job_id in ids if 1 <= job_id <= MAX_ID]
    found = await who.store.standing(who.tenant, wanted)
    if len(wanted) < len(ids):
        known = dict(zip(wanted, found, strict=True))
        found = [known.get(job_id) for job_id in ids]
    if not principal.everywhere:
        found = [each if each and principal.sees(each.queue) else None for each in found]
    return found


async def lease_of(who: Caller, job_id: int) -> str:
    """The lease that holds that job now. Raises LeaseLost if none does."""
    standing = await standing_of(who, job_id, "claim")
    if standing.lease is None:
        raise LeaseLost(f"nobody holds job {job_id}: it is {standing.state}", "id")
    return standing.lease


async def jobs_of(who: Caller, ids: Sequence[int]) -> list[Job | None]:
    """What is known of those jobs; None for each that there is none, or none in sight."""
    principal = who.principal
    principal.require_sight()
    wanted = list(dict.fromkeys(job_id for job_id in ids if 1 <= job_id <= MAX_ID))
    jobs = await who.store.get(who.tenant, wanted)
    seen = {job.id: job for job in jobs if job is not None and principal.sees(job.queue)}
    return [seen.get(job_id) for job_id in ids]


async def job_of(who: Caller, job_id: int) -> Job | None:
    (job,) = await jobs_of(who, (job_id,))
    return job


async def queues_of(who: Caller) -> list[QueueInfo]:
    """Every queue in sight, by name."""
    principal = who.principal
    principal.require_sight()
    queues = await who.store.queues(who.tenant)
    if principal.everywhere:
        return queues
    return [info for info in queues if principal.sees(info.queue)]


async def queue_of(who: Caller, queue: str) -> QueueInfo:
    (info,) = await who.store.queues(who.tenant, (queue,))
    return info


def unknown(job_id: int) -> NotFound:
    return NotFound(f"job {job_id} is not known", "id")
