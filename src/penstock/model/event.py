"""What happened, as ranges: the compact facts that watchers see and the data pipeline reads.

One event speaks of all the jobs that went through the same thing at the same instant with the
same times; it is split only where they differ. Events are an output of the kernel, never an
input: switching them off changes no decision.

`kind` says what happened:
  pushed committed replaced · claimed released extended · completed retried dead cancelled expired
  · redriven edited · progress log partial · configured drained purged
"""

from collections.abc import Callable
from typing import Any, Literal, Protocol, runtime_checkable

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


class Mark(msgspec.Struct, frozen=True, order=True):
    """An event of a store's history; every later one is greater."""

    position: int
    index: int


@runtime_checkable
class EventKeeper(EventSink, Protocol):
    """A sink that outlives the process, and never misses an event that a durable store can give.

    It belongs to one open store at a time, from `begin` to `close`, and is opened again with it.
    Only `begin` raises: whatever happens to the sink afterwards, the store goes on.
    """

    def begin(self, store: str) -> Mark:
        """From now on this store's events come. Answers the last one that is there; blocks."""

    def missed(self, first: int, last: int) -> None:
        """The events of these positions happened and will not come."""

    def make_room(self) -> None:
        """Block until there is room for more, unless there will be none: before a `write` by a
        thread that can wait."""

    def sync(self, done: Callable[[bool], None]) -> None:
        """Have it called, by another thread, when all that came is on stable storage; or with False
        when that is given up."""

    def health(self) -> dict[str, Any]:
        """How it is doing, for the store's own."""

    def close(self) -> None:
        """Put away everything that came; blocks."""
