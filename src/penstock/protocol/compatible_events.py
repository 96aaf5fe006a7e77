"""Compatible commands about events: SUBSCRIBE, UNSUBSCRIBE.

What happens to jobs of a queue is told line by line, one for each job. Lines carry no `ok`, which
tells them from answers. A client that reads too slowly is told so and is no longer subscribed.
"""

from contextlib import aclosing
from typing import Any, ClassVar, Final

import msgspec
from msgspec import UNSET, UnsetType

from penstock.model.checks import check_queue
from penstock.model.errors import Invalid, PenstockError
from penstock.model.event import Event, EventKind
from penstock.protocol.command import Answer, Request, Session
from penstock.protocol.compatible_reach import Caller, Done
from penstock.protocol.together import TURN, others_first

# What this wire calls what happens.
EVENTS: Final[dict[str, tuple[EventKind, ...]]] = {
    "pushed": ("pushed", "committed"),
    "active": ("claimed",),
    "progress": ("progress",),
    "partial": ("partial",),
    "log": ("log",),
    "completed": ("completed",),
    "retrying": ("retried",),
    "failed": ("dead",),
    "cancelled": ("cancelled",),
    "expired": ("expired",),
}
_NAMES: Final[dict[str, str]] = {kind: name for name, kinds in EVENTS.items() for kind in kinds}


class EventLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Something happened to a job."""

    event_type: str
    queue: str
    job_id: int
    timestamp: int  # ms
    progress: int | UnsetType = UNSET  # of progress
    message: str | UnsetType = UNSET  # of progress and log
    data: Any | UnsetType = UNSET  # of partial: what PARTIAL said …
    index: int | UnsetType = UNSET  # … and which piece it is
    error: str | UnsetType = UNSET  # of retrying and failed


class EndLine(msgspec.Struct, kw_only=True):
    """There will be no more lines about this queue."""

    event_type: str = "unsubscribed"
    queue: str
    error: str
    code: str


class Subscribe(Request, tag="SUBSCRIBE", kw_only=True):
    """Be told what happens to jobs of a queue, from now on. Replaces what was asked for before."""

    queue: str
    # Some of: pushed, active, progress, partial, log, completed, retrying, failed, cancelled,
    # expired. None named: all of them.
    events: tuple[str, ...] = ()

    async def call(self, session: Session) -> Done:
        who = Caller.of(session)
        who.principal.require_sight(self.queue)
        check_queue(self.queue)
        kinds: list[EventKind] = []
        for name in self.events or EVENTS:
            if name not in EVENTS:
                raise Invalid(f"{name[:60]!r} is not one of {', '.join(EVENTS)}", "events")
            kinds += EVENTS[name]
        telling = _tell(session, who, self.queue, tuple(dict.fromkeys(kinds)))
        session.start(_name(self.queue), telling)
        await others_first()  # it watches before we say so
        return Done()


class Unsubscribed(Done, kw_only=True):
    was_subscribed: bool


class Unsubscribe(Request, tag="UNSUBSCRIBE", kw_only=True):
    """Be told no more about a queue."""

    answer: ClassVar[type[Answer]] = Unsubscribed
    queue: str

    async def call(self, session: Session) -> Unsubscribed:
        who = Caller.of(session)
        who.principal.require_sight(self.queue)
        return Unsubscribed(was_subscribed=session.stop(_name(self.queue)))


def _name(queue: str) -> tuple[str, str]:
    return ("SUBSCRIBE", queue)


async def _tell(session: Session, who: Caller, queue: str, kinds: tuple[EventKind, ...]) -> None:
    told = 0
    events = who.store.watch(who.tenant, queues=(queue,), kinds=kinds)
    async with aclosing(events):  # type: ignore[type-var]
        try:
            async for event in events:
                if event.held:
                    continue  # of a bulk: they are pushed when it is committed
                like = _line(event)
                for job_id in event.ids:
                    session.send(msgspec.structs.replace(like, job_id=job_id))
                    told += 1
                    if not told % TURN:
                        await others_first()
        except PenstockError as error:
            session.send(EndLine(queue=queue, error=error.message, code=error.code))


def _line(event: Event) -> EventLine:
    line = EventLine(event_type=_NAMES[event.kind], queue=event.queue, job_id=0, timestamp=event.at)
    if event.kind in ("retried", "dead"):
        line.error = event.error_message or event.error_kind or event.reason
    elif event.kind == "log":
        line.message = event.data
    elif event.kind == "progress":
        progress, _, message = event.data.partition(" ")
        line.progress = int(progress)
        line.message = message or UNSET
    elif event.kind == "partial":
        _add_partial(line, event.data)
    return line


def _add_partial(line: EventLine, said: str) -> None:
    """Whatever was said that PARTIAL did not say is told as text."""
    try:
        partial = msgspec.json.decode(said, type=_Partial)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        line.data = said
    else:
        line.data = partial.data
        line.index = UNSET if partial.index is None else partial.index


class _Partial(msgspec.Struct, forbid_unknown_fields=True):
    """As PARTIAL writes it."""

    index: int | None
    data: Any
