"""Payloads and results between codecs: what one side wrote, as the other side reads it.

A value that was kept in the encoding of the connection goes out as it came in, byte for byte. Any
other is read and written again. What has no form in the other encoding (MessagePack with binary
data, extensions, NaN or keys that are no texts, on JSON; integers beyond 64 bits, on MessagePack;
bytes, on JSON) goes out as one string: the base64 of the bytes as they are kept.
"""

import math
from base64 import b64encode
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec import Raw

from penstock.model.job import Codec
from penstock.protocol.command import Encoding

NULL: Final[dict[str, bytes]] = {"json": b"null", "msgpack": b"\xc0"}
NOTHING: Final = Raw(b"")  # in the place of a value that was not given
_NULLS: Final[dict[str, Raw]] = {encoding: Raw(null) for encoding, null in NULL.items()}


def written(value: Raw, encoding: Encoding) -> bytes:
    """The bytes to keep for a value that came over a connection; `null` if none did."""
    return bytes(value) or NULL[encoding]


def given(value: Raw, encoding: Encoding) -> bool:
    """Whether there is a value, and not null."""
    return bool(value) and bytes(value) != NULL[encoding]


def shown(kept: bytes | None, codec: Codec | None, encoding: Encoding) -> Raw:
    """What was kept, as a value of a message in that encoding."""
    if kept is None:
        return _NULLS[encoding]
    if codec == encoding:
        return Raw(kept)
    if encoding == "json":
        value = json_form(kept) if codec == "msgpack" else None
        return Raw(value or b'"' + b64encode(kept) + b'"')
    if codec == "bytes":
        return Raw(msgspec.msgpack.encode(kept))
    try:
        return Raw(msgspec.msgpack.encode(msgspec.json.decode(kept)))
    except (OverflowError, ValueError, RecursionError):
        return Raw(msgspec.msgpack.encode(b64encode(kept).decode()))


def as_json(value: Raw, encoding: Encoding) -> bytes:
    """A value of a message as JSON, for what is told as text."""
    written_as: Codec = encoding
    return bytes(shown(written(value, encoding), written_as, "json"))


def json_form(kept: bytes) -> bytes | None:
    """MessagePack as JSON; None if it has something in it that JSON has not, or is broken."""
    try:
        value = msgspec.msgpack.decode(kept)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    level: list[Any] = [value]
    while level:
        if not all(map(_is_json, level)):
            return None
        level = [inner for outer in level for inner in _within(outer)]
    return msgspec.json.encode(value)


def _is_json(value: Any) -> bool:
    if isinstance(value, dict):
        return all(type(key) is str for key in value)
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, (bool, int, str, list))


def _within(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
