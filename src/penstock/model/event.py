"""What happened, as ranges: the compact facts that watchers see and the data pipeline reads.

One event speaks of all the jobs that went through the same thing at the same instant with the
same times; it is split only where they differ. Events are an output of the kernel, never an
input: switching them off changes no decision.

`kind` says what happened:
  pushed committed replaced · claimed released extended · completed retried dead cancelled expired
  · redriven edited · progress log partial · configured drained purged
"""

from typing import Literal, Protocol

import msgspec

from penstock.model.job import Ids

EventKind = Literal[
    "pushed",
    "committed",
    "replaced",
    "claimed",
    "released",
    "extended",
    "completed",
    "retried",
    "dead",
    "cancelled",
    "expired",
    "redriven",
    "edited",
    "progress",
    "log",
    "partial",
    "configured",
    "drained",
    "purged",
]


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A fact about jobs of one queue. Times are wall-clock milliseconds; 0 = does not apply."""

    kind: EventKind
    tenant: str
    queue: str
    at: int  # when it took effect, not when it was noticed
    ids: Ids = Ids()
    attempt: int = 0
    pushed_at: int = 0
    ready_at: int = 0
    claimed_at: int = 0
    run_at: int = 0  # of pushed (when delayed), retried, edited: when it is due
    worker: str = ""
    task: str = ""
    priority: int = 0
    bytes: int = 0  # of pushed: payload bytes of all these jobs
    reason: str = ""  # of dead: DeadReason
    error_kind: str = ""
    error_message: str = ""
    cause: str = ""  # of retried and dead: lease_expired or timeout, where no worker said so
    held: bool = False  # of pushed: part of a bulk, invisible until committed
    data: str = ""  # of progress, log and partial: what was said

    position: int = 0  # of the command in this store's history
    index: int = 0  # of the event within that command


class EventSink(Protocol):
    """Where a store writes its events: called once per command, in order, in the store's turn.

    A sink that keeps them (`events`) learns of them when they are safe; one that only counts (an
    `observer`) at once, since what it knows ends with the process, too, and nothing waits for it.
    """

    def write(self, events: list[Event]) -> None: ...
