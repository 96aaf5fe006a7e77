"""`penstock stats` and `penstock tail`: how a store is doing, and what happens in it."""

from typing import Annotated, Any, cast, get_args

import msgspec
import typer
from rich.text import Text

from penstock.cli.options import read
from penstock.cli.session import Session, note, register
from penstock.cli.show import NOTHING, STYLES, brief, clock, facts, span, state_text
from penstock.model.errors import Invalid, Overloaded, Unavailable
from penstock.model.event import Event, EventKind
from penstock.model.lifecycle import State
from penstock.model.urls import without_password
from penstock.protocol.http_shown_queues import Counts
from penstock.protocol.http_shown_server import EventShown, stretches

_STRETCHES = 5  # of ids that a line names; the rest are counted

_STYLES: dict[str, str] = {
    "claimed": STYLES[State.ACTIVE],
    "completed": STYLES[State.COMPLETED],
    "retried": "yellow",
    "dead": STYLES[State.DEAD],
    "cancelled": STYLES[State.CANCELLED],
    "expired": STYLES[State.EXPIRED],
    "pushed": STYLES[State.READY],
}


def event_kind(said: str) -> str:
    kinds = get_args(EventKind)
    if said not in kinds:
        raise Invalid(f"{said!r} is not one of {', '.join(kinds)}")
    return said


class StatsShown(msgspec.Struct, frozen=True, kw_only=True):
    """A store at one instant: the tenant's jobs by state, and the store's own health."""

    store: str
    ok: bool
    durability: str
    queues: int
    paused: int
    counts: Counts
    oldest_ready_ms: int | None
    detail: dict[str, Any]


async def stats(at: Session) -> None:
    """Count the jobs of all queues by state, and tell how the store is."""
    infos = await at.store.queues(at.tenant)
    health = await at.store.health()
    totals = {state: sum(info.counts[state] for info in infos) for state in State}
    waits = [info.oldest_ready_ms for info in infos if info.oldest_ready_ms is not None]
    shown = StatsShown(
        store=health.store,
        ok=health.ok,
        durability=health.durability,
        queues=len(infos),
        paused=sum(info.config.paused for info in infos),
        counts=Counts.of(totals),
        oldest_ready_ms=max(waits, default=None),
        detail=health.detail,
    )
    paused = f", {shown.paused:,} of them paused" if shown.paused else ""
    waited = NOTHING if shown.oldest_ready_ms is None else span(shown.oldest_ready_ms)
    told: list[tuple[str | Text, str | Text]] = [
        ("store", f"{without_password(at.url)}, {'well' if health.ok else 'not well'}"),
        ("durability", health.durability),
        ("queues", f"{shown.queues:,}{paused}"),
        ("oldest wait", waited),
        *((state_text(state), f"{count:>12,}") for state, count in totals.items()),
    ]
    at.answer(shown, facts(told))


async def tail(
    at: Session,
    *,
    queue: Annotated[
        list[str] | None,
        typer.Option("--queue", "-q", metavar="QUEUE", help="Of this queue; several times."),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            "--kind",
            "-k",
            parser=read(event_kind),
            metavar="KIND",
            help="Of this kind, like pushed, completed, retried, dead; several times.",
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option("-n", min=1, help="End after so many. Unsaid: at Ctrl-C.")
    ] = None,
) -> None:
    """Print events as they happen, from now on; --json: one per line."""
    left = count
    kinds = cast("list[EventKind] | None", kind or None)  # as their parser has read them
    lost = False
    while True:
        events = at.store.watch(at.tenant, queues=queue or None, kinds=kinds)
        if lost:
            # It has asked already. Who cannot be reached any more ends the command with an error.
            await at.store.health()
        try:
            async for event in events:
                _print(at, event)
                if left is not None:
                    left -= 1
                    if not left:
                        return
        except Overloaded as error:
            # More happens than can be printed: what follows is worth more than an end.
            note(f"{error.message}: some were not shown; going on from here")
        except Unavailable:
            # Its server has ended, or whoever owned the path: as a rule there is another at once.
            lost = True
            note("the connection was lost: some may not have been shown; going on from here")
        else:
            return


def _print(at: Session, event: Event) -> None:
    if at.as_json:
        typer.echo(msgspec.json.encode(EventShown.of(event)))
        return
    line = Text(f"{clock(event.at)} ")
    line.append(f"{event.kind:<10}", style=_STYLES.get(event.kind, ""))
    line.append(f" {event.queue} {_ids(event)}{_more(event)}".rstrip())
    at.out.print(line, soft_wrap=True)


def _ids(event: Event) -> str:
    """Stretches of ids, and how many jobs that are."""
    found = stretches(event.ids)
    named = [str(low) if low == high else f"{low}-{high}" for low, high in found[:_STRETCHES]]
    rest = " …" if len(found) > _STRETCHES else ""
    many = f" ({len(event.ids):,} jobs)" if len(event.ids) > 1 else ""
    return f"{','.join(named)}{rest}{many}"


def _more(event: Event) -> str:
    said = {
        "task": event.task,
        "attempt": str(event.attempt or ""),
        "worker": event.worker,
        "reason": event.reason,
        "due": clock(event.run_at) if event.run_at else "",
        "error": f"{event.error_kind}: {event.error_message}" if event.error_kind else "",
        "said": event.data,
    }
    return "".join(f" {name}={brief(value)}" for name, value in said.items() if value)


def add(app: typer.Typer) -> None:
    register(app, stats)
    register(app, tail, endless=True)
