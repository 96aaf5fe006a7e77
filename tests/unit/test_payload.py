"""What is JSON at the door, held against a slow parser that follows the grammar word by word."""

import json
import random
from itertools import accumulate
from typing import Any, NoReturn

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.model import payload
from penstock.model.errors import Invalid
from penstock.model.payload import check_json, check_many, check_msgpack, check_payload, digest

# -- a parser that does one character at a time ----------------------------------------------------


class NotJson(Exception):
    pass


class Reference:
    """RFC 8259, and the rules of the door."""

    def __init__(self, document: bytes) -> None:
        try:
            self.text = document.decode()
        except UnicodeDecodeError:
            raise NotJson from None
        self.at = 0

    def check(self) -> None:
        self.space()
        self.value(0)
        self.space()
        if self.at != len(self.text):
            self.wrong()

    def wrong(self) -> NoReturn:
        raise NotJson(f"at {self.at}")

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def take(self, expected: str) -> None:
        if not self.text.startswith(expected, self.at):
            self.wrong()
        self.at += len(expected)

    def space(self) -> None:
        while self.peek() and self.peek() in " \t\r\n":
            self.at += 1

    def value(self, depth: int) -> None:
        start = self.peek()
        if start == "{":
            self.members(depth + 1)
        elif start == "[":
            self.elements(depth + 1)
        elif start == '"':
            self.string()
        elif start and start in "tfn":
            self.take({"t": "true", "f": "false", "n": "null"}[start])
        else:
            self.number()

    def deeper(self, depth: int) -> None:
        if depth > 100:
            self.wrong()

    def members(self, depth: int) -> None:
        self.deeper(depth)
        self.take("{")
        keys: set[str] = set()
        self.space()
        if self.peek() == "}":
            return self.take("}")
        while True:
            self.space()
            key = self.string()
            if key in keys:
                self.wrong()
            keys.add(key)
            self.space()
            self.take(":")
            self.space()
            self.value(depth)
            self.space()
            if self.peek() == "}":
                return self.take("}")
            self.take(",")

    def elements(self, depth: int) -> None:
        self.deeper(depth)
        self.take("[")
        self.space()
        if self.peek() == "]":
            return self.take("]")
        while True:
            self.space()
            self.value(depth)
            self.space()
            if self.peek() == "]":
                return self.take("]")
            self.take(",")

    def string(self) -> str:
        self.take('"')
        units: list[str] = []
        while self.peek() != '"':
            char = self.peek()
            if not char or char < " ":
                self.wrong()
            self.at += 1
            if char == "\\":
                char = self.escape()
            units.append(char)
        self.take('"')
        joined = "".join(units).encode("utf-16-le", "surrogatepass")  # pairs become characters
        try:
            return joined.decode("utf-16-le")
        except UnicodeDecodeError:
            self.wrong()

    def escape(self) -> str:
        kind = self.peek()
        self.at += 1
        if kind == "u":
            digits = self.text[self.at : self.at + 4]
            if len(digits) < 4 or any(d not in "0123456789abcdefABCDEF" for d in digits):
                self.wrong()
            self.at += 4
            return chr(int(digits, 16))
        if not kind or kind not in '"\\/bfnrt':
            self.wrong()
        return {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}.get(kind, kind)

    def number(self) -> None:
        if self.peek() == "-":
            self.take("-")
        if self.peek() == "0":
            self.take("0")
        else:
            self.digits()
        if self.peek() == ".":
            self.take(".")
            self.digits()
        if self.peek() and self.peek() in "eE":
            self.at += 1
            if self.peek() and self.peek() in "+-":
                self.at += 1
            self.digits()

    def digits(self) -> None:
        if not self.peek() or self.peek() not in "0123456789":
            self.wrong()
        while self.peek() and self.peek() in "0123456789":
            self.at += 1


def is_json(document: bytes) -> bool:
    try:
        Reference(document).check()
    except NotJson:
        return False
    return True


def passes(document: bytes) -> bool:
    try:
        check_json(document)
    except Invalid as error:
        assert error.field == "payload"
        return False
    return True


def many_pass(documents_: list[bytes]) -> bool:
    try:
        check_many("json", b"".join(documents_), list(accumulate(map(len, documents_))))
    except Invalid as error:
        assert error.field == "payload"
        return False
    return True


# -- documents -------------------------------------------------------------------------------------


def nested(depth: int, opening: bytes = b"[", inside: bytes = b"", closing: bytes = b"]") -> bytes:
    return opening * depth + inside + closing * depth


GOOD = [
    b"null",
    b"true",
    b" 1 ",
    b"\t[\r\n]",
    b"-0",
    b"-0.0",
    b"0e0",
    b"1E400",
    b"1e-400",
    b"-1.5e+3",
    b"123456789012345678901234567890",
    b"9" * 5_000,
    b"0." + b"3" * 5_000,
    b'""',
    b'"\\u0000"',
    b'"\\ud83d\\ude00"',
    b'"\\uD83D\\uDE00 \\/ \\b\\f\\n\\r\\t\\"\\\\"',
    '"é \u2028 \U0001f600 \x7f"'.encode(),
    b'{"a":1,"b":{"a":1},"c":[{"a":1},{"a":1}]}',
    b'{"a": 1, "b": [1, 2.50, 1e2]}',
    b'{"":1," ":2}',
    b'{"\\u0061":1,"b":":"}',
    b'{"\\u003a":1,"b":2}',
    b"[" + b"[]," * 1_000 + b"[]]",
    b'["' + b"[" * 1_000 + b'"]',
    b'["' + b'\\"[' * 1_000 + b'"]',
    nested(100),
    nested(100, b'{"a":', b"1", b"}"),
    nested(50, b'[{"[":', b'"]]"', b"}]"),
]

BAD = [
    b"",
    b" ",
    b"\x00",
    b"1\x00",
    b"\xef\xbb\xbf1",
    "1".encode("utf-16"),
    b"1".decode().encode("utf-32-le"),
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"[NaN]",
    b'{"a":-Infinity}',
    b"nul",
    b"True",
    b"'a'",
    b"01",
    b"-",
    b"+1",
    b".5",
    b"1.",
    b"1e",
    b"0x10",
    b"1_000",
    "٣".encode(),
    b"1 2",
    b"1,",
    b"[1",
    b"[1,]",
    b"[,1]",
    b"[1]]",
    b"[1}",
    b"{",
    b'{"a"}',
    b'{"a":1,}',
    b"{a:1}",
    b"{1:1}",
    b'{"a":1 "b":2}',
    b"// no\n1",
    b'"',
    b'"\\',
    b'"\\"',
    b'"\\x"',
    b'"\\u12"',
    b'"\\u 123"',
    b'"\\u+123"',
    b'"\n"',
    b'"\t"',
    b'"\xff"',
    b'"\xc0\xaf"',
    b'"\xed\xa0\x80"',
    b'"\\ud800"',
    b'"\\udc00"',
    b'"\\ud800\\u0041"',
    b'"\\udc00\\ud800"',
    b'"\\ud800\\ud800\\udc00"',
    b'{"\\ud800":1}',
    b'{"a":1,"a":1}',
    b'{"a":1,"a":2}',
    b'{"a": 1, "b": {"x": 1, "x": 1}}',
    b'[{"a":1,"\\u0061":2}]',
    b'{"a":1,"a":"\\u003a\\u003a"}',  # the lost colon comes back
    b'{"a":1,"a":"\\u003A"}',
    b'{"\\ud83d\\ude00":1,"\xf0\x9f\x98\x80":2}',
    nested(101),
    nested(101, b'{"a":', b"1", b"}"),
    nested(51, b'[{"]":', b"1", b"}]"),
    nested(100_000),
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'["' + b'\\"' * 100_000,
    b'["]",' * 101 + b"1" + b"]" * 101,  # brackets in strings do not close anything
]


@pytest.mark.parametrize("document", GOOD, ids=lambda document: repr(document[:40]))
def test_json_passes(document: bytes) -> None:
    assert is_json(document)
    assert passes(document)
    assert many_pass([b"1", document, b"{}"])


@pytest.mark.parametrize("document", BAD, ids=lambda document: repr(document[:40]))
def test_what_is_not_json_by_the_rules_of_the_door_is_refused(document: bytes) -> None:
    assert not is_json(document)
    assert not passes(document)
    assert not many_pass([b"1", document, b"{}"])


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (b"", "not JSON at character 0"),
        (b"[1,]", "not JSON at character 3"),
        (b"[NaN]", "NaN"),
        (b'{"a":1,"a":2}', "'a' twice"),
        (b'"\\ud800"', "lone surrogate"),
        (b'["\xff"]', "not UTF-8 at byte 2"),
        (nested(101), "more than 100 deep"),
        (b"[" * 101, "nested more than 100 deep"),
    ],
)
def test_the_refusal_says_what_is_wrong(document: bytes, says: str) -> None:
    with pytest.raises(Invalid, match=says) as caught:
        check_json(document)
    assert caught.value.field == "payload"


texts = st.text(st.sampled_from('ab:,"\\[]{}\n\u00e9\u2028\U0001f600 '), max_size=6)
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
documents = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
styles: list[dict[str, Any]] = [
    {},
    {"ensure_ascii": False},
    {"separators": (",", ":")},
    {"indent": 2},
]
# Pieces that mean something to a JSON parser, so that a changed document is nearly right.
pieces = [
    *(bytes([char]) for char in b'{}[]:,"\\ \n0123eE.+-aub\x00\xc3\xa9\xff\xed'),
    *(b'"a":', b'"a":1,', b"\\ud83d", b"\\ude00", b"\\u003a", b"\\u0061", b"NaN", b"[[", b"]]"),
]


@given(documents, st.sampled_from(styles))
def test_whatever_a_json_writer_writes_passes(value: Any, style: dict[str, Any]) -> None:
    document = json.dumps(value, **style).encode()
    assert is_json(document)
    assert passes(document)


@given(documents, st.sampled_from(styles), st.randoms(use_true_random=False))
def test_changed_documents_are_judged_as_the_slow_parser_judges_them(
    value: Any, style: dict[str, Any], chance: random.Random
) -> None:
    document = changed(json.dumps(value, **style).encode(), chance)
    assert passes(document) == is_json(document)


@given(st.lists(st.sampled_from(pieces), max_size=12).map(b"".join))
def test_rubble_is_judged_as_the_slow_parser_judges_it(document: bytes) -> None:
    assert passes(document) == is_json(document)


def changed(document: bytes, chance: random.Random) -> bytes:
    for _ in range(chance.randint(1, 3)):
        at = chance.randint(0, len(document))
        until = chance.randint(at, min(len(document), at + 3))
        kind = chance.randrange(3)
        if kind == 0:
            document = document[:at] + chance.choice(pieces) + document[until:]
        elif kind == 1:
            document = document[:at] + document[until:]
        else:  # say something twice
            document = document[:until] + document[at:]
    return document


@given(st.integers(90, 110), st.integers(0, 30), st.booleans())
def test_only_nesting_counts_as_depth(depth: int, beside: int, objects: bool) -> None:
    leaves = b",".join([b'[{"]":"[[{"}]'] * beside) or b"0"
    document = nested(depth, b'{"a":[', leaves, b"]}") if objects else nested(depth, b"[", leaves)
    assert passes(document) == is_json(document)


# -- many ------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(documents, st.sampled_from(styles)), min_size=1, max_size=6),
    st.none() | st.randoms(use_true_random=False),
)
def test_many_pass_if_and_only_if_each_of_them_does(
    written: list[tuple[Any, dict[str, Any]]], chance: random.Random | None
) -> None:
    each = [json.dumps(value, **style).encode() for value, style in written]
    if chance is not None:
        victim = chance.randrange(len(each))
        each[victim] = changed(each[victim], chance)
    assert many_pass(each) == all(map(is_json, each))


@given(st.lists(st.lists(st.sampled_from(pieces), max_size=5).map(b"".join), min_size=1))
@example([b"[1,", b"2]"])
@example([b"[1", b"2],3"])
@example([b"1 2", b""])
@example([b"1\n2", b""])
@example([b"1", b" ", b"2"])
@example([b'"a', b'b"'])
@example([b'{"a":1,"a":1}', b'"\\u003a"'])
@example([b"1\r", b"2"])
def test_no_document_leans_on_its_neighbour(each: list[bytes]) -> None:
    assert many_pass(each) == all(map(is_json, each))


@pytest.mark.parametrize("wrong", [0, 499, 500, 1_700])
def test_the_refusal_of_many_says_which_one(wrong: int) -> None:
    each = [b'{"n": 1}'] * 1_701
    each[wrong] = b'{"n": 1, "n": 2}'
    with pytest.raises(Invalid, match=f"of job {wrong + 1} has the key 'n' twice"):
        check_many("json", b"".join(each), list(accumulate(map(len, each))))


def test_many_large_documents_pass_too() -> None:
    each = [json.dumps(["x" * 300_000, *range(100)]).encode()] * 5
    assert many_pass(each)
    assert not many_pass([*each, b'["' + b"x" * 300_000])


# -- other codecs ----------------------------------------------------------------------------------


@given(documents)
def test_messagepack_passes(value: Any) -> None:
    try:
        packed = msgspec.msgpack.encode(value)
    except OverflowError:  # MessagePack ends at 64 bits
        return
    check_payload("msgpack", packed)
    check_many("msgpack", packed * 3, [len(packed) * times for times in (1, 2, 3)])
    with pytest.raises(Invalid):
        check_payload("msgpack", packed + b"\x00")


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\xc1",
        b"[]",
        b"\xa1\xff",
        b"\xa5ab",
        b"\xc0\xc0",
        b"\x92\x01",
        b"\xdd\xff\xff\xff\xff" * 50,
        b"\xdf\xff\xff\xff\xff",
        b"\x91" * 100_000,
        b"\x81\x01" * 100_000,
        b"\x91" * 101 + b"\xc0",
        b"\x81\x01" * 101 + b"\xc0",
        b"\x81" + b"\x91" * 100 + b"\xc0\xc0",
    ],
    ids=lambda packed: repr(packed[:20]),
)
def test_what_is_not_one_messagepack_value_is_refused(packed: bytes) -> None:
    with pytest.raises(Invalid) as caught:
        check_payload("msgpack", packed)
    assert caught.value.field == "payload"
    with pytest.raises(Invalid, match="of job 2"):
        check_many("msgpack", b"\x01" + packed, [1, 1 + len(packed)])


@pytest.mark.parametrize(
    "packed", [b"\x91" * 99 + b"\x90", b"\x81\x01" * 100 + b"\xc0", b"\xd4\x05a"]
)
def test_messagepack_may_be_nested_a_hundred_deep(packed: bytes) -> None:
    check_msgpack(packed)


@given(st.binary())
def test_random_bytes_are_messagepack_or_refused(packed: bytes) -> None:
    try:
        check_msgpack(packed)
    except Invalid as error:
        assert error.field == "payload"


@given(st.binary())
def test_bytes_are_never_looked_into(data: bytes) -> None:
    check_payload("bytes", data)
    check_many("bytes", data, [len(data)])


def test_the_digest_tells_codecs_and_contents_apart() -> None:
    digests = {
        digest("json", b"1"),
        digest("msgpack", b"1"),
        digest("bytes", b"1"),
        digest("json", b"1 "),
        digest("json", b""),
    }
    assert len(digests) == 5
    assert {len(each) for each in digests} == {payload.DIGEST_BYTES}
    assert digest("json", b"1") == digest("json", bytes([49]))


def test_the_digest_does_not_change_between_releases() -> None:
    assert digest("json", b"null").hex() == "619fd19489849da7fca2def5a4c46cac"
