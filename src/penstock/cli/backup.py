"""`penstock backup`, `restore` and `verify`: copies of a store on a disk."""

import sys
from pathlib import Path

from penstock.model.errors import PenstockError
from penstock.open import JOURNALS, journal_at
from penstock.stores import backup as backups
from penstock.stores.journal.ownership import Ownership


def backup(url: str, directory: Path, keep: int) -> int:
    try:
        journal, path = journal_at(url)
        if not path.exists():
            print(f"there is no store at {path}", file=sys.stderr)
            return 1
        # SQLite lets another process read beside the owner. RocksDB does not: own it meanwhile.
        ownership = None if journal.scheme == "sqlite" else Ownership(path)
        if ownership is not None:
            ownership.take()
            journal.open()
        try:
            print(backups.take(journal, directory))
            backups.prune(directory, keep)
        finally:
            journal.close()
            if ownership is not None:
                ownership.leave()
    except PenstockError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def restore(backup: Path, url: str) -> int:
    try:
        journal, path = journal_at(url)
        backups.restore(backup, journal.scheme, path)
    except PenstockError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"restored to {path}")
    return 0


def verify(backup: Path) -> int:
    try:
        report = backups.verify(backup, JOURNALS)
    except PenstockError as error:
        print(error, file=sys.stderr)
        return 1
    for problem in report.problems:
        print(problem, file=sys.stderr)
    print(
        f"{report.scheme}: position {report.position}, {report.jobs} jobs,"
        f" {report.chunks} payload chunks, {report.replayed} records replayed:"
        f" {'damaged' if report.problems else 'sound'}"
    )
    return 1 if report.problems else 0
