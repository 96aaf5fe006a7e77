"""Reading what is sealed: in order, each event once."""

from pathlib import Path

from penstock.events.reader import BadLine, read
from penstock.events.segment import Missing, Place, encode, encode_gap
from tests.events.told import OTHER, STORE, event, lines_of, positions


def put(directory: Path, sequence: int, data: bytes, store: str = STORE) -> Path:
    path = directory / Place(store, sequence).sealed
    path.write_bytes(data)
    return path


def test_stores_come_one_after_the_other_and_segments_in_order(tmp_path: Path) -> None:
    put(tmp_path, 10, lines_of(10, 11))
    put(tmp_path, 9, lines_of(8, 9))
    put(tmp_path, 1, lines_of(1, store=OTHER), OTHER)
    found = [(line.store, line.position) for line in read(tmp_path)]
    assert found == [(STORE, 8), (STORE, 9), (STORE, 10), (STORE, 11), (OTHER, 1)]
    assert positions(list(read(tmp_path, store=OTHER))) == [1]


def test_an_event_that_was_written_twice_is_told_once(tmp_path: Path) -> None:
    put(tmp_path, 1, encode(STORE, [event(1), event(2, 0), event(2, 1)]))
    put(tmp_path, 2, encode(STORE, [event(2, 1), event(2, 2), event(3)]))
    put(tmp_path, 3, encode(STORE, [event(1), event(3), event(4)]))
    found = [(line.position, line.index) for line in read(tmp_path)]
    assert found == [(1, 0), (2, 0), (2, 1), (2, 2), (3, 0), (4, 0)]


def test_a_gap_stands_before_the_events_that_were_found_after_all(tmp_path: Path) -> None:
    put(tmp_path, 1, lines_of(1) + encode_gap(STORE, 2, Missing(3), "failed", 1) + lines_of(2, 3))
    assert [(line.kind, line.position) for line in read(tmp_path)] == [
        ("pushed", 1),
        ("gap", 2),
        ("pushed", 2),
        ("pushed", 3),
    ]


def test_what_grows_and_what_is_not_ours_is_not_read(tmp_path: Path) -> None:
    put(tmp_path, 1, lines_of(1))
    (tmp_path / Place(STORE, 2).open).write_bytes(lines_of(2))
    (tmp_path / "events-of-mine.jsonl").write_bytes(lines_of(3))
    assert positions(list(read(tmp_path))) == [1]


def test_a_line_of_another_store_is_no_line_of_this_one(tmp_path: Path) -> None:
    path = put(tmp_path, 1, lines_of(1) + lines_of(2, store=OTHER) + lines_of(3)[:-1])
    bad: list[BadLine] = []
    assert positions(list(read(tmp_path, bad=bad.append))) == [1]
    assert [(each.path, each.number) for each in bad] == [(path, 2), (path, 3)]
    assert f"store {OTHER}" in bad[0].reason
