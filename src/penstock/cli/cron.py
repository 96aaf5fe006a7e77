"""`penstock cron`: schedules: listed, installed, removed, and when they fire."""

import sys
from datetime import UTC, datetime, timedelta
from typing import Annotated
from zoneinfo import ZoneInfo

import msgspec
import typer
from rich.table import Table

from penstock.cli.job_flags import WorkFlags
from penstock.cli.options import Place, Queue, duration, instant
from penstock.cli.reading import content
from penstock.cli.session import DONE, NOT_SO, WRONG, Session, note, print_document, register, run
from penstock.cli.show import brief, clock, console_for, now_ms, table, when
from penstock.model.duration import say_ms
from penstock.model.errors import Invalid, NotFound
from penstock.model.job import JobOptions
from penstock.model.schedule import (
    Cron,
    CronSpec,
    Daily,
    Every,
    Missed,
    Overlap,
    Schedule,
    check_schedule,
    instants,
)
from penstock.protocol.http_shown_queues import Crons, CronShown

Name = Annotated[str, typer.Argument(metavar="NAME", help="The cron.")]
Zone = Annotated[str | None, typer.Option(metavar="ZONE", help="Like Europe/Berlin. Unsaid: UTC.")]


class Instants(msgspec.Struct, frozen=True, kw_only=True):
    """When a schedule fires next."""

    instants: tuple[int, ...]


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """Which cron is no more."""

    removed: str


async def ls(at: Session) -> int | None:
    """List the crons and when each fires next."""
    infos = await at.store.crons(at.tenant)
    now = now_ms()
    rows = table("name", "queue", "~schedule", "next", "", ">fired", "~task")
    for info in infos:
        shown = CronShown.of(info)
        due = shown.next_run
        rows.add_row(
            brief(shown.name),
            shown.queue,
            brief(spoken(info.spec.schedule)),
            clock(due) if due else "-",
            when(due, now) if due else "",
            f"{shown.executions:,}" + (f"/{shown.limit:,}" if shown.limit else ""),
            brief(shown.task, 30),
        )
    at.answer(Crons(crons=tuple(map(CronShown.of, infos))), rows if infos else "no crons")
    return None if infos else NOT_SO


def spoken(schedule: Schedule) -> str:
    """A schedule in a few words."""
    match schedule:
        case Cron(expression=expression, tz=tz):
            return f"{expression} {tz}"
        case Every(every_ms=every_ms):
            return f"every {say_ms(every_ms)}"
        case Daily(at=hours, tz=tz):
            return f"daily {', '.join(hours)} {tz}"


async def put(
    at: Session,
    name: Name,
    queue: Queue,
    payload: Annotated[
        str,
        typer.Argument(
            metavar="PAYLOAD", help="Of each job: JSON, @FILE, or - for standard input."
        ),
    ] = "null",
    *,
    expression: Annotated[
        str | None,
        typer.Option("--expression", "-e", metavar="CRON", help="Like 30 2 * * MON-FRI."),
    ] = None,
    every: Annotated[int | None, duration("The multiples of it since 1970, UTC.", low_ms=1)] = None,
    daily: Annotated[
        list[str] | None, typer.Option(metavar="HH:MM", help="Each day at it; several times.")
    ] = None,
    tz: Zone = None,
    overlap: Annotated[
        Overlap, typer.Option(help="skip: does nothing while an earlier one is live.")
    ] = "allow",
    missed: Annotated[
        Missed, typer.Option(help="Which fire late, if nobody had planned them in time.")
    ] = "last",
    limit: Annotated[int | None, typer.Option(min=1, help="How many times it fires.")] = None,
    job: WorkFlags,
) -> None:
    """Install a cron, or change it: each of its instants becomes a job."""
    spec = CronSpec(
        name=name,
        queue=queue,
        schedule=_schedule(expression, every, daily, tz),
        payload=job.payload(await content(payload)),
        codec=job.codec,
        options=JobOptions(**job.shared()),
        overlap=overlap,
        missed=missed,
        limit=limit,
    )
    info = await at.store.put_cron(at.tenant, spec)
    shown = CronShown.of(info)
    due = (
        f"next {clock(shown.next_run)}, {when(shown.next_run, now_ms())}" if shown.next_run else ""
    )
    at.answer(shown, f"{brief(name)}: {spoken(spec.schedule)}; {due or 'does not fire again'}")
    if not at.as_json:
        note("its instants go on being planned while penstock serve or a worker runs on the store")


def _schedule(
    expression: str | None, every: int | None, daily: list[str] | None, tz: str | None
) -> Schedule:
    if sum(map(bool, (expression, every is not None, daily))) != 1:
        raise Invalid("give exactly one of --expression, --every and --daily", "schedule")
    if every is not None:
        if tz is not None:
            raise Invalid("does not go with --every, which counts from 1970 in UTC", "tz")
        return Every(every_ms=every)
    zone = "UTC" if tz is None else tz
    if expression:
        return Cron(expression=expression, tz=zone)
    return Daily(at=tuple(daily or ()), tz=zone)


async def rm(at: Session, name: Name) -> None:
    """Remove a cron and its jobs that have not started."""
    if not await at.store.drop_cron(at.tenant, name):
        raise NotFound(f"there is no cron {name}; penstock cron ls names them")
    at.answer(Removed(removed=name), f"{brief(name)} is removed")


# -- preview -------------------------------------------------------------------------------------


def preview(
    what: Annotated[
        str, typer.Argument(metavar="CRON|NAME", help="An expression, or the name of a cron.")
    ],
    *,
    tz: Zone = None,
    count: Annotated[int, typer.Option("-n", min=1, max=10_000, help="How many.")] = 10,
    after: Annotated[int | None, instant("Those after it. Unsaid: now.")] = None,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="The store that knows NAME.")
    ] = None,
    tenant: Annotated[str | None, typer.Option(metavar="NAME", help="Whose cron.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print when an expression or a cron fires next; an expression needs no store."""
    begin = now_ms() if after is None else after
    expression = Cron(expression=what, tz="UTC" if tz is None else tz)
    place = Place(url=url, tenant=tenant, as_json=as_json)
    try:
        check_schedule(expression)
    except Invalid as error:
        # Meant as one, and wrong.
        if error.field == "tz" or what.startswith("@") or len(what.split()) >= 5:
            note(f"{'--tz' if error.field == 'tz' else 'CRON'}: {error.message}")
            raise typer.Exit(WRONG) from None
        if not what.strip():
            note(_neither(what))
            raise typer.Exit(WRONG) from None
        raise typer.Exit(run(lambda at: _preview_known(at, what, begin, count), place)) from None
    _print(expression, begin, count, as_json)
    raise typer.Exit(DONE)


async def _preview_known(at: Session, name: str, begin: int, count: int) -> None:
    for info in await at.store.crons(at.tenant):
        if info.spec.name == name:
            _print(info.spec.schedule, begin, count, at.as_json)
            return
    raise NotFound(_neither(name))


def _neither(said: str) -> str:
    return (
        f"{said!r} is neither a cron expression like '30 2 * * MON' nor the name of a cron;"
        " penstock cron ls names them"
    )


def _print(schedule: Schedule, begin: int, count: int, as_json: bool) -> None:
    found = instants(schedule, begin, count)
    if as_json:
        print_document(Instants(instants=tuple(found)))
    else:
        console_for(sys.stdout).print(_times(schedule, found))


def _times(schedule: Schedule, found: list[int]) -> Table:
    """Local time beside UTC, and where the clock was moved between two of them."""
    zone = UTC if isinstance(schedule, Every) else ZoneInfo(schedule.tz)
    now = now_ms()
    rows = table("local", "UTC", "", "")
    before: timedelta | None = None
    for each in found:
        local = datetime.fromtimestamp(each / 1_000, zone)
        offset = local.utcoffset()
        assert offset is not None
        rows.add_row(
            f"{local:%a %Y-%m-%d %H:%M:%S %z}",
            f"{local.astimezone(UTC):%Y-%m-%d %H:%M:%S}",
            when(each, now),
            _moved(offset - before) if before is not None else "",
        )
        before = offset
    return rows


def _moved(by: timedelta) -> str:
    if not by:
        return ""
    minutes = round(by.total_seconds() / 60)
    return (
        f"the clock was put {'forward' if minutes > 0 else 'back'} {say_ms(abs(minutes) * 60_000)}"
    )


def add(app: typer.Typer) -> None:
    register(app, ls)
    register(app, put, creates=True, words={"at": "--daily"})
    register(app, rm)
    app.command("next")(preview)
