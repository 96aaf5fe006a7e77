"""The command itself, apart from what its worker processes import."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    scale: Annotated[
        float, typer.Option(min=0.001, max=100, help="How much work: 1 is about 440,000 jobs.")
    ] = 1.0,
    report: Annotated[
        Path, typer.Option(metavar="FILE", help="Where the report on Spark goes.")
    ] = Path("demo-report.html"),
    no_spark: Annotated[bool, typer.Option("--no-spark", help="End before the pipeline.")] = False,
) -> None:
    """Start a server and workers, and have them do a day's mixed work; ends by itself."""
    from penstock.cli.demo.run import demo

    raise typer.Exit(demo(scale, None if no_spark else report))


def add(app: typer.Typer) -> None:
    app.command("demo")(command)
