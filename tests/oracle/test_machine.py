"""Random histories on every embedded store beside the oracle. See `machine.py`."""

import os

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.oracle.harness import MEMORY, TWIN, Subject
from tests.oracle.machine import Machine

LONG = os.environ.get("PENSTOCK_LONG") == "1"


def machine_on(subject: Subject) -> type[Machine]:
    return type(f"{subject.name.title()}Machine", (Machine,), {"subject": subject})


def test_a_random_history_on_memory_is_that_of_the_oracle() -> None:
    run_state_machine_as_test(
        machine_on(MEMORY),
        settings=settings(
            max_examples=3_000 if LONG else 120, stateful_step_count=80 if LONG else 50
        ),
    )


@pytest.mark.parametrize("subject", [TWIN], ids=lambda subject: subject.name)
def test_the_oracle_agrees_with_itself(subject: Subject) -> None:
    """A disagreement here is a fault of the machine."""
    run_state_machine_as_test(
        machine_on(subject), settings=settings(max_examples=20, stateful_step_count=40)
    )
