"""A small HTTP client that can do everything wrong: raw bytes out, parsed answers in."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any, NamedTuple, Self

PATIENCE_S = 20.0  # for what must come; it is told, so it never takes that long


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def written(
    method: str, path: str, body: object = None, headers: dict[str, str] | None = None
) -> bytes:
    """A request as bytes. A body that is not bytes is sent as JSON."""
    said = {"Host": "test", **(headers or {})}
    data = b""
    if body is not None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        said.setdefault("Content-Type", "application/json")
        if "Transfer-Encoding" not in said:
            said.setdefault("Content-Length", str(len(data)))
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in said.items())]
    return "\r\n".join((*lines, "", "")).encode("latin-1") + data


class Client:
    """One connection."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str | None = None
    ) -> None:
        self.reader = reader
        self.writer = writer
        self.token = token

    @classmethod
    async def to(cls, address: tuple[str, int], token: str | None = None) -> Self:
        return cls(*await asyncio.open_connection(*address, limit=1 << 26), token)

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

    async def ask(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> None:
        """Send a request and do not wait for the answer."""
        said = dict(headers or {})
        if self.token is not None:
            said.setdefault("Authorization", f"Bearer {self.token}")
        await self.send(written(method, path, body, said))

    async def request(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> Answer:
        await self.ask(method, path, body, headers)
        return await self.answer(method)

    async def get(self, path: str, **headers: str) -> Answer:
        return await self.request("GET", path, headers=headers)

    async def post(self, path: str, body: object = None) -> Answer:
        return await self.request("POST", path, body)

    async def head_of_answer(self) -> tuple[int, dict[str, str]]:
        async with asyncio.timeout(PATIENCE_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")[:-2]
        version, status, _ = first.split(" ", 2)
        assert version == "HTTP/1.1"
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(": ")
            assert name.lower() not in headers
            headers[name.lower()] = value
        return int(status), headers

    async def answer(self, method: str = "GET") -> Answer:
        status, headers = await self.head_of_answer()
        body = b""
        if status >= 200 and status != 204 and method != "HEAD":
            async with asyncio.timeout(PATIENCE_S):
                body = await self.reader.readexactly(int(headers["content-length"]))
        return Answer(status, headers, body)

    async def chunk(self) -> bytes:
        """The next chunk of a stream; empty at its end."""
        async with asyncio.timeout(PATIENCE_S):
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            return (await self.reader.readexactly(size + 2))[:-2]

    async def ended(self) -> bool:
        """Whether the server closes, having said nothing more."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self.reader.read() == b""
            except ConnectionResetError:
                return True


class Events:
    """Server-sent events of one connection."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._text = ""

    async def frame(self) -> str:
        """The next block of lines, comments and all."""
        while "\n\n" not in self._text:
            chunk = await self._client.chunk()
            if not chunk:
                raise EOFError(self._text)
            self._text += chunk.decode()
        frame, _, self._text = self._text.partition("\n\n")
        return frame

    async def event(self) -> dict[str, Any]:
        """The next event: its `id`, `event` and `data`."""
        while True:
            frame = await self.frame()
            if frame.startswith((":", "retry:")):
                continue
            said: dict[str, Any] = {}
            for line in frame.split("\n"):
                name, _, value = line.partition(": ")
                said[name] = value
            said["data"] = json.loads(said["data"])
            return said


@asynccontextmanager
async def events_of(
    address: tuple[str, int], path: str = "/v1/events", **headers: str
) -> AsyncIterator[Events]:
    """Watch; when this begins, nothing that happens from now on is missed."""
    said = {name.replace("_", "-"): value for name, value in headers.items()}
    async with await Client.to(address) as client:
        await client.ask("GET", path, headers=said)
        status, head = await client.head_of_answer()
        assert (status, head["content-type"]) == (200, "text/event-stream")
        events = Events(client)
        assert await events.frame() == "retry: 1000"
        yield events
