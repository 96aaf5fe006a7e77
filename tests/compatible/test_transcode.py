"""Payloads between codecs."""

from base64 import b64decode
from typing import Any

import msgspec
import pytest

from penstock.protocol.transcode import as_json, given, shown, written
from tests.compatible.wire import World

VALUES: list[Any] = [
    None,
    True,
    0,
    -5,
    2**63,
    1.5,
    "",
    "text ü 🚰",
    [],
    [1, [2, [3]]],
    {},
    {"a": {"b": [None, False, "c"]}},
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_that_both_know_is_the_same_in_both(value: Any) -> None:
    as_text, packed = msgspec.json.encode(value), msgspec.msgpack.encode(value)
    assert bytes(shown(as_text, "json", "json")) == as_text
    assert bytes(shown(packed, "msgpack", "msgpack")) == packed
    assert msgspec.json.decode(bytes(shown(packed, "msgpack", "json"))) == value
    assert msgspec.msgpack.decode(bytes(shown(as_text, "json", "msgpack"))) == value


@pytest.mark.parametrize(
    "kept",
    [
        msgspec.msgpack.encode(b"\x00\xff"),
        msgspec.msgpack.encode({"a": [1, b"x"]}),
        msgspec.msgpack.encode({1: 2}),
        msgspec.msgpack.encode(float("nan")),
        msgspec.msgpack.encode([float("inf")]),
        msgspec.msgpack.encode(msgspec.msgpack.Ext(5, b"x")),
        b"\x91" * 5_000 + b"\x01",
        b"\xc1 no MessagePack at all",
        b"\xa1\xff",
    ],
)
def test_what_json_cannot_say_is_shown_as_base64(kept: bytes) -> None:
    assert b64decode(msgspec.json.decode(bytes(shown(kept, "msgpack", "json")))) == kept


def test_what_messagepack_cannot_say_is_shown_as_base64() -> None:
    kept = b"[123456789012345678901234567890]"
    assert b64decode(msgspec.msgpack.decode(bytes(shown(kept, "json", "msgpack")))) == kept


def test_bytes_are_bytes_where_there_are_bytes() -> None:
    kept = b"\x00\xff"
    assert msgspec.msgpack.decode(bytes(shown(kept, "bytes", "msgpack"))) == kept
    assert b64decode(msgspec.json.decode(bytes(shown(kept, "bytes", "json")))) == kept


def test_nothing_is_null() -> None:
    assert bytes(shown(None, None, "json")) == b"null"
    assert bytes(shown(None, None, "msgpack")) == b"\xc0"
    nothing = msgspec.Raw(b"")
    assert (written(nothing, "json"), written(nothing, "msgpack")) == (b"null", b"\xc0")
    assert not given(nothing, "json")
    assert not given(msgspec.Raw(b"null"), "json")
    assert given(msgspec.Raw(b"0"), "json")
    assert as_json(msgspec.Raw(b"\x92\x01\x02"), "msgpack") == b"[1,2]"


async def test_data_and_results_cross_from_one_encoding_to_the_other(w: World) -> None:
    other = "msgpack" if w.encoding == "json" else "json"
    here, there = w.connect(), w.connect(encoding=other)  # type: ignore[arg-type]
    value = {"list": [1, None, "x"], "deep": {"y": 1.25}}
    job_id = await here.push(data=value)
    assert (await there.pull())["data"] == value
    await there.say("ACK", id=job_id, result=value)
    assert (await here.say("GETRESULT", id=job_id))["result"] == value
    assert (await here.say("WAITJOB", id=job_id))["result"] == value
