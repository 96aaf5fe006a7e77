"""Is it alive, is it well, and how much does it do."""

from typing import Any, Final

import msgspec

from penstock.model.errors import Forbidden, Unavailable
from penstock.protocol.http_shown_server import Alive, History, Ready, Stats
from penstock.server.messages import Response
from penstock.server.problems import Stopping
from penstock.server.routing import Route
from penstock.server.service import Call

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


async def check_alive(call: Call) -> Alive:
    return Alive()


async def check_ready(call: Call) -> Ready:
    if call.service.stopping:
        raise Stopping
    health = await call.store.health()
    if not health.ok:
        raise Unavailable("the store is not well")
    return Ready(ok=True, store=health.store, durability=health.durability)


async def get_stats(call: Call) -> Stats:
    _check_whole_tenant(call)
    queues = await call.store.queues(call.tenant)
    return Stats.of(queues, call.service.sources.figures(call.tenant))


async def get_history(call: Call) -> History:
    _check_whole_tenant(call)
    sources = call.service.sources
    points: list[dict[str, Any]] = [
        msgspec.to_builtins(point) for point in sources.history(call.tenant)
    ]
    return History(interval_ms=sources.history_interval_ms, points=tuple(points))


async def get_metrics(call: Call) -> Response:
    _check_whole_tenant(call)
    if call.principal.tenant is not None:
        raise Forbidden("these are figures of every tenant; these credentials are of one")
    text = await call.service.sources.metrics()
    return Response(body=text.encode(), type=METRICS_TYPE)


def _check_whole_tenant(call: Call) -> None:
    """What is counted is counted over all queues, so all of them have to be in sight."""
    call.principal.require_sight()
    if not call.principal.everywhere:
        raise Forbidden("this is about every queue; these credentials are not")


ROUTES: Final = (
    Route(
        method="GET",
        path="/v1/stats",
        handler=get_stats,
        doc="The tenant's jobs by state, and what the server has counted.",
        scope="see",
        shown=Stats,
    ),
    Route(
        method="GET",
        path="/v1/stats/history",
        handler=get_history,
        doc="What was measured lately, point by point.",
        scope="see",
        shown=History,
    ),
    Route(
        method="GET",
        path="/metrics",
        handler=get_metrics,
        doc="Figures of the whole server in the text format of Prometheus.",
        scope="see",
        media="text/plain",
    ),
    Route(
        method="GET",
        path="/healthz",
        handler=check_alive,
        doc="The server answers.",
        shown=Alive,
    ),
    Route(
        method="GET",
        path="/readyz",
        handler=check_ready,
        doc="The store answers and the server is not stopping.",
        shown=Ready,
    ),
)
