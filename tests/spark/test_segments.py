"""Offsets of the event stream: immutable, replayable, bounded; without Spark around them."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes
from pyspark.sql.types import StructType

from penstock.model.errors import Invalid, NotFound
from penstock.spark.options import EventsOptions
from penstock.spark.segments import cut, line_end
from penstock.spark.stream import EventsStreamReader
from tests.spark.log import STORE, seal

OTHER = STORE[::-1]
POSITIONS = StructType().add("store", "string").add("position", "long")
ALL = ReadAllAvailable()


def reader(directory: Path, **said: Any) -> EventsStreamReader:
    return EventsStreamReader(EventsOptions(path=str(directory), **said), POSITIONS)


def between(stream: EventsStreamReader, start: Any, end: Any) -> list[tuple[str, int]]:
    return [
        (row["store"], row["position"])
        for partition in stream.partitions(start, end)
        for batch in stream.read(partition)
        for row in batch.to_pylist()
    ]


def test_everything_that_is_sealed_is_read_once(events: Path) -> None:
    seal(events, 1, 5)
    seal(events, 9, 3)
    seal(events, 1, 2, OTHER)
    (events / f"_open-{STORE}-000000000020.jsonl").write_bytes(b"{")
    stream = reader(events)
    end = stream.latestOffset({}, ALL)
    assert between(stream, {}, end) == [
        *((STORE, n) for n in (1, 2, 3, 4, 5, 9, 10, 11)),
        (OTHER, 1),
        (OTHER, 2),
    ]
    assert between(stream, end, end) == []
    assert stream.latestOffset(end, ALL) == end
    seal(events, 30, 1)
    later = stream.latestOffset(end, ALL)
    assert between(stream, end, later) == [(STORE, 30)]


@given(
    st.lists(st.integers(1, 8), min_size=1, max_size=5), st.integers(1, 3_000), st.integers(1, 999)
)
def test_batches_of_any_size_are_the_whole_and_nothing_twice(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], room: int, split: int
) -> None:
    events = tmp_path_factory.mktemp("events")
    at = 1
    for number, count in enumerate(counts):
        seal(events, at, count, STORE if number % 2 else OTHER)
        at += count + number
    stream = reader(events, split_bytes=split)
    whole = between(stream, {}, stream.latestOffset({}, ALL))
    offset: Any = {}
    read: list[tuple[str, int]] = []
    steps = []
    while (end := stream.latestOffset(offset, ReadMaxBytes(room))) != offset:
        part = between(stream, offset, end)
        assert part
        steps.append((offset, end, part))
        read += part
        offset = end
    assert sorted(read) == sorted(whole)
    for start, end, part in steps:  # as Spark does after a crash
        assert between(stream, start, end) == part


def test_a_stream_may_begin_behind_what_there_is(events: Path) -> None:
    seal(events, 1, 3)
    stream = reader(events, starting="latest")
    start = stream.initialOffset()
    seal(events, 7, 1)
    assert between(stream, start, stream.latestOffset(start, ALL)) == [(STORE, 7)]


def test_a_segment_that_retention_took_is_missed(events: Path) -> None:
    taken = seal(events, 1, 5)
    seal(events, 9, 5)
    stream = reader(events)
    half = stream.latestOffset({}, ReadMaxBytes(300))
    end = stream.latestOffset({}, ALL)
    taken.unlink()
    for start, until in (({}, end), ({}, half), (half, end)):
        with pytest.raises(NotFound, match="retention deleted it"):
            between(stream, start, until)
    assert between(stream, end, stream.latestOffset(end, ALL)) == []


def test_pieces_are_cut_between_lines(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"aaa\nbb\ncccc\nd\n")
    assert line_end(str(path), 1, 14) == 4
    assert line_end(str(path), 4, 14) == 4
    assert line_end(str(path), 5, 14) == 7
    assert line_end(str(path), 14, 14) == 14
    pieces = [(piece.begin, piece.end) for piece in cut(str(path), 0, 14, 2)]
    assert pieces == [(0, 4), (4, 7), (7, 12), (12, 14)]


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"path: .* does not exist here"):
        reader(tmp_path / "nothing").latestOffset({}, ALL)


def line(**said: Any) -> bytes:
    whole = {"v": 1, "store": STORE, "position": 9, "index": 0, "kind": "completed"}
    whole |= {"tenant": "t", "queue": "q", "at": 1, "count": 2, "ids": [[1, 2]]} | said
    return json.dumps({key: value for key, value in whole.items() if value is not None}).encode()


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        (b"not json", "JSON is malformed"),
        (line(kind=None), "missing required field"),
        (line(v=2), "version 2"),
        (line(position="x"), "Expected `int`"),
        (line(count=3), "it counts 3 jobs"),
        (line(ids=[[1, 1, 1]]), "Expected `array` of length 2"),
    ],
)
def test_a_damaged_line_is_named(events: Path, damaged: bytes, reason: str) -> None:
    path = seal(events, 1, 3)
    before = path.stat().st_size
    path.write_bytes(path.read_bytes() + line() + b"\n")
    stream = reader(events)
    assert len(between(stream, {}, stream.latestOffset({}, ALL))) == 4
    path.write_bytes(path.read_bytes()[:before] + damaged + b"\n")
    with pytest.raises(Invalid, match=f"has no event at byte {before}: .*{reason}"):
        between(stream, {}, stream.latestOffset({}, ALL))
