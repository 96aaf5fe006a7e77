"""The `penstock` command: names the commands and starts the one that was asked for.

Typer comes with the `cli` extra, and what a command imports can be heavy: a store, the server, the
tables that it prints. So commands are only named here, each with the line that `--help` shows, and
the file of its group is imported when it is chosen: `penstock --version` and `penstock --help` load
no store. Such a file has an `add` that gives its commands to the app. What a command does, and
which options it has, stands there and never here.
"""

import os
import signal
import sys
from contextlib import contextmanager
from importlib import import_module
from itertools import takewhile
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

from penstock import __version__
from penstock.descriptors import stand_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    import typer


class Named(NamedTuple):
    module: str  # of this package
    panel: str  # under which `--help` lists it
    line: str
    group: bool = False  # the module's commands are its own: `penstock jobs ls`


_RUN: Final = "Run"
_WORK: Final = "Work by hand"
_LOOK: Final = "Look and manage"
_KEEP: Final = "Keep"

COMMANDS: Final = {
    "demo": Named("demo.command", _RUN, "Show a day's mixed work in under a minute."),
    "serve": Named("serve", _RUN, "Put a store on the network."),
    "worker": Named("worker", _RUN, "Run an app's tasks until told to stop."),
    "push": Named("work", _WORK, "Push a job, or a file of them."),
    "claim": Named("work", _WORK, "Take jobs on a lease."),
    "ack": Named("work", _WORK, "Complete jobs of a lease."),
    "fail": Named("work", _WORK, "End the attempt of jobs in failure."),
    "release": Named("work", _WORK, "Give jobs back unspent."),
    "extend": Named("work", _WORK, "Keep a lease for longer."),
    "jobs": Named("jobs", _LOOK, "List, show, explain, cancel and retry jobs.", group=True),
    "queues": Named("queues", _LOOK, "List, pause, limit and empty queues.", group=True),
    "dead": Named("dead", _LOOK, "Group, redrive and forget dead letters.", group=True),
    "cron": Named("cron", _LOOK, "Install, list and preview schedules.", group=True),
    "workers": Named("workers", _LOOK, "Tell who holds jobs, and who waits for some.", group=True),
    "stats": Named("watch", _LOOK, "Count jobs by state, and tell how the store is."),
    "tail": Named("watch", _LOOK, "Print events as they happen."),
    "bench": Named("bench", _LOOK, "Measure push and claim + ack."),
    "pipeline": Named("pipeline", _KEEP, "Make tables and reports of the event log.", group=True),
    "doctor": Named("doctor", _KEEP, "Tell what this machine has and how a store is doing."),
    "backup": Named("backup", _KEEP, "Write a compressed copy of a store."),
    "restore": Named("backup", _KEEP, "Put a backup where no store is."),
    "verify": Named("backup", _KEEP, "Open a backup and read all of it."),
    "token": Named("token", _KEEP, "Make tokens for those who may come in.", group=True),
}


# Options of nearly every command, and whether something follows: many would say them first.
_FIRST: Final = {"--url": True, "--tenant": True, "--json": False}


def in_order(words: list[str]) -> list[str]:
    """Behind the command, as commands take them: `--url URL stats` is `stats --url URL`. Where only
    help is wanted, or nothing but a group is named, they are left out: not everything takes them.
    """
    at = 0
    while at < len(words) and (option := words[at].partition("="))[0] in _FIRST:
        at += 2 if _FIRST[option[0]] and not option[1] else 1
    said, rest = words[:at], words[at:]
    if not rest or rest[0].startswith("-"):  # no command that could take them: --help, --version
        return rest
    end = rest.index("--") if "--" in rest else len(rest)
    named = [*takewhile(lambda word: not word.startswith("-"), rest)]
    if "--help" in rest[:end]:
        return [*named, "--help"]
    alone = len(named) == 1 and rest[0] in COMMANDS and COMMANDS[rest[0]].group
    return rest if alone else [*rest[:end], *said, *rest[end:]]


def build_app() -> "typer.Typer":
    import typer
    from typer.core import TyperCommand, TyperGroup

    class Menu(TyperGroup):
        """Lists commands by their names and lines; a chosen one is loaded."""

        def __init__(self, **said: Any) -> None:
            super().__init__(**said)
            for name, named in COMMANDS.items():
                line = TyperCommand(name, help=named.line, rich_help_panel=named.panel)
                self.commands.setdefault(name, line)

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            return super().parse_args(ctx, in_order(args))

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            name, found, rest = super().resolve_command(ctx, args)
            return name, load(name) if name in COMMANDS else found, rest

        def make_context(self, *said: Any, **more: Any) -> Any:
            with _answering():
                return super().make_context(*said, **more)

        def invoke(self, ctx: Any) -> Any:
            with _answering():
                return super().invoke(ctx)

    app = typer.Typer(
        name="penstock", cls=Menu, no_args_is_help=True, pretty_exceptions_enable=False
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

    return app


@contextmanager
def _answering() -> "Iterator[None]":
    """What cannot be written is told in a sentence; a reader who has had enough is none."""
    import typer

    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except OSError:  # not a file: somebody has put it there who has to know
            raise error from None
        if isinstance(error, BrokenPipeError):
            raise typer.Exit(0) from None
        told = error.filename or "the answer cannot be written"
        print(f"{told}: {error.strerror}", file=sys.stderr)
        raise typer.Exit(2) from None


def load(name: str) -> Any:
    """A named command, with everything that it needs."""
    import typer
    from typer.main import get_group

    named = COMMANDS[name]
    app = typer.Typer(name=name, help=named.line, no_args_is_help=True)
    import_module(f"penstock.cli.{named.module}").add(app)
    group = get_group(app)
    return group if named.group else group.commands[name]


def main() -> None:
    stand_in()
    try:
        app = build_app()
    except ModuleNotFoundError as error:
        if error.name != "typer":
            raise
        sys.exit("the penstock command needs Typer: pip install 'penstock[cli]'")
    try:
        app(prog_name="penstock")  # also as `python -m penstock`, which no shell could complete
    finally:
        # It has been answered: a Ctrl-C while the process takes itself down changes nothing of that.
        signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    main()
