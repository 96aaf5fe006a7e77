"""Lines: what an event becomes, and what is no line."""

import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.events.segment import Line, Missing, Place, decode, encode, encode_gap, ranges
from penstock.model.event import Event, EventKind
from penstock.model.job import IdRun, Ids
from tests.events.told import STORE, event

number = st.integers(0, 2**53 - 1)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
masks = st.lists(st.booleans(), min_size=1, max_size=40).map(bytes)
runs = st.one_of(
    st.builds(IdRun, number, st.integers(1, 5_000)),
    st.builds(lambda first, mask: IdRun(first, len(mask), mask), number, masks),
)
events = st.builds(
    Event,
    kind=st.sampled_from(get_args(EventKind)),
    tenant=text,
    queue=text,
    at=number,
    ids=st.lists(runs, max_size=3).map(lambda found: Ids(tuple(found))),
    attempt=number,
    pushed_at=number,
    ready_at=number,
    claimed_at=number,
    run_at=number,
    worker=text,
    task=text,
    priority=st.integers(-(2**31), 2**31 - 1),
    bytes=number,
    reason=text,
    error_kind=text,
    error_message=text,
    cause=text,
    held=st.booleans(),
    data=text,
    position=number,
    index=number,
)


@given(st.lists(events, max_size=4))
def test_a_line_says_what_its_event_says(told: list[Event]) -> None:
    lines = [decode(line) for line in encode(STORE, told).splitlines(keepends=True)]
    assert len(lines) == len(told)
    for line, one in zip(lines, told, strict=True):
        assert line.store == STORE
        for field in set(Line.__struct_fields__) - {"v", "store", "count", "ids"}:
            assert getattr(line, field) == getattr(one, field), field
        assert [i for first, n in line.ids for i in range(first, first + n)] == list(one.ids)
        assert line.count == len(one.ids)


def test_every_field_of_an_event_is_in_the_line() -> None:
    assert set(Event.__struct_fields__) | {"v", "store", "count"} == set(Line.__struct_fields__)


def test_a_line_is_the_one_that_was_agreed() -> None:
    told = event(
        123,
        kind="completed",
        ids=Ids((IdRun(100_000, 10_000),)),
        attempt=1,
        pushed_at=5,
        worker="w1",
    )
    assert json.loads(encode(STORE, [told])) == {
        "v": 1,
        "store": STORE,
        "position": 123,
        "index": 0,
        "kind": "completed",
        "tenant": "acme",
        "queue": "emails",
        "at": 1_700_000_000_123,
        "count": 10_000,
        "ids": [[100_000, 10_000]],
        "attempt": 1,
        "pushed_at": 5,
        "worker": "w1",
    }


def test_a_mask_becomes_ranges_of_one_line() -> None:
    ids = Ids((IdRun(10, 6, bytes([0, 1, 1, 0, 0, 1])), IdRun(4, 2), IdRun(7, 2, bytes(2))))
    assert ranges(ids) == [(11, 2), (15, 1), (4, 2)]
    assert encode(STORE, [event(1, ids=ids)]).count(b"\n") == 1


def test_a_gap_says_what_is_missing_and_comes_before_what_it_is_about() -> None:
    line = decode(encode_gap(STORE, 7, Missing(9, 4), "dropped", 5))
    assert (line.position, line.index, line.kind, line.reason) == (7, -1, "gap", "dropped")
    assert json.loads(line.data) == {"through": 9, "events": 4}


def test_a_field_of_a_later_release_is_skipped() -> None:
    said = json.loads(encode(STORE, [event(1)])) | {"mood": "good"}
    assert decode(json.dumps(said).encode()).position == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"v": 2}, "version 2"),
        ({"at": "noon"}, "at"),
        ({"count": 3}, "counts 3 jobs, and names 1"),
        ({"ids": [[1]]}, "ids"),
    ],
)
def test_what_is_no_line_says_why(change: dict[str, object], reason: str) -> None:
    said = json.loads(encode(STORE, [event(1)])) | change
    with pytest.raises(ValueError, match=reason):
        decode(json.dumps(said).encode())


@pytest.mark.parametrize("text", [b"", b"\n", b"\0\0\0\n", b"[]\n", b"{}\n", b'{"v":1,"\xff'])
def test_bytes_that_are_no_line_are_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(text)


def test_names_sort_in_the_order_of_writing() -> None:
    places = [Place(STORE, sequence) for sequence in (1, 9, 10, 10**11)]
    assert sorted(place.sealed for place in places) == [place.sealed for place in places]
    assert Place(STORE, 7).sealed == f"events-{STORE}-000000000007.jsonl"
    assert Place(STORE, 7).open == f"_open-{STORE}-000000000007.jsonl"
