"""`penstock queues`: what is in them, and what an operator may do to them."""

from typing import Annotated, Any, Final

import typer
from msgspec.structs import replace
from rich.text import Text

from penstock.cli.options import NO_LIMIT, Queue, duration, number, rate
from penstock.cli.session import NOT_SO, Session, register
from penstock.cli.show import NOTHING, STYLES, facts, many, plain, span, table
from penstock.model.answers import QueueInfo
from penstock.model.checks_values import MAX_INT32
from penstock.model.duration import say_ms
from penstock.model.errors import Invalid, NotFound
from penstock.model.lifecycle import State
from penstock.model.policy import Bounds, Limits, QueueConfig, Rate
from penstock.protocol.http_shown_queues import ConfigShown, Counted, Queues, QueueShown

_NEW: Final = "Also if nothing of that name exists yet."

New = Annotated[bool, typer.Option("--new", help=_NEW)]


async def ls(at: Session) -> int | None:
    """List the queues and count their jobs by state."""
    infos = await at.store.queues(at.tenant)
    states = [state for state in State if any(info.counts[state] for info in infos)]
    rows = table("queue", *(f">{state}" for state in states), ">oldest wait", "~limits")
    for info in infos:
        waited = info.oldest_ready_ms
        rows.add_row(
            plain(info.queue),
            *(_count(info, state) for state in states),
            NOTHING if waited is None else span(waited),
            _limits(info.config),
        )
    shown = Queues(queues=tuple(map(QueueShown.of, infos)))
    at.answer(shown, rows if infos else "no queues")
    return None if infos else NOT_SO


def _count(info: QueueInfo, state: State) -> Text:
    count = info.counts[state]
    return Text(f"{count:,}", style=STYLES[state] if count else "dim")


def _limits(config: QueueConfig) -> Text:
    limits = config.limits
    said = Text()
    if config.paused:
        said.append("paused", style="bold yellow")
    for word, value in (
        ("rate", limits.rate),
        ("concurrency", limits.concurrency),
        ("group rate", limits.group_rate),
    ):
        if value is not None:
            said.append(f"{', ' if said else ''}{word} {_said(value)}")
    return said


def _said(value: Rate | int | None) -> str:
    if isinstance(value, Rate):
        burst = f", {value.burst} at once" if value.burst else ""
        return f"{value.tokens:,}/{say_ms(value.per_ms).removeprefix('1')}{burst}"
    return NO_LIMIT if value is None else f"{value:,}"


async def pause(at: Session, queue: Queue, *, new: New = False) -> None:
    """Stop claims from a queue; pushes go on."""
    await _set_paused(at, queue, True, new)


async def resume(at: Session, queue: Queue) -> None:
    """Let claims from a queue go on."""
    await at.queue(queue)
    await _set_paused(at, queue, False, True)


async def _set_paused(at: Session, queue: str, paused: bool, new: bool) -> None:
    info = await _info(at, queue, new)
    await at.store.configure(at.tenant, queue, replace(info.config, paused=paused))
    (info,) = await at.store.queues(at.tenant, [queue])
    at.answer(QueueShown.of(info), f"{queue} is paused" if paused else f"{queue} goes on")


async def _info(at: Session, queue: str, new: bool) -> QueueInfo:
    if not new:
        try:
            return await at.queue(queue)
        except NotFound as error:
            stop = "" if error.message.endswith("?") else ";"
            raise NotFound(f"{error.message}{stop} --new makes it before its first job") from None
    (info,) = await at.store.queues(at.tenant, [queue])
    return info


async def limit(
    at: Session,
    queue: Queue,
    *,
    rate_: Annotated[Any, rate("Claims at most: 100/s, 10/5m, none.", "--rate")] = None,
    burst: Annotated[int | None, typer.Option(min=1, help="Of the rate, at one instant.")] = None,
    concurrency: Annotated[
        Any, number("Active jobs at most, or none.", low=1, high=MAX_INT32)
    ] = None,
    group_rate: Annotated[Any, rate("Claims of one group at most.")] = None,
    group_concurrency: Annotated[
        int | None, typer.Option(min=1, help="Active jobs of one group at most.")
    ] = None,
    max_jobs: Annotated[Any, number("Jobs that have not ended at most, or none.")] = None,
    max_bytes: Annotated[Any, number("Their payloads' bytes at most, or none.")] = None,
    push_rate: Annotated[Any, rate("Pushes at most.")] = None,
    retain: Annotated[int | None, duration("How long ended jobs are known.")] = None,
    retain_count: Annotated[int | None, typer.Option(min=0, help="How many of them.")] = None,
    retain_dead: Annotated[int | None, duration("How long dead jobs are known.")] = None,
    new: New = False,
) -> None:
    """Set limits, bounds and retention of a queue; what is not said stays. Unsaid all: show them."""
    old = (await _info(at, queue, new)).config
    limits, bounds = old.limits, old.bounds
    claims = _kept(rate_, limits.rate)
    if burst is not None:
        if claims is None:
            raise Invalid("goes with a rate", "burst")
        claims = replace(claims, burst=burst)
    config = replace(
        old,
        limits=Limits(
            rate=claims,
            concurrency=_kept(concurrency, limits.concurrency),
            group_rate=_kept(group_rate, limits.group_rate),
            group_concurrency=_kept(group_concurrency, limits.group_concurrency),
        ),
        bounds=Bounds(
            jobs=_kept(max_jobs, bounds.jobs),
            bytes=_kept(max_bytes, bounds.bytes),
            push_rate=_kept(push_rate, bounds.push_rate),
        ),
        retain_ms=_kept(retain, old.retain_ms),
        retain_count=_kept(retain_count, old.retain_count),
        retain_dead_ms=_kept(retain_dead, old.retain_dead_ms),
    )
    if config != old:
        await at.store.configure(at.tenant, queue, config)
    at.answer(ConfigShown.of(config), facts(_facts(queue, config)))


def _kept(said: Any, old: Any) -> Any:
    """What is said, if anything is; none stands for no limit."""
    if said is None:
        return old
    return None if said == NO_LIMIT else said


def _facts(queue: str, config: QueueConfig) -> list[tuple[str | Text, str | Text]]:
    limits, bounds = config.limits, config.bounds
    return [
        ("queue", queue),
        ("paused", "yes" if config.paused else "no"),
        ("rate", _said(limits.rate)),
        ("concurrency", _said(limits.concurrency)),
        ("group rate", _said(limits.group_rate)),
        ("group concurrency", _said(limits.group_concurrency)),
        ("max jobs", _said(bounds.jobs)),
        ("max bytes", _said(bounds.bytes)),
        ("push rate", _said(bounds.push_rate)),
        ("retain", f"{say_ms(config.retain_ms)}, at most {config.retain_count:,}"),
        ("retain dead", say_ms(config.retain_dead_ms)),
    ]


async def drain(at: Session, queue: Queue) -> None:
    """Cancel and forget what is ready, scheduled or blocked; running jobs go on."""
    await at.queue(queue)
    _counted(at, await at.store.drain(at.tenant, queue))


async def purge(at: Session, queue: Queue) -> None:
    """Forget every job of a queue, running ones too; its limits stay."""
    await at.queue(queue)
    _counted(at, await at.store.purge(at.tenant, queue))


def _counted(at: Session, count: int) -> None:
    at.answer(Counted(count=count), f"{many(count, 'job')} forgotten")


def add(app: typer.Typer) -> None:
    for each in (ls, pause, resume, limit):
        register(app, each)
    register(app, drain, asks="Cancel and forget every job that waits in {queue}?")
    register(app, purge, asks="Forget every job of {queue}, running and ended ones too?")
