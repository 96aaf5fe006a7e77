"""A connection as its requests see it: the session that a command is given."""

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.model.errors import Unavailable
from penstock.protocol.access import Principal
from penstock.protocol.command import Encoding, Figures, ReqId, Session

if TYPE_CHECKING:
    from penstock.stores.connection import Connection

ENCODERS: Final[dict[Encoding, Any]] = {
    "json": msgspec.json.Encoder(),
    "msgpack": msgspec.msgpack.Encoder(),
}


class Face(Session):
    """The connection as the requests of one encoding see it."""

    def __init__(self, connection: "Connection", encoding: Encoding) -> None:
        self._connection = connection
        self.encoding = encoding
        self.encode_into = ENCODERS[encoding].encode_into
        self.store = connection.listener.gate
        self.principal = connection.principal
        self.frame_limit = connection.listener.limits.frame_bytes
        self.request_limit = connection.listener.limits.requests
        self.pushes = {} if encoding == "msgpack" else None

    def authenticate(self, token: str) -> Principal:
        return self._connection.authenticate(token)

    def send(self, message: msgspec.Struct) -> None:
        self._connection.send(message, self.encoding)

    async def drained(self) -> None:
        await self._connection.drained()

    def start(self, name: object, work: Coroutine[Any, Any, None]) -> None:
        self._connection.start(name, work)

    def stop(self, name: object) -> bool:
        return self._connection.stop(name)

    def figures(self, tenant: str) -> Figures:
        figures = self._connection.listener.figures
        if figures is None:
            raise Unavailable("nothing is counted here")
        return figures(tenant)

    async def backup(self, directory: str, keep: int) -> str:
        backup = self._connection.listener.backup
        if backup is None:
            return await super().backup(directory, keep)
        return str(await backup(directory, keep))

    def abandon(self, request: ReqId) -> bool:
        return self._connection.abandon(request)
