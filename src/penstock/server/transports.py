"""The ways into a server, each as one thing to start and to stop; all share one gate to the store.

What they speak is in `tcp.py` and `http.py`; here settings become their limits.
"""

import math

from penstock.server.http import HttpLimits, HttpServer
from penstock.server.parts import Kind, Parts, Transport
from penstock.server.places import shown
from penstock.server.routes import ROUTES
from penstock.server.service import Service, Sources
from penstock.server.tcp import COMMANDS, tcp_listener
from penstock.stores.serving import Listener, ServingLimits


def transports_of(parts: Parts) -> list[Transport]:
    """Every transport that the settings ask for."""
    settings = parts.settings
    made: list[Transport] = [Tcp(parts)]
    if settings.unix:
        made.append(Unix(parts))
    if not settings.no_http:
        made.append(_http(parts))
    return made


def _listener(parts: Parts) -> Listener:
    limits = parts.settings.limits
    return tcp_listener(
        parts.gate,
        parts.authenticator,
        limits=ServingLimits(
            strangers_frame_bytes=limits.stranger_bytes,
            frame_bytes=limits.frame_bytes,
            requests=limits.in_flight,
            connections=limits.connections,
            connections_per_address=limits.connections_per_address,
            handshake_s=_within(limits.handshake_s),
            message_s=_within(limits.frame_s),
            idle_s=_within(limits.idle_s),
        ),
        audit=parts.audit,
        figures=parts.figures,
    )


def _http(parts: Parts) -> HttpServer:
    settings, limits = parts.settings, parts.settings.limits
    sources = Sources(
        figures=parts.figures,
        history=parts.history,
        metrics=parts.metrics.text,
        audit=parts.audit,
        commands=COMMANDS,
    )
    return HttpServer(
        Service(parts.gate, ROUTES, authenticator=parts.authenticator, sources=sources),
        host=settings.host,
        port=settings.http_port,
        limits=HttpLimits(
            body_bytes=limits.stranger_bytes,
            request_s=_within(limits.frame_s),
            idle_s=_within(limits.idle_s),
            connections=limits.connections,
        ),
        idle=parts.gate.idle,
    )


def _within(seconds: float) -> float:
    """A deadline; 0 stands for none."""
    return seconds or math.inf


class Tcp:
    kind: Kind = "tcp"

    def __init__(self, parts: Parts) -> None:
        self._settings = parts.settings
        self._listener = _listener(parts)

    @property
    def connections(self) -> int:
        return len(self._listener)

    async def start(self) -> str:
        return shown(*await self._listener.listen_tcp(self._settings.host, self._settings.port))

    async def stop(self, grace_s: float) -> None:
        await self._listener.stop(grace_s)


class Unix:
    kind: Kind = "unix"

    def __init__(self, parts: Parts) -> None:
        self._path = parts.settings.unix
        self._listener = _listener(parts)

    @property
    def connections(self) -> int:
        return len(self._listener)

    async def start(self) -> str:
        return str(await self._listener.listen_unix(self._path))

    async def stop(self, grace_s: float) -> None:
        await self._listener.stop(grace_s)
