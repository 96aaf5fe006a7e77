"""Queues: looked at, paused, emptied, configured."""

from typing import Final

import msgspec

from penstock.model.answers import QueueInfo
from penstock.model.policy import QueueConfig
from penstock.protocol.http_said import ConfigSaid
from penstock.protocol.http_shown_queues import ConfigShown, Counted, Queues, QueueShown
from penstock.server.routing import Route
from penstock.server.service import Call


async def list_queues(call: Call) -> Queues:
    call.principal.require_sight()
    known = await call.store.queues(call.tenant)
    seen = (info for info in known if call.principal.sees(info.queue))
    return Queues(queues=tuple(map(QueueShown.of, seen)))


async def get_queue(call: Call) -> QueueShown:
    call.principal.require_sight(call.params["queue"])
    return QueueShown.of(await _queue(call))


async def purge_queue(call: Call) -> Counted:
    queue = _administered(call)
    return Counted(count=await call.store.purge(call.tenant, queue))


async def drain_queue(call: Call) -> Counted:
    queue = _administered(call)
    return Counted(count=await call.store.drain(call.tenant, queue))


async def pause_queue(call: Call) -> QueueShown:
    return await _paused(call, True)


async def resume_queue(call: Call) -> QueueShown:
    return await _paused(call, False)


async def configure_queue(call: Call) -> ConfigShown:
    queue = _administered(call)
    said: ConfigSaid = call.body
    config = said.read((await _config(call)).paused)
    await call.store.configure(call.tenant, queue, config)
    return ConfigShown.of(config)


async def _paused(call: Call, paused: bool) -> QueueShown:
    queue = _administered(call)
    config = msgspec.structs.replace(await _config(call), paused=paused)
    await call.store.configure(call.tenant, queue, config)
    return QueueShown.of(await _queue(call))


def _administered(call: Call) -> str:
    queue = call.params["queue"]
    call.principal.require("admin", queue)
    return queue


async def _queue(call: Call) -> QueueInfo:
    (info,) = await call.store.queues(call.tenant, [call.params["queue"]])
    return info


async def _config(call: Call) -> QueueConfig:
    return (await _queue(call)).config


_QUEUE: Final = "/v1/queues/{queue}"

ROUTES: Final = (
    Route(
        method="GET",
        path="/v1/queues",
        handler=list_queues,
        doc="The queues that hold jobs, kept keys or configuration.",
        scope="see",
        shown=Queues,
    ),
    Route(
        method="GET",
        path=_QUEUE,
        handler=get_queue,
        doc="One queue; one that nothing is known of is empty.",
        scope="see",
        shown=QueueShown,
    ),
    Route(
        method="DELETE",
        path=_QUEUE,
        handler=purge_queue,
        doc="Forget every job of the queue, leases too; its configuration stays.",
        scope="admin",
        shown=Counted,
    ),
    Route(
        method="POST",
        path=f"{_QUEUE}/pause",
        handler=pause_queue,
        doc="Stop claims; pushes go on.",
        scope="admin",
        shown=QueueShown,
        errors=("overloaded",),
    ),
    Route(
        method="POST",
        path=f"{_QUEUE}/resume",
        handler=resume_queue,
        doc="Let claims go on.",
        scope="admin",
        shown=QueueShown,
    ),
    Route(
        method="POST",
        path=f"{_QUEUE}/drain",
        handler=drain_queue,
        doc="Cancel and forget what is ready, scheduled or blocked.",
        scope="admin",
        shown=Counted,
    ),
    Route(
        method="PUT",
        path=f"{_QUEUE}/config",
        handler=configure_queue,
        doc="Set all of a queue's limits, bounds and retention.",
        scope="admin",
        said=ConfigSaid,
        shown=ConfigShown,
        errors=("overloaded",),
    ),
)
