"""What tests of connections share: a transport that tests can look into, and plain clients."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from penstock.model.errors import Unauthenticated
from penstock.protocol.access import Authenticator, OpenToAll, Principal
from penstock.protocol.command import Request
from penstock.protocol.framing import Frames
from penstock.protocol.native import NATIVE
from penstock.stores.clock import ManualClock
from penstock.stores.connection import Connection
from penstock.stores.embedded import EmbeddedStore
from penstock.stores.serving import Listener, ServingLimits


class Tokens:
    """Credentials that are asked for."""

    open_to_all = False

    def __init__(self, **principals: Principal) -> None:
        self.principals = principals

    def authenticate(self, token: str) -> Principal:
        principal = self.principals.get(token)
        if principal is None:
            raise Unauthenticated("these credentials are not accepted")
        return principal


class Wire(asyncio.Transport):
    """The server's end of a connection; a peer that reads when the test says so."""

    def __init__(self, connection: Connection, address: str = "10.0.0.1") -> None:
        super().__init__({"peername": (address, 1)})
        self.connection = connection
        self.writes: list[bytes] = []
        self.unread = 0  # bytes that the peer has not taken
        self.greedy = True  # whether it takes everything at once
        self._reading = True
        self._ended = False
        self._high = 64 * 1024
        self._low = 16 * 1024
        self._full = False
        connection.connection_made(self)

    def write(self, data: Any) -> None:
        assert not self._ended
        self.writes.append(bytes(data))
        if not self.greedy:
            self.unread += len(data)
            if self.unread > self._high and not self._full:
                self._full = True
                self.connection.pause_writing()

    def read(self) -> None:
        """The peer takes everything that there is."""
        self.unread = 0
        if self._full:
            self._full = False
            self.connection.resume_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high is not None
        assert low is not None
        self._high, self._low = high, low

    def get_write_buffer_size(self) -> int:
        return self.unread

    def pause_reading(self) -> None:
        assert self._reading
        self._reading = False

    def resume_reading(self) -> None:
        assert not self._reading
        self._reading = True

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self._ended:
            self._ended = True
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    def is_closing(self) -> bool:
        return self._ended

    def is_reading(self) -> bool:
        return self._reading

    def say(self, *requests: Request | dict[str, Any]) -> None:
        """Everything in one read."""
        assert self._reading
        self.connection.data_received(b"".join(map(framed, requests)))

    def told(self) -> list[dict[str, Any]]:
        """The messages since the last look."""
        frames = Frames(2**32)
        frames.feed(b"".join(self.writes))
        self.writes.clear()
        messages = []
        while (message := frames.take()) is not None:
            json = message[0] == 0x7B
            messages.append(msgspec.json.decode(message) if json else _plain(message))
        assert not frames.begun, "answers are whole"
        return messages


def _plain(message: Any) -> dict[str, Any]:
    return msgspec.msgpack.decode(message)  # type: ignore[no-any-return]


def framed(request: Request | dict[str, Any]) -> bytes:
    payload = msgspec.msgpack.encode(request)
    return len(payload).to_bytes(4, "big") + payload


class Rig:
    """A listener over a store in memory, whose deadlines go by a clock of the test's."""

    def __init__(
        self,
        authenticator: Authenticator | None = None,
        commands: tuple[type[Request], ...] = NATIVE,
        audit: Callable[..., None] | None = None,
        **limits: Any,
    ) -> None:
        self.clock = ManualClock()
        self.store = EmbeddedStore.in_memory(clock=self.clock)
        self.time = 1_000.0
        self.listener = Listener(
            self.store,
            commands,
            authenticator or OpenToAll(),
            limits=ServingLimits(**limits),
            audit=audit,
            now=lambda: self.time,
        )

    def wire(self, address: str = "10.0.0.1") -> Wire:
        return Wire(Connection(self.listener), address)

    async def close(self) -> None:
        await self.listener.close()
        await self.store.close()


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
