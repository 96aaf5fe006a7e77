"""Leases in the worker's hands, and the calls of handlers that their jobs become.

Only the home thread changes a `Held`. A `Work` goes to a pool and comes back with its outcome.
"""

import asyncio
from collections.abc import Sequence
from enum import Enum
from typing import Any, Final

from penstock.client.context import Context
from penstock.client.execute import BatchOutcome, Failed, Outcome, job_error
from penstock.model.job import Job, Lease

LEASE_MS: Final = 30_000  # of a claim for which neither worker nor job says a length


class Why(Enum):
    """Why a handler is stopped from outside."""

    LOST = "taken away"  # cancelled, purged, or the lease is over: nobody waits for its outcome
    TIMEOUT = "timed out"  # the store has failed the attempt
    SHUTDOWN = "shutdown"  # the worker ends: the job goes back unspent


class Work:
    """One call of a handler: for one job, or for a batch of them."""

    __slots__ = ("context", "handle", "held", "job", "outcome", "results", "task", "why")

    def __init__(self, held: "Held", task: Any, job: Job) -> None:
        self.held = held
        self.task = task
        self.job = job  # of a batch: its first
        self.context: Context | None = None  # unset until a pool begins with it
        self.handle: Any = None  # the pool's own
        self.results: dict[int, Any] | None = None  # of the jobs that it depends on, if asked for
        self.outcome: Outcome | BatchOutcome | None = None
        self.why: Why | None = None  # set when it is to be stopped

    @property
    def ids(self) -> Sequence[int]:
        return (self.job.id,)

    def __len__(self) -> int:
        return 1

    def jobs(self) -> tuple[Job, ...]:
        return (self.job,)

    def broke(self, error: BaseException) -> None:
        """Whoever ran it made a mistake; its jobs must still come to an end."""
        self.outcome = Failed(error=job_error(error))


class BatchWork(Work):
    """Jobs of one lease and one batch task. Nothing here is made per job but its payload."""

    __slots__ = ("_ids", "payloads")

    def __init__(
        self, held: "Held", task: Any, job: Job, ids: Sequence[int], payloads: Sequence[bytes]
    ) -> None:
        super().__init__(held, task, job)
        self._ids = ids
        self.payloads = payloads

    @property
    def ids(self) -> Sequence[int]:
        return self._ids

    def __len__(self) -> int:
        return len(self._ids)

    def broke(self, error: BaseException) -> None:
        self.outcome = BatchOutcome(all=Failed(error=job_error(error)))

    def jobs(self) -> tuple[Job, ...]:
        """Cut out when a handler looks at them."""
        mine = set(self.ids)
        return tuple(job for job in self.held.lease.jobs if job.id in mine)


class Held:
    """A lease, and how far its jobs are."""

    __slots__ = (
        "acking",
        "beat",
        "count",
        "done",
        "lease",
        "lease_s",
        "left",
        "period_s",
        "results",
        "telling",
        "timers",
        "token",
        "works",
    )

    def __init__(self, lease: Lease, lease_ms: int | None) -> None:
        self.lease = lease
        self.token = lease.token
        self.count = len(lease)
        self.left = self.count  # jobs about which nothing has been decided
        self.works: set[Work] = set()  # not ended
        self.done: list[int] = []  # completed, and not told yet
        self.results: dict[int, bytes] = {}  # of those
        self.acking = False  # whether an ack is under way
        self.telling = 0  # calls under way that end jobs of this lease
        self.beat: asyncio.TimerHandle | None = None
        self.timers: list[asyncio.TimerHandle] = []
        self.lease_s = (lease_ms or _shortest(lease)) / 1_000
        self.period_s = self.lease_s / 3

    @property
    def over(self) -> bool:
        """Whether everything about it has been told."""
        return not (self.left or self.telling or self.done)

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
