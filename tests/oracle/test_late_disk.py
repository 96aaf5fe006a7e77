"""Random histories beside the oracle on disks that take their time.

What a store decides and answers must not depend on when its disk does. How late each write and
each read is, is drawn from the history's seed, so that a disagreement can be played again.
"""

from typing import Any

import pytest

from penstock.model.policy import Caps
from penstock.model.store import Store
from penstock.stores.clock import ManualClock
from tests.late import drawn, late_disk
from tests.oracle.harness import ROCKSDB, SQLITE, Subject
from tests.oracle.histories import check_history
from tests.oracle.test_machine import machine_on

MOST = 20  # turns of the loop that a step of the disk takes at most, as many as `settled` waits for
LENGTH = 60


def late(subject: Subject, seed: int) -> Subject:
    """The same kind of store on such a disk; every play of it begins with the same draws."""
    turns = drawn(seed, MOST)

    async def open_late(clock: ManualClock, caps: Caps) -> Store:
        nonlocal turns
        turns = drawn(seed, MOST)
        with late_disk(turns):
            return await subject.open(clock, caps)

    async def restart(store: Any) -> Store:
        with late_disk(turns):
            return await subject.restart(store)

    return Subject(subject.name, open_late, restart, subject.forgets_callers)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("subject", [SQLITE, ROCKSDB], ids=lambda subject: subject.name)
def test_a_history_is_that_of_the_oracle_however_late_the_disk(subject: Subject, seed: int) -> None:
    check_history(machine_on(late(subject, seed)), seed, LENGTH)
