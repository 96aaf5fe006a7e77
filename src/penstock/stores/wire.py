"""What a link has in its hands: a request until it is answered, and one connection until it is lost."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from penstock.protocol.command import Answer
from penstock.stores.forking import not_for_children

if TYPE_CHECKING:
    from penstock.stores.link import Link


class Entry:
    """A request from the moment it is made until it is answered or nobody wants the answer."""

    __slots__ = (
        "answer",
        "frame",
        "future",
        "late",
        "lost",
        "number",
        "push",
        "repeat",
        "sent",
        "until",
    )

    def __init__(
        self,
        number: int,
        frame: bytearray,
        answer: type[Answer],
        future: Any,
        repeat: bool,
        push: bool,
    ) -> None:
        self.number = number
        self.frame: bytearray | None = frame  # kept while it may have to be sent (again)
        self.answer = answer
        self.future = future  # of the answer; of joined pushes, the parcel
        self.repeat = repeat
        self.push = push
        self.sent = False
        self.lost = 0  # how many times its answer was
        self.until = 0.0  # when it is refused, if there is no connection by then
        self.late: Callable[[Answer], None] | None = None  # what to do with an unwanted answer


class Wire(asyncio.Protocol):
    """One connection of a link. What a lost one still says goes to nobody."""

    def __init__(self, link: "Link") -> None:
        self._link: Link | None = link
        self.transport: asyncio.Transport
        self.gone: asyncio.Future[None] = link.loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's has no such base
        not_for_children(self)

    def sockets(self) -> list[int]:
        sock = None if self.gone.done() else self.transport.get_extra_info("socket")
        return [] if sock is None else [sock.fileno()]

    def data_received(self, data: bytes) -> None:
        if self._link is not None:
            self._link.received(data)

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
