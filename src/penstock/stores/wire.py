"""What a link has in its hands: a request until it is answered, and one connection until it is lost."""

import asyncio
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from penstock.model.errors import BatchTooLarge
from penstock.model.job import JobOptions
from penstock.protocol.command import Request
from penstock.protocol.framing import HEADER, LARGEST, BadFrame, Frames, Message
from penstock.protocol.short import SHORT
from penstock.stores.forking import not_for_children

if TYPE_CHECKING:
    from penstock.stores.connecting import Connecting


encode_into: Final = msgspec.msgpack.Encoder().encode_into
put_size: Final = Struct(">I").pack_into  # of a frame: HEADER bytes


class Entry(msgspec.Struct, eq=False):
    """A request from the moment it is made until it is answered or nobody wants the answer."""

    number: int
    frame: bytes | bytearray | None  # kept while it may have to be sent (again)
    decode: Callable[[Message], Any]  # its answer
    future: Any  # of the answer; of joined pushes, the parcel
    repeat: bool
    push: bool
    sent: bool = False
    lost: int = 0  # how many times its answer was
    until: float = 0.0  # when it is refused, if there is no connection by then
    late: Callable[[Any], None] | None = None  # what to do with an unwanted answer
    kind: "Kind | None" = None  # of a single job, which the frame says or names …
    said: tuple[int, bytes] = (0, b"")  # … and what it has of its own: sequence and payload


class Kind(msgspec.Struct, eq=False):
    """What single jobs share that are pushed over a link, and its number on this connection."""

    number: int
    tenant: str
    queue: str
    options: tuple[JobOptions, ...]
    known: bool = False  # to the server


class Wire(asyncio.Protocol):
    """One connection of a link. What a lost one still says goes to nobody."""

    def __init__(self, link: "Connecting") -> None:
        self._link: Connecting | None = link
        self._frames = Frames(LARGEST)
        self.transport: asyncio.Transport
        self.gone: asyncio.Future[None] = link.loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's has no such base
        not_for_children(self)

    def sockets(self) -> list[int]:
        sock = None if self.gone.done() else self.transport.get_extra_info("socket")
        return [] if sock is None else [sock.fileno()]

    def data_received(self, data: bytes) -> None:
        link, frames = self._link, self._frames
        if link is None:
            return
        try:
            if not frames.feed_alone(data):
                while (message := frames.take()) is not None:
                    if message[0] == SHORT:
                        link.hear_short(message)
                    else:
                        link.hear(message)
            elif data[HEADER] == SHORT:
                link.hear_short(data, HEADER)
            else:
                link.hear(data[HEADER:])
        except (BadFrame, msgspec.MsgspecError) as error:
            link.misunderstood(error)
        else:
            link.heard_all()

    def pause_writing(self) -> None:
        if self._link is not None:
            self._link.pause(True)

    def resume_writing(self) -> None:
        if self._link is not None:
            self._link.pause(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set_result(None)
        link, self._link = self._link, None
        if link is not None:
            link.lost()


def framed(request: Request) -> bytearray:
    frame = bytearray(HEADER)
    encode_into(request, frame, HEADER)
    size = len(frame) - HEADER
    if size > LARGEST:
        raise BatchTooLarge(f"{size} bytes in one call; push in smaller batches", "runs")
    put_size(frame, 0, size)
    return frame
