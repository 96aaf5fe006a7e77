"""The commands that a connection understands: from a message to the request that it says.

A table is made of Request classes. Whatever is wrong with a message, decoding it gives a refusal
and never raises; the refusal carries the request's number wherever one can be found.
"""

import re
from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import Any, Final

import msgspec
from msgspec import UNSET

from penstock.model.checks_values import show
from penstock.protocol.command import Encoding, Refusal, ReqId, Request
from penstock.protocol.framing import Message

# Behind what msgspec says is wrong: where, as in "… - at `$.ids[3]`" or "… - at `key` in `$.results`".
_PLACE: Final = re.compile(r"(?s)(.*) - at (?:`key` in )?`\$\.?(.*)`")


class _Envelope(msgspec.Struct):
    """What can be told of a request that is wrong."""

    cmd: Any = None
    req_id: Any = msgspec.field(name="reqId", default=UNSET)


_ENVELOPES: Final[dict[Encoding, Any]] = {
    "json": msgspec.json.Decoder(_Envelope),
    "msgpack": msgspec.msgpack.Decoder(_Envelope),
}


def name_of(command: type[Request]) -> str:
    """The word on the wire."""
    tag = command.__struct_config__.tag
    assert isinstance(tag, str), "a command is tagged with its name"
    return tag


class Table:
    """Requests by name, in both encodings."""

    def __init__(self, commands: Sequence[type[Request]]) -> None:
        self.commands = {name_of(command): command for command in commands}
        every: Any = reduce(or_, commands)
        self._decoders: dict[Encoding, Any] = {
            "json": msgspec.json.Decoder(every),
            "msgpack": msgspec.msgpack.Decoder(every),
        }

    def decode(self, message: Message, encoding: Encoding) -> Request | Refusal:
        try:
            return self._decoders[encoding].decode(message)  # type: ignore[no-any-return]
        except RecursionError:
            return self._refusal(message, encoding, "is nested too deeply")
        except ValueError as error:  # msgspec's own, and texts that are not UTF-8
            return self._refusal(message, encoding, str(error))

    def _refusal(self, message: Message, encoding: Encoding, said: str) -> Refusal:
        try:
            envelope = _ENVELOPES[encoding].decode(message)
        except (RecursionError, ValueError):
            return Refusal(error=f"the request cannot be read: {said}", code="invalid")
        number = _number(envelope.req_id)
        name = envelope.cmd
        if name is None:
            why, field = "names no command", "cmd"
        elif type(name) is not str or name not in self.commands:
            why, field = f"there is no command {show(name)}", "cmd"
        else:
            placed = _PLACE.fullmatch(said)
            why, field = placed.groups() if placed else (said, "")
        return Refusal(error=why, code="invalid", field=field or UNSET, req_id=number)


def _number(said: object) -> ReqId:
    """A request's number if it is one that can be sent back."""
    if said is None or type(said) is str:
        return said
    if type(said) is int and -(2**63) <= said < 2**64:
        return said
    return UNSET
