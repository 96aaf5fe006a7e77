"""Payloads and results on JSON surfaces: JSON values where they have that form, else base64.

A payload keeps its codec whichever way it travels. What comes in as a JSON value and is to be kept
as MessagePack is transcoded, and what goes out likewise; bytes travel as base64. JSON is passed on
as it was written, so that numbers keep their digits.
"""

import msgspec
from msgspec import UNSET, Raw, UnsetType

from penstock.model.errors import Invalid
from penstock.model.job import Codec
from penstock.model.payload import check_json
from penstock.protocol.transcode import json_form


def payload_of(
    value: Raw | UnsetType,
    encoded: bytes | UnsetType,
    codec: Codec | UnsetType,
    field: str = "payload",
) -> tuple[bytes, Codec]:
    """What a request says, as a store keeps it. Nothing said is null."""
    if encoded is not UNSET:
        if value is not UNSET:
            raise Invalid(f"cannot go with {field}; give one of them", f"{field}_base64")
        return encoded, "bytes" if codec is UNSET else codec
    written = b"null" if value is UNSET else bytes(value)
    if codec is UNSET or codec == "json":
        return written, "json"
    if codec == "bytes":
        raise Invalid(f'"bytes" are no JSON value; give {field}_base64', "codec")
    return to_msgpack(written, field), "msgpack"


def shown(payload: bytes, codec: Codec) -> tuple[Raw | UnsetType, bytes | UnsetType]:
    """(the JSON value, what goes as base64): one of them is unset."""
    if codec == "json":
        return Raw(payload), UNSET
    value = json_form(payload) if codec == "msgpack" else None
    return (UNSET, payload) if value is None else (Raw(value), UNSET)


def to_msgpack(written: bytes, field: str = "payload") -> bytes:
    """JSON as MessagePack. Raises Invalid where a number is beyond what that holds."""
    check_json(written)
    try:
        return msgspec.msgpack.encode(msgspec.json.decode(written))
    except (msgspec.DecodeError, OverflowError) as error:
        raise Invalid("has no MessagePack form: a number is too large", field) from error
