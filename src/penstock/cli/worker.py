"""`penstock worker`: run an app's tasks until a signal says otherwise."""

import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from penstock.model.errors import Invalid, PenstockError
from penstock.telemetry import logs
from penstock.worker import process
from penstock.worker.settings import said
from penstock.worker.supervisor import supervise


def work(flags: Mapping[str, Any], processes: int | None) -> int:
    """Answers the exit code: 0 after a graceful end, 2 if it could not begin."""
    try:
        settings = said(flags)
    except Invalid as error:
        print(f"--{error.field.replace('_', '-')}: {error.message}", file=sys.stderr)
        return 2
    try:
        logs.configure(settings.log_format, settings.log_level)
        limited = settings.max_jobs is not None or settings.max_rss_mb is not None
        if processes is not None or limited:
            return supervise(settings, processes or 1)
        return process.run(settings)
    except PenstockError as error:
        print(error.message if error.field == "app" else error, file=sys.stderr)
        return 2


def command(
    where: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The app: shop.tasks:app.")],
    queues: Annotated[
        list[str] | None,
        typer.Option("--queues", "-q", help="emails:3,reports:1, by weight; those of the app."),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", "-c", min=1, help="Handlers at once; 100, or one a CPU."),
    ] = None,
    pool: Annotated[str, typer.Option(help="async, thread or process.")] = "async",
    processes: Annotated[
        int | None, typer.Option(min=1, help="Worker processes, restarted when they end.")
    ] = None,
    max_jobs: Annotated[
        int | None, typer.Option(min=1, help="Replace a process after so many jobs.")
    ] = None,
    max_rss: Annotated[
        int | None, typer.Option(min=1, help="Replace a process that takes so many MB.")
    ] = None,
    lease: Annotated[
        str | None, typer.Option(help="How long a lease is: 30s; what the jobs ask for.")
    ] = None,
    shutdown_s: Annotated[
        float,
        typer.Option(
            min=0, help="Within how long of a signal to end; running jobs have most of it."
        ),
    ] = 30.0,
    no_cron: Annotated[
        bool, typer.Option("--no-cron", help="Leave the app's schedules to others.")
    ] = False,
    name: Annotated[str, typer.Option(help="What the store is told; host:pid.")] = "",
    url: Annotated[str | None, typer.Option(help="The store; the app's own.")] = None,
    log_format: Annotated[str, typer.Option(help="text or json.")] = "text",
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Run an app's tasks until told to stop. A second signal stops at once."""
    flags = {
        "where": where,
        "queues": queues,
        "concurrency": concurrency,
        "pool": pool,
        "max_jobs": max_jobs,
        "max_rss_mb": max_rss,
        "lease": lease,
        "shutdown_s": shutdown_s,
        "cron": not no_cron,
        "name": name,
        "url": url,
        "log_format": log_format,
        "log_level": log_level,
    }
    raise typer.Exit(work(flags, processes))


def add(app: typer.Typer) -> None:
    app.command("worker")(command)
