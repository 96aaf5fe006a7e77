"""What a server gives its transports, and what it asks of them."""

from collections.abc import Callable, Mapping
from typing import Final, Literal, Protocol

import msgspec

from penstock.protocol.access import Authenticator, Principal
from penstock.protocol.command import Figures
from penstock.server.metrics import Metrics
from penstock.settings import Settings
from penstock.stores.gate import Gate
from penstock.telemetry.meter import Point

Audit = Callable[[Principal, str, str, Mapping[str, object]], None]
Kind = Literal["tcp", "http", "grpc", "unix"]
KINDS: Final[tuple[Kind, ...]] = ("tcp", "http", "grpc", "unix")


class Transport(Protocol):
    """One way in."""

    kind: Kind

    async def start(self) -> str:
        """Listen; answers the address: `127.0.0.1:6789`, or a path."""
        ...

    async def stop(self, grace_s: float) -> None:
        """Take nothing new, let what was begun end for that long, and close. After a `stop` that
        was cancelled, another one with less grace may come."""
        ...

    @property
    def connections(self) -> int:
        """How many are open."""
        ...


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """What a transport is made from."""

    settings: Settings
    gate: Gate  # to the store, with telemetry around it
    authenticator: Authenticator
    audit: Audit
    figures: Callable[[str], Figures]
    history: Callable[[str], list[Point]]
    metrics: Metrics
