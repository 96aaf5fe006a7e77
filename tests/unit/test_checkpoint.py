"""A checkpoint is the state at the position where it began, whatever happens while it is written.

`Shelf` does a journal's part: it fetches rows in slices and keeps the newest of each object. Random
histories go on meanwhile. Two questions are put to them. Is every change announced before it is
made? Then whatever differs from its row is noted, and whatever is still to be written is as it was.
And does a kernel made from the rows go on from that position as the live one did?
"""

import os
import subprocess
import sys
from array import array
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from penstock.kernel import commands as c
from penstock.kernel import records
from penstock.kernel.changes import DONE
from penstock.kernel.checkpoint import Checkpoint, Row
from penstock.kernel.kernel import SWEEP_AT, Kernel
from penstock.kernel.records import KINDS
from penstock.model.job import JobSpec, KeyClaim, Run
from penstock.model.policy import (
    BULK_MEMORY_MS,
    PRODUCER_IDLE_MS,
    Bounds,
    Limits,
    QueueConfig,
    Rate,
)
from penstock.model.schedule import CronSpec, Every
from penstock.stores.loading import load_of
from tests.unit.history import START, History, Step, play

ROOT = Path(__file__).parents[2]

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
        given = drain(self.checkpoint)
        self.new |= {(row.kind, row.key): row.data for row in given}
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


# -- small histories ---------------------------------------------------------------------------------


class Store:
    """A kernel with a clock and a shelf."""

    def __init__(self) -> None:
        self.kernel = Kernel(1)
        self.shelf = Shelf(self.kernel)
        self.ms = 0
        self.chunk = 0

    def tell(self, command: c.Command, ms: int = 1) -> Any:
        self.ms += ms
        self.kernel.position += 1
        return self.kernel.apply(command, START + self.ms, self.ms)

    def load(self, *specs: JobSpec, queue: str = "q") -> c.Load:
        self.chunk += 1
        return load_of(Run.of(queue, specs), self.chunk, 0)

    def push(self, *specs: JobSpec, queue: str = "q", **more: Any) -> None:
        push = c.Push(tenant="t", loads=[self.load(*specs, queue=queue)])
        self.tell(msgspec.structs.replace(push, **more))

    def claim(self, token: str, n: int = 1, lease_ms: int | None = None) -> None:
        assert self.tell(c.Claim("t", ["q"], n, token, lease_ms)) is not None

    def forget_ends(self) -> None:
        self.tell(c.Configure("t", "q", QueueConfig(retain_count=0)))


def drain(checkpoint: Checkpoint) -> list[Row]:
    given: list[Row] = []
    while rows := checkpoint.rows(1 << 22):
        given += rows
    return given


def gone(rows: list[Row]) -> set[str]:
    return {row.kind for row in rows if row.data is None}


def kinds(rows: list[Row]) -> list[str]:
    return sorted(row.kind for row in rows)


def test_the_first_checkpoint_of_a_kernel_holds_everything() -> None:
    store = Store()
    store.push(JobSpec(key="k"), JobSpec())
    store.claim("lease")
    rows = store.shelf.take()
    assert kinds(rows) == ["blocks", "keys", "leases", "meta", "queues", "tenants"]


def test_the_next_one_holds_what_changed_since() -> None:
    store = Store()
    store.push(JobSpec())
    store.push(JobSpec(), queue="other")
    first = store.shelf.checkpoint = store.kernel.checkpoint()
    assert first.whole
    store.shelf.digest = store.kernel.digest()
    store.shelf.fetch_all()
    assert kinds(store.shelf.take()) == ["meta"]
    store.push(JobSpec())
    second = store.kernel.checkpoint()
    assert not second.whole
    assert kinds(second.rows(1 << 20)) == ["blocks", "meta", "queues"]


@pytest.mark.parametrize("clean", [True, False])
def test_a_kernel_from_rows_is_told_whether_they_are_on_the_shelf(clean: bool) -> None:
    store = Store()
    store.push(JobSpec(key="k"), JobSpec())
    store.claim("lease")
    encoded = store.kernel.encode()
    again = Kernel.decode(encoded, clean=clean)
    rows = Shelf(again, {} if not clean else objects(store.kernel)).take()
    assert len(rows) == (1 if clean else len(encoded))


def test_a_slice_has_at_least_one_row_and_about_as_many_bytes_as_asked_for() -> None:
    store = Store()
    for number in range(100):
        store.push(JobSpec(payload=b"1"), queue=f"q{number}")
    checkpoint = store.kernel.checkpoint()
    largest = 0
    for budget in (0, 1, 1_000, 5_000):
        rows = checkpoint.rows(budget)
        sizes = [len(row.data or b"") for row in rows]
        assert rows
        assert sum(sizes) <= budget + max(sizes)
        largest = max(largest, len(rows))
    assert largest > 4
    drain(checkpoint)
    assert checkpoint.rows(1_000) == []


# -- changes that random histories seldom make alone -----------------------------------------------


def a_bulk_of_plain_jobs(store: Store) -> c.Command:
    store.tell(c.OpenBulk("t", "b", 60_000))
    store.push(*[JobSpec()] * 3, bulk="b")
    return c.CommitBulk("t", "b")


def a_bulk_that_depends_on_a_taken_key(store: Store) -> c.Command:
    store.push(JobSpec(key="k"))
    store.tell(c.OpenBulk("t", "b", 60_000))
    loads = [
        store.load(JobSpec(key="k", on_conflict="return")),
        store.load(JobSpec(depends_on=(-1,)), queue="after"),
    ]
    store.tell(c.Push(tenant="t", loads=loads, bulk="b"))
    return c.CommitBulk("t", "b")


def part_of_what_ended_together(store: Store) -> c.Command:
    store.push(*[JobSpec()] * 6)
    store.claim("lease", n=6)
    store.tell(c.Ack("t", "lease"))
    return c.Configure("t", "q", QueueConfig(retain_count=2))


def the_oldest_end_in_another_block(store: Store) -> c.Command:
    store.tell(c.Configure("t", "q", QueueConfig(retain_count=1)))
    store.push(*[JobSpec()] * 4_097)
    store.claim("first")
    store.claim("rest", n=4_095)
    store.claim("last")
    store.tell(c.Ack("t", "first"))
    return c.Ack("t", "last")


def delayed(count: int) -> c.Load:
    return load_of(Run.pack("q", [b"1"] * count, delay_ms=100), 100, 0)


def delays_of_neighbours(store: Store) -> c.Command:
    store.tell(c.Push(tenant="t", loads=[delayed(5)]))
    return c.Tick()


def neighbours_that_became_ready(store: Store) -> c.Command:
    store.tell(c.Push(tenant="t", loads=[delayed(5)]))
    store.tell(c.Tick(), ms=200)
    return c.Claim("t", ["q"], 5, "lease")


def a_group_whose_rate_has_room_again(store: Store) -> c.Command:
    limits = Limits(group_rate=Rate(tokens=1, per_ms=900))
    store.tell(c.Configure("t", "q", QueueConfig(limits=limits)))
    store.push(*[JobSpec(group="g")] * 2)
    store.claim("lease")
    store.tell(c.Ack("t", "lease"))
    return c.Tick()


def a_tenant_with_a_push_rate(store: Store) -> c.Command:
    bounds = Bounds(push_rate=Rate(tokens=10, per_ms=1_000_000))
    store.tell(c.ConfigureTenant("t", bounds))
    store.push(JobSpec())
    return c.Push(tenant="t", loads=[store.load(JobSpec(), queue="other")])


def a_replace_of_a_job_with_two_keys(store: Store) -> c.Command:
    run = Run.of("q", [JobSpec(key="a")])
    run = msgspec.structs.replace(run, more_keys=((KeyClaim("b", "return", "live"),),))
    store.tell(c.Push(tenant="t", loads=[load_of(run, 100, 0)]))
    again = JobSpec(key="a", on_conflict="replace", payload=b"2")
    return c.Push(tenant="t", loads=[store.load(again)])


def the_end_of_a_replaced_attempt(store: Store) -> c.Command:
    store.push(JobSpec(key="a"))
    store.claim("lease")
    store.push(JobSpec(key="a", on_conflict="replace", payload=b"2"))
    return c.Ack("t", "lease")


@pytest.mark.parametrize("pending", [False, True], ids=["has its row", "is still to be written"])
@pytest.mark.parametrize(
    "before",
    [
        a_bulk_of_plain_jobs,
        a_bulk_that_depends_on_a_taken_key,
        part_of_what_ended_together,
        the_oldest_end_in_another_block,
        delays_of_neighbours,
        neighbours_that_became_ready,
        a_group_whose_rate_has_room_again,
        a_tenant_with_a_push_rate,
        a_replace_of_a_job_with_two_keys,
        the_end_of_a_replaced_attempt,
    ],
)
def test_a_change_is_announced_whether_its_object(
    before: Callable[[Store], c.Command], pending: bool
) -> None:
    store = Store()
    store.shelf.take()
    command = before(store)
    if not pending:
        store.shelf.take()
    store.shelf.begin()
    store.tell(command, ms=1_000)
    assert differing(objects(store.kernel), store.shelf.then), "it changes something"
    all_is_announced(store.shelf)
    store.shelf.fetch_all()
    store.shelf.take()


# -- what vanished -----------------------------------------------------------------------------------


def vanished(store: Store) -> set[str]:
    """Kinds of the objects that the next checkpoint strikes out; the shelf ends up without them."""
    found = gone(store.shelf.take())
    assert {(kind, key) for kind, key in store.shelf.kept if kind != "meta"} == set(
        objects(store.kernel)
    )
    return found


def test_an_acked_lease_disappears() -> None:
    store = Store()
    store.push(JobSpec(), JobSpec())
    store.claim("one")
    store.claim("two")
    store.shelf.take()
    store.tell(c.Ack("t", "one"))
    store.tell(c.Extend("t", "two", None))
    store.tell(c.Ack("t", "two"))
    assert vanished(store) == {"leases"}


def test_an_expired_lease_disappears() -> None:
    store = Store()
    store.push(JobSpec())
    store.claim("one", lease_ms=50)
    store.shelf.take()
    store.tell(c.Tick(), ms=100)
    assert vanished(store) == {"leases"}


def test_the_token_of_an_ended_lease_may_be_used_again() -> None:
    store = Store()
    store.push(*[JobSpec()] * 4)
    store.claim("one")
    store.shelf.take()
    store.tell(c.Ack("t", "one"))
    store.claim("one")
    store.shelf.take()
    store.tell(c.Ack("t", "one"))
    store.shelf.begin()
    store.claim("one")
    assert Row("leases", b"one", None) in store.shelf.fetch_all()
    assert kinds(store.shelf.take()) == ["blocks", "leases", "meta", "queues"]


def test_keys_disappear() -> None:
    store = Store()
    store.push(JobSpec(key="live"), JobSpec(key="started", keep_key="started"))
    store.shelf.take()
    store.claim("one", n=2)
    store.tell(c.Ack("t", "one"))
    assert vanished(store) == {"keys"}


def test_blocks_disappear_with_their_last_job() -> None:
    store = Store()
    store.forget_ends()
    store.push(*[JobSpec()] * 4_097)
    store.shelf.take()
    store.claim("one", n=4_096)
    store.tell(c.Ack("t", "one"))
    assert vanished(store) == {"blocks"}


def test_an_empty_block_disappears_when_the_next_one_opens() -> None:
    store = Store()
    store.forget_ends()
    store.push(*[JobSpec()] * 4_096)
    store.claim("one", n=4_096)
    store.tell(c.Ack("t", "one"))
    store.shelf.take()
    assert len(store.kernel.blocks) == 1
    store.push(JobSpec())
    assert vanished(store) == {"blocks"}


def test_a_purge_takes_all_but_the_queue() -> None:
    store = Store()
    store.push(JobSpec(key="k"), JobSpec())
    store.claim("one")
    store.shelf.take()
    store.tell(c.Purge("t", "q"))
    assert vanished(store) == {"blocks", "keys", "leases"}


def test_queues_disappear() -> None:
    store = Store()
    for number in range(SWEEP_AT):
        store.push(JobSpec(), queue=f"q{number}")
        store.tell(c.Drain("t", f"q{number}"))
    store.shelf.take()
    store.push(JobSpec(), queue="one more")
    assert store.kernel.queue_count == 1
    assert vanished(store) == {"blocks", "queues"}


def test_producers_disappear() -> None:
    store = Store()
    store.push(JobSpec(), producer="p", sequence=1, content=b"c")
    store.shelf.take()
    store.tell(c.Tick(), ms=PRODUCER_IDLE_MS + 1)
    assert vanished(store) == {"producers"}


def test_bulks_disappear_and_so_do_their_names() -> None:
    store = Store()
    store.tell(c.OpenBulk("t", "b", 60_000))
    store.shelf.take()
    store.push(JobSpec(), bulk="b")
    store.tell(c.CommitBulk("t", "b"))
    assert vanished(store) == {"bulks"}
    store.tell(c.Tick(), ms=BULK_MEMORY_MS + 1)
    assert vanished(store) == {"finished_bulks"}


def test_crons_disappear() -> None:
    store = Store()
    spec = CronSpec(name="c", queue="q", schedule=Every(every_ms=1_000), payload=b"1")
    store.tell(c.PutCron(tenant="t", spec=spec, config_hash="h", instants=(), load=None))
    store.shelf.take()
    store.tell(c.DropCron("t", "c"))
    assert vanished(store) == {"crons"}


def test_what_comes_and_goes_between_two_checkpoints_leaves_no_trace() -> None:
    store = Store()
    store.forget_ends()
    store.shelf.take()
    for number in range(20):
        store.push(JobSpec(key=f"k{number}"))
        store.claim("lease")
        store.tell(c.Ack("t", "lease"))
    assert not store.kernel.changes.keys.noted
    assert not store.kernel.changes.leases.noted
    assert kinds(store.shelf.take()) == ["blocks", "meta", "queues"]


# -- one at a time -----------------------------------------------------------------------------------


def test_what_an_abandoned_checkpoint_gave_is_given_by_the_next() -> None:
    store = Store()
    store.shelf.take()
    store.push(JobSpec(key="k"), JobSpec())
    store.claim("lease")
    for slices in (0, 2, 100):
        store.shelf.begin()
        assert store.shelf.checkpoint is not None
        for _ in range(slices):
            store.shelf.checkpoint.rows(1)
        store.shelf.abandon()
    store.tell(c.Ack("t", "lease"))
    assert set(kinds(store.shelf.take())) >= {"blocks", "meta", "queues", "tenants"}


def test_only_one_checkpoint_runs_and_only_the_last_can_be_taken_back() -> None:
    store = Store()
    first = store.kernel.checkpoint()
    with pytest.raises(RuntimeError, match="running"):
        store.kernel.checkpoint()
    with pytest.raises(RuntimeError, match="still"):
        first.finish()
    drain(first)
    second = store.kernel.checkpoint()
    with pytest.raises(RuntimeError, match="another"):
        first.abandon()
    second.abandon()
    with pytest.raises(RuntimeError, match="another"):
        second.abandon()
    assert second.rows(1_000) == []


def test_a_kernel_without_checkpoints_notes_nothing() -> None:
    history = History(5)
    for _ in history.steps(300):
        pass
    assert not any(dirty.noted for dirty in history.kernel.changes.dirty.values())


# -- no stall ------------------------------------------------------------------------------------------


def calls_of(begin: Any) -> tuple[Any, int]:
    """What a call answers, and how many Python functions it went through."""
    count = 0

    def note(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        answer = begin()
    finally:
        sys.setprofile(None)
    return answer, count


def test_ten_changed_blocks_among_ten_million_jobs_are_all_that_is_looked_at() -> None:
    """In a process of its own: where other tests have raised exceptions in threads, Python 3.11 spins
    in the first call that is profiled."""
    program = "from tests.unit.test_checkpoint import look_at_ten_changed_blocks as look; look()"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120, cwd=ROOT)


def look_at_ten_changed_blocks() -> None:
    store = Store()
    drain(store.kernel.checkpoint())
    checkpoint, in_small = calls_of(store.kernel.checkpoint)
    drain(checkpoint)
    ends = array("I", range(1, 100_001))
    options = store.load(JobSpec()).options
    for chunk in range(1, 101):
        load = c.Load(queue="q", chunk=chunk, start=0, ends=ends, options=options)
        store.tell(c.Push(tenant="t", loads=[load]))
    blocks = len(store.kernel.blocks)
    assert blocks >= 2_441
    checkpoint = store.kernel.checkpoint()
    assert checkpoint.counts["blocks"] == blocks
    drain(checkpoint)
    for number in list(store.kernel.blocks)[5:2_400:240]:
        store.tell(c.Cancel("t", [number * 4_096 + 7]))
    checkpoint, in_large = calls_of(store.kernel.checkpoint)
    assert in_large == in_small
    assert kinds(drain(checkpoint)) == ["blocks"] * 10 + ["meta", "queues"]
