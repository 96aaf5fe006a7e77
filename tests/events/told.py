"""Events to be written, and the lines that say them."""

from pathlib import Path
from typing import Any

from penstock.events.segment import Line, decode, encode
from penstock.model.event import Event
from penstock.model.job import IdRun, Ids

STORE = "0123456789abcdef" * 2
OTHER = "fedcba9876543210" * 2


def event(position: int, index: int = 0, **facts: Any) -> Event:
    said: dict[str, Any] = {
        "kind": "pushed",
        "tenant": "acme",
        "queue": "emails",
        "at": 1_700_000_000_000 + position,
        "ids": Ids((IdRun(position, 1),)),
    }
    return Event(position=position, index=index, **(said | facts))


def lines_of(*positions: int, store: str = STORE) -> bytes:
    return encode(store, [event(position) for position in positions])


def lines_in(path: Path) -> list[Line]:
    return [decode(text) for text in path.read_bytes().splitlines()]


def positions(lines: list[Line]) -> list[int]:
    return [line.position for line in lines]


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())
