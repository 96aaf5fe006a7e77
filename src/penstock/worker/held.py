"""Leases in the worker's hands, and the calls of handlers that their jobs become.

Only the home thread changes a `Held`. A `Work` goes to a pool and comes back with its outcome.
"""

import asyncio
from collections.abc import Sequence
from enum import Enum
from typing import Any, Final

from msgspec import Struct

from penstock.client.context import Context
from penstock.client.execute import BatchOutcome, Outcome, broken
from penstock.model.job import Job, Lease

LEASE_MS: Final = 30_000  # of a claim for which neither worker nor job says a length


class Why(Enum):
    """Why a handler is stopped from outside."""

    LOST = "taken away"  # cancelled, purged, or the lease is over: nobody waits for its outcome
    TIMEOUT = "timed out"  # the store has failed the attempt
    SHUTDOWN = "shutdown"  # the worker ends: the job goes back unspent


class Work(Struct, eq=False):
    """One call of a handler: for one job, or for a batch of them."""

    held: "Held"
    task: Any
    job: Job  # of a batch: its first
    context: Context | None = None  # unset until a pool begins with it, or where nobody asks
    handle: Any = None  # the pool's own
    results: dict[int, Any] | None = None  # of the jobs that it depends on, if asked for
    outcome: Outcome | BatchOutcome | None = None
    why: Why | None = None  # set when it is to be stopped
    unheard: frozenset[int] = frozenset()  # jobs of it whose words nobody listens to any more

    @property
    def ids(self) -> Sequence[int]:
        return (self.job.id,)

    def __len__(self) -> int:
        return 1

    def jobs(self) -> tuple[Job, ...]:
        return (self.job,)

    def broke(self, error: BaseException) -> None:
        self.outcome = broken(error)


class BatchWork(Work, kw_only=True, eq=False):
    """Jobs of one lease and one batch task. Nothing here is made per job but its payload."""

    ids: Sequence[int]
    payloads: Sequence[bytes]

    def __len__(self) -> int:
        return len(self.ids)

    def broke(self, error: BaseException) -> None:
        self.outcome = BatchOutcome(all=broken(error))

    def jobs(self) -> tuple[Job, ...]:
        """Cut out when a handler looks at them."""
        mine = set(self.ids)
        return tuple(job for job in self.held.lease.jobs if job.id in mine)


class Held(Struct, eq=False):
    """A lease, and how far its jobs are. What must be looked for in it is looked for when somebody
    asks, as no job has to wait for that."""

    lease: Lease
    lease_ms: int | None  # as the claim said
    works: set[Work] = set()  # not ended
    decided: int = 0  # jobs whose end is known here
    done: list[int] = []  # completed, and not told yet
    results: dict[int, bytes] = {}  # of those
    acking: bool = False  # whether an ack is under way
    telling: int = 0  # calls under way that end jobs of this lease
    beat: asyncio.TimerHandle | None = None
    timers: list[asyncio.TimerHandle] = []
    _count: int = 0
    _lease_s: float = 0.0

    @property
    def token(self) -> str:
        return self.lease.token

    @property
    def count(self) -> int:
        if not self._count:
            self._count = len(self.lease)
        return self._count

    @property
    def lease_s(self) -> float:
        if not self._lease_s:
            self._lease_s = (self.lease_ms or _shortest(self.lease)) / 1_000
        return self._lease_s

    @property
    def period_s(self) -> float:
        """Between two beats."""
        return self.lease_s / 3

    @property
    def over(self) -> bool:
        """Whether everything about it has been told."""
        return not (self.telling or self.done) and self.decided == self.count

    def stop_timers(self) -> None:
        for timer in self.timers:
            timer.cancel()
        self.timers.clear()


def facts_of(job: Job) -> dict[str, Any]:
    """What a line of the log that is about one job has in fields of their own."""
    return {"job": job.id, "task": job.options.task, "queue": job.queue}


def _shortest(lease: Lease) -> int:
    """No longer than the lease is: it is as long as the longest that one of its jobs asks for."""
    return min([each.lease_ms or LEASE_MS for run in lease.runs for each in run.options])
