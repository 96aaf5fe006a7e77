"""Random histories on every embedded store, and through a server, beside the oracle.

`PENSTOCK_LONG=1` takes many more and longer ones. Hypothesis shrinks what it finds; a history from
a seed is cut down before it is shown.
"""

import os

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.oracle.harness import MEMORY, ROCKSDB, SQLITE, TCP, TWIN, UNIX, Subject
from tests.oracle.histories import check_history, failure_of, history
from tests.oracle.machine import Machine

LONG = os.environ.get("PENSTOCK_LONG") == "1"
pytestmark = [pytest.mark.long] if LONG else []  # `make test-long` runs the same at length
EXAMPLES, STEPS = (3_000, 80) if LONG else (80, 50)
SEEDS, LENGTH = (2_000, 400) if LONG else (48, 150)
BUNDLE = 8  # seeds of one test case, so that several processes can share the work

SUBJECTS = [MEMORY, SQLITE, ROCKSDB, TCP, UNIX]
# A disk takes its time, and so does a socket: so much less of it.
SHARE = {"memory": 1, "sqlite": 4, "rocksdb": 16, "tcp": 8, "unix": 16}


def machine_on(subject: Subject) -> type[Machine]:
    return type(f"{subject.name.title()}Machine", (Machine,), {"subject": subject})


@pytest.mark.timeout(3_600 if LONG else 300)
@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_any_history_is_that_of_the_oracle(subject: Subject) -> None:
    run_state_machine_as_test(
        machine_on(subject),
        # The same histories every time, so that `make test` says the same of the same code; the
        # long run draws new ones.
        settings=settings(
            max_examples=EXAMPLES // SHARE[subject.name],
            stateful_step_count=STEPS,
            derandomize=not LONG,
            database=None,
        ),
    )


@pytest.mark.timeout(3_600 if LONG else 300)
@pytest.mark.parametrize("first_seed", range(0, SEEDS, BUNDLE))
@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_a_long_history_is_that_of_the_oracle(subject: Subject, first_seed: int) -> None:
    make = machine_on(subject)
    for seed in range(first_seed, first_seed + BUNDLE, SHARE[subject.name]):
        check_history(make, seed, LENGTH)


def test_the_oracle_agrees_with_itself() -> None:
    """A disagreement here is a fault of the machine."""
    make = machine_on(TWIN)
    for seed in range(8):
        assert failure_of(make, history(seed, 120)) is None
