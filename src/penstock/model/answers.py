"""What a store answers: the values that the methods of `Store` give back.

They are facts at one instant, the same whichever store has answered, and travel as they are: a
field here is a field on the wire. What leads to an answer is said at the method, in `store.py`; jobs
and leases, which producers and workers hold in their hands, are in `job.py`.
"""

from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec

from penstock.model.job import OUTCOMES, Codec, Ids, Job, JobError, Outcome
from penstock.model.lifecycle import DeadReason, State
from penstock.model.policy import QueueConfig
from penstock.model.schedule import CronSpec

Durability = Literal["fsync", "os", "memory"]


class PushedRun(msgspec.Struct, frozen=True, gc=False):
    """The answer for one run. Where no job has a key, `ids` and `outcomes` are None: all created."""

    first: int  # the first id created; 0 if none was
    count: int  # how many were created; their ids are contiguous
    ids: tuple[int, ...] | None = None
    outcomes: bytes | None = None  # CREATED, UPDATED or IGNORED per job

    def __iter__(self) -> Iterator[tuple[int, Outcome]]:
        if self.ids is None or self.outcomes is None:
            for job_id in range(self.first, self.first + self.count):
                yield job_id, "created"
        else:
            for job_id, outcome in zip(self.ids, self.outcomes, strict=True):
                yield job_id, OUTCOMES[outcome]


class Pushed(msgspec.Struct, frozen=True, gc=False):
    runs: tuple[PushedRun, ...]

    @property
    def jobs(self) -> list[tuple[int, Outcome]]:
        """(id, outcome) of every job, in the order in which they were pushed."""
        return [job for run in self.runs for job in run]

    @property
    def ids(self) -> list[int]:
        return [job_id for job_id, _ in self.jobs]


class PushedInstead(Pushed, frozen=True, gc=False):
    """What became of instants that were put, and of those in whose place they came."""

    removed: int = 0

    @property
    def created(self) -> int:
        return sum(run.count for run in self.runs)


class Acked(msgspec.Struct, frozen=True, gc=False):
    acked: Ids
    lost: Ids = Ids()  # named, but not (or no longer) held by this lease


class FailedJob(msgspec.Struct, frozen=True):
    id: int
    state: State  # scheduled, ready or dead
    run_at: int | None  # when the next attempt is due; None if dead


class Failed(msgspec.Struct, frozen=True):
    jobs: tuple[FailedJob, ...]
    lost: Ids = Ids()


class Released(msgspec.Struct, frozen=True):
    released: Ids
    lost: Ids = Ids()


class Extended(msgspec.Struct, frozen=True):
    expires_at: int  # wall clock
    lost: Ids = Ids()  # jobs of the original claim that left the lease otherwise than by its holder


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """How a job ended. Exactly one of value and error means something, by state."""

    state: State
    value: bytes | None = None
    codec: Codec | None = None
    error: JobError | None = None
    dead_reason: DeadReason | None = None


class Page(msgspec.Struct, frozen=True):
    jobs: tuple[Job, ...]
    cursor: int | None  # pass to the next `find`; None = nothing lies behind


class Standing(msgspec.Struct, frozen=True, gc=False):
    """Where a job stands. The lease is a secret between its holder and whoever keeps the store."""

    queue: str
    state: State
    lease: str | None = None  # the token of the lease that holds it, while active


class QueueInfo(msgspec.Struct, frozen=True, kw_only=True):
    queue: str
    config: QueueConfig
    counts: dict[State, int]  # every state, zeros included
    oldest_ready_ms: int | None  # how long the oldest ready job has been ready
    groups: int = 0  # groups with a job that is ready, active or holds a slot in its backoff


class Redriven(msgspec.Struct, frozen=True):
    ids: tuple[int, ...]
    conflicts: tuple[int, ...] = ()  # their key is taken meanwhile; they stay dead


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job is not running."""

    id: int
    state: State
    reasons: tuple[str, ...]  # codes: see EXPLANATIONS
    detail: dict[str, Any] = {}  # by reason: the limit, the group, the dependencies …
    ahead: int | None = None  # ready jobs of the queue that would be served first
    start_at: int | None = None  # predicted, if workers are free; None where nothing can be said


EXPLANATIONS: Final[dict[str, str]] = {
    "held": "its bulk is not committed",
    "blocked": "it waits for dependencies",
    "delayed": "its run_at lies ahead",
    "backoff": "an attempt failed; it waits for the next one",
    "paused": "its queue is paused",
    "rate": "its queue's rate limit has no token left",
    "concurrency": "its queue runs as many jobs as it may",
    "group": "its group runs as many jobs as it may",
    "group_rate": "its group's rate limit has no token left",
    "line": "others are served first",
    "next": "nothing holds it: the next claim takes it",
    "active": "it is running",
    "ended": "it has ended",
}


class WaitingClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A claim that found nothing, and is in line for what comes."""

    worker: str  # as it said; empty if it did not
    queues: tuple[str, ...]
    n: int  # jobs that it takes at most
    since: int  # wall clock; when it came


class WaitingClaims(msgspec.Struct, frozen=True):
    claims: tuple[WaitingClaim, ...]  # in the order in which they came
    complete: bool  # nobody else waits


class BulkInfo(msgspec.Struct, frozen=True, kw_only=True):
    bulk: str
    state: Literal["open", "committed", "aborted"]
    expires_at: int = 0  # wall clock; of an open one
    jobs: int = 0  # published by the commit
    dropped: int = 0  # not published: parts not named, keys that were taken


class CronInfo(msgspec.Struct, frozen=True, kw_only=True):
    spec: CronSpec
    config_hash: str
    installed_until: int | None  # the latest instant installed so far
    pending: tuple[int, ...]  # instants installed and not yet due
    executions: int  # instants that came due


class Health(msgspec.Struct, frozen=True, kw_only=True):
    ok: bool
    store: str  # the url's scheme
    durability: Durability
    detail: dict[str, Any] = {}
