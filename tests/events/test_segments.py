"""The segment that grows: when it is sealed, how long it stays, and what an error leaves."""

import errno
import os
from pathlib import Path

import pytest

from penstock.events.segment import Place
from penstock.events.segments import Rules, Segments
from penstock.model.event import Mark
from tests.events.told import OTHER, STORE, lines_in, lines_of, names, positions

ROOMY = Rules(reserve_bytes=0, keep_s=0)


class Hands:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.at = 1_000_000.0

    def __call__(self) -> float:
        return self.at


def sealed(*sequences: int, store: str = STORE) -> list[str]:
    return [Place(store, sequence).sealed for sequence in sequences]


def test_what_is_appended_is_there_when_the_segment_is_sealed(tmp_path: Path) -> None:
    segments = Segments(tmp_path / "made" / "here", STORE, ROOMY)
    segments.append(lines_of(4), 4)
    segments.append(lines_of(5, 6), 5)
    assert names(segments.directory) == [Place(STORE, 4).open]
    segments.sync()
    segments.seal()
    assert names(segments.directory) == sealed(4)
    assert positions(lines_in(segments.directory / sealed(4)[0])) == [4, 5, 6]


def test_it_is_sealed_by_its_size(tmp_path: Path) -> None:
    size = len(lines_of(1)) * 3
    segments = Segments(tmp_path, STORE, Rules(reserve_bytes=0, keep_s=0, seal_bytes=size))
    for position in (1, 2):
        segments.append(lines_of(position), position)
        assert segments.due_s is not None
        assert segments.due_s > 0
    segments.append(lines_of(3), 3)
    assert segments.due_s == 0
    segments.seal()
    assert segments.due_s is None


def test_it_is_sealed_by_its_age_which_counts_from_its_first_line(tmp_path: Path) -> None:
    clock = Hands()
    segments = Segments(tmp_path, STORE, Rules(reserve_bytes=0, seal_s=10), clock=clock)
    clock.at += 100
    segments.append(lines_of(1), 1)
    assert segments.due_s == 10
    clock.at += 9
    segments.append(lines_of(2), 2)
    assert segments.due_s == 1
    clock.at += 2
    assert segments.due_s == 0
    segments.seal()
    clock.at += 100
    assert segments.due_s is None


def test_nothing_to_say_makes_no_segment(tmp_path: Path) -> None:
    segments = Segments(tmp_path, STORE, ROOMY)
    segments.sync()
    segments.seal()
    assert names(tmp_path) == []


def test_a_name_comes_once_even_if_the_files_are_gone(tmp_path: Path) -> None:
    for position in (3, 8):
        segments = Segments(tmp_path, STORE, ROOMY)
        segments.append(lines_of(position), position)
        segments.seal()
        assert names(tmp_path) == sealed(position)
        (tmp_path / sealed(position)[0]).unlink()


def test_it_goes_on_behind_what_is_there(tmp_path: Path) -> None:
    segments = Segments(tmp_path, STORE, ROOMY)
    assert segments.mark == Mark(0, 0)
    for position in (1, 1, 1):  # the events of one command in segments of their own
        segments.append(lines_of(position), position)
        segments.seal()
    assert names(tmp_path) == sealed(1, 2, 3)
    assert Segments(tmp_path, STORE, ROOMY).mark == Mark(1, 0)
    assert Segments(tmp_path, OTHER, ROOMY).mark == Mark(0, 0)


def kept(tmp_path: Path, rules: Rules) -> list[str]:
    """Five segments an hour apart, the last of which is sealed now; then what is left of them."""
    wall = Hands()
    segments = Segments(tmp_path, STORE, rules, wall=wall)
    (tmp_path / "notes.txt").write_text("not ours")
    for position in range(1, 6):
        segments.append(lines_of(position), position)
        place = Place(STORE, position)
        os.utime(tmp_path / place.open, (wall.at, wall.at))
        segments.seal()
        wall.at += 3_600
    (tmp_path / "notes.txt").unlink()
    return names(tmp_path)


def test_segments_go_when_they_are_too_old(tmp_path: Path) -> None:
    rules = Rules(reserve_bytes=0, keep_s=2 * 3_600)
    assert kept(tmp_path, rules) == sealed(3, 4, 5)


def test_the_oldest_segments_go_when_there_are_too_many(tmp_path: Path) -> None:
    rules = Rules(reserve_bytes=0, keep_s=0, keep_bytes=2 * len(lines_of(1)))
    assert kept(tmp_path, rules) == sealed(4, 5)


def test_the_newest_segment_of_the_store_stays(tmp_path: Path) -> None:
    assert kept(tmp_path, Rules(reserve_bytes=0, keep_s=0, keep_bytes=1)) == sealed(5)


def test_nothing_goes_unless_it_is_said(tmp_path: Path) -> None:
    assert kept(tmp_path, ROOMY) == sealed(1, 2, 3, 4, 5)


def test_segments_of_stores_that_are_gone_are_forgotten_as_well(tmp_path: Path) -> None:
    other = Segments(tmp_path, OTHER, ROOMY)
    other.append(lines_of(1, store=OTHER), 1)
    os.utime(tmp_path / Place(OTHER, 1).open, (1, 1))
    other.seal()
    segments = Segments(tmp_path, STORE, Rules(reserve_bytes=0, keep_s=60))
    segments.append(lines_of(1), 1)
    segments.seal()
    assert names(tmp_path) == sealed(1)


def test_a_write_that_fails_halfway_leaves_a_file_of_which_the_whole_lines_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments = Segments(tmp_path, STORE, ROOMY)
    segments.append(lines_of(1), 1)
    write, data = os.write, lines_of(2, 3)

    def half(handle: int, given: bytes) -> int:
        write(handle, given[: len(data) * 2 // 3])
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(OSError, match="no room"):
        segments.append(data, 2)
    monkeypatch.undo()
    segments.append(data, 2)
    segments.seal()
    assert names(tmp_path) == sealed(1, 2)
    assert positions(lines_in(tmp_path / sealed(1)[0])) == [1, 2]
    assert positions(lines_in(tmp_path / sealed(2)[0])) == [2, 3]


@pytest.mark.parametrize("step", ["sync", "seal"])
def test_a_sync_that_fails_ends_the_segment(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments = Segments(tmp_path, STORE, ROOMY)
    segments.append(lines_of(1), 1)

    def fails(handle: int) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="broken"):
        getattr(segments, step)()
    assert segments.left
    monkeypatch.undo()
    segments.append(lines_of(2), 2)
    segments.seal()
    assert names(tmp_path) == sealed(1, 2)


def test_nothing_is_written_where_the_store_needs_the_room(tmp_path: Path) -> None:
    segments = Segments(tmp_path, STORE, Rules(reserve_bytes=1 << 60))
    with pytest.raises(OSError, match="are free"):
        segments.append(lines_of(1), 1)
    assert names(tmp_path) == []


def test_a_child_of_the_process_does_not_keep_the_segment(tmp_path: Path) -> None:
    segments = Segments(tmp_path, STORE, ROOMY)
    segments.append(lines_of(1), 1)
    (reads, writes), (hears, says) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writes)
        os.write(says, b"!")
        os.read(reads, 1)  # until the parent is done
        os._exit(0)
    os.read(hears, 1)
    segments.let_go()  # as its death does
    assert Segments(tmp_path, STORE, ROOMY).mark == Mark(1, 0)
    os.close(writes)
    os.waitpid(child, 0)
    for handle in (reads, hears, says):
        os.close(handle)
