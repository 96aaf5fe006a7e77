"""Crons: put, looked at, dropped."""

from typing import Final

from penstock.model.answers import CronInfo
from penstock.model.errors import NotFound
from penstock.protocol.http_said import CronSaid
from penstock.protocol.http_shown_queues import Crons, CronShown
from penstock.server.routing import Route
from penstock.server.service import Call


async def put_cron(call: Call) -> CronShown:
    said: CronSaid = call.body
    call.principal.require("admin", said.queue)
    replaced = await _known(call)
    if replaced is not None:  # which may be about another queue
        call.principal.require("admin", replaced.spec.queue)
    return CronShown.of(await call.store.put_cron(call.tenant, said.read(call.params["name"])))


async def get_cron(call: Call) -> CronShown:
    return CronShown.of(await _seen(call))


async def drop_cron(call: Call) -> None:
    info = await _seen(call)
    call.principal.require("admin", info.spec.queue)
    if not await call.store.drop_cron(call.tenant, info.spec.name):
        raise _unknown(call)


async def list_crons(call: Call) -> Crons:
    call.principal.require_sight()
    known = await call.store.crons(call.tenant)
    seen = (info for info in known if call.principal.sees(info.spec.queue))
    return Crons(crons=tuple(map(CronShown.of, seen)))


async def _known(call: Call) -> CronInfo | None:
    name = call.params["name"]
    known = await call.store.crons(call.tenant)
    return next((info for info in known if info.spec.name == name), None)


async def _seen(call: Call) -> CronInfo:
    call.principal.require_sight()
    info = await _known(call)
    if info is None or not call.principal.sees(info.spec.queue):
        raise _unknown(call)
    return info


def _unknown(call: Call) -> NotFound:
    return NotFound(f"cron {call.params['name'][:60]!r} is not known", "name")


_CRON: Final = "/v1/crons/{name}"

ROUTES: Final = (
    Route(
        method="GET",
        path="/v1/crons",
        handler=list_crons,
        doc="Every cron, by name.",
        scope="see",
        shown=Crons,
    ),
    Route(
        method="GET",
        path=_CRON,
        handler=get_cron,
        doc="One cron and its next instants.",
        scope="see",
        shown=CronShown,
        errors=("not_found",),
    ),
    Route(
        method="PUT",
        path=_CRON,
        handler=put_cron,
        doc="Install a cron, or change it: old instants that have not started are removed.",
        scope="admin",
        said=CronSaid,
        shown=CronShown,
        errors=("payload_too_large", "overloaded", "rate_limited", "storage_full"),
    ),
    Route(
        method="DELETE",
        path=_CRON,
        handler=drop_cron,
        doc="Remove a cron and its instants that have not started.",
        scope="admin",
        status=204,
        errors=("not_found",),
    ),
)
