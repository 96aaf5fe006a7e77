"""The failure model, on timelines written by hand."""

from collections.abc import Sequence

import pytest

from tests.faults.powerloss.effects import (
    NEVER,
    ROOT,
    Effect,
    Entry,
    Inode,
    Mark,
    Rename,
    Resize,
    Sync,
    Timeline,
    Tree,
    Write,
)
from tests.faults.powerloss.images import Image, images

A, B, SUB = Inode(1), Inode(2), Inode(3)
OLD = b"o" * 2048


def found(effects: Sequence[Effect], *, count: int = 400, strict: bool = False) -> list[Image]:
    """Images of cuts behind the last effect; the file `a` is there, with `OLD` in it."""
    timeline = Timeline(Tree({A: OLD}, {(ROOT, "a"): A}), [*effects, Mark("end")], frozenset({SUB}))
    drawn = images(timeline, 1, count * 5, strict=strict, ignored=())
    return [image for image in drawn if image.markers]


def contents(effects: Sequence[Effect], name: str = "a") -> set[bytes | None]:
    return {image.files.get(name) for image in found(effects)}


def created(inode: Inode, name: str, returned: int, directory: Inode = ROOT) -> Rename:
    return Rename((Entry(directory, name, inode),), inode, returned)


def test_a_sync_covers_what_had_returned_before_it_was_entered() -> None:
    new = OLD.replace(b"o", b"n")
    assert contents([Write(A, 0, new, 3), Sync(A, 4)]) == {new}
    assert contents([Write(A, 0, new, 5), Sync(A, 4)]) > {OLD, new}
    assert contents([Write(A, 0, new, NEVER), Sync(A, 4)]) > {OLD, new}


def test_a_write_is_torn_at_sectors_only() -> None:
    seen = contents([Write(A, 0, b"n" * 2048, 1)])
    for data in seen:
        assert data is not None
        assert all(data[at : at + 512] in {b"n" * 512, b"o" * 512} for at in range(0, 2048, 512))
    assert len(seen) == 16


def test_a_sector_is_found_as_it_was_at_one_moment() -> None:
    writes = [Write(A, at * 100, bytes([at]) * 100, at) for at in range(5)]
    moments = {bytes(b for at in range(n) for b in [at] * 100) for n in range(6)}
    assert contents(writes) == {moment + OLD[len(moment) :] for moment in moments}


def test_a_later_write_over_a_synced_one_leaves_one_of_both() -> None:
    effects: list[Effect] = [Write(A, 0, b"1" * 512, 1), Sync(A, 2), Write(A, 0, b"2" * 512, 4)]
    assert contents(effects) == {b"1" * 512 + OLD[512:], b"2" * 512 + OLD[512:]}


def test_a_file_longer_than_its_data_shows_zeros() -> None:
    seen = contents([Write(A, 2048, b"n" * 512, 1)])
    assert seen == {OLD, OLD + b"n" * 512, OLD + bytes(512)}


def test_a_cut_that_is_lost_loses_what_was_written_behind_it() -> None:
    seen = contents([Resize(A, 0, 1), Write(A, 0, b"n" * 512, 3)])
    assert seen == {OLD, b"", b"n" * 512, bytes(512)}


def test_a_rename_is_there_or_not_and_never_half() -> None:
    moved = Rename((Entry(ROOT, "b", None), Entry(ROOT, "a", B)), None, 5)
    new: list[Effect] = [created(B, "b", 1), Write(B, 0, b"new", 2), Sync(B, 3), moved]
    seen = {tuple(sorted(image.files.items())) for image in found(new)}
    assert seen == {(("a", OLD), ("b", b"new")), (("a", b"new"),)}
    assert contents([*new, Sync(ROOT, 6)]) == {b"new"}


def test_a_removed_name_may_come_back_until_its_directory_is_synced() -> None:
    removed = Rename((Entry(ROOT, "a", None),), None, 1)
    assert contents([removed]) == {None, OLD}
    assert contents([removed, Sync(ROOT, 2)]) == {None}


@pytest.mark.parametrize("strict", [False, True])
def test_a_sync_of_a_new_file_makes_its_name_durable_unless_strict(strict: bool) -> None:
    made: list[Effect] = [created(SUB, "sub", 1), created(B, "b", 2, SUB), Write(B, 0, b"new", 3)]
    seen = {image.files.get("sub/b") for image in found([*made, Sync(B, 4)], strict=strict)}
    assert seen == ({None, b"new"} if strict else {b"new"})
    all_synced = [*made, Sync(B, 4), Sync(SUB, 4), Sync(ROOT, 4)]
    assert {image.files.get("sub/b") for image in found(all_synced, strict=strict)} == {b"new"}


def test_a_sync_of_everything_covers_everything() -> None:
    effects: list[Effect] = [
        created(B, "b", 1),
        Write(B, 0, b"new", 2),
        Resize(A, 1, 3),
        Sync(None, 4),
    ]
    seen = {tuple(sorted(image.files.items())) for image in found(effects, strict=True)}
    assert seen == {(("a", b"o"), ("b", b"new"))}


def test_an_image_knows_the_marks_before_its_cut() -> None:
    effects: list[Effect] = []
    for at in range(30):
        effects += [Write(A, 0, bytes([at]), 2 * at), Sync(A, 2 * at + 1), Mark(str(at))]
    timeline = Timeline(Tree({A: OLD}, {(ROOT, "a"): A}), effects, frozenset())
    drawn = list(images(timeline, 7, 300, strict=False, ignored=()))
    for image in drawn:
        assert list(image.markers) == [str(at) for at in range(len(image.markers))]
        if image.markers:
            assert image.files["a"][0] in {len(image.markers) - 1, len(image.markers)}
    assert len({len(image.markers) for image in drawn}) > 25


def test_the_same_seed_draws_the_same_images() -> None:
    effects = [Write(A, at * 300, bytes([at]) * 700, at) for at in range(9)]
    assert found(effects, count=20) == found(effects, count=20)
