"""`penstock serve`: put a store on the network until a signal says otherwise."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from penstock.model.errors import Conflict, PenstockError, Unavailable
from penstock.model.urls import without_password
from penstock.server.places import SETTING
from penstock.server.server import Server
from penstock.settings import Settings, load, show
from penstock.telemetry import logs

SIGNALS = (signal.SIGTERM, signal.SIGINT)
PLACES = {"host", *SETTING.values()}


def serve(
    flags: Mapping[str, object], config: Path | None, *, as_json: bool, print_config: bool
) -> int:
    """Answers the exit code: 0 after a graceful end, 1 if the store has ended under it, 2 if it
    could not begin."""
    try:
        loaded = load(file=config, environ=os.environ, flags=flags)
    except PenstockError as error:
        print(error, file=sys.stderr)
        return 2
    if print_config:
        print(show(loaded), end="")
        return 0
    try:
        logs.configure(loaded.settings.log_format, loaded.settings.log_level)
        with loaded.saying_who(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(loaded.settings, as_json))
    except (PenstockError, OSError) as error:
        print(_sentence(error), file=sys.stderr)
        return 2


def _sentence(error: Exception) -> str:
    """What is wrong; of a place that cannot be listened at, which flag names another."""
    if isinstance(error, Conflict | Unavailable) and error.field in PLACES:
        flag = f"--{error.field.replace('_', '-')}"
        free = ", 0 a free one" if error.field.endswith("port") else ""
        variable = f"PENSTOCK_{error.field.upper()}"
        return f"{error.message}; {flag} (or {variable}, penstock.toml) names another{free}"
    return str(error)


async def _serve(settings: Settings, as_json: bool) -> int:
    told = Told()
    with told:
        server = await opened(settings, told)
        if server is None:
            return 0
        await server.start()
        print(announcement(server, settings.url, as_json), flush=True)
        waiting = asyncio.ensure_future(told.once.wait())
        failing = asyncio.ensure_future(server.failure())
        await asyncio.wait([waiting, failing], return_when=asyncio.FIRST_COMPLETED)
        failed = failing.done() and not told.once.is_set()
        for each in (waiting, failing):
            each.cancel()
        if failed:
            # Whoever watches over this process starts it again; nobody can be served until then.
            print(f"the server ends: {failing.result()}", file=sys.stderr)
        await end(server, told, 0 if failed else settings.shutdown_s)
        return 1 if failed else 0


async def opened(settings: Settings, told: "Told") -> Server | None:
    """The server, unless somebody says that it is not wanted: a store may have much to replay."""
    opening = asyncio.ensure_future(Server.open(settings))
    telling = asyncio.ensure_future(told.once.wait())
    await asyncio.wait([opening, telling], return_when=asyncio.FIRST_COMPLETED)
    telling.cancel()
    if opening.done():
        return opening.result()
    opening.cancel()
    await asyncio.wait([opening])
    return None if opening.cancelled() else opening.result()


def announcement(server: Server, url: str, as_json: bool) -> str:
    shown = without_password(url)
    if as_json:
        return json.dumps({**server.addresses, "store": shown, "pid": os.getpid()})
    places = [f"{kind} {address}" for kind, address in server.addresses.items() if address]
    return f"penstock serves {shown} on {', '.join(places)}"


class Told:
    """Whether somebody has told the process to end, and whether they insist."""

    def __init__(self) -> None:
        self.once = asyncio.Event()
        self.twice = asyncio.Event()

    def __enter__(self) -> None:
        for number in SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self.hear)

    def __exit__(self, *_: object) -> None:
        for number in SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)

    def hear(self) -> None:
        (self.twice if self.once.is_set() else self.once).set()


async def end(server: Server, told: Told, grace_s: float) -> None:
    """Stop gracefully, or at once when told a second time."""
    stopping = asyncio.ensure_future(server.stop(grace_s))
    insisting = asyncio.ensure_future(told.twice.wait())
    await asyncio.wait([stopping, insisting], return_when=asyncio.FIRST_COMPLETED)
    insisting.cancel()
    if not stopping.done():
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
        await server.stop(0)
        return
    await stopping


def command(
    url: Annotated[str | None, typer.Option(help="The store.")] = None,
    host: Annotated[str | None, typer.Option(help="The address to listen at.")] = None,
    port: Annotated[int | None, typer.Option(help="Of TCP; 0: a free one.")] = None,
    http_port: Annotated[int | None, typer.Option(help="Of HTTP; 0: a free one.")] = None,
    no_http: Annotated[
        bool | None, typer.Option("--no-http", help="Do not listen for HTTP.")
    ] = None,
    cron: Annotated[
        bool | None, typer.Option("--cron/--no-cron", help="Keep crons going, or not.")
    ] = None,
    unix: Annotated[str | None, typer.Option(help="The path of a Unix socket.")] = None,
    shutdown_s: Annotated[
        float | None, typer.Option(help="How long to wait for active jobs at the end.")
    ] = None,
    log_format: Annotated[str | None, typer.Option(help="text or json.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    audit_file: Annotated[
        str | None, typer.Option(help="Where actions of administrators are written down.")
    ] = None,
    events: Annotated[str | None, typer.Option(help="The directory of the event log.")] = None,
    tokens_file: Annotated[
        str | None, typer.Option(help="A TOML file with tables of tokens.")
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
    flags = {
        "url": url,
        "host": host,
        "port": port,
        "http_port": http_port,
        "no_http": no_http,
        "cron": cron,
        "unix": unix,
        "shutdown_s": shutdown_s,
        "log_format": log_format,
        "log_level": log_level,
        "audit_file": audit_file,
        "events": events,
        "tokens_file": tokens_file,
    }
    raise typer.Exit(serve(flags, config, as_json=as_json, print_config=print_config))


def add(app: typer.Typer) -> None:
    app.command("serve")(command)
