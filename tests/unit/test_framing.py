"""Bytes to messages: the same however they arrive, never more than was allowed, in linear time."""

import json
import tracemalloc
from collections.abc import Iterable, Iterator
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol.framing import HEADER, BadFrame, Frames, Message, encoding_of


def framed(*payloads: bytes) -> bytes:
    return b"".join(len(payload).to_bytes(4, "big") + payload for payload in payloads)


def taken(frames: Frames) -> Iterator[bytes]:
    while (message := frames.take()) is not None:
        yield bytes(message)


def messages(pieces: Iterable[bytes], limit: int = 1_000) -> list[bytes]:
    """The same in both ways in which they can be had."""
    pieces = list(pieces)
    frames, others = Frames(limit), Frames(limit)
    came: list[bytes] = []
    alone: list[bytes] = []
    for piece in pieces:
        frames.feed(piece)
        came += taken(frames)
        if others.feed_alone(piece):
            assert not others.rest
            alone.append(piece[HEADER:])
        alone += taken(others)
        assert others.begun == frames.begun
    assert not frames.rest
    assert alone == came
    return came


FRAMES = [b"\x81\xa3cmd\xa4PING", b"x", b'{"cmd":"PING"}', b"\0" * 300, b"\n{"]
LINES = [b'{"cmd":"PING"}', b'{"a":"}{"}', b"{}", b'{"reqId":1}\r', b'{"x":"' + b"y" * 300 + b'"}']
STREAMS = {
    "frames": (framed(*FRAMES), FRAMES),
    "lines": (b"".join(line + b"\n" for line in LINES), LINES),
}


@pytest.mark.parametrize("kind", STREAMS)
def test_every_split_of_a_stream_gives_the_same_messages(kind: str) -> None:
    stream, expected = STREAMS[kind]
    assert messages([stream]) == expected
    for cut in range(len(stream) + 1):
        assert messages([stream[:cut], stream[cut:]]) == expected
    for size in range(1, 40):
        pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
        assert messages(pieces) == expected


def test_a_frame_that_comes_by_itself_is_not_kept() -> None:
    frames = Frames(100)
    assert not frames.feed_alone(framed(b"first")), "nobody knows yet that these are frames"
    assert list(taken(frames)) == [b"first"]
    assert frames.feed_alone(framed(b"second"))
    assert frames.take() is None, "it is read where it lies"
    assert not frames.rest
    for other in (b"", b"\0\0", framed(b""), framed(b"a", b"b"), framed(b"x" * 100)[:50]):
        assert not frames.feed_alone(other)
        frames = Frames(100)
        frames.lines = False
    assert not frames.feed_alone(framed(bytes(97))), "as large as may be: looked at closely"


@given(st.lists(st.binary(min_size=1, max_size=30), max_size=6), st.data())
def test_any_split_of_any_frames(payloads: list[bytes], data: st.DataObject) -> None:
    stream = framed(*payloads)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=8)))
    edges = [0, *cuts, len(stream)]
    pieces = [stream[a:b] for a, b in pairwise(edges)]
    assert messages(pieces) == payloads


def test_a_message_waits_until_somebody_takes_it() -> None:
    frames = Frames()
    frames.feed(framed(b"a", b"b"))
    frames.feed(framed(b"c")[:3])
    assert frames.take() == b"a"
    assert frames.rest
    assert frames.take() == b"b"
    assert frames.take() is None
    assert frames.begun
    frames.feed(framed(b"c")[3:] + b"\0\0")
    assert frames.take() == b"c"
    assert frames.take() is None
    assert frames.begun


def test_nothing_is_begun_between_messages() -> None:
    for stream in (framed(b"a"), b"{}\n"):
        frames = Frames()
        assert not frames.begun
        frames.feed(stream)
        list(taken(frames))
        assert not frames.begun


def test_the_first_byte_tells_lines_from_frames() -> None:
    lines, frames = Frames(), Frames()
    lines.feed(b"{")
    frames.feed(b"\0")
    assert lines.take() is None
    assert frames.take() is None
    assert lines.lines is True
    assert frames.lines is False
    assert encoding_of(b"{}") == "json"
    assert encoding_of(msgspec.msgpack.encode({"cmd": "PING"})) == "msgpack"


def test_blank_lines_say_nothing() -> None:
    assert messages([b"{}\n\n \r\n{}\n"]) == [b"{}", b"{}"]


@pytest.mark.parametrize(
    ("stream", "code"),
    [
        (framed(b"x" * 1_001), "payload_too_large"),
        (b"\xff\xff\xff\xff", "payload_too_large"),
        (b"GET / HTTP/1.1\r\n", "payload_too_large"),
        (b"\0\0\0\0", "invalid"),
        (b"{" + b"x" * 1_000, "payload_too_large"),
        (b"{" + b"x" * 1_000 + b"\n", "payload_too_large"),
    ],
)
def test_what_is_no_message_ends_the_conversation_however_it_comes(
    stream: bytes, code: str
) -> None:
    for pieces in ([stream], [stream[at : at + 1] for at in range(len(stream))]):
        with pytest.raises(BadFrame) as caught:
            messages(pieces)
        assert caught.value.code == code


def test_the_largest_message_allowed_is_taken() -> None:
    assert messages([framed(b"x" * 1_000)]) == [b"x" * 1_000]
    line = b'{"x":"' + b"y" * 992 + b'"}'
    assert len(line) == 1_000
    assert messages([line + b"\n"]) == [line]


def test_the_limit_may_be_raised_between_messages() -> None:
    frames = Frames(4)
    frames.feed(framed(b"abcd", b"abcde"))
    assert frames.take() == b"abcd"
    frames.limit = 5
    assert frames.take() == b"abcde"


def test_a_length_sets_nothing_aside() -> None:
    frames = Frames(2**30)
    tracemalloc.start()
    try:
        frames.feed((2**30).to_bytes(4, "big") + b"x")
        assert frames.take() is None
        assert tracemalloc.get_traced_memory()[1] < 10_000
    finally:
        tracemalloc.stop()


def test_a_large_message_in_small_pieces_is_gathered_in_one_buffer() -> None:
    payload = bytes(100_000)
    for stream, piece in ((framed(payload), 1), (b"{" + b"x" * 100_000 + b"\n", 7)):
        frames = Frames(2**20)
        whole: Message | None = None
        tracemalloc.start()
        try:
            for at in range(0, len(stream), piece):
                frames.feed(stream[at : at + piece])
                whole = frames.take()
            assert whole is not None
            assert len(whole) >= 100_000
            # One buffer that grew, not a list of pieces: at most half as much again.
            assert tracemalloc.get_traced_memory()[1] < 270_000
        finally:
            tracemalloc.stop()


def test_json_survives_the_way() -> None:
    said = {"cmd": "PING", "reqId": "ä\n"}
    (line,) = messages([json.dumps(said).encode() + b"\n"])
    assert json.loads(line) == said
