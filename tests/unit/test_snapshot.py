"""A kernel made from its own records decides exactly as the one that wrote them.

The two are played side by side: the same commands, every answer and the digest at the end. Answers
are compared without the way ids are cut into runs, which a restored kernel may do otherwise.
"""

import os

import pytest

from penstock.kernel.kernel import Kernel
from penstock.model.errors import Invalid
from tests.unit.history import History, Step, play

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


@pytest.mark.parametrize("seed", range(16))
def test_a_restored_kernel_has_the_digest_of_the_one_it_came_from(seed: int) -> None:
    history = History(seed)
    for number, _ in enumerate(history.steps(400)):
        if number % 40 == 39:
            assert restored(history.kernel).digest() == history.kernel.digest(), number


@pytest.mark.parametrize("seed", range(100, 114))
def test_a_restored_kernel_answers_the_next_commands_as_the_live_one_does(seed: int) -> None:
    history, steps = steps_of(seed, 700)
    point = history.random.randint(50, 600)
    live = played(history, steps[:point])
    side_by_side(live, restored(live), steps[point:], point)


@pytest.mark.parametrize("seed", range(100, 114))
def test_a_restored_kernel_arrives_at_the_digest_of_the_live_one(seed: int) -> None:
    history, steps = steps_of(seed, 700)
    point = history.random.randint(50, 600)
    live = played(history, steps[:point])
    other = restored(live)
    for number, step in enumerate(steps[point:], point):
        play(live, step)
        play(other, step)
        if number % 25 == 0:
            assert other.digest() == live.digest(), f"by step {number}"
    assert other.digest() == live.digest()


def test_after_a_long_history_the_next_thousand_answers_are_the_same() -> None:
    history, steps = steps_of(7, 3_000 + AHEAD)
    live = played(history, steps[:3_000])
    other = restored(live)
    side_by_side(live, other, steps[3_000:], 3_000)
    assert other.digest() == live.digest()


@pytest.mark.parametrize("seed", range(200, 206))
def test_a_kernel_that_is_restored_again_and_again_never_drifts(seed: int) -> None:
    history, steps = steps_of(seed, 600)
    live = Kernel(history.kernel.seed, history.caps)
    other = restored(live)
    for number, step in enumerate(steps):
        assert play(other, step) == play(live, step), f"step {number}: {step.command}"
        if number % 30 == 29:
            other = restored(other)


@pytest.mark.parametrize("seed", range(300, 304))
def test_counters_and_sums_are_made_anew_as_they_were(seed: int) -> None:
    history = History(seed)
    for number, _ in enumerate(history.steps(400)):
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
