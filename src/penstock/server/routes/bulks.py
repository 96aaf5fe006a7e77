"""Two-phase pushes: opened, committed, aborted. What goes in is pushed with `bulk`."""

from typing import Final

from penstock.protocol.http_said import BulkSaid, CommitSaid
from penstock.protocol.http_shown import BulkEnded, BulkShown
from penstock.protocol.reach import require_bulk, require_bulk_name
from penstock.server.messages import Response
from penstock.server.routing import Route
from penstock.server.service import Call


async def open_bulk(call: Call) -> Response:
    said: BulkSaid = call.body
    await require_bulk_name(call.principal, call.store, call.tenant, said.name)
    info = await call.store.open_bulk(call.tenant, said.name, deadline_ms=said.deadline_ms)
    return Response.json(201 if info.state == "open" else 200, BulkShown.of(info))


async def commit_bulk(call: Call) -> BulkEnded:
    bulk = await _reached(call)
    said: CommitSaid = call.body
    return BulkEnded.of(await call.store.commit_bulk(call.tenant, bulk, said.parts))


async def abort_bulk(call: Call) -> BulkEnded:
    return BulkEnded.of(await call.store.abort_bulk(call.tenant, await _reached(call)))


async def _reached(call: Call) -> str:
    bulk = call.params["bulk"]
    await require_bulk(call.principal, call.store, call.tenant, bulk)
    return bulk


ROUTES: Final = (
    Route(
        method="POST",
        path="/v1/bulks",
        handler=open_bulk,
        doc="Begin a two-phase push, or find the one of that name; 200 if it was committed.",
        scope="push",
        said=BulkSaid,
        shown=BulkShown,
        status=201,
        also=(200,),
        errors=("conflict", "overloaded"),
    ),
    Route(
        method="POST",
        path="/v1/bulks/{bulk}/commit",
        handler=commit_bulk,
        doc="Publish the named parts (or all) at one instant and drop the rest.",
        scope="push",
        said=CommitSaid,
        shown=BulkEnded,
        errors=("not_found", "conflict", "batch_too_large", "overloaded", "rate_limited"),
    ),
    Route(
        method="POST",
        path="/v1/bulks/{bulk}/abort",
        handler=abort_bulk,
        doc="Drop everything that is held.",
        scope="push",
        shown=BulkEnded,
        errors=("not_found", "conflict"),
    ),
)
