"""The raw limit of a worker: three processes that pass bytes along and do nothing with them.

    python -m benchmarks._worker_relay

is the one in the middle and prints where it listens. A producer's frame is passed to the worker
and answered; the worker starts its job and sends an acknowledgement, which is answered too. Frames
are as long as those of a job in Penstock's own protocol, and every process runs on uvloop.
"""

import asyncio
from typing import Final, cast

import uvloop

from benchmarks._worker_adapter import Producer, Started

PACKAGES: Final = ("uvloop",)

# Bytes of a push of 44 and its answer, of a job on its way, of its ack and that one's answer, as
# they are seen on the wire between `penstock://` and `penstock serve`.
PUSH: Final = 67
PUSHED: Final = 22
JOB: Final = 115
ACK: Final = 80
ACKED: Final = 61
# The first byte of a frame says what it is; a worker says HELLO once.
IS_PUSH, IS_ACK, IS_JOB, HELLO = b"P", b"A", b"J", b"W"
A_JOB: Final = IS_JOB + bytes(JOB - 1)


class Middle:
    """What the connections of the process in the middle share."""

    def __init__(self) -> None:
        self.worker: asyncio.Transport | None = None
        self.waiting = 0  # jobs that came before the worker did


class Relay(asyncio.Protocol):
    """One connection of the process in the middle; one push at a time is in flight."""

    def __init__(self, middle: Middle) -> None:
        self._middle = middle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own is no subclass

    def data_received(self, data: bytes) -> None:
        kind, middle = data[:1], self._middle
        if kind == IS_PUSH:
            if middle.worker is None:
                middle.waiting += 1
            else:
                middle.worker.write(A_JOB)
            self._transport.write(bytes(PUSHED))
        elif kind == HELLO:
            middle.worker = self._transport
            self._transport.write(A_JOB * middle.waiting)
        else:  # acknowledgements; many at once may be cut anywhere
            self._transport.write(bytes(ACKED))


class Client(asyncio.Protocol):
    """A connection of a producer, which waits for each answer."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()

    def ask(self) -> "asyncio.Future[None]":
        self._answered: asyncio.Future[None] = self._loop.create_future()
        self._transport.write(IS_PUSH + bytes(PUSH - 1))
        return self._answered

    def data_received(self, data: bytes) -> None:
        self._answered.set_result(None)


class Worker(asyncio.Protocol):
    def __init__(self, started: Started) -> None:
        self._started = started

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(HELLO)

    def data_received(self, data: bytes) -> None:
        for _ in range(data.count(IS_JOB)):  # between the answers to acks
            self._started()
            self._transport.write(IS_ACK + bytes(ACK - 1))


async def connect(url: str) -> Producer:
    host, port = url.split(":")
    _, client = await asyncio.get_running_loop().create_connection(Client, host, int(port))
    return Producer(client.ask)


def work(url: str, started: Started) -> None:
    host, port = url.split(":")

    async def run() -> None:
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: Worker(started), host, int(port))
        await loop.create_future()

    uvloop.run(run())


async def main() -> None:
    middle = Middle()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Relay(middle), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    print(f"{host}:{port}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
