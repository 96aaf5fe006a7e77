"""An event log for tests: real segments, written by the log's own code."""

from pathlib import Path

from penstock.events.segment import Place, encode
from penstock.model.event import Event
from penstock.model.job import IdRun, Ids

STORE = "0123456789abcdef0123456789abcdef"


def event(position: int, jobs: int = 10) -> Event:
    return Event(
        kind="completed",
        tenant="acme",
        queue="emails",
        at=1_800_000_000_000 + position,
        ids=Ids((IdRun(position * 1_000, jobs), IdRun(position * 1_000 + 500, 2, b"\1\1"))),
        attempt=1,
        pushed_at=1_800_000_000_000,
        worker="w1",
        position=position,
    )


def seal(directory: Path, first: int, count: int, store: str = STORE) -> Path:
    """A sealed segment with so many events from that position on."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / Place(store, first).sealed
    path.write_bytes(encode(store, [event(first + n) for n in range(count)]))
    return path
