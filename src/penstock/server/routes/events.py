"""What happens, as it happens: server-sent events."""

from typing import Final

from penstock.model.checks import check_queue
from penstock.model.event import Event, EventKind
from penstock.protocol.http_said import Said
from penstock.protocol.http_types import QueueName
from penstock.server.messages import Response
from penstock.server.routing import Route
from penstock.server.service import Call
from penstock.server.sse import place_of

MEDIA_TYPE: Final = "text/event-stream"


class Filter(Said, frozen=True, kw_only=True):
    """Which events; without names, all that are in sight."""

    queue: tuple[QueueName, ...] = ()
    kind: tuple[EventKind, ...] = ()


async def watch_events(call: Call) -> Response:
    chosen: Filter = call.query
    principal = call.principal
    for queue in chosen.queue:
        check_queue(queue)
    principal.require_sight(*chosen.queue)
    said = call.head.headers.get("last-event-id")
    since = None if said is None else place_of(said)
    queues, kinds = frozenset(chosen.queue), frozenset(chosen.kind)

    def wanted(event: Event) -> bool:
        return (
            (not queues or event.queue in queues)
            and (not kinds or event.kind in kinds)
            and principal.sees(event.queue)
        )

    stream = call.service.feeds.subscribe(call.tenant, since, wanted, call.service.heartbeat_s)
    return Response(type=MEDIA_TYPE, stream=stream)


ROUTES: Final = (
    Route(
        method="GET",
        path="/v1/events",
        handler=watch_events,
        doc="Events as they happen, from now on or from behind `Last-Event-ID` on. An event `gap`"
        " says that some are missing.",
        scope="see",
        query=Filter,
        media=MEDIA_TYPE,
        errors=("overloaded",),
        waits=True,
    ),
)
