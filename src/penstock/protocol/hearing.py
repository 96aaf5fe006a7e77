"""Answers as a client hears them: whose a message is, what it says, and errors as they were raised."""

from functools import cache
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from penstock.model.errors import PenstockError, by_code
from penstock.model.event import Event
from penstock.protocol.command import Answer, Refusal
from penstock.protocol.framing import Message


class Head(msgspec.Struct):
    """What tells whose message it is."""

    ok: bool | None = None
    req_id: int | None = msgspec.field(name="reqId", default=None)
    watch: int | None = None


class Told(msgspec.Struct):
    """An event for a watcher, or its end."""

    watch: int
    event: Event | UnsetType = UNSET
    code: str = ""
    error: str = ""


HEAD: Final = msgspec.msgpack.Decoder(Head)
TOLD: Final = msgspec.msgpack.Decoder(Told)
_REFUSAL: Final = msgspec.msgpack.Decoder(Refusal)
_ERRORS: Final = by_code()


@cache
def decoder_of(answer: type[Answer]) -> Any:
    return msgspec.msgpack.Decoder(answer)


def error_of(code: str, message: str, field: str = "") -> PenstockError:
    return _ERRORS.get(code, PenstockError)(message, field)


def refused(message: Message) -> PenstockError:
    refusal = _REFUSAL.decode(message)
    return error_of(refusal.code, refusal.error, refusal.field or "")
