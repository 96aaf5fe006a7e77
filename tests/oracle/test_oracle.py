"""The test of the tester: a store with a fault is found out, and the finding is short."""

from typing import Any

import pytest

from penstock.model.policy import Caps
from penstock.model.store import Store
from penstock.stores.clock import ManualClock
from tests.oracle.compare import Disagreement
from tests.oracle.faults import FAULTS, WaitsTwiceAsLongAtFirst
from tests.oracle.harness import SEED, Subject
from tests.oracle.histories import failure_of, history, shortest
from tests.oracle.machine import Machine
from tests.oracle.store import OracleStore

HISTORIES = 60
LENGTH = 120


def machine_with(fault: type[OracleStore]) -> type[Machine]:
    async def open_faulty(clock: ManualClock, caps: Caps) -> Store:
        return fault(clock=clock, caps=caps, seed=SEED, first_id=1_000_001)

    async def restart(store: Any) -> Store:
        if hasattr(store, "restart"):
            store.restart()
        return store  # type: ignore[no-any-return]

    subject = Subject(fault.__name__, open_faulty, restart)
    return type(fault.__name__, (Machine,), {"subject": subject})


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found_within_a_bounded_number_of_histories(fault: type[OracleStore]) -> None:
    make = machine_with(fault)
    for seed in range(HISTORIES):
        failure = failure_of(make, history(seed, LENGTH, FAULTS[fault]))
        if failure is not None:
            assert isinstance(failure, Disagreement)
            return
    pytest.fail(f"{fault.__name__} went unnoticed in {HISTORIES} histories of {LENGTH} steps")


def test_a_disagreement_is_cut_down_to_the_few_steps_that_it_needs() -> None:
    make = machine_with(WaitsTwiceAsLongAtFirst)
    seed = next(seed for seed in range(HISTORIES) if failure_of(make, history(seed, LENGTH)))
    steps, failure = shortest(make, history(seed, LENGTH))
    assert len(steps) <= 6
    assert "run_at: oracle" in str(failure)
