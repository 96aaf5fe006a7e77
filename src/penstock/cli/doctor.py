"""`penstock doctor`: what this machine has, how a store and a lake are doing, and whether they are sound.

It opens a store for reading only, whoever owns it, and changes nothing.
"""

import importlib.metadata
import json
import os
import platform
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from penstock.cli.progress import progress
from penstock.kernel.read import totals
from penstock.model.errors import PenstockError
from penstock.model.policy import DEFAULT_CAPS
from penstock.open import journal_at
from penstock.settings import load
from penstock.spark.needs import needs
from penstock.spark.state import state_of
from penstock.stores.backup import inspect
from penstock.stores.journal.base import Journal, JournalError
from penstock.stores.journal.ownership import owner_of
from penstock.stores.journal.recovery import recover
from penstock.stores.journal.space import file_system
from penstock.stores.journal.there import check_kind, hindrance, is_there

PARTS: Final = ("msgspec", "apsw", "cronsim", "uvloop", "rocksdict", "typer")


def doctor(url: str | None, *, lake: str | None, check: bool, as_json: bool) -> int:
    """Answers the exit code: 0 if nothing is wrong."""
    report: dict[str, Any] = {"machine": _machine(), "spark": needs()}
    problems: list[str] = []
    try:
        loaded = load(environ=os.environ, flags={"url": url})
        at = loaded.settings.url
        with loaded.saying_who():
            journal, path = journal_at(at)
        report["store"] = store = _where(at, journal, path)
        if not store["exists"]:
            if "url" in loaded.sources:  # the usual one need not be there
                problems.append(f"there is no store at {path}: name the url of one")
        else:
            # How long a replay or a check by SQLite takes is not known before it is over.
            with progress(None) if check and not as_json else nullcontext():
                store |= _state(journal, path)
                if check:
                    found = inspect(journal_at(at)[0])
                    problems += found.problems
                    store["checked"] = {"jobs": found.jobs, "chunks": found.chunks}
    except (PenstockError, JournalError) as error:
        problems.append(str(error))
    if lake is not None:
        try:
            report["lake"], found_wrong = state_of(lake)
            problems += found_wrong
        except (PenstockError, OSError) as error:
            problems.append(str(error))
    report["problems"] = problems
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        _show(report)
    return 1 if problems else 0


def _machine() -> dict[str, Any]:
    found: dict[str, Any] = {"python": platform.python_version(), "system": platform.platform()}
    for part in PARTS:
        try:
            found[part] = importlib.metadata.version(part)
        except importlib.metadata.PackageNotFoundError:
            found[part] = None
    return found


def _where(url: str, journal: Journal, path: Path) -> dict[str, Any]:
    return {
        "url": url,
        "exists": is_there(journal.scheme, path),
        "file_system": file_system(path.parent),
        "owner": owner_of(path),
    }


def _state(journal: Journal, path: Path) -> dict[str, Any]:
    try:
        check_kind(journal.scheme, path)
        facts = journal.open(read_only=True)
        found = recover(journal, facts, 0, DEFAULT_CAPS, read_only=True)
        kernel = found.kernel
        return {
            "bytes": journal.sizes(),
            "closed": found.clean,
            "position": kernel.position,
            "checkpoint": found.checkpoint.position,
            "replayed": found.replayed,
            "recovery_s": round(found.seconds, 3),
            "torn_bytes": found.cut,
            "tenants": len(kernel.tenants),
            "queues": kernel.queue_count,
            "jobs": totals(kernel),
            "leases": len(kernel.leases),
            "crons": len(kernel.crons),
            "chunks": len(kernel.chunks),
            "orphans": len(found.orphans),
        }
    except JournalError as error:
        raise JournalError(hindrance(journal.scheme, path) or str(error)) from error
    finally:
        journal.close()


def _show(report: dict[str, Any]) -> None:
    for title in ("machine", "spark", "store", "lake"):
        if title in report:
            print(title)
            for name, value in report[title].items():
                print(f"  {name:<12} {_said(value)}")
    for problem in report["problems"]:
        print(f"PROBLEM: {problem}", file=sys.stderr)
    if not report["problems"]:
        print("nothing is wrong")


def _said(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return "; ".join(value) or "nothing"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_said(n)}" for name, n in value.items()) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)


def command(
    url: Annotated[
        str | None,
        typer.Argument(
            help="The store to look at. Unsaid: PENSTOCK_URL, penstock.toml,"
            " sqlite:///penstock.db if it is there."
        ),
    ] = None,
    named: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="The same, as others have it said.")
    ] = None,
    lake: Annotated[
        str | None, typer.Option(metavar="DIR", help="Tables of a pipeline to look at as well.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Replay the log, recount everything, read all.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Tell what this machine has and how a store is doing; change nothing."""
    if url is not None and named is not None:
        raise typer.BadParameter("the store is said twice", param_hint="--url")
    raise typer.Exit(doctor(url or named, lake=lake, check=check, as_json=as_json))


def add(app: typer.Typer) -> None:
    app.command("doctor")(command)
