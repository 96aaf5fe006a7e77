"""The `penstock` command: names the commands and starts the one that was asked for.

Typer comes with the `cli` extra and a command's own imports can be heavy, so both are
imported late: `penstock --version` loads no store. What a command does lives in the file
of its group, never here.
"""

import sys
from pathlib import Path
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
    def doctor(
        url: Annotated[str, typer.Argument(help="The store to look at.")] = "sqlite:///penstock.db",
        check: Annotated[
            bool, typer.Option("--check", help="Replay the log, recount everything, read all.")
        ] = False,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """Tell what this machine has and how a store is doing; change nothing."""
        from penstock.cli.doctor import doctor as examine

        raise typer.Exit(examine(url, check=check, as_json=as_json))

    @app.command()
    def backup(
        url: Annotated[str, typer.Argument(help="The store: sqlite:///path or rocksdb:///path.")],
        directory: Annotated[Path, typer.Argument(help="Where the backup goes.")],
        keep: Annotated[int, typer.Option(min=0, help="Keep the newest so many; 0: all.")] = 0,
    ) -> None:
        """Write a compressed copy of a store, and print its path."""
        from penstock.cli.backup import backup as take

        raise typer.Exit(take(url, directory, keep))

    @app.command()
    def restore(
        backup: Annotated[Path, typer.Argument(help="The backup.")],
        url: Annotated[str, typer.Argument(help="Where the store goes; nothing may be there.")],
    ) -> None:
        """Put a backup where no store is."""
        from penstock.cli.backup import restore as put

        raise typer.Exit(put(backup, url))

    @app.command()
    def verify(backup: Annotated[Path, typer.Argument(help="The backup.")]) -> None:
        """Open a backup, replay its log and read every payload, without a trace."""
        from penstock.cli.backup import verify as look

        raise typer.Exit(look(backup))

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
