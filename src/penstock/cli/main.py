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
    def serve(
        url: Annotated[str | None, typer.Option(help="The store.")] = None,
        host: Annotated[str | None, typer.Option(help="The address to listen at.")] = None,
        port: Annotated[int | None, typer.Option(help="Of TCP; 0: a free one.")] = None,
        http_port: Annotated[int | None, typer.Option(help="Of HTTP; 0: a free one.")] = None,
        no_http: Annotated[
            bool | None, typer.Option("--no-http", help="Do not listen for HTTP.")
        ] = None,
        unix: Annotated[str | None, typer.Option(help="The path of a Unix socket.")] = None,
        shutdown_s: Annotated[
            float | None, typer.Option(help="How long to wait for active jobs at the end.")
        ] = None,
        log_format: Annotated[str | None, typer.Option(help="text or json.")] = None,
        log_level: Annotated[
            str | None, typer.Option(help="debug, info, warning or error.")
        ] = None,
        audit_file: Annotated[
            str | None, typer.Option(help="Where actions of administrators are written down.")
        ] = None,
        events: Annotated[str | None, typer.Option(help="The directory of the event log.")] = None,
        tokens_file: Annotated[
            str | None, typer.Option(help="A TOML file with [[tokens]].")
        ] = None,
        config: Annotated[
            Path | None, typer.Option(help="The settings; penstock.toml, if it is there.")
        ] = None,
        as_json: Annotated[
            bool, typer.Option("--json", help="Print one line of JSON that says where.")
        ] = False,
        print_config: Annotated[
            bool, typer.Option("--print-config", help="Print the effective settings and end.")
        ] = False,
    ) -> None:
        """Put a store on the network. Settings: flags, PENSTOCK_*, penstock.toml, defaults."""
        from penstock.cli.serve import serve as put_on_the_network

        flags = {
            "url": url,
            "host": host,
            "port": port,
            "http_port": http_port,
            "no_http": no_http,
            "unix": unix,
            "shutdown_s": shutdown_s,
            "log_format": log_format,
            "log_level": log_level,
            "audit_file": audit_file,
            "events": events,
            "tokens_file": tokens_file,
        }
        raise typer.Exit(
            put_on_the_network(flags, config, as_json=as_json, print_config=print_config)
        )

    token = typer.Typer(no_args_is_help=True, help="Make tokens for those who may come in.")
    app.add_typer(token, name="token")

    @token.command("create")
    def token_create(
        name: Annotated[str, typer.Option(help="Who it is for; the audit log says so.")],
        tenant: Annotated[str, typer.Option(help="Whose jobs it is about; *: any tenant's.")] = "*",
        scope: Annotated[
            list[str] | None,
            typer.Option(help="push, claim or admin, or with queues: claim:emails-*. All, unsaid."),
        ] = None,
        expires_in_days: Annotated[
            float | None, typer.Option(help="From when on it is refused; never, unsaid.")
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """Make a token; print it, once, and what to put into penstock.toml."""
        from penstock.cli.token import create

        raise typer.Exit(create(name, tenant, scope, expires_in_days, as_json=as_json))

    @token.command("hash")
    def token_hash() -> None:
        """Print what is kept of the token that comes on standard input."""
        from penstock.cli.token import print_hash

        raise typer.Exit(print_hash())

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
