"""A checkpoint is the state at the position where it began, whatever happens while it is written.

`Shelf` does a journal's part: it fetches rows in slices and keeps the newest of each object. Random
histories go on meanwhile. Two questions are put to them. Is every change announced before it is
made? Then whatever differs from its row is noted, and whatever is still to be written is as it was.
And does a kernel made from the rows go on from that position as the live one did?
"""

import os
from random import Random
from typing import Any

import pytest

from penstock.kernel import records
from penstock.kernel.changes import DONE
from penstock.kernel.checkpoint import Checkpoint, Row
from penstock.kernel.kernel import Kernel
from penstock.kernel.records import KINDS
from tests.unit.history import History, Step, play

Place = tuple[str, bytes]  # a row's kind and key


def objects(kernel: Kernel) -> dict[Place, bytes]:
    """Every object as it is now."""
    return {
        (kind.name, kind.place(key)): records.encode(kind.record(key, kind.find(kernel, key)))
        for kind in KINDS
        for key in kind.keys(kernel)
    }


def noted(kernel: Kernel) -> set[Place]:
    """The objects that the next checkpoint will write."""
    changes = kernel.changes
    found = {
        (name, dirty.kind.place(key))
        for name, dirty in changes.dirty.items()
        for key in dirty.noted
    }
    since = kernel.era if changes.last is not None and changes.last.running else changes.since
    return found | {
        ("leases", token.encode()) for token, lease in kernel.leases.items() if lease.era >= since
    }


def to_write(kernel: Kernel) -> set[Place]:
    """The objects that the running checkpoint has yet to write."""
    changes = kernel.changes
    found = {
        (name, dirty.kind.place(key))
        for name, dirty in changes.dirty.items()
        for key, known in dirty.taken.items()
        if not known & DONE
    }
    return found | {
        ("leases", token.encode())
        for token, lease in kernel.leases.items()
        if changes.is_new(lease)
    }


class Shelf:
    """Keeps the newest row of each object, over all checkpoints given in full."""

    def __init__(self, kernel: Kernel, kept: dict[Place, bytes] | None = None) -> None:
        self.kernel = kernel
        self.kept: dict[Place, bytes] = dict(kept or {})
        self.checkpoint: Checkpoint | None = None
        self.new: dict[Place, bytes | None] = {}
        self.then: dict[Place, bytes] = {}
        self.digest = ""

    def begin(self) -> None:
        self.digest, self.then = self.kernel.digest(), objects(self.kernel)
        self.checkpoint = self.kernel.checkpoint()
        self.new = {}
        assert self.checkpoint.position == self.kernel.position

    def fetch(self, budget: int) -> bool:
        """One slice; False once the checkpoint is complete."""
        assert self.checkpoint is not None
        rows = self.checkpoint.rows(budget)
        for row in rows:
            place = (row.kind, row.key)
            assert place not in self.new, "an object is given once"
            assert row.kind == "meta" or row.data == self.then.get(place), place
            self.new[place] = row.data
        if rows:
            return True
        self.close()
        return False

    def close(self) -> None:
        assert self.checkpoint is not None
        merged = self.kept | self.new
        self.kept = {place: data for place, data in merged.items() if data is not None}
        counted = dict.fromkeys(self.checkpoint.counts, 0)
        for kind, _ in self.kept:
            counted[kind] += 1
        assert counted == self.checkpoint.counts
        assert self.restored().digest() == self.digest
        self.checkpoint = None

    def fetch_all(self) -> list[Row]:
        assert self.checkpoint is not None
        given: list[Row] = []
        while rows := self.checkpoint.rows(1 << 20):
            given += rows
            self.new |= {(row.kind, row.key): row.data for row in rows}
        self.close()
        return given

    def take(self) -> list[Row]:
        self.begin()
        return self.fetch_all()

    def abandon(self) -> None:
        assert self.checkpoint is not None
        self.checkpoint.abandon()
        self.checkpoint = None

    def restored(self) -> Kernel:
        return Kernel.decode(self.kept.values(), self.kernel.caps, clean=True)


def differing(one: dict[Place, bytes], other: dict[Place, bytes]) -> set[Place]:
    """Objects that are not the same in both; the row of the whole is written every time."""
    places = (one.keys() | other.keys()) - {("meta", b"")}
    return {place for place in places if one.get(place) != other.get(place)}


def all_is_announced(shelf: Shelf) -> None:
    kernel = shelf.kernel
    now = objects(kernel)
    if shelf.checkpoint is None:
        assert differing(now, shelf.kept) <= noted(kernel)
        return
    assert differing(now, shelf.then) <= noted(kernel)
    pending = to_write(kernel)
    assert not differing(now, shelf.then) & pending
    saved = {(row.kind, row.key) for row in kernel.changes.saved}
    assert not saved & pending
    assert differing(shelf.kept, shelf.then) <= pending | saved | shelf.new.keys()


def act(shelf: Shelf, random: Random) -> None:
    """What a journal may do between two commands."""
    roll = random.random()
    if shelf.checkpoint is None:
        if roll < 0.1:
            shelf.begin()
    elif roll < 0.01:
        shelf.abandon()
    elif roll < 0.5:
        shelf.fetch(random.choice((1, 1, 200, 3_000)))


def histories_announce_all(seed: int, length: int) -> None:
    history = History(seed)
    shelf = Shelf(history.kernel)
    shelf.take()
    for number, (step, _) in enumerate(history.steps(length)):
        try:
            all_is_announced(shelf)
        except AssertionError as error:
            raise AssertionError(f"step {number}: {step.command}") from error
        act(shelf, history.random)


@pytest.mark.parametrize("seed", range(24))
def test_every_change_is_announced_before_it_is_made(seed: int) -> None:
    histories_announce_all(seed, 400)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2_000, 2_000 + int(os.environ.get("PENSTOCK_SEEDS", "200"))))
def test_at_length_every_change_is_announced(seed: int) -> None:
    histories_announce_all(seed, 2_000)


def replayed(shelf: Shelf, told: list[tuple[Step, Any]]) -> Kernel:
    """Restored from the last checkpoint, it hears what came after and answers as the live one."""
    kernel = shelf.restored()
    for step, answer in told[kernel.position :]:
        assert play(kernel, step) == answer, f"step {kernel.position}: {step.command}"
    return kernel


def histories_recover(seed: int, length: int) -> None:
    history = History(seed)
    live = history.kernel
    shelf = Shelf(live)
    told: list[tuple[Step, Any]] = []
    for number, played in enumerate(history.steps(length)):
        told.append(played)
        act(shelf, history.random)
        if shelf.kept and number % 50 == 49:
            assert replayed(shelf, told).digest() == live.digest()
    if shelf.checkpoint is not None:
        shelf.fetch_all()
    other = replayed(shelf, told)
    second = Shelf(other, shelf.kept)
    for step, answer in history.steps(length):
        assert play(other, step) == answer, f"step {other.position}: {step.command}"
        act(second, history.random)
    if second.checkpoint is not None:
        second.fetch_all()
    second.take()
    assert second.digest == live.digest()


@pytest.mark.parametrize("seed", range(100, 116))
def test_a_kernel_from_the_rows_goes_on_from_where_the_checkpoint_began(seed: int) -> None:
    histories_recover(seed, 400)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3_000, 3_000 + int(os.environ.get("PENSTOCK_SEEDS", "200"))))
def test_at_length_kernels_from_rows_go_on(seed: int) -> None:
    histories_recover(seed, 2_000)
