"""What the options of several commands have in common: how a duration, an instant or a rate is read.

A command's own options stand in its signature. `Flags` are options that several commands share as
a whole: a command that has a parameter of such a class has all its fields as options.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, TypeVar

import typer

from penstock.model.duration import duration_ms
from penstock.model.errors import Invalid
from penstock.model.job import MAX_ID
from penstock.model.policy import MAX_DURATION_MS, MAX_LEASE_MS, MIN_LEASE_MS, Rate

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Options that several commands share."""


@dataclass(frozen=True, kw_only=True)
class Place(Flags):
    """Which store, whose jobs, and for whom the answer is. Every command that opens one has it."""

    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The store. Unsaid: PENSTOCK_URL, penstock.toml, sqlite:///penstock.db.",
        ),
    ] = None
    tenant: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Whose jobs. Unsaid: the token's tenant, or default."),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False


@dataclass(frozen=True, kw_only=True)
class Asked(Flags):
    """Of commands that cannot be undone."""

    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")] = False


Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.")]
JobId = Annotated[int, typer.Argument(metavar="ID", min=1, max=MAX_ID, help="The job.")]
JobIds = Annotated[list[int], typer.Argument(metavar="ID", min=1, max=MAX_ID, help="The jobs.")]
Cursor = Annotated[int, typer.Option(min=0, metavar="ID", help="From this id on.")]
Newest = Annotated[
    bool, typer.Option("--newest", help="The newest first; --cursor: from this id back.")
]
Lease = Annotated[str, typer.Argument(metavar="LEASE", help="The token that claim printed.")]
HeldIds = Annotated[
    list[int] | None,
    typer.Argument(
        metavar="ID", min=1, max=MAX_ID, help="Jobs of the lease; unsaid: all that it holds."
    ),
]

NO_LIMIT = "none"  # what is said to lift a limit


def duration(help_: str, *names: str, low_ms: int = 0, high_ms: int = MAX_DURATION_MS) -> Any:
    """An option that is said like 30s or 1h30m, and given on in milliseconds; None: unsaid.

    It has no other default: Typer would have it parsed, and a number is read as seconds.
    """

    def within(said: str) -> int:
        return duration_ms(said, low_ms=low_ms, high_ms=high_ms)

    return typer.Option(*names, parser=read(within), metavar="DURATION", help=help_)


def lease(help_: str, *names: str) -> Any:
    """A duration that a lease may have."""
    return duration(help_, *names, low_ms=MIN_LEASE_MS, high_ms=MAX_LEASE_MS)


def instant(help_: str, *names: str) -> Any:
    """An option that is said as ISO 8601, and given on in milliseconds since the epoch."""
    return typer.Option(*names, parser=read(instant_ms), metavar="INSTANT", help=help_)


def rate(help_: str, *names: str) -> Any:
    """An option that is said like 100/s, 10/5m or none."""
    return typer.Option(*names, parser=read(rate_of), metavar="N/DURATION", help=help_)


def number(help_: str, *names: str, low: int = 0, high: int = MAX_ID) -> Any:
    """An option that is a number, or none."""

    def within(said: str) -> int | str:
        value = number_of(said)
        if isinstance(value, int) and not low <= value <= high:
            raise Invalid(f"{value} is neither {NO_LIMIT} nor from {low} to {high}")
        return value

    return typer.Option(*names, parser=read(within), metavar="N", help=help_)


def read(parse: Callable[[str], T]) -> Callable[[str], T]:
    """A parser of the model as the command line wants it: what it refuses is wrong usage."""

    def parsed(said: str) -> T:
        try:
            return parse(said)
        except Invalid as error:
            raise typer.BadParameter(error.message) from None

    parsed.__name__ = parse.__name__
    return parsed


def instant_ms(said: str) -> int:
    if said.isdecimal() and len(said) <= 15:
        return int(said)
    try:
        # Without an offset it is the local time of whoever says it.
        return round(datetime.fromisoformat(said).astimezone().timestamp() * 1_000)
    except (ValueError, OverflowError):
        raise Invalid(
            f"{said!r} is no instant like 2030-01-31T08:00:00+01:00, nor milliseconds since 1970"
        ) from None


def rate_of(said: str) -> Rate | str:
    if said == NO_LIMIT:
        return said
    many, slash, per = said.partition("/")
    if not many.isdecimal() or not slash:
        raise Invalid(f"{said!r} is no rate like 100/s, 10/5m or none")
    return Rate(
        tokens=int(many[:15]), per_ms=duration_ms(per if per[:1].isdecimal() else f"1{per}")
    )


def number_of(said: str) -> int | str:
    if said == NO_LIMIT:
        return said
    if not said.isdecimal() or len(said) > 15:
        raise Invalid(f"{said!r} is neither a number nor none")
    return int(said)
