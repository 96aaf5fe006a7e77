"""The states of a job and the table of what may follow what.

`TRANSITIONS[(state, happening)]` gives the next state; a pair that is missing cannot happen. The
kernel is checked against this table by the tests, and the diagram in the docs is generated from it.
"""

from enum import StrEnum
from typing import Final


class State(StrEnum):
    HELD = "held"  # part of a bulk that is not committed yet
    BLOCKED = "blocked"  # waits for dependencies
    SCHEDULED = "scheduled"  # run_at lies ahead: a delay or a retry
    READY = "ready"
    ACTIVE = "active"  # under a lease
    COMPLETED = "completed"
    DEAD = "dead"
    CANCELLED = "cancelled"
    EXPIRED = "expired"  # not claimed within its ttl


class DeadReason(StrEnum):
    MAX_ATTEMPTS = "max_attempts"
    DEPENDENCY_FAILED = "dependency_failed"
    REJECTED = "rejected"  # its worker said so
    DISCARDED = "discarded"  # an operator said so


class Happening(StrEnum):
    """What can happen to a job that exists."""

    COMMIT = "commit"  # its bulk is published, nothing holds it back
    COMMIT_BLOCKED = "commit_blocked"
    COMMIT_DELAYED = "commit_delayed"
    UNBLOCK = "unblock"  # the last dependency is met
    UNBLOCK_DELAYED = "unblock_delayed"  # …but run_at lies ahead
    DUE = "due"
    CLAIM = "claim"
    ACK = "ack"
    RETRY = "retry"  # the attempt failed, attempts are left, the backoff lies ahead
    RETRY_NOW = "retry_now"  # …without a wait
    DIE = "die"
    RELEASE = "release"
    CANCEL = "cancel"
    EXPIRE = "expire"
    DELAY = "delay"  # edited or replaced to a later run_at
    HASTEN = "hasten"  # edited or replaced to run now
    BLOCK = "block"  # replaced by a version with dependencies
    REDRIVE = "redrive"
    RESTART = (
        "restart"  # replaced while active: the running attempt ended, the new version is ready
    )
    RESTART_DELAYED = "restart_delayed"
    RESTART_BLOCKED = "restart_blocked"


LIVE: Final = frozenset({State.HELD, State.BLOCKED, State.SCHEDULED, State.READY, State.ACTIVE})
ENDED: Final = frozenset({State.COMPLETED, State.DEAD, State.CANCELLED, State.EXPIRED})
FAILED: Final = frozenset({State.DEAD, State.CANCELLED, State.EXPIRED})  # what fails a dependant

_S, _H = State, Happening

TRANSITIONS: Final[dict[tuple[State, Happening], State]] = {
    (_S.HELD, _H.COMMIT): _S.READY,
    (_S.HELD, _H.COMMIT_BLOCKED): _S.BLOCKED,
    (_S.HELD, _H.COMMIT_DELAYED): _S.SCHEDULED,
    (_S.HELD, _H.DIE): _S.DEAD,  # a dependency had failed before the commit
    (_S.HELD, _H.CANCEL): _S.CANCELLED,
    (_S.BLOCKED, _H.UNBLOCK): _S.READY,
    (_S.BLOCKED, _H.UNBLOCK_DELAYED): _S.SCHEDULED,
    (_S.BLOCKED, _H.DIE): _S.DEAD,
    (_S.BLOCKED, _H.CANCEL): _S.CANCELLED,
    (_S.BLOCKED, _H.EXPIRE): _S.EXPIRED,
    (_S.BLOCKED, _H.DELAY): _S.SCHEDULED,
    (_S.BLOCKED, _H.HASTEN): _S.READY,
    (_S.BLOCKED, _H.BLOCK): _S.BLOCKED,
    (_S.SCHEDULED, _H.DUE): _S.READY,
    (_S.SCHEDULED, _H.DIE): _S.DEAD,
    (_S.SCHEDULED, _H.CANCEL): _S.CANCELLED,
    (_S.SCHEDULED, _H.EXPIRE): _S.EXPIRED,
    (_S.SCHEDULED, _H.DELAY): _S.SCHEDULED,
    (_S.SCHEDULED, _H.HASTEN): _S.READY,
    (_S.SCHEDULED, _H.BLOCK): _S.BLOCKED,
    (_S.READY, _H.CLAIM): _S.ACTIVE,
    (_S.READY, _H.DIE): _S.DEAD,
    (_S.READY, _H.CANCEL): _S.CANCELLED,
    (_S.READY, _H.EXPIRE): _S.EXPIRED,
    (_S.READY, _H.DELAY): _S.SCHEDULED,
    (_S.READY, _H.HASTEN): _S.READY,
    (_S.READY, _H.BLOCK): _S.BLOCKED,
    (_S.ACTIVE, _H.ACK): _S.COMPLETED,
    (_S.ACTIVE, _H.RETRY): _S.SCHEDULED,
    (_S.ACTIVE, _H.RETRY_NOW): _S.READY,
    (_S.ACTIVE, _H.DIE): _S.DEAD,
    (_S.ACTIVE, _H.RELEASE): _S.READY,
    (_S.ACTIVE, _H.CANCEL): _S.CANCELLED,
    (_S.ACTIVE, _H.RESTART): _S.READY,
    (_S.ACTIVE, _H.RESTART_DELAYED): _S.SCHEDULED,
    (_S.ACTIVE, _H.RESTART_BLOCKED): _S.BLOCKED,
    (_S.DEAD, _H.REDRIVE): _S.READY,
}


def mermaid() -> str:
    """The lifecycle as a Mermaid state diagram, for the docs."""
    lines = ["stateDiagram-v2", "    [*] --> held", "    [*] --> blocked"]
    lines += ["    [*] --> scheduled", "    [*] --> ready"]
    merged: dict[tuple[State, State], list[str]] = {}
    for (state, happening), after in TRANSITIONS.items():
        merged.setdefault((state, after), []).append(happening.value)
    lines += [
        f"    {before} --> {after}: {', '.join(happenings)}"
        for (before, after), happenings in merged.items()
    ]
    lines += [f"    {state} --> [*]" for state in State if state in ENDED]
    return "\n".join(lines) + "\n"
