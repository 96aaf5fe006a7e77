"""When a checkpoint is due: by the log's size, by the time its replay would take, by its cost."""

from array import array
from itertools import count

import pytest

from penstock.kernel import commands as c
from penstock.kernel.kernel import Kernel
from penstock.model.job import JobOptions
from penstock.model.policy import DEFAULT_CAPS
from penstock.stores.journal import checkpointer as module
from penstock.stores.journal.base import Batch
from penstock.stores.journal.checkpointer import GROWN, SHARE, Checkpointer, CheckpointFact

OPTIONS = (JobOptions(codec="bytes"),)


class Times:
    """Both of the module's clocks, moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        monkeypatch.setattr(module, "monotonic", lambda: self.now)
        monkeypatch.setattr(module, "thread_time", lambda: 0.0)


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    return Times(monkeypatch)


@pytest.fixture
def subject(times: Times) -> Checkpointer:
    return Checkpointer(Kernel(1, DEFAULT_CAPS), CheckpointFact())


def write_one(subject: Checkpointer, seconds: float) -> int:
    """A checkpoint whose every batch takes its thread so long; answers how many there were."""
    for batches in count(1):
        batch = Batch()
        subject.feed(batch)
        subject.written(batch, False, seconds)
        if not subject.working:
            return batches
    raise AssertionError


def test_it_is_due_when_a_replay_would_take_too_long(subject: Checkpointer) -> None:
    while not subject.due:
        subject.noted(10, 0.015_625)
    assert subject.records == 128
    assert subject.opening_s == subject.every_s


def test_commands_that_take_no_time_are_bounded_by_their_number_and_size(
    subject: Checkpointer,
) -> None:
    subject.every_records = 10
    due = []
    for _ in range(10):
        due.append(subject.due)
        subject.noted(1, 0.0)
    due.append(subject.due)
    write_one(subject, 0.0)
    due.append(subject.due)
    subject.noted(subject.every_bytes, 0.0)
    due.append(subject.due)
    assert due == [*[False] * 10, True, False, True]


def test_what_an_opening_would_replay_shrinks_when_one_is_finished(subject: Checkpointer) -> None:
    subject.noted(10, 3.0)
    batch = Batch()
    subject.feed(batch)
    assert subject.working
    assert batch.rows
    subject.noted(10, 0.5)
    assert subject.opening_s == 3.5
    subject.written(batch, False, 0.0)
    write_one(subject, 0.0)
    assert subject.opening_s == 0.5
    assert subject.last.number == 1


def test_checkpoints_take_a_tenth_of_the_time_while_the_replay_is_short_enough(
    subject: Checkpointer, times: Times
) -> None:
    subject.noted(10, subject.every_s)
    subject.feed(batch := Batch())
    subject.written(batch, False, 4.0)
    write_one(subject, 0.0)
    rest_s = 4.0 * (1 / SHARE - 1)
    assert subject.rest_s == 0.0, "nothing waits"
    subject.noted(10, subject.every_s)
    assert (subject.due, subject.busy) == (False, False)
    assert subject.rest_s == pytest.approx(rest_s)
    times.now += rest_s - 0.001
    assert not subject.due
    times.now += 0.002
    assert subject.due


@pytest.mark.parametrize("cost_s", [4.0, 400.0])
def test_a_replay_that_has_grown_ends_the_rest_unless_a_checkpoint_costs_more(
    subject: Checkpointer, cost_s: float
) -> None:
    subject.noted(10, subject.every_s)
    subject.feed(batch := Batch())
    subject.written(batch, False, cost_s)
    write_one(subject, 0.0)
    subject.noted(10, max(GROWN * subject.every_s, cost_s) - 0.001)
    assert subject.rest_s > 0.0
    subject.noted(10, 0.001)
    assert subject.rest_s == 0.0
    assert subject.due


def test_a_log_that_is_too_large_ends_the_rest(subject: Checkpointer) -> None:
    subject.noted(10, subject.every_s)
    subject.feed(batch := Batch())
    subject.written(batch, False, 4.0)
    write_one(subject, 0.0)
    subject.noted(subject.every_bytes, subject.every_s)
    assert subject.due


def many_blocks() -> Kernel:
    kernel = Kernel(1, DEFAULT_CAPS)
    ends = array("I", [0] * 4_000)
    for number in range(40):
        kernel.position += 1
        load = c.Load(queue=f"q{number}", chunk=1, start=0, ends=ends, options=OPTIONS)
        kernel.apply(c.Push(tenant="acme", loads=(load,)), 1, 1)
    return kernel


@pytest.mark.parametrize("turn_s", [0.0, 100.0])
def test_a_slice_is_longer_where_turns_are(times: Times, turn_s: float) -> None:
    """Here no time passes while a slice is made: it grows as far as it may, or not at all."""
    subject = Checkpointer(many_blocks(), CheckpointFact())
    subject.slice = 1
    subject.begin()
    sizes = []
    while subject.working:
        times.now += turn_s
        batch = Batch()
        subject.feed(batch)
        sizes.append(len(batch.rows))
        subject.written(batch, False, 0.0)
    assert max(sizes) == (module.SLICES if turn_s else 1)


def test_what_could_not_be_written_is_for_the_next_one(subject: Checkpointer) -> None:
    kernel = many_blocks()
    subject = Checkpointer(kernel, CheckpointFact())
    subject.slice = 1
    subject.begin()
    subject.feed(given := Batch())
    subject.give_up()
    assert (subject.working, subject.last.number) == (False, 0)
    subject.begin()
    rows = []
    while subject.working:
        subject.feed(batch := Batch())
        rows += batch.rows
        subject.written(batch, False, 0.0)
    assert {(row.kind, row.key) for row in given.rows} < {(row.kind, row.key) for row in rows}
    assert sum(row.kind == "blocks" for row in rows) == 40
