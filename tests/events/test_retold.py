"""A kernel that was read back tells what the one before it told: same places, same ranges.

Readers know an event by its position and index, so an event that is cut otherwise at a replay
would be taken for one that was there.
"""

import pytest

from penstock.events.segment import encode
from penstock.kernel.kernel import Kernel
from tests.events.told import STORE
from tests.faults.stores import LONG, in_both_runs
from tests.unit.history import History, play

pytestmark = in_both_runs
STEPS = 20_000 if LONG else 500


@pytest.mark.parametrize("seed", range(20 if LONG else 2))
@pytest.mark.parametrize("every", [1, 7, 100])
def test_a_kernel_read_back_tells_the_same_events(seed: int, every: int) -> None:
    history = History(seed)
    kernel = history.kernel
    kernel.events = []
    twin = Kernel(kernel.seed, kernel.caps)
    for number, (step, _) in enumerate(history.steps(STEPS if every > 1 else STEPS // 10)):
        if number % every == 0:
            now, elapsed = twin.now, twin.elapsed
            twin = Kernel.decode(twin.encode(), twin.caps)
            twin.now, twin.elapsed = now, elapsed
        twin.events = []
        play(twin, step)
        twin.freed.clear()
        live, retold = encode(STORE, kernel.events), encode(STORE, twin.events)
        assert retold.splitlines() == live.splitlines(), f"{number}: {step.command}"
        kernel.events.clear()
