"""Everything the oracle knows, as plain mutable objects in plain dicts.

Values inside the objects are immutable (tuples, frozen sets, numbers), so that `World.copy` can
save the whole world before a call that may be refused half-way.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from fractions import Fraction
from itertools import groupby
from typing import Any

import msgspec

from penstock.model.answers import Pushed, Result
from penstock.model.event import Event, EventKind
from penstock.model.job import Codec, Ids, JobError, JobOptions, KeyClaim, LogLine
from penstock.model.lifecycle import ENDED, DeadReason, State
from penstock.model.policy import DEFAULT_CONFIG, Bounds, KeepKey, QueueConfig, Rate
from penstock.model.schedule import CronSpec

STRETCH = 4_096  # ids are reserved by this many at least


@dataclass(frozen=True, kw_only=True)
class Version:
    """What one push said about one job."""

    payload: bytes
    options: JobOptions
    key: str | None = None
    keys: tuple[KeyClaim, ...] = ()
    group: str | None = None
    headers: dict[str, str] | None = None
    depends_on: tuple[int, ...] = ()
    delay_ms: int | None = None
    run_at: int | None = None


@dataclass(kw_only=True)
class OracleJob:
    id: int
    tenant: str
    queue: str
    said: Version
    state: State
    bulk: str | None = None  # while held
    cron: str | None = None  # the name of the cron whose instant this is
    planned: bool = False  # by a cron, though it may be its no longer
    created_at: int = 0
    run_at: int = 0
    delayed: bool = False  # run_at lay ahead when it was said
    ready_at: int = 0
    ttl_ends: int | None = None  # None once claimed, and after a redrive
    priority: int = 0
    attempt: int = 0
    claimed: bool = False  # this version, ever
    redriven: bool = False  # likewise
    owns_slot: bool = False  # of its group, in backoff
    unmet: frozenset[int] = frozenset()  # dependencies still to end
    waited_for: frozenset[int] = frozenset()  # every dependency that it had since it began
    doomed_by: tuple[int, ...] = ()  # held dependencies that their bulk's commit left out
    lease: str | None = None
    timeout_at: int | None = None  # elapsed
    waiting: Version | None = None  # replaced while active: starts when the attempt ends
    waiting_since: int = 0
    worker: str | None = None
    started_at: int | None = None
    heartbeat_at: int | None = None
    finished_at: int | None = None
    end_order: int = 0  # of jobs that end in one call: by id
    outlived: bool = False  # its retention is over; it is kept for its dependants alone
    dead_reason: DeadReason | None = None
    errors: tuple[JobError, ...] = ()
    progress: int | None = None
    progress_message: str | None = None
    logs: tuple[LogLine, ...] = ()
    result: bytes | None = None
    result_codec: Codec | None = None

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def last_said(self) -> Version:
        return self.waiting if self.waiting is not None else self.said


@dataclass(kw_only=True)
class OracleLease:
    token: str
    tenant: str
    queue: str
    worker: str
    ids: tuple[int, ...]  # of the claim, in its order
    length_ms: int
    ends: int  # elapsed
    lost: tuple[int, ...] = ()  # taken from it, not given up by its holder


@dataclass(kw_only=True)
class KeptKey:
    job_id: int
    keep: KeepKey
    until: int | None  # wall clock, for a duration
    payload: tuple[Codec, bytes]  # the last one, for `match`


@dataclass(kw_only=True)
class Bulk:
    state: str
    deadline_ms: int
    ends: int  # elapsed, while open
    parts: tuple[str, ...] = ()  # pushed so far
    part_of: tuple[tuple[int, str], ...] = ()  # (id, part) of every job pushed into it
    jobs: int = 0
    dropped: int = 0
    finished_at: int = 0  # wall clock


@dataclass(kw_only=True)
class Producer:
    answers: tuple[tuple[int, Any, Pushed], ...] = ()  # (sequence, content, answer), ascending
    highest_dropped: int = -1
    used_at: int = 0


@dataclass(kw_only=True)
class OracleCron:
    spec: CronSpec
    config_hash: str
    installed_until: int | None = None
    executions: int = 0
    instants: tuple[tuple[int, int], ...] = ()  # (instant, job id) installed and not yet due


@dataclass(kw_only=True)
class Bucket:
    """Tokens, exactly: `level` of them at `at` (elapsed)."""

    level: Fraction
    at: int


Place = tuple[str, str]  # tenant, queue


@dataclass(kw_only=True)
class World:
    seed: int
    jitter_id: Callable[[int], int] = int  # by which id the other store draws its jitter
    now: int = 0
    elapsed: int = 0
    first_id: int = 1
    highest_reserved: int = 0
    ends_so_far: int = 0
    jobs: dict[int, OracleJob] = field(default_factory=dict)
    dependants: dict[int, tuple[int, ...]] = field(default_factory=dict)  # ever; check before use
    configs: dict[Place, QueueConfig] = field(default_factory=dict)
    bounds: dict[str, Bounds] = field(default_factory=dict)
    latest_ready: dict[Place, int] = field(default_factory=dict)
    stretches: dict[Place, tuple[int, int]] = field(default_factory=dict)  # next id, end
    keys: dict[tuple[str, str, str], KeptKey] = field(default_factory=dict)
    leases: dict[str, OracleLease] = field(default_factory=dict)
    bulks: dict[tuple[str, str], Bulk] = field(default_factory=dict)
    producers: dict[tuple[str, str], Producer] = field(default_factory=dict)
    crons: dict[tuple[str, str], OracleCron] = field(default_factory=dict)
    buckets: dict[tuple[str, ...], Bucket] = field(default_factory=dict)
    rings: dict[tuple[str, str, int], tuple[str | None, ...]] = field(default_factory=dict)
    ended_just_now: list[tuple[OracleJob, bool]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    ends: list[tuple[int, Result | None]] = field(default_factory=list)  # None = forgotten alive

    # -- reading ---------------------------------------------------------------------------------

    def config(self, tenant: str, queue: str) -> QueueConfig:
        return self.configs.get((tenant, queue), DEFAULT_CONFIG)

    def of_queue(self, tenant: str, queue: str) -> list[OracleJob]:
        """Every known job of the queue, by id."""
        jobs = [j for j in self.jobs.values() if j.queue == queue and j.tenant == tenant]
        return sorted(jobs, key=lambda job: job.id)

    def known(self, tenant: str, job_id: int) -> OracleJob | None:
        job = self.jobs.get(job_id)
        return job if job is not None and job.tenant == tenant else None

    def held(self, lease: OracleLease) -> list[OracleJob]:
        """The jobs that the lease still holds."""
        jobs = [self.jobs[job_id] for job_id in lease.ids if job_id in self.jobs]
        return [job for job in jobs if job.lease == lease.token]

    # -- ids -------------------------------------------------------------------------------------

    def reserve(self, tenant: str, queue: str, count: int) -> None:
        """See to it that the next `count` ids of the queue are contiguous."""
        next_id, end = self.stretches.get((tenant, queue), (0, 0))
        if end - next_id < count:
            begin = max(self.highest_reserved + 1, self.first_id)
            size = -(-count // STRETCH) * STRETCH
            self.stretches[tenant, queue] = (begin, begin + size)
            self.highest_reserved = begin + size - 1

    def next_id(self, tenant: str, queue: str) -> int:
        self.reserve(tenant, queue, 1)
        next_id, end = self.stretches[tenant, queue]
        self.stretches[tenant, queue] = (next_id + 1, end)
        return next_id

    # -- tokens ----------------------------------------------------------------------------------

    def tokens(self, bucket: tuple[str, ...], rate: Rate) -> Fraction:
        """How many tokens there are now: full at first, then one each `per_ms / tokens`."""
        burst = Fraction(rate.burst or rate.tokens)
        known = self.buckets.get(bucket)
        if known is None:
            return burst
        grown = Fraction((self.elapsed - known.at) * rate.tokens, rate.per_ms)
        return min(burst, known.level + grown)

    def spend(self, bucket: tuple[str, ...], rate: Rate, count: int) -> None:
        level = self.tokens(bucket, rate) - count
        self.buckets[bucket] = Bucket(level=level, at=self.elapsed)

    # -- saving ----------------------------------------------------------------------------------

    def copy(self) -> dict[str, Any]:
        saved: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, dict):
                saved[each.name] = {key: _copied(held) for key, held in value.items()}
            else:
                saved[each.name] = list(value) if isinstance(value, list) else value
        return saved

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        saved = self.copy()
        try:
            yield
        except BaseException:
            self.__dict__.update(saved)
            raise

    # -- telling ---------------------------------------------------------------------------------

    def tell(self, kind: EventKind, job: OracleJob, at: int, **more: Any) -> None:
        fields_of: dict[str, Any] = {
            "ids": Ids.of([job.id]),
            "attempt": job.attempt,
            "pushed_at": job.created_at,
            "worker": job.worker or "",
            "task": job.said.options.task,
            "priority": job.priority,
        }
        event = Event(kind=kind, tenant=job.tenant, queue=job.queue, at=at, **fields_of | more)
        self.events.append(event)

    def tell_of_queue(self, kind: EventKind, tenant: str, queue: str) -> None:
        self.events.append(Event(kind=kind, tenant=tenant, queue=queue, at=self.now))


def _copied(held: Any) -> Any:
    if not hasattr(held, "__dict__"):
        return held  # immutable
    twin = object.__new__(type(held))
    twin.__dict__.update(held.__dict__)
    return twin


def joined(events: list[Event]) -> list[Event]:
    """One event for neighbours that differ in nothing but their jobs."""
    found = []
    for alike, each in groupby(events, key=lambda event: _with(event, ids=Ids(), bytes=0)):
        same = list(each)
        ids = Ids.of(job_id for event in same for job_id in event.ids)
        found.append(_with(alike, ids=ids, bytes=sum(event.bytes for event in same)))
    return found


def _with(event: Event, **changes: Any) -> Event:
    return msgspec.structs.replace(event, **changes)
