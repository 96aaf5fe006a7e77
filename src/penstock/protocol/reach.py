"""How far a principal reaches that may speak for some queues only.

What lies in a queue out of sight does not exist, in the same words as what never was. Whoever
reaches every queue, which is nearly everybody, costs nothing here: nobody looks.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from penstock.model.answers import Explanation, WaitingClaims
from penstock.model.checks import MAX_WAITING, check_waiting
from penstock.model.errors import Forbidden, NotFound
from penstock.model.job import MAX_BATCH, MAX_ID
from penstock.model.store import Store
from penstock.protocol.access import Principal

NEVER_WAS: Final = "0" * 32  # a token of no lease: they are drawn from 2^128


async def lease_within(principal: Principal, store: Store, tenant: str, lease: str) -> str:
    """The lease to speak of, which is one that never was if its queue is not to be claimed from.

    A token is the right to end what it holds; but it may have come into the wrong hands.
    """
    principal.require("claim")
    if principal.reaches_all("claim"):
        return lease
    queues = await store.reach(tenant, lease=lease)
    return lease if all(principal.may("claim", queue) for queue in queues) else NEVER_WAS


async def require_bulk(principal: Principal, store: Store, tenant: str, bulk: str) -> None:
    """Raise NotFound unless all that a bulk holds is in sight, Forbidden unless it may be pushed."""
    principal.require("push")
    if principal.reaches_all("push"):
        return
    queues = await store.reach(tenant, bulk=bulk)
    if not all(map(principal.sees, queues)):
        raise NotFound(f"no bulk {bulk!r}", "bulk")
    if queues:
        principal.require("push", *queues)


async def require_bulk_name(
    principal: Principal, store: Store, tenant: str, name: str | None
) -> None:
    """Raise Forbidden if the name is that of an open bulk that holds what is out of reach."""
    principal.require("push")
    if name is None or principal.reaches_all("push"):
        return
    queues = await store.reach(tenant, bulk=name)
    if not all(principal.may("push", queue) for queue in queues):
        raise Forbidden("these credentials do not reach the bulk of this name", "name")


async def require_dependencies(
    principal: Principal, store: Store, tenant: str, ids: Iterable[int]
) -> None:
    """Raise Forbidden for a job out of sight: waiting for it would tell how it fares."""
    if principal.everywhere:
        return
    named = list({job_id for job_id in ids if 1 <= job_id <= MAX_ID})
    for start in range(0, len(named), MAX_BATCH):
        some = named[start : start + MAX_BATCH]
        for job_id, known in zip(some, await store.standing(tenant, some), strict=True):
            if known is not None and not principal.sees(known.queue):
                raise Forbidden(f"job {job_id} is of a queue out of reach", "depends_on")


async def explained(
    principal: Principal, store: Store, tenant: str, explanation: Explanation
) -> Explanation:
    """Without the dependencies that are out of sight, which it would tell not to have ended."""
    waiting = explanation.detail.get("blocked")
    if principal.everywhere or not waiting:
        return explanation
    standings = await store.standing(tenant, waiting)
    seen = [
        job_id
        for job_id, known in zip(waiting, standings, strict=True)
        if known is not None and principal.sees(known.queue)
    ]
    detail = explanation.detail | {"blocked": seen}
    return msgspec.structs.replace(explanation, detail=detail)


async def waiting_in_sight(
    principal: Principal, store: Store, tenant: str, limit: int
) -> WaitingClaims:
    """Without the claims, and without the queues of the others, that are out of sight."""
    if principal.everywhere:
        return await store.waiting(tenant, limit=limit)
    check_waiting(limit)
    known = await store.waiting(tenant, limit=MAX_WAITING)
    seen = [
        msgspec.structs.replace(claim, queues=queues)
        for claim in known.claims
        if (queues := tuple(filter(principal.sees, claim.queues)))
    ]
    return WaitingClaims(tuple(seen[:limit]), known.complete and len(seen) <= limit)
