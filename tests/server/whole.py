"""A whole server in this process, on every transport, over a store whose clock stands still."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal

import msgspec

from penstock.server.audit import AuditLog
from penstock.server.auth import authenticator_of, hash_of
from penstock.server.metrics import Metrics
from penstock.server.parts import Parts
from penstock.server.server import Server
from penstock.server.transports import transports_of
from penstock.settings import Settings, Token
from penstock.stores.clock import ManualClock
from penstock.stores.embedded import EmbeddedStore
from penstock.stores.gate import Gate
from penstock.telemetry.meter import Meter
from penstock.telemetry.store import Telemetry
from tests.server.client import PATIENCE_S, Answer, Client

Way = Literal["lines", "frames", "unix", "command"]
WAYS: Final[tuple[Way, ...]] = ("lines", "frames", "unix", "command")
STREAMS: Final[tuple[Way, ...]] = ("lines", "frames", "unix")


def token(name: str, *scopes: str, tenant: str = "*", **more: Any) -> Token:
    """Somebody whose token is `pst_` and the name."""
    return Token(name=name, hash=hash_of(secret(name)), tenant=tenant, scopes=tuple(scopes), **more)


def everything(name: str, tenant: str = "*", **more: Any) -> Token:
    return token(name, "push", "claim", "admin", tenant=tenant, **more)


def secret(name: str) -> str:
    return f"pst_{name}"


class Wire:
    """One connection to say commands over: `ask` says one and gives its answer."""

    async def ask(self, cmd: str, **fields: Any) -> dict[str, Any]:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError


class StreamWire(Wire):
    """JSON lines, or frames of MessagePack."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lines: bool
    ) -> None:
        self.reader = reader
        self.writer = writer
        self.lines = lines
        self.told: list[dict[str, Any]] = []  # what came and was no answer

    def written(self, said: object) -> bytes:
        if self.lines:
            return msgspec.json.encode(said) + b"\n"
        return framed(msgspec.msgpack.encode(said))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def say(self, cmd: str, **fields: Any) -> None:
        await self.send(self.written({"cmd": cmd, **fields}))

    async def raw(self) -> bytes:
        """The next message as it came, but for the length of a frame; empty at the end."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                if self.lines:
                    return await self.reader.readline()
                size = int.from_bytes(await self.reader.readexactly(4), "big")
                return await self.reader.readexactly(size)
            except (asyncio.IncompleteReadError, ConnectionResetError):
                return b""

    async def message(self) -> dict[str, Any]:
        raw = await self.raw()
        assert raw, "the connection ended"
        decoded = msgspec.json.decode(raw) if self.lines else msgspec.msgpack.decode(raw)
        assert isinstance(decoded, dict)
        return decoded

    async def ask(self, cmd: str, **fields: Any) -> dict[str, Any]:
        await self.say(cmd, **fields)
        return await self.answer()

    async def answer(self) -> dict[str, Any]:
        while True:
            message = await self.message()
            if "ok" in message:
                return message
            self.told.append(message)

    async def event(self) -> dict[str, Any]:
        """The next word that is no answer."""
        if self.told:
            return self.told.pop(0)
        message = await self.message()
        assert "ok" not in message, message
        return message

    async def ended(self) -> bool:
        """Whether the server closes, having said nothing more."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self.reader.read() == b""
            except ConnectionResetError:
                return True

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()


class CommandWire(Wire):
    """POST /v1/command."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def asked(self, cmd: str, **fields: Any) -> Answer:
        body = msgspec.json.encode({"cmd": cmd, **fields})
        return await self.client.request("POST", "/v1/command", body)

    async def ask(self, cmd: str, **fields: Any) -> dict[str, Any]:
        answer = (await self.asked(cmd, **fields)).json
        assert isinstance(answer, dict)
        return answer

    async def close(self) -> None:
        await self.client.close()


def framed(message: bytes) -> bytes:
    return len(message).to_bytes(4, "big") + message


class Whole:
    """The server, what it is made of, and ways to reach it."""

    def __init__(self, server: Server, store: EmbeddedStore, clock: ManualClock) -> None:
        self.server = server
        self.parts = server.parts
        self.store = store  # without telemetry, gate and transports
        self.clock = clock
        self._wires: list[Wire | Client] = []

    def audited(self) -> list[dict[str, Any]]:
        """The lines of the audit log."""
        path = Path(self.parts.settings.audit_file)
        written = path.read_bytes().splitlines() if path.exists() else []
        return [msgspec.json.decode(line) for line in written]

    @property
    def http(self) -> tuple[str, int]:
        return _split(self.server.addresses["http"])

    @property
    def tcp(self) -> tuple[str, int]:
        return _split(self.server.addresses["tcp"])

    async def stream(self, way: Way) -> StreamWire:
        """A connection on which nobody has said who they are."""
        if way == "unix":
            reader, writer = await asyncio.open_unix_connection(self.parts.settings.unix)
        else:
            reader, writer = await asyncio.open_connection(*self.tcp)
        wire = StreamWire(reader, writer, way == "lines")
        self._wires.append(wire)
        return wire

    async def greeted(self, way: Way, name: str) -> StreamWire:
        wire = await self.stream(way)
        assert (await wire.ask("AUTH", token=secret(name)))["ok"] is True
        return wire

    async def wire(self, way: Way, name: str) -> Wire:
        if way != "command":
            return await self.greeted(way, name)
        return CommandWire(await self.client(name))

    async def client(self, name: str | None = None) -> Client:
        client = await Client.to(self.http, None if name is None else secret(name))
        self._wires.append(client)
        return client

    async def close(self) -> None:
        for wire in self._wires:
            await wire.close()


def _split(address: str | None) -> tuple[str, int]:
    assert address is not None
    host, _, port = address.rpartition(":")
    return host, int(port)


@asynccontextmanager
async def serving(*tokens: Token) -> AsyncIterator[Whole]:
    """As `Server.open` puts it together, but for the clock."""
    with TemporaryDirectory(prefix="penstock-") as directory:
        settings = Settings(
            url="memory://",
            port=0,
            http_port=0,
            unix=f"{directory}/sock",
            tokens=tokens,
            audit_file=f"{directory}/audit",
        )
        clock = ManualClock()
        meter = Meter(clock.now_ms)
        store = EmbeddedStore.in_memory(clock=clock, seed=1, observer=meter)
        telemetry = Telemetry(store, meter)
        parts = Parts(
            settings=settings,
            gate=Gate(telemetry),
            authenticator=authenticator_of(tokens),
            audit=AuditLog(Path(settings.audit_file)),
            figures=meter.figures,
            history=meter.history,
            metrics=Metrics(telemetry),
        )
        up = Whole(Server(parts, telemetry, transports_of(parts)), store, clock)
        await up.server.start()
        try:
            yield up
        finally:
            await up.close()
            await up.server.stop(0)
