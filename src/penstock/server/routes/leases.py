"""Work: claimed on leases, and what is said about it under them."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from msgspec import UNSET

from penstock.protocol.http_said import (
    AckSaid,
    ClaimAnySaid,
    ClaimSaid,
    ExtendSaid,
    FailSaid,
    ProgressSaid,
    ReleaseSaid,
)
from penstock.protocol.http_shown import (
    AckedShown,
    Claimed,
    ExtendedShown,
    FailedShown,
    ReleasedShown,
)
from penstock.server.messages import Response
from penstock.server.routing import Route
from penstock.server.service import Call


async def claim(call: Call) -> Response | None:
    return await _claim(call, [call.params["queue"]])


async def claim_any(call: Call) -> Response | None:
    said: ClaimAnySaid = call.body
    return await _claim(call, said.queues)


async def _claim(call: Call, queues: Sequence[str]) -> Response | None:
    call.principal.require("claim", *queues)
    said: ClaimSaid = call.body
    lease = await call.service.while_claims_are_open(
        call.store.claim(
            call.tenant,
            queues,
            said.n,
            lease_ms=said.lease_ms,
            worker=said.worker,
            wait_ms=said.wait_ms,
        )
    )
    if lease is None:
        return None
    # From here to the connection nothing waits: either it is given the lease or it is undone.
    response = Response.json(200, Claimed.of(lease))
    response.undo = partial(call.store.release, call.tenant, lease.token)
    return response


async def ack(call: Call) -> AckedShown:
    lease = await call.lease()
    said: AckSaid = call.body
    results, codec = said.values()
    answer = await call.store.ack(call.tenant, lease, said.ids, results=results, codec=codec)
    return AckedShown.of(answer)


async def fail(call: Call) -> FailedShown:
    lease = await call.lease()
    said: FailSaid = call.body
    answer = await call.store.fail(
        call.tenant,
        lease,
        said.ids,
        error=said.error.read(),
        retry_in_ms=said.retry_in_ms,
        dead=said.dead,
    )
    return FailedShown.of(answer)


async def release(call: Call) -> ReleasedShown:
    lease = await call.lease()
    said: ReleaseSaid = call.body
    return ReleasedShown.of(await call.store.release(call.tenant, lease, said.ids))


async def extend(call: Call) -> ExtendedShown:
    lease = await call.lease()
    said: ExtendSaid = call.body
    return ExtendedShown.of(await call.store.extend(call.tenant, lease, said.lease_ms))


async def report_progress(call: Call) -> None:
    lease = await call.lease()
    said: ProgressSaid = call.body
    await call.store.report(
        call.tenant,
        lease,
        said.id,
        progress=said.progress,
        message=said.message,
        logs=said.lines(),
        partial=None if said.partial is UNSET else bytes(said.partial),
    )


_LEASE: Final = "/v1/leases/{lease}"

ROUTES: Final = (
    Route(
        method="POST",
        path="/v1/queues/{queue}/claim",
        handler=claim,
        doc="Take ready jobs on a lease, waiting up to `wait_ms` for the first; 204 if none came.",
        scope="claim",
        said=ClaimSaid,
        shown=Claimed,
        also=(204,),
        errors=("batch_too_large", "overloaded"),
        waits=True,
    ),
    Route(
        method="POST",
        path="/v1/claim",
        handler=claim_any,
        doc="Take ready jobs of the first of several queues that has any.",
        scope="claim",
        said=ClaimAnySaid,
        shown=Claimed,
        also=(204,),
        errors=("batch_too_large", "overloaded"),
        waits=True,
    ),
    Route(
        method="POST",
        path=f"{_LEASE}/ack",
        handler=ack,
        doc="Complete jobs, with results.",
        scope="claim",
        said=AckSaid,
        shown=AckedShown,
        errors=("lease_lost", "payload_too_large", "batch_too_large", "storage_full"),
    ),
    Route(
        method="POST",
        path=f"{_LEASE}/fail",
        handler=fail,
        doc="End the attempt of jobs in failure: they are retried, or dead.",
        scope="claim",
        said=FailSaid,
        shown=FailedShown,
        errors=("lease_lost", "batch_too_large"),
    ),
    Route(
        method="POST",
        path=f"{_LEASE}/release",
        handler=release,
        doc="Give jobs back; the attempt does not count.",
        scope="claim",
        said=ReleaseSaid,
        shown=ReleasedShown,
        errors=("lease_lost", "batch_too_large"),
    ),
    Route(
        method="POST",
        path=f"{_LEASE}/extend",
        handler=extend,
        doc="Make the lease last longer: the heartbeat of a worker.",
        scope="claim",
        said=ExtendSaid,
        shown=ExtendedShown,
        errors=("lease_lost",),
    ),
    Route(
        method="POST",
        path=f"{_LEASE}/progress",
        handler=report_progress,
        doc="Say something about a running job: progress, log lines, a partial result.",
        scope="claim",
        said=ProgressSaid,
        status=204,
        errors=("lease_lost", "payload_too_large", "batch_too_large"),
    ),
)
