"""What a connection has in its hands: requests that wait, and places in line for their answers."""

import asyncio
from typing import TYPE_CHECKING

from penstock.protocol.command import Answer, Request

if TYPE_CHECKING:
    from penstock.stores.face import Face

Sent = tuple[Request, "Face", Answer]  # what may have to be taken back


class Held:
    """A request that waits."""

    __slots__ = ("abandoned", "face", "reply", "request", "stopped", "task", "told")

    def __init__(self, request: Request, face: "Face", reply: "Reply | None") -> None:
        self.request = request
        self.face = face
        self.reply = reply  # its place in line, if it has no number
        self.abandoned = False
        self.stopped = False  # told to end
        self.told = False  # answered, though not at its end yet
        self.task: asyncio.Task[Answer] | None = None

    def cancel(self) -> None:
        if self.task is not None and not self.told:
            self.stopped = True
            self.task.cancel()


class Reply:
    """A place in line: the answer of a request without a number, once there is one."""

    __slots__ = ("data", "kept")

    def __init__(self) -> None:
        self.data: bytearray | None = None  # as it will be sent
        self.kept: Sent | None = None  # if it may be taken back
