"""The table of what may follow what: complete, closed, and what the kernel really does."""

import pytest

from penstock.kernel.codes import COUNTER_OF, GONE, STATES
from penstock.kernel.commands import Tick
from penstock.kernel.kernel import Kernel
from penstock.model.lifecycle import (
    ENDED,
    FAILED,
    LIVE,
    TRANSITIONS,
    DeadReason,
    Happening,
    State,
    mermaid,
)
from tests.unit.history import History

BIRTHS = frozenset({State.HELD, State.BLOCKED, State.SCHEDULED, State.READY})


def after(states: set[State]) -> set[State]:
    """Everything that can be reached from these states."""
    seen, rest = set(states), list(states)
    while rest:
        state = rest.pop()
        for (before, _), then in TRANSITIONS.items():
            if before is state and then not in seen:
                seen.add(then)
                rest.append(then)
    return seen


def test_every_state_is_live_or_ended_and_never_both() -> None:
    assert set(State) == LIVE | ENDED
    assert not LIVE & ENDED
    assert ENDED - {State.COMPLETED} == FAILED


def test_every_state_can_be_reached_by_a_job_pushed_ready() -> None:
    assert after({State.READY}) == set(State) - {State.HELD}
    assert after(set(BIRTHS)) == set(State)


def test_every_live_state_has_a_way_to_each_end_it_may_meet() -> None:
    for state in LIVE:
        assert after({state}) >= ENDED


def test_the_only_way_out_of_an_end_is_to_redrive_a_dead_job() -> None:
    ways = {(before, why): then for (before, why), then in TRANSITIONS.items() if before in ENDED}
    assert ways == {(State.DEAD, Happening.REDRIVE): State.READY}


def test_every_happening_happens_somewhere() -> None:
    assert {why for _, why in TRANSITIONS} == set(Happening)


def test_only_a_claim_makes_a_job_active_and_only_an_ack_completes_one() -> None:
    assert {why for (_, why), then in TRANSITIONS.items() if then is State.ACTIVE} == {
        Happening.CLAIM
    }
    assert {key for key, then in TRANSITIONS.items() if then is State.COMPLETED} == {
        (State.ACTIVE, Happening.ACK)
    }


def test_every_live_job_can_be_cancelled() -> None:
    for state in LIVE:
        assert TRANSITIONS[state, Happening.CANCEL] is State.CANCELLED


def test_nothing_comes_back_into_a_bulk() -> None:
    assert State.HELD not in TRANSITIONS.values()


def test_only_jobs_that_wait_expire() -> None:
    waiting = {state for (state, why) in TRANSITIONS if why is Happening.EXPIRE}
    assert waiting == {State.BLOCKED, State.SCHEDULED, State.READY}


def test_the_reasons_of_the_dead_are_those_of_the_contract() -> None:
    assert {reason.value for reason in DeadReason} == {
        "max_attempts",
        "dependency_failed",
        "rejected",
        "discarded",
    }


def test_the_diagram_shows_every_transition_and_nothing_else() -> None:
    lines = mermaid().splitlines()
    assert lines[0] == "stateDiagram-v2"
    drawn = set()
    for line in lines[1:]:
        arrow, _, labels = line.strip().partition(": ")
        before, _, then = arrow.partition(" --> ")
        if "[*]" in (before, then):
            continue
        drawn |= {(before, label, then) for label in labels.split(", ")}
    table = {(before.value, why.value, then.value) for (before, why), then in TRANSITIONS.items()}
    assert drawn == table


def test_the_diagram_begins_where_jobs_begin_and_ends_where_they_end() -> None:
    text = mermaid()
    assert {state for state in State if f"[*] --> {state}\n" in text} == BIRTHS
    assert {state for state in State if f"    {state} --> [*]" in text} == ENDED


def standing(kernel: Kernel) -> dict[int, State]:
    return {
        block.base + offset: STATES[COUNTER_OF[code]]
        for block in kernel.blocks.values()
        for offset, code in enumerate(block.codes)
        if code != GONE
    }


@pytest.mark.parametrize("seed", range(600, 606))
def test_no_job_of_a_random_history_goes_a_way_that_the_table_does_not_know(seed: int) -> None:
    """One command may take a job several steps; each must be a path of the table."""
    reach = {state: after({state}) for state in State}
    history = History(seed, features=("groups", "keys", "flows", "ttls", "delays", "backoff"))
    kernel = history.kernel
    before: dict[int, State] = {}
    moves: set[tuple[State, State]] = set()
    for step, _ in history.steps(400):
        now = standing(kernel)
        for job_id, state in now.items():
            was = before.get(job_id)
            if was is None:
                assert state in BIRTHS | ENDED
            elif was is not state:
                assert state in reach[was], (step.command, job_id)
                moves.add((was, state))
        before = now
    direct = {(was, then) for (was, _), then in TRANSITIONS.items() if was is not then}
    assert moves & direct, "the history moves something"


def test_time_alone_takes_each_job_one_step_of_the_table_at_a_time() -> None:
    history = History(611, features=("ttls", "delays", "backoff", "leases", "flows"))
    kernel = history.kernel
    reach = {state: after({state}) for state in State}
    for _ in history.steps(300):
        pass
    done, now, elapsed = False, history.now + 86_400_000, history.elapsed + 86_400_000
    while not done:
        before = standing(kernel)
        done = kernel.apply(Tick(1), now, elapsed)
        for job_id, state in standing(kernel).items():
            assert state is before[job_id] or state in reach[before[job_id]]
