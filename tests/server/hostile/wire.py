"""The wire, byte by byte, as clients without a library would speak it."""

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from penstock.model.job import JobOptions
from penstock.protocol.command import Encoding
from penstock.protocol.short import JOB, KINDS, SHORT, read_job, read_pushed

PATIENCE_S: Final = 20.0  # for what must come; it is told, so it never takes that long
CODECS: Final[dict[Encoding, Any]] = {"json": msgspec.json, "msgpack": msgspec.msgpack}
ENCODINGS: Final[tuple[Encoding, ...]] = ("json", "msgpack")

Address = tuple[str, int]
Said = dict[str, Any]


def message(said: object, encoding: Encoding) -> bytes:
    """One message as it goes over the wire: a line, or a frame."""
    data: bytes = CODECS[encoding].encode(said)
    return data + b"\n" if encoding == "json" else framed(data)


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def messages(came: bytes) -> list[Said]:
    """Everything in there, which must be whole messages and nothing else."""
    if came[:1] == b"{":
        assert came.endswith(b"\n"), came[-80:]
        return [msgspec.json.decode(line) for line in came.splitlines()]
    found = []
    while came:
        length = int.from_bytes(came[:4], "big")
        data, came = came[4 : 4 + length], came[4 + length :]
        assert len(data) == length, "a frame is cut short"
        if data[0] == SHORT:
            found.append(_short(data))
            continue
        codec = msgspec.json if data[:1] == b"{" else msgspec.msgpack
        found.append(codec.decode(data))
    return found


def _short(data: bytes) -> Said:
    """What a short frame says, as far as one at length would."""
    if data[1] == JOB:
        kinds = {number: ("", (JobOptions(),)) for number in range(1, KINDS + 1)}
        number, lease = read_job(data, kinds)
        return {"ok": True, "reqId": number, "lease": lease.token}
    number, first = read_pushed(data)
    return {"ok": True, "reqId": number, "first": first}


class Client:
    """One connection: numbered requests, each with its answer."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, encoding: Encoding
    ) -> None:
        self.reader = reader
        self.writer = writer
        self.encoding = encoding
        self._number = 0

    @classmethod
    async def to(cls, address: Address, encoding: Encoding = "msgpack") -> Self:
        return cls(*await asyncio.open_connection(*address, limit=1 << 26), encoding)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()

    def vanish(self) -> None:
        """Be gone without a word."""
        self.writer.transport.abort()

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def next(self) -> Said:
        """The next message."""
        async with asyncio.timeout(PATIENCE_S):
            if self.encoding == "json":
                data = await self.reader.readuntil(b"\n")
            else:
                header = await self.reader.readexactly(4)
                data = await self.reader.readexactly(int.from_bytes(header, "big"))
        said = CODECS[self.encoding].decode(data)
        assert isinstance(said, dict)
        return said

    async def ask(self, command: str, **fields: Any) -> Said:
        """What comes back, be it a refusal."""
        self._number += 1
        await self.send(message({"cmd": command, "reqId": self._number, **fields}, self.encoding))
        answer = await self.next()
        assert answer["reqId"] == self._number, answer
        return answer

    async def say(self, command: str, **fields: Any) -> Said:
        """What comes back of what must succeed."""
        answer = await self.ask(command, **fields)
        assert answer["ok"] is True, answer
        return answer

    async def rest(self) -> bytes:
        """Everything until the server closes."""
        async with asyncio.timeout(PATIENCE_S):
            came = bytearray()
            with suppress(ConnectionResetError):
                while piece := await self.reader.read(1 << 16):
                    came += piece
            return bytes(came)
