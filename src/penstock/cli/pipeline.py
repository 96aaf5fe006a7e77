"""`penstock pipeline`: from the event log to tables, and from tables to a page."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import urlsplit

import typer

from penstock.model.duration import about_ms
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from penstock.spark.lake import Lake

FOLLOW_S: Final = 10.0
MAKES: Final = "penstock pipeline run makes one"

Root = Annotated[str, typer.Option("--lake", metavar="DIR", help="Where the tables are.")]
Master = Annotated[str, typer.Option(help="Spark's: local[2], spark://host:7077, yarn …")]


def run(
    events: Annotated[str, typer.Option(metavar="DIR", help="Where the event log is.")],
    lake: Root,
    follow: Annotated[bool, typer.Option("--follow", help="Go on as segments are sealed.")] = False,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Make silver and gold of all days anew.")
    ] = False,
    master: Master = "local[2]",
) -> None:
    """Bring the tables up to date with the event log. May be stopped and repeated at any time."""
    _there(events, "penstock serve --events DIR writes one")
    _makeable(lake)
    with _opened(lake, master) as place, _shown() as say:
        from penstock.spark.pipeline import Pipeline

        pipeline = Pipeline(place, say)
        began = perf_counter()
        pipeline.run(events, follow_s=FOLLOW_S if follow else None)
        if rebuild:
            pipeline.rebuild()
        seconds = perf_counter() - began
    bad = f"; {pipeline.bad:,} bad lines are in bronze/bad" if pipeline.bad else ""
    print(f"{pipeline.lines:,} lines in {about_ms(seconds * 1_000)}{bad}")


def report(
    lake: Root,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The page.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="What it is called.")] = "Penstock",
    master: Master = "local[2]",
) -> None:
    """Write a page of plots and tables: one file that needs nothing else."""
    _there(lake, MAKES)
    with _opened(lake, master) as place:
        from penstock.spark.report import report as page

        out.write_text(page(place, title), encoding="utf-8")
    print(out)


def compact(lake: Root, master: Master = "local[2]") -> None:
    """Join the many small files of each day. Not while a run is at work on the same lake."""
    _there(lake, MAKES)
    with _opened(lake, master) as place, _shown() as say:
        from penstock.spark.pipeline import Pipeline

        days = Pipeline(place, say).compact()
    print(f"{days} days")


@contextmanager
def _opened(lake: str, master: str) -> "Iterator[Lake]":
    """The lake; whatever goes wrong is one sentence and exit code 2."""
    from penstock.spark.session import opened

    try:
        with opened(lake, master) as place:
            yield place
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except (PenstockError, OSError) as error:
        _end(str(error))


def _end(sentence: str) -> None:
    print(sentence, file=sys.stderr)
    raise typer.Exit(2)


def _there(directory: str, made: str) -> None:
    """A directory of this machine has to be there; what Spark reaches elsewhere is its business."""
    if not urlsplit(directory).scheme and not Path(directory).is_dir():
        _end(f"there is no directory {directory}: {made}")


def _makeable(lake: str) -> None:
    """The same of one that may be new: Spark would tell of it by the trace of a Java call."""
    if not urlsplit(lake).scheme:
        try:
            Path(lake).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            _end(f"no tables can be made in {lake}: {error.strerror}")


@contextmanager
def _shown() -> Iterator[Callable[[str], None]]:
    """On a terminal a line that says what is going on; elsewhere a line for each step."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda said: print(said, file=sys.stderr)
        return
    with console.status("starting") as status:
        yield status.update


def add(app: typer.Typer) -> None:
    app.command("run")(run)
    app.command("report")(report)
    app.command("compact")(compact)
