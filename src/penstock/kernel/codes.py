"""One byte per job: its state, and for a ready job also where it is to be found.

A ready job has one of many codes. From FIRST_CLASS on, the code is its block's class for its
priority, and the job is found in order by a cursor over the block (`bytearray.find`). LATE, LIFO
and GROUPED jobs are found through their lane's late sources, its stack, or their group instead,
so that no cursor stumbles over them.
"""

from typing import Final

from penstock.model.lifecycle import State

GONE: Final = 0  # never used, or forgotten
HELD: Final = 1
BLOCKED: Final = 2
SCHEDULED: Final = 3
ACTIVE: Final = 4
COMPLETED: Final = 5
DEAD: Final = 6
CANCELLED: Final = 7
EXPIRED: Final = 8
READY: Final = 9  # of counters; no job has this code
LATE: Final = 10
GROUPED: Final = 11
LIFO: Final = 12
FIRST_CLASS: Final = 16
CLASSES: Final = 256 - FIRST_CLASS

COUNTERS: Final = 10  # counts are lists indexed by counter; index GONE is unused

COUNTER_OF: Final = bytes([*range(9), *([READY] * (256 - 9))])  # counter by code

STATES: Final[dict[int, State]] = {
    HELD: State.HELD,
    BLOCKED: State.BLOCKED,
    SCHEDULED: State.SCHEDULED,
    READY: State.READY,
    ACTIVE: State.ACTIVE,
    COMPLETED: State.COMPLETED,
    DEAD: State.DEAD,
    CANCELLED: State.CANCELLED,
    EXPIRED: State.EXPIRED,
}
COUNTER_BY_STATE: Final[dict[State, int]] = {state: code for code, state in STATES.items()}

ENDED: Final = frozenset({COMPLETED, DEAD, CANCELLED, EXPIRED})
WAITING: Final = frozenset({BLOCKED, SCHEDULED, READY})  # what a drain takes, what ttl can end

BYTE: Final = tuple(bytes([code]) for code in range(256))  # to be multiplied into runs

IDENTITY: Final = bytes(range(256))


def replacing(code: int, by: int) -> bytes:
    """A translation table that turns one code into another and leaves the rest."""
    return IDENTITY[:code] + BYTE[by] + IDENTITY[code + 1 :]


def marking(code: int) -> bytes:
    """A translation table that makes a mask: 1 where that code stands, else 0."""
    return bytes(code) + b"\x01" + bytes(255 - code)


TO_ACTIVE: Final = tuple(replacing(code, ACTIVE) for code in range(256))
MARK: Final = tuple(marking(code) for code in range(256))
