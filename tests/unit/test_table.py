"""Messages to requests: whatever is said is a request or one refusal, and nothing is raised."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from penstock.protocol.command import Encoding, Refusal, Request
from penstock.protocol.native import NATIVE, Hello, Ping
from penstock.protocol.native_push import PushRun
from penstock.protocol.native_work import Claim
from penstock.protocol.table import Table, name_of

TABLE = Table(NATIVE)
ENCODERS: dict[Encoding, Any] = {
    "json": msgspec.json.encode,
    "msgpack": msgspec.msgpack.encode,
}
BOTH = pytest.mark.parametrize("encoding", ["json", "msgpack"])


def refused(message: bytes, encoding: Encoding) -> Refusal:
    answer = TABLE.decode(message, encoding)
    assert isinstance(answer, Refusal), answer
    assert answer.ok is False
    assert answer.code == "invalid"
    assert answer.error
    ENCODERS[encoding](answer)
    return answer


@BOTH
@pytest.mark.parametrize("command", NATIVE, ids=name_of)
def test_every_command_is_known_by_its_name(command: type[Request], encoding: Encoding) -> None:
    """Said with its number alone: it is that command, or lacks a field."""
    answer = TABLE.decode(ENCODERS[encoding]({"cmd": name_of(command), "reqId": 7}), encoding)
    if isinstance(answer, Refusal):
        assert "missing required field" in answer.error
    else:
        assert type(answer) is command
    assert answer.req_id == 7


def test_no_two_commands_have_one_name() -> None:
    assert len(TABLE.commands) == len(NATIVE)


@BOTH
def test_the_name_may_stand_anywhere(encoding: Encoding) -> None:
    message = ENCODERS[encoding]({"n": 3, "reqId": "a", "queues": ["q"], "cmd": "CLAIM"})
    claim = TABLE.decode(message, encoding)
    assert isinstance(claim, Claim)
    assert (claim.n, claim.queues, claim.req_id) == (3, ["q"], "a")


@BOTH
@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"cmd": "NOPE"}, "cmd"),
        ({"cmd": 5}, "cmd"),
        ({"cmd": None}, "cmd"),
        ({"n": 5}, "cmd"),
        ({"cmd": "CLAIM", "queues": "q"}, "queues"),
        ({"cmd": "CLAIM", "queues": ["q", 5]}, "queues[1]"),
        ({"cmd": "CLAIM", "queues": ["q"], "n": True}, "n"),
        ({"cmd": "CLAIM", "queues": ["q"], "n": 1.5}, "n"),
        ({"cmd": "CLAIM", "queues": ["q"], "prio": 1}, UNSET),
        ({"cmd": "CLAIM"}, UNSET),
        ({"cmd": "COMPLETE", "lease": "l", "results": {"x": ""}}, "results"),
        ({"cmd": "PUSHRUN", "options": {"priorty": 1}}, "options"),
    ],
)
def test_a_refusal_names_the_field_and_keeps_the_number(
    said: dict[str, Any], field: Any, encoding: Encoding
) -> None:
    answer = refused(ENCODERS[encoding](said | {"reqId": 12}), encoding)
    assert answer.req_id == 12
    assert answer.field == field


@BOTH
def test_a_command_that_is_not_there_is_named(encoding: Encoding) -> None:
    answer = refused(ENCODERS[encoding]({"cmd": "NOPE", "reqId": "x"}), encoding)
    assert "'NOPE'" in answer.error


@BOTH
@pytest.mark.parametrize("number", [1.5, [1], {"a": 1}, True])
def test_a_number_that_is_none_is_not_sent_back(number: Any, encoding: Encoding) -> None:
    answer = refused(ENCODERS[encoding]({"cmd": "PING", "reqId": number}), encoding)
    assert answer.req_id is UNSET
    assert answer.field == "reqId"


DEEP = 100_000
BOMBS: list[tuple[Encoding, bytes]] = [
    ("json", b'{"cmd":"PING","x":' + b"[" * DEEP),
    ("json", b'{"cmd":"PING","x":' + b"[" * DEEP + b"]" * DEEP + b"}"),
    ("json", b'{"cmd":"PING","reqId":NaN}'),
    ("json", b'{"cmd":"PING","reqId":' + b"9" * 10_000 + b"}"),
    ("json", rb'{"cmd":"PING","reqId":"\ud800"}'),
    ("json", b'{"cmd":"PING","reqId":"\xed\xa0\x80"}'),
    ("json", b'{"cmd":"PING"} {}'),
    ("json", b"{"),
    ("msgpack", b"\x82\xa3cmd\xa4PING\xa1x" + b"\x91" * DEEP),
    ("msgpack", b"\x82\xa3cmd\xa4PING\xa5reqId\xa3\xed\xa0\x80"),
    ("msgpack", b"\x82\xa3cmd\xa8PUSHRUN\xa4runs\xdd\xff\xff\xff\xff"),
    ("msgpack", b"\xdf\xff\xff\xff\xff"),
    ("msgpack", b"\x81\xa3cmd\xc6\xff\xff\xff\xff"),
    ("msgpack", b"\xc1"),
    ("msgpack", b"\x93\1\2\3"),
    ("msgpack", b"\xd4\x05a"),
]


@pytest.mark.parametrize(("encoding", "message"), BOMBS)
def test_what_cannot_be_read_is_one_refusal(encoding: Encoding, message: bytes) -> None:
    refused(message, encoding)


@given(st.binary(max_size=200))
def test_whatever_bytes_come(message: bytes) -> None:
    for encoding in ENCODERS:
        answer = TABLE.decode(message, encoding)
        assert isinstance(answer, (Request, Refusal))


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
fields = sorted({name for command in NATIVE for name in command.__struct_encode_fields__})


@given(
    st.sampled_from(sorted(TABLE.commands)),
    st.dictionaries(st.sampled_from(fields), anything, max_size=4),
)
def test_whatever_fields_come(name: str, said: dict[str, Any]) -> None:
    message = msgspec.msgpack.encode(said | {"cmd": name, "reqId": 3})
    answer = TABLE.decode(message, "msgpack")
    assert isinstance(answer, (Request, Refusal))
    assert answer.req_id == 3


def test_requests_are_read_as_they_were_written() -> None:
    for request in (Hello(token="t", req_id=1), Ping(), PushRun(queue="q", payloads=[b"1"])):
        for encoding, encode in ENCODERS.items():
            assert TABLE.decode(encode(request), encoding) == request
