"""The server: one store, what is counted of it, and the transports that serve it, as one thing.

Everything is wired together here. A transport is told what it serves by `Parts`, and is otherwise
on its own; it joins by a line in `transports.transports_of`.
"""

import asyncio
import ipaddress
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from penstock.cron.scheduler import Scheduler
from penstock.events.log import event_log
from penstock.model.errors import Invalid, Unavailable
from penstock.open import open_store
from penstock.protocol.access import DEFAULT_TENANT, Authenticator
from penstock.server.audit import AuditLog
from penstock.server.auth import authenticator_of, tokens_of
from penstock.server.logs import Observers, job_log
from penstock.server.metrics import Metrics
from penstock.server.parts import KINDS, Kind, Parts, Transport
from penstock.server.places import cannot_listen
from penstock.server.transports import transports_of
from penstock.settings import Settings
from penstock.stores.gate import Gate
from penstock.telemetry.following import Following
from penstock.telemetry.meter import COUNTED_KINDS, POINT_S, Meter
from penstock.telemetry.store import Telemetry

LOOK_S: Final = 0.5  # how often we look whether the store has ended

log: Final = logging.getLogger("penstock.server")


class Server:
    """Made with `Server.open`; `start`, then `stop`."""

    def __init__(
        self,
        parts: Parts,
        telemetry: Telemetry,
        transports: Sequence[Transport],
        scheduler: Scheduler | None = None,
        following: Following | None = None,
    ) -> None:
        self.parts = parts
        self._telemetry = telemetry
        self._transports = tuple(transports)
        self._scheduler = scheduler
        self._following = following
        self._started: list[Transport] = []
        self._running: list[asyncio.Task[None]] = []
        self.addresses: dict[Kind, str | None] = dict.fromkeys(KINDS)

    @classmethod
    async def open(
        cls,
        settings: Settings,
        transports: "Callable[[Parts], Sequence[Transport]] | None" = None,
    ) -> "Server":
        """Open the store and put everything together; nothing listens yet."""
        tokens = tokens_of(settings)
        authenticator = authenticator_of(tokens)
        check_bind(settings, authenticator)
        meter = Meter()
        jobs = job_log(settings.log_format, settings.log_level)
        tenants = [token.tenant for token in tokens if token.tenant != "*"]
        following = Following(
            meter if jobs is None else Observers(meter, jobs),
            [DEFAULT_TENANT, *tenants],
            COUNTED_KINDS if jobs is None else None,
        )
        async with AsyncExitStack() as undo:
            events = event_log(
                settings.events,
                seal_s=settings.events_seal_s,
                keep_s=settings.events_keep_s,
                keep_bytes=settings.events_keep_bytes,
            )
            store = await open_store(settings.url, events=events, observer=following)
            undo.push_async_callback(store.close)
            if events is not None and not store.owned:
                log.warning(
                    "the event log %s is not written while another process owns the store:"
                    " start the server first, or say ?events=DIR in the url of every process",
                    settings.events,
                )
            telemetry = Telemetry(store, meter)
            made: list[Transport] = []
            parts = Parts(
                settings=settings,
                gate=Gate(telemetry),
                authenticator=authenticator,
                audit=AuditLog(Path(settings.audit_file) if settings.audit_file else None),
                figures=meter.figures,
                history=meter.history,
                metrics=Metrics(
                    telemetry,
                    connections=lambda: {each.kind: each.connections for each in made},
                    tenants=tenants,
                    gaps=following.gaps,
                ),
            )
            made += (transports or transports_of)(parts)
            # The store itself: looking for what to refresh is nobody's call.
            scheduler = Scheduler(store, [DEFAULT_TENANT, *tenants]) if settings.cron else None
            server = cls(parts, telemetry, made, scheduler, following)
            undo.pop_all()
        return server

    async def start(self) -> None:
        """Listen on every transport, or on none."""
        try:
            if not self._transports:
                raise Unavailable("there is no transport to serve the store on")
            if self._following is not None:
                # Its first step comes before anybody's who is let in from here on.
                following = self._following.run(self._telemetry.inner)
                self._running.append(asyncio.create_task(following))
            for transport in self._transports:
                self._started.append(transport)
                try:
                    self.addresses[transport.kind] = await transport.start()
                except OSError as error:
                    raise cannot_listen(self.parts.settings, transport.kind, error) from error
        except BaseException:
            await self.stop(0)
            raise
        self._running.append(asyncio.create_task(self._sample()))
        if self._scheduler is not None:
            self._running.append(asyncio.create_task(self._scheduler.run()))

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(POINT_S)
            self._telemetry.meter.sample()

    async def failure(self) -> str:
        """Wait until the store ends by itself, and tell why: there is nothing left to serve then."""
        while (why := self._telemetry.failed) is None:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        return why

    async def stop(self, grace_s: float) -> None:
        """End the transports, together, and then the store.

        Cancelled, it leaves the store open: whoever cuts it short calls again, with less grace.
        """
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        ended = [transport.stop(grace_s) for transport in self._started]
        failures = await asyncio.gather(*ended, return_exceptions=True)
        await self.parts.metrics.close()
        await self._telemetry.close()
        for failure in failures:
            if isinstance(failure, BaseException):
                raise failure


def check_bind(settings: Settings, authenticator: Authenticator) -> None:
    """Raise Invalid where anybody on a network could come in."""
    if not authenticator.open_to_all or is_loopback(settings.host):
        return
    raise Invalid(
        f"{settings.host!r} can be reached from elsewhere, and nobody is asked who they are."
        " Make a token (penstock token create --name NAME) and put what it prints into"
        " penstock.toml, or listen at 127.0.0.1",
        "host",
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches that address. A name might be anybody's, but for one."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
