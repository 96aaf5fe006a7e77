"""The event log as files: which sealed segments a directory has, and stretches of their lines.

A sealed segment never changes, so a stretch of one, said in bytes, is the same whenever it is read.
Stretches begin and end between lines. What is still being written has another name and is not seen.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from penstock.model.errors import Invalid, NotFound, Unavailable

NAME: Final = re.compile(r"events-([0-9a-f]{32})-(\d{12})\.jsonl")
LOOK: Final = 64 << 10  # bytes read at a time to find the end of a line


class Segment(msgspec.Struct, frozen=True, order=True):
    store: str
    sequence: int
    size: int = 0


class Stretch(msgspec.Struct, frozen=True):
    """Bytes `begin` to `end` of a segment: whole lines."""

    path: str
    begin: int
    end: int


def segments(directory: str) -> list[Segment]:
    """Those that are sealed, by store and in order."""
    place = Path(directory)
    try:
        found = [
            Segment(match[1], int(match[2]), entry.stat().st_size)
            for entry in place.iterdir()
            if (match := NAME.fullmatch(entry.name))
        ]
    except FileNotFoundError:
        if place.exists():  # retention took a segment away between the two looks
            return segments(directory)
        raise Invalid(f"{directory!r} does not exist here", "path") from None
    except OSError as error:
        raise Invalid(f"{directory!r} cannot be read: {error}", "path") from None
    return sorted(found)


def path_of(directory: str, store: str, sequence: int) -> str:
    return str(Path(directory) / f"events-{store}-{sequence:012}.jsonl")


def cut(directory: str, segment: Segment, begin: int, end: int, size: int) -> Iterator[Stretch]:
    """A stretch of a segment in pieces of about that size, between lines."""
    path = path_of(directory, segment.store, segment.sequence)
    while begin < end:
        until = end if end - begin <= size + size // 2 else line_end(path, begin + size, end)
        yield Stretch(path, begin, until)
        begin = until


def line_end(path: str, place: int, end: int) -> int:
    """Where the line ends that has the byte before `place`; `end` if none does before it."""
    with _opened(path) as file:
        file.seek(place - 1)
        at = place - 1
        while at < end:
            read = file.read(min(LOOK, end - at))
            if not read:
                break
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


def _opened(path: str):  # type: ignore[no-untyped-def] # a binary file
    try:
        return Path(path).open("rb")
    except FileNotFoundError:
        raise NotFound(
            f"{path} is gone: retention deleted it before it was read; keep events longer, or start"
            " anew with another checkpoint",
            "path",
        ) from None
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error}") from None
