"""A kernel made from its own records decides exactly as the one that wrote them.

The two are played side by side: the same commands, every answer and the digest at the end. Answers
are compared without the way ids are cut into runs, which a restored kernel may do otherwise.
"""

import os

import msgspec
import pytest

from penstock.kernel import commands as c
from penstock.kernel.kernel import Kernel
from penstock.model.errors import Invalid
from penstock.model.job import JobSpec, Run
from penstock.model.policy import Limits, QueueConfig, Rate
from penstock.stores.loading import load_of
from tests.unit.history import HOUR, START, History, Step, play

AHEAD = 1_000


def restored(kernel: Kernel) -> Kernel:
    return Kernel.decode(kernel.encode(), kernel.caps)


def steps_of(seed: int, n: int) -> tuple[History, list[Step]]:
    history = History(seed)
    return history, [step for step, _ in history.steps(n)]


def played(history: History, steps: list[Step]) -> Kernel:
    kernel = Kernel(history.kernel.seed, history.caps)
    for step in steps:
        play(kernel, step)
    return kernel


def side_by_side(live: Kernel, other: Kernel, steps: list[Step], begin: int) -> None:
    for number, step in enumerate(steps, begin):
        told, answer = play(live, step), play(other, step)
        assert answer == told, f"step {number}: {step.command}"


@pytest.mark.parametrize("seed", range(12))
def test_a_restored_kernel_has_the_digest_of_the_one_it_came_from(seed: int) -> None:
    history = History(seed)
    for number, _ in enumerate(history.steps(300)):
        if number % 30 == 29:
            assert restored(history.kernel).digest() == history.kernel.digest(), number


@pytest.mark.parametrize("seed", range(100, 112))
def test_a_restored_kernel_answers_the_next_commands_as_the_live_one_does(seed: int) -> None:
    history, steps = steps_of(seed, 500)
    point = history.random.randint(50, 400)
    live = played(history, steps[:point])
    side_by_side(live, restored(live), steps[point:], point)


@pytest.mark.parametrize("seed", range(100, 112))
def test_a_restored_kernel_arrives_at_the_digest_of_the_live_one(seed: int) -> None:
    history, steps = steps_of(seed, 500)
    point = history.random.randint(50, 400)
    live = played(history, steps[:point])
    other = restored(live)
    for number, step in enumerate(steps[point:], point):
        play(live, step)
        play(other, step)
        if number % 25 == 0:
            assert other.digest() == live.digest(), f"by step {number}"
    assert other.digest() == live.digest()


def test_after_a_long_history_the_next_thousand_answers_are_the_same() -> None:
    history, steps = steps_of(7, 2_000 + AHEAD)
    live = played(history, steps[:2_000])
    other = restored(live)
    side_by_side(live, other, steps[2_000:], 2_000)
    assert other.digest() == live.digest()


@pytest.mark.parametrize("seed", range(200, 204))
def test_a_kernel_that_is_restored_again_and_again_never_drifts(seed: int) -> None:
    history, steps = steps_of(seed, 500)
    live = Kernel(history.kernel.seed, history.caps)
    other = restored(live)
    for number, step in enumerate(steps):
        assert play(other, step) == play(live, step), f"step {number}: {step.command}"
        if number % 30 == 29:
            other = restored(other)


@pytest.mark.parametrize("seed", range(300, 303))
def test_counters_and_sums_are_made_anew_as_they_were(seed: int) -> None:
    history = History(seed)
    for number, _ in enumerate(history.steps(300)):
        if number % 50 != 49:
            continue
        live, other = history.kernel, restored(history.kernel)
        assert other.kept_keys == live.kept_keys
        assert other.queue_count == live.queue_count
        for name, tenant in live.tenants.items():
            twin = other.tenants[name]
            assert (twin.live, twin.bytes) == (tenant.live, tenant.bytes)
            for queue_name, queue in tenant.queues.items():
                again = twin.queues[queue_name]
                assert again.counts == queue.counts
                assert again.finished_count == queue.finished_count
                assert again.bounded == queue.bounded
                assert again.limited == queue.limited
                if queue.bounded:
                    assert again.bytes == queue.bytes


# -- small histories that once told a restored kernel from a live one --------------------------------


def pushed(*specs: JobSpec, queue: str = "q", chunk: int = 1) -> c.Push:
    return c.Push(tenant="t", loads=[load_of(Run.of(queue, specs), chunk, 0)])


def told_apart(before: list[Step], then: list[Step]) -> tuple[Kernel, Kernel]:
    """A live kernel, and one restored before the second part of the history; both have heard all."""
    live = Kernel(1)
    for step in before:
        play(live, step)
    other = restored(live)
    side_by_side(live, other, then, len(before))
    return live, other


def at(ms: int, command: c.Command, *, jumped: int = 0) -> Step:
    return Step(command, START + ms + jumped, ms)


def known(kernel: Kernel) -> list[int]:
    return [n for n in range(1, 200) if kernel.locate("t", n) is not None]


def test_what_retention_forgets_of_one_ack_does_not_depend_on_a_restart() -> None:
    few = c.Configure("t", "q", QueueConfig(retain_count=1))
    before = [
        at(0, few),
        at(1, pushed(JobSpec())),
        at(2, pushed(JobSpec(priority=5))),
        at(3, c.Claim("t", ["q"], 2, "lease")),
    ]
    live, other = told_apart(before, [at(4, c.Ack("t", "lease"))])
    assert known(other) == known(live)


def test_how_a_claim_was_cut_into_runs_does_not_show_after_its_ack() -> None:
    before = [
        at(1, pushed(*[JobSpec(priority=n % 2) for n in range(6)])),
        at(2, c.Claim("t", ["q"], 6, "lease")),
    ]
    live, other = told_apart(before, [at(3, c.Ack("t", "lease"))])
    assert other.digest() == live.digest()


def test_late_jobs_acked_together_leave_the_same_state_after_a_restart() -> None:
    before = [at(1, pushed(*[JobSpec(delay_ms=10)] * 5)), at(20, c.Tick())]
    then = [at(21, c.Claim("t", ["q"], 5, "lease")), at(22, c.Ack("t", "lease"))]
    live, other = told_apart(before, then)
    assert other.digest() == live.digest()


def test_dependants_of_a_purged_queue_die_in_the_same_order_after_a_restart() -> None:
    plain = [JobSpec()] * 3
    before = [
        at(1, pushed(*plain)),
        at(2, pushed(JobSpec(depends_on=(3,)), queue="after", chunk=2)),
        at(3, pushed(JobSpec(depends_on=(1,)), queue="after", chunk=3)),
    ]
    live, other = told_apart(before, [at(4, c.Purge("t", "q"))])
    assert other.digest() == live.digest()


def test_a_producer_is_forgotten_at_the_same_instant_after_the_clock_went_back() -> None:
    said = msgspec.structs.replace(pushed(JobSpec()), producer="p", sequence=1, content=b"c")
    again = pushed(JobSpec(), chunk=2)
    again = msgspec.structs.replace(again, producer="p", sequence=1, content=b"c")
    before = [at(0, said), at(5, said, jumped=-HOUR)]
    then = [at(24 * HOUR - 1_000, again)]
    live, other = told_apart(before, then)
    assert other.digest() == live.digest()


def test_a_group_that_only_its_rate_remembers_is_forgotten_after_a_restart_too() -> None:
    limits = Limits(group_rate=Rate(tokens=3, per_ms=1_000))
    before = [
        at(0, c.Configure("t", "q", QueueConfig(limits=limits))),
        at(1, pushed(JobSpec(group="g"))),
        at(2, c.Claim("t", ["q"], 1, "lease")),
        at(3, c.Ack("t", "lease")),
    ]
    live, other = told_apart(before, [at(2_000, c.Tick())])
    assert not live.tenants["t"].queues["q"].groups
    assert not other.tenants["t"].queues["q"].groups


@pytest.mark.parametrize("spec", [JobSpec(ttl_ms=10), JobSpec(delay_ms=10)])
def test_a_turn_of_time_takes_as_many_steps_after_a_restart(spec: JobSpec) -> None:
    """A journal holds turns of time as it holds commands: they must do the same when replayed."""
    before = [at(1, pushed(*[spec] * 8))]
    live, other = told_apart(before, [at(30, c.Tick(3))])
    assert other.digest() == live.digest()


# -- the records themselves --------------------------------------------------------------------------


def test_a_snapshot_of_another_format_is_refused() -> None:
    records = Kernel(1).encode()
    changed = [records[0].replace(b"\xa4Meta\x01", b"\xa4Meta\x63", 1), *records[1:]]
    assert changed != records
    with pytest.raises(Invalid, match="99"):
        Kernel.decode(changed)


def test_an_empty_kernel_survives_a_round_trip() -> None:
    kernel = Kernel(5)
    assert restored(kernel).digest() == kernel.digest()
    assert restored(kernel).seed == 5


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1_000, 1_000 + int(os.environ.get("PENSTOCK_SEEDS", "300"))))
def test_at_length_restored_kernels_go_on_alike(seed: int) -> None:
    history, steps = steps_of(seed, 3_000)
    live = Kernel(history.kernel.seed, history.caps)
    other = restored(live)
    for number, step in enumerate(steps):
        assert play(other, step) == play(live, step), f"step {number}: {step.command}"
        if number % 100 == 99:
            assert other.digest() == live.digest(), number
            other = restored(other)
