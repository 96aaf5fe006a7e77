"""The `penstock` command: names the commands and starts the one that was asked for.

Typer comes with the `cli` extra and a command's own imports can be heavy, so both are
imported late: `penstock --version` loads no store. What a command does lives in the file
of its group, never here.
"""

import sys
from typing import TYPE_CHECKING, Annotated

from penstock import __version__

if TYPE_CHECKING:
    import typer


def build_app() -> "typer.Typer":
    import typer

    app = typer.Typer(
        name="penstock",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )

    def print_version(wanted: bool) -> None:
        if wanted:
            typer.echo(f"penstock {__version__}")
            raise typer.Exit

    @app.callback()
    def penstock(
        version: Annotated[
            bool,
            typer.Option(
                "--version", callback=print_version, is_eager=True, help="Print the version."
            ),
        ] = False,
    ) -> None:
        """Penstock, a job queue."""

    @app.command()
    def demo(
        jobs: Annotated[int, typer.Option(min=1, help="How many jobs to run.")] = 100_000,
        batch: Annotated[int, typer.Option(min=1, help="Jobs per call.")] = 1_000,
    ) -> None:
        """Push, claim and ack jobs on an embedded store, and print the rates."""
        from penstock.cli.demo import demo as run_demo

        run_demo(jobs=jobs, batch=batch)

    @app.command()
    def serve() -> None:
        """Start the network server (not part of this release yet)."""
        typer.echo(
            "the network server is not part of this release yet; "
            "embed a store with penstock.open.open_store(...)",
            err=True,
        )
        raise typer.Exit(2)

    return app


def main() -> None:
    try:
        app = build_app()
    except ModuleNotFoundError as error:
        if error.name != "typer":
            raise
        sys.exit("the penstock command needs Typer: pip install 'penstock[cli]'")
    app()


if __name__ == "__main__":
    main()
