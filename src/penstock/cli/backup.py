"""`penstock backup`, `restore` and `verify`: copies of a store on a disk.

None of them can tell how far it is: a copy is made, digested and packed, an archive unpacked, read and
replayed, each at a pace of its own. On a terminal they show for how long they have been at it.
"""

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.progress import progress
from penstock.model.errors import Invalid, PenstockError, Unavailable
from penstock.open import JOURNALS, journal_at, open_store
from penstock.stores import backup as backups
from penstock.stores.journal.base import Journal, JournalError
from penstock.stores.journal.ownership import Owned, Ownership
from penstock.stores.journal.there import check_kind, hindrance, is_there
from penstock.stores.shared import SharedStore


def backup(url: str, directory: Path, keep: int) -> int:
    try:
        journal, path = journal_at(url)
        if not is_there(journal.scheme, path):
            print(f"there is no store at {path}: name the url of one", file=sys.stderr)
            return 1
        check_kind(journal.scheme, path)
        try:
            with progress(None):
                taken = _copied(journal, path, directory, keep)
        except Owned:
            with progress(None):
                taken = asyncio.run(_asked_for(url, directory, keep))
        print(taken)
    except (PenstockError, JournalError, OSError) as error:
        return _failed(error)
    return 0


def _copied(journal: Journal, path: Path, directory: Path, keep: int) -> Path:
    """A backup that this process takes. Raises Owned where only the owner can."""
    # SQLite lets another process read beside the owner. RocksDB does not: own it meanwhile.
    ownership = None if journal.scheme == "sqlite" else Ownership(path)
    if ownership is not None:
        ownership.take()
    try:
        if ownership is not None:
            journal.open()
        return backups.take(journal, directory, keep)
    except Unavailable as error:
        raise Unavailable(hindrance(journal.scheme, path) or error.message) from error
    finally:
        journal.close()
        if ownership is not None:
            ownership.leave()


async def _asked_for(url: str, directory: Path, keep: int) -> Path:
    """A backup that the owner takes; should it have ended meanwhile, we are the next."""
    place, _, settings = url.partition("?")
    said = "&".join(each for each in settings.split("&") if not each.startswith("mode="))
    store = await open_store(f"{place}?{said}" if said else place)
    assert isinstance(store, SharedStore), "of a path, and not only to look at it"
    try:
        return await store.backup(directory, keep)
    finally:
        await store.close()


def restore(backup: Path, url: str) -> int:
    try:
        journal, path = journal_at(url)
        with progress(None):
            backups.restore(backup, journal.scheme, path)
    except (PenstockError, JournalError, OSError) as error:
        return _failed(error)
    print(f"restored to {path}")
    return 0


def verify(backup: Path) -> int:
    try:
        with progress(None):
            report = backups.verify(backup, JOURNALS)
    except (PenstockError, JournalError, OSError) as error:
        return _failed(error)
    for problem in report.problems:
        print(problem, file=sys.stderr)
    print(
        f"{report.scheme}: position {report.position}, {report.jobs} jobs,"
        f" {report.chunks} payload chunks, {report.replayed} records replayed:"
        f" {'damaged' if report.problems else 'sound'}"
    )
    return 1 if report.problems else 0


def _failed(error: Exception) -> int:
    told = str(error)
    if isinstance(error, OSError):
        told = ": ".join(filter(None, (error.filename, error.strerror)))
    elif isinstance(error, PenstockError) and not (
        isinstance(error, Invalid) and error.field == "url"
    ):
        told = error.message  # what is not about a value says by itself what it is about
    print(told, file=sys.stderr)
    return 1


def backup_command(
    url: Annotated[str, typer.Argument(help="The store: sqlite:///path or rocksdb:///path.")],
    directory: Annotated[Path, typer.Argument(help="Where the backup goes.")],
    keep: Annotated[int, typer.Option(min=0, help="Keep the newest so many; 0: all.")] = 0,
) -> None:
    """Write a compressed copy of a store, and print its path."""
    raise typer.Exit(backup(url, directory, keep))


def restore_command(
    backup: Annotated[Path, typer.Argument(help="The backup.")],
    url: Annotated[str, typer.Argument(help="Where the store goes; nothing may be there.")],
) -> None:
    """Put a backup where no store is."""
    raise typer.Exit(restore(backup, url))


def verify_command(backup: Annotated[Path, typer.Argument(help="The backup.")]) -> None:
    """Open a backup, replay its log and read every payload, without a trace."""
    raise typer.Exit(verify(backup))


def add(app: typer.Typer) -> None:
    app.command("backup")(backup_command)
    app.command("restore")(restore_command)
    app.command("verify")(verify_command)
