"""Reading the event log: sealed segments in order, each event once, and what cannot be read.

A line that is damaged is reported with its file, its number and the reason; the rest is read. What
a line does not show (a digit that became another) nobody notices: lines carry no checksum, so that
any program can read and write them.
"""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from penstock.events.segment import Line, Place, decode, sealed_in

log: Final = logging.getLogger("penstock.events")


class BadLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line that says nothing, and why."""

    path: Path
    number: int  # of the line, from 1
    reason: str
    text: bytes


def report(bad: BadLine) -> None:
    log.error("%s, line %d cannot be read: %s", bad.path, bad.number, bad.reason)


def read(
    directory: Path, *, bad: Callable[[BadLine], None] = report, store: str | None = None
) -> Iterator[Line]:
    """The events of a directory, of one store or of all, store by store in the order of history.

    A line is written a second time only after all that follow its first one, if at all (see
    `EventLog`). So what is not beyond the furthest line so far has been there: no set of all
    identities is kept.
    """
    of, furthest = "", (0, 0)
    for place, path in sealed_in(directory):
        if store is not None and place.store != store:
            continue
        if place.store != of:
            of, furthest = place.store, (0, -2)
        for line in read_segment(place, path, bad=bad):
            if (line.position, line.index) > furthest:
                furthest = line.position, line.index
                yield line


def read_segment(
    place: Place, path: Path, *, bad: Callable[[BadLine], None] = report
) -> Iterator[Line]:
    """The lines of one segment, those included that others have as well."""
    with path.open("rb") as file:
        for number, text in enumerate(file, 1):
            try:
                if not text.endswith(b"\n"):
                    raise ValueError("it does not end")
                line = decode(text)
                if line.store != place.store:
                    raise ValueError(f"it is of store {line.store}")
            except ValueError as error:
                bad(BadLine(path=path, number=number, reason=str(error), text=text))
            else:
                yield line
