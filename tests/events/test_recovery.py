"""What dead processes leave, and what damage does to what is sealed."""

import logging
from pathlib import Path

import pytest

from penstock.events.reader import BadLine, read
from penstock.events.recovery import recover
from penstock.events.segment import Place
from penstock.events.segments import Rules, Segments
from penstock.model.errors import Unavailable
from penstock.model.event import Mark
from tests.events.told import OTHER, STORE, lines_in, lines_of, names, positions

RULES = Rules(reserve_bytes=0, keep_s=0)
PLACE = Place(STORE, 1)


def test_a_last_line_that_is_torn_anywhere_is_cut(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole, last = lines_of(1, 2), lines_of(3)
    for length in range(len(last)):
        directory = tmp_path / str(length)
        directory.mkdir()
        (directory / PLACE.open).write_bytes(whole + last[:length])
        caplog.clear()
        recover(directory, STORE)
        assert names(directory) == [PLACE.sealed]
        assert (directory / PLACE.sealed).read_bytes() == whole
        assert len(caplog.records) == (length > 0)
        assert Segments(directory, STORE, RULES).mark == Mark(2, 0)


def test_what_never_reached_the_disk_is_cut_with_all_that_follows_it(tmp_path: Path) -> None:
    hole = bytes(len(lines_of(2)))
    (tmp_path / PLACE.open).write_bytes(lines_of(1) + hole + lines_of(3))
    recover(tmp_path, STORE)
    assert positions(lines_in(tmp_path / PLACE.sealed)) == [1]


def test_a_segment_without_a_whole_line_goes(tmp_path: Path) -> None:
    (tmp_path / PLACE.open).write_bytes(lines_of(1)[:-1])
    recover(tmp_path, STORE)
    assert names(tmp_path) == []


def test_what_a_dead_store_left_is_sealed_by_any_other(tmp_path: Path) -> None:
    (tmp_path / PLACE.open).write_bytes(lines_of(1))
    Segments(tmp_path, OTHER, RULES)
    assert names(tmp_path) == [PLACE.sealed]


def test_what_grows_is_left_to_the_store_that_writes_it(tmp_path: Path) -> None:
    living = Segments(tmp_path, STORE, RULES)
    living.append(lines_of(1), 1)
    Segments(tmp_path, OTHER, RULES)
    assert names(tmp_path) == [PLACE.open]
    with pytest.raises(Unavailable, match="somebody else"):
        Segments(tmp_path, STORE, RULES)
    living.seal()


def written(directory: Path) -> Path:
    """Three segments of three lines; answers the one in the middle."""
    segments = Segments(directory, STORE, RULES)
    for first in (1, 4, 7):
        segments.append(lines_of(first, first + 1, first + 2), first)
        segments.seal()
    return directory / Place(STORE, 4).sealed


def test_a_damaged_byte_costs_its_line_and_is_reported(tmp_path: Path) -> None:
    path = written(tmp_path)
    data = path.read_bytes()
    starts = [0, data.index(b"\n") + 1]
    starts.append(data.index(b"\n", starts[1]) + 1)
    for place in range(0, len(data), 7):
        path.write_bytes(data[:place] + b"\xff" + data[place + 1 :])
        number = sum(place >= start for start in starts)
        gone = {number + 3}
        if data[place : place + 1] == b"\n" and number < 3:
            gone.add(number + 4)  # the next line is no longer told from this one
        bad: list[BadLine] = []
        lines = list(read(tmp_path, bad=bad.append))
        assert positions(lines) == [each for each in range(1, 10) if each not in gone]
        assert [(each.path, each.number) for each in bad] == [(path, number)]
        assert bad[0].reason


def test_a_damaged_end_is_no_place_to_go_on_from(tmp_path: Path) -> None:
    written(tmp_path)
    last = tmp_path / Place(STORE, 7).sealed
    last.write_bytes(last.read_bytes()[:-4] + b"\0\0\0\0")
    assert Segments(tmp_path, STORE, RULES).mark == Mark(8, 0)
    last.write_bytes(bytes(100))
    assert Segments(tmp_path, STORE, RULES).mark == Mark(6, 0)


def test_a_bad_line_is_logged_where_nobody_else_wants_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path)
    path.write_bytes(b"what is this\n" + path.read_bytes())
    with caplog.at_level(logging.ERROR, "penstock.events"):
        assert len(list(read(tmp_path))) == 9
    assert f"{path}, line 1 cannot be read: JSON is malformed" in caplog.text
