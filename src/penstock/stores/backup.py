"""Backups of a store on a disk: one compressed file each, taken while the store serves.

A backup is what the journal holds at one instant, in a gzipped tar with a manifest that names every
file's digest. `restore` puts it where nothing is; `verify` opens it, replays its log and reads every
payload, without a trace.
"""

import asyncio
import errno
import gzip
import hashlib
import io
import logging
import os
import re
import shutil
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from penstock.kernel.audit import findings
from penstock.model.errors import (
    Conflict,
    Invalid,
    NotFound,
    PenstockError,
    StorageFull,
    Unavailable,
)
from penstock.model.policy import DEFAULT_CAPS
from penstock.stores import private
from penstock.stores.finishing import in_a_thread
from penstock.stores.journal import frames
from penstock.stores.journal.base import Full, Journal, JournalError
from penstock.stores.journal.ownership import forget
from penstock.stores.journal.recovery import Recovered, recover
from penstock.stores.scratch import scratch

log: Final = logging.getLogger("penstock.store")

ARCHIVE: Final = "archive"  # a backup until it is whole
MANIFEST: Final = "penstock.json"
BESIDE: Final = ("-wal", "-shm", "-journal")  # what SQLite would take for a part of the file
DAMAGED: Final = (  # what an archive that is not whole makes its readers say
    tarfile.TarError,
    gzip.BadGzipFile,
    zlib.error,
    EOFError,
    UnicodeDecodeError,
    msgspec.MsgspecError,
)
SUFFIX: Final = ".penstock.tar.gz"
_NAME: Final = re.compile(r"\d{8}T\d{6}\.\d{3}Z" + re.escape(SUFFIX))


class Manifest(msgspec.Struct):
    scheme: str
    format: int
    taken_at: int  # wall clock, ms
    files: dict[str, str]  # path within the store → sha256


class Report(msgspec.Struct, kw_only=True):
    """What was found in a store or a backup of one."""

    scheme: str
    position: int
    jobs: int
    chunks: int
    replayed: int
    problems: list[str]


class Backups:
    """Backups of an open store: on demand, and on an interval with retention."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._one_at_a_time = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self.last: Path | None = None
        self.failed: str | None = None  # why the last one on the interval did

    async def take(self, directory: Path, keep: int = 0) -> Path:
        """A backup of the present state; of those in the directory the newest `keep` stay.
        Whoever asks while one is under way is refused, and may ask again."""
        if keep < 0:
            raise Invalid(f"{keep} is less than 0, which keeps all", "keep")
        if self._one_at_a_time.locked():
            raise Conflict("a backup is under way already: ask again when it is whole")
        return await self._take(directory, keep)

    async def _take(self, directory: Path, keep: int) -> Path:
        async with self._one_at_a_time:
            self.last = await in_a_thread(take, self._journal, directory, keep)
            return self.last

    def every(self, seconds: float, directory: Path, keep: int) -> None:
        self._task = asyncio.get_running_loop().create_task(self._go_on(seconds, directory, keep))

    async def _go_on(self, seconds: float, directory: Path, keep: int) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await self._take(directory, keep)
                self.failed = None
            except PenstockError as error:
                self.failed = str(error)
                log.warning("the backup failed, and will be tried again: %s", error)

    async def stop(self) -> None:
        """Finish the one under way, begin no other."""
        async with self._one_at_a_time:
            if self._task is not None:
                self._task.cancel()
                await asyncio.gather(self._task, return_exceptions=True)


def take(journal: Journal, directory: Path, keep: int = 0) -> Path:
    """Write a backup into that directory, of which the newest `keep` stay there (0: all); answers
    its path. Call it from a thread of its own."""
    taken = _taken(journal, directory)
    try:
        prune(directory, keep)
    except OSError as error:
        why = f"{error.filename or directory}: {error.strerror}"
        raise Unavailable(f"{taken} is whole, but an older one cannot be deleted: {why}") from error
    return taken


def _taken(journal: Journal, directory: Path) -> Path:
    try:
        return _take(journal, directory)
    except (JournalError, OSError) as error:
        if _is_full(error):
            raise StorageFull(_no_room(journal, directory)) from error
        if isinstance(error, FileExistsError | NotADirectoryError):
            raise Unavailable(f"the backup failed: {error.filename} is no directory") from error
        if isinstance(error, OSError):
            # What lies there meanwhile has a name that nobody knows.
            within = not error.filename or Path(error.filename).is_relative_to(directory)
            why = f"{directory if within else error.filename}: {error.strerror}"
            raise Unavailable(f"the backup failed: {why}") from error
        raise Unavailable(f"the backup failed: {error}") from error


def _take(journal: Journal, directory: Path) -> Path:
    directory.parent.mkdir(parents=True, exist_ok=True)
    directory.mkdir(private.DIRECTORY, exist_ok=True)
    now = time.time_ns() // 1_000_000
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now // 1000)) + f".{now % 1000:03d}Z"
    target = directory / f"{stamp}{SUFFIX}"
    with scratch(".taking-", directory) as place:
        copy = place / "copy"
        copy.mkdir()
        journal.backup(copy)
        files = {
            str(path.relative_to(copy)): _digest(path)
            for path in sorted(copy.rglob("*"))
            if path.is_file()
        }
        packed = place / ARCHIVE
        _pack(copy, Manifest(journal.scheme, frames.FORMAT, now, files), packed)
        packed.rename(target)
    _sync(directory)
    return target


def _is_full(error: Exception) -> bool:
    """Whether there was no room."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return isinstance(error, Full)


def _no_room(journal: Journal, directory: Path) -> str:
    while not directory.exists():
        directory = directory.parent
    found = os.statvfs(directory)
    free = found.f_bavail * found.f_frsize
    # The copy, and beside it the archive, which may not be any smaller.
    needed = 2 * sum(journal.sizes().values())
    return (
        f"there is no room for the backup in {directory}: it needs up to {needed / 1e6:,.0f} MB for"
        f" a while, and {free / 1e6:,.0f} MB are free; make room, or name another directory"
    )


def _pack(copy: Path, manifest: Manifest, packed: Path) -> None:
    with open(packed, "wb", opener=private.opener) as raw:
        with tarfile.open(fileobj=raw, mode="w:gz", compresslevel=1) as archive:
            said = msgspec.json.encode(manifest)
            entry = tarfile.TarInfo(MANIFEST)
            entry.size = len(said)
            archive.addfile(entry, io.BytesIO(said))
            for name in manifest.files:
                archive.add(copy / name, name)
        raw.flush()
        os.fsync(raw.fileno())


def kept(directory: Path) -> list[Path]:
    """The backups in a directory, oldest first."""
    return sorted(path for path in directory.iterdir() if _NAME.fullmatch(path.name))


def prune(directory: Path, keep: int) -> list[Path]:
    """Delete all but the newest; answers what went."""
    gone = kept(directory)[:-keep] if keep else []
    for path in gone:
        path.unlink(missing_ok=True)  # another store's backups may be kept there as well
    return gone


def restore(backup: Path, scheme: str, path: Path) -> Manifest:
    """Put a backup where no store is."""
    for there in (path, *(path.with_name(path.name + suffix) for suffix in BESIDE)):
        if there.exists():
            what = (
                "exists" if there == path else "is of a store that was here, and would go into it"
            )
            raise Conflict(f"{there} {what}; a restore overwrites nothing: move it away", "path")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".restoring-", dir=path.parent) as scratch:
        manifest = _unpack(backup, Path(scratch))
        if manifest.scheme != scheme:
            raise Invalid(f"{backup} is of a {manifest.scheme} store, not {scheme}", "url")
        whole = _store_in(Path(scratch), manifest)
        for each in whole.rglob("*") if whole.is_dir() else [whole]:
            if each.is_file():
                _sync(each)
        private.close_off(whole)
        whole.rename(path)
        forget(path)
    _sync(path.parent)
    return manifest


def verify(backup: Path, journals: Mapping[str, Callable[[Path], Journal]]) -> Report:
    """Everything that opening the backup would do, and every payload read."""
    with tempfile.TemporaryDirectory(prefix="penstock-verify-") as scratch:
        manifest = _unpack(backup, Path(scratch))
        make = journals.get(manifest.scheme)
        if make is None:
            raise Invalid(f"{backup} is of a {manifest.scheme} store, which is not known", "path")
        return inspect(make(_store_in(Path(scratch), manifest)))


def inspect(journal: Journal) -> Report:
    """A store that nobody changes meanwhile, or one state of one that somebody does."""
    problems: list[str] = []
    found: Recovered | None = None
    chunks = 0
    try:
        facts = journal.open(read_only=True)
        found = recover(journal, facts, 0, DEFAULT_CAPS, read_only=True)
        if found.cut:
            problems.append(f"the log ends within a record: {found.cut} bytes are torn")
        problems += findings(found.kernel)
        for chunk in sorted(found.kernel.chunks):
            try:
                journal.chunk(chunk)
                chunks += 1
            except (JournalError, KeyError) as error:
                problems.append(f"payload chunk {chunk}: {error}")
        problems += journal.damage()
    except (JournalError, PenstockError) as error:
        problems.append(str(error))
    finally:
        journal.close()
    kernel = found.kernel if found is not None else None
    return Report(
        scheme=journal.scheme,
        position=kernel.position if kernel is not None else 0,
        jobs=sum(block.live for block in kernel.blocks.values()) if kernel is not None else 0,
        chunks=chunks,
        replayed=found.replayed if found is not None else 0,
        problems=problems,
    )


# -- files ---------------------------------------------------------------------------------------


def _unpack(backup: Path, scratch: Path) -> Manifest:
    if not backup.is_file():
        raise NotFound(f"there is no backup at {backup}", "path")
    try:
        with tarfile.open(backup, "r:gz") as archive:
            for member in archive:
                _extract(archive, member, scratch)
        if not (scratch / MANIFEST).is_file():
            raise tarfile.TarError(f"it has no {MANIFEST}")
        manifest = msgspec.json.decode((scratch / MANIFEST).read_bytes(), type=Manifest)
    except DAMAGED as error:
        raise Invalid(f"{backup} is no backup, or a damaged one: {error}", "path") from error
    except OSError as error:
        raise Unavailable(f"{backup} cannot be unpacked: {error.strerror or error}") from error
    for name, digest in manifest.files.items():
        whole = scratch / name
        if not whole.is_file() or _digest(whole) != digest:
            raise Invalid(f"{backup} is damaged: {name} is not what was backed up", "path")
    return manifest


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, scratch: Path) -> None:
    """One file of a backup. A name that leads elsewhere, or a link, is none of ours."""
    name = PurePosixPath(member.name)
    if not member.isfile() or name.is_absolute() or ".." in name.parts:
        raise tarfile.TarError(f"{member.name!r} has no place in one")
    target = scratch / name
    target.parent.mkdir(parents=True, exist_ok=True)
    packed = archive.extractfile(member)
    assert packed is not None, "a file has content"
    with packed, open(target, "wb", opener=private.opener) as file:
        shutil.copyfileobj(packed, file)


def _store_in(scratch: Path, manifest: Manifest) -> Path:
    """The file or the directory that is the store: the first part of every name."""
    return scratch / Path(next(iter(manifest.files))).parts[0]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
