"""Segments that a dead process left behind: what is whole of them is sealed.

A killed process leaves at most a torn last line. After a power cut whatever was not synced may be
missing or zeros, also before lines that are there. Nothing rests on what was not synced, so both
are cut in the same way: before the first line that cannot be read. A store tells again what it
finds missing then.
"""

import fcntl
import logging
import os
from pathlib import Path
from typing import Final

from penstock.events.segment import Place, decode, open_in, sealed_in
from penstock.model.errors import Unavailable
from penstock.model.event import Mark

log: Final = logging.getLogger("penstock.events")


def recover(directory: Path, store: str) -> None:
    """Seal what dead processes left, of whichever store: one in memory never comes back.

    Raises Unavailable if somebody writes the events of this one: they have a copy of it.
    """
    for place, path in open_in(directory):
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if locked(handle):
                seal(handle, path, directory / place.sealed, _whole(path))
            elif place.store == store:
                raise Unavailable(f"somebody else writes the events of this store to {path}")
        finally:
            os.close(handle)


def locked(handle: int) -> bool:
    """Take the lock of a segment that grows, unless somebody alive has it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _whole(path: Path) -> int:
    """How many bytes of a segment are lines that can be read."""
    end = 0
    with path.open("rb") as file:
        for text in file:
            if not text.endswith(b"\n"):
                break
            try:
                decode(text)
            except ValueError:
                break
            end += len(text)
    return end


def seal(handle: int, path: Path, target: Path, length: int) -> None:
    """The segment is that long, stays as it is, and has its name; or is gone, if it is empty."""
    cut = os.fstat(handle).st_size - length
    if cut:
        log.warning("%s ends within a line: cut after %d bytes (%d bytes)", path, length, cut)
        os.ftruncate(handle, length)
    if not length:
        path.unlink()
        return
    os.fsync(handle)
    path.rename(target)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """The names in a directory are on stable storage."""
    handle = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def last_of(directory: Path, store: str) -> tuple[Mark, int]:
    """The last event that the sealed segments of a store have, and the last one's sequence."""
    mine: list[tuple[Place, Path]] = [
        each for each in sealed_in(directory) if each[0].store == store
    ]
    sequence = mine[-1][0].sequence if mine else 0
    for _, path in reversed(mine):
        mark = _last_mark(path.read_bytes())
        if mark is not None:
            return mark, sequence
    return Mark(0, 0), sequence


def _last_mark(data: bytes) -> Mark | None:
    end = len(data)
    while end > 0:
        begin = data.rfind(b"\n", 0, end - 1) + 1
        try:
            line = decode(data[begin:end])
        except ValueError:  # damaged since: what is before it counts
            end = begin
        else:
            return Mark(line.position, line.index)
    return None
