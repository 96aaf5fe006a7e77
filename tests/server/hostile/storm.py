"""Everybody who means harm to a server, or none and is a burden all the same.

For whoever wants to know how others fare meanwhile: the tests beside this, and the benchmark.
"""

from contextlib import AsyncExitStack
from typing import Final

from tests.server.client import Client as HttpClient
from tests.server.client import written
from tests.server.hostile.wire import Address, Client, message

SLOW: Final = 500
IDLE: Final = 1_000
HALF_CLOSED: Final = 50
PIPELINED: Final = 10_000
SHARES: Final = 20  # of the slow ones, who take turns
BAITS: Final = 200  # jobs for those who claim and do not read
WAIT_MS: Final = 3_600_000
LEASE_MS: Final = 300
# Settings of a server on which they stay.
PATIENT: Final = {"limits_handshake_s": 600, "limits_frame_s": 600}


class Storm:
    """Everybody who means harm."""

    def __init__(self, tcp: Address, http: Address) -> None:
        self._tcp_at = tcp
        self._http_at = http
        self._stack = AsyncExitStack()
        self._slow: list[tuple[Client | HttpClient, bytes]] = []
        self._said = 0

    async def begin(self, stock: Client) -> None:
        for number in range(SLOW):
            await self._join_slowly(number)
        for number in range(IDLE):
            await self._wait(number)
        for number in range(HALF_CLOSED):
            await self._half_close(number)
        payloads = [b'"' + b"x" * 20_000 + b'"'] * BAITS
        options = {"backoff": {"kind": "none"}, "max_attempts": 0, "lease_ms": LEASE_MS}
        await stock.say("PUSHRUN", queue="bait", payloads=payloads, options=options)
        await self._claim_and_do_not_read(BAITS)
        await self._subscribe_and_do_not_read()

    async def _tcp(self) -> Client:
        return await self._stack.enter_async_context(await Client.to(self._tcp_at))

    async def _http(self) -> HttpClient:
        return await self._stack.enter_async_context(await HttpClient.to(self._http_at))

    async def _join_slowly(self, number: int) -> None:
        said = {"cmd": "PUSH", "queue": "slow", "data": "x" * 1_000}
        if number % 3 == 0:
            self._slow.append((await self._tcp(), message(said, "json")))
        elif number % 3 == 1:
            self._slow.append((await self._tcp(), message(said, "msgpack")))
        else:
            slowly = written("POST", "/v1/queues/slow/jobs", {"payload": "x" * 1_000})
            self._slow.append((await self._http(), slowly))

    async def _wait(self, number: int) -> None:
        if number % 3 == 0:
            wait = {"cmd": "CLAIM", "queues": ["idle"], "wait_ms": WAIT_MS}
            await (await self._tcp()).send(message(wait, "msgpack"))
        elif number % 3 == 1:
            wait = {"cmd": "PULL", "queue": "idle", "timeout": WAIT_MS}
            await (await self._tcp()).send(message(wait, "json"))
        else:
            client = await self._http()
            await client.ask("POST", "/v1/queues/idle/claim", {"wait_ms": WAIT_MS})

    async def _half_close(self, number: int) -> None:
        client = await self._tcp()
        said = {"cmd": "PULL", "queue": "idle", "timeout": WAIT_MS if number % 2 else 0}
        await client.send(message(said, "msgpack"))
        client.writer.write_eof()

    async def _claim_and_do_not_read(self, many: int) -> None:
        client = await self._deafly()
        claim = message({"cmd": "CLAIM", "queues": ["bait"], "lease_ms": LEASE_MS}, "msgpack")
        client.writer.write(claim * many)

    async def _subscribe_and_do_not_read(self) -> None:
        client = await self._deafly()
        for queue in ("good", "slow", "bait", "piped"):
            await client.send(message({"cmd": "SUBSCRIBE", "queue": queue}, "json"))

    async def _deafly(self) -> Client:
        client = await self._tcp()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        return client

    def drip(self) -> None:
        """A byte from one in twenty of those who are slow, the next ones each time."""
        at, place = divmod(self._said, SHARES)
        self._said += 1
        for client, said in self._slow[place::SHARES]:
            client.writer.write(said[at : at + 1])

    async def vanish(self, number: int) -> None:
        """Somebody asks for much and is gone."""
        vanishing = await Client.to(self._tcp_at)
        push = message({"cmd": "PUSH", "queue": "piped", "data": number}, "json")
        pull = message({"cmd": "PULL", "queue": "bait"}, "json")
        vanishing.writer.write((push + pull) * (PIPELINED // 2))
        vanishing.vanish()

    async def end(self) -> None:
        await self._stack.aclose()
