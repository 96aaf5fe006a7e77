"""Stretches of the event log: bytes of sealed segments, cut between lines.

A sealed segment never changes, so a stretch of one is the same whenever it is read. What is still
being written has another name and is not seen.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from penstock.events.segment import Place, sealed_in
from penstock.model.errors import Invalid, NotFound, Unavailable

LOOK: Final = 64 << 10  # bytes read at a time to find the end of a line


class Segment(msgspec.Struct, frozen=True):
    store: str
    sequence: int  # ascends within a store; not every number is there
    path: str
    size: int


class Stretch(msgspec.Struct, frozen=True):
    """Bytes `begin` to `end` of a segment: whole lines."""

    path: str
    begin: int
    end: int


def segments(directory: str) -> list[Segment]:
    """Those that are sealed now: store by store, in the order they were written."""
    found = []
    try:
        for place, path in sealed_in(Path(directory)):
            size = _size(path)
            if size is not None:
                found.append(Segment(place.store, place.sequence, str(path), size))
    except FileNotFoundError:
        raise Invalid(f"{directory!r} does not exist here", "path") from None
    except OSError as error:
        raise Invalid(f"{directory!r} cannot be read: {error}", "path") from None
    return found


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # retention was faster
        return None


def path_of(directory: str, store: str, sequence: int) -> str:
    return str(Path(directory) / Place(store, sequence).sealed)


def cut(path: str, begin: int, end: int, size: int) -> Iterator[Stretch]:
    """A stretch of a segment in pieces of about that size."""
    while begin < end:
        until = end if end - begin <= size + size // 2 else line_end(path, begin + size, end)
        yield Stretch(path, begin, until)
        begin = until


def line_end(path: str, place: int, end: int) -> int:
    """Where the line ends that has the byte before `place`; `end`, if no line does before it."""
    at = place - 1
    with _opened(path) as file:
        file.seek(at)
        while at < end and (read := file.read(min(LOOK, end - at))):
            found = read.find(b"\n")
            if found >= 0:
                return at + found + 1
            at += len(read)
    return end


def content(stretch: Stretch) -> bytes:
    with _opened(stretch.path) as file:
        file.seek(stretch.begin)
        read = file.read(stretch.end - stretch.begin)
    if len(read) != stretch.end - stretch.begin:
        raise Unavailable(f"{stretch.path} is shorter than it was, though it was sealed")
    return read


def _opened(path: str) -> BinaryIO:
    try:
        return Path(path).open("rb")
    except FileNotFoundError:
        raise gone(path) from None
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error}") from None


def gone(what: str) -> NotFound:
    return NotFound(
        f"{what} is gone: retention deleted it before it was read; keep events for longer, or begin"
        " anew with another checkpoint",
        "path",
    )
