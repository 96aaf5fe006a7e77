"""What answers of the HTTP interface show of queues, dead letters and crons."""

from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from penstock.model.answers import CronInfo, QueueInfo, Redriven
from penstock.model.fingerprint import masked
from penstock.model.job import Codec, JobError
from penstock.model.lifecycle import State
from penstock.model.policy import QueueConfig, Rate
from penstock.model.schedule import Cron, Daily, Every, Missed, Overlap
from penstock.protocol.http_said import BackoffSaid
from penstock.protocol.http_shown import Shown
from penstock.protocol.json_values import shown

# -- queues --------------------------------------------------------------------------------------


class RateShown(Shown, frozen=True, kw_only=True):
    tokens: int
    per_ms: int
    burst: int

    @classmethod
    def of(cls, rate: Rate | None) -> "RateShown | None":
        if rate is None:
            return None
        return cls(tokens=rate.tokens, per_ms=rate.per_ms, burst=rate.burst or rate.tokens)


class LimitsShown(Shown, frozen=True, kw_only=True):
    rate: RateShown | None
    concurrency: int | None
    group_rate: RateShown | None
    group_concurrency: int

    @classmethod
    def of(cls, config: QueueConfig) -> "LimitsShown":
        limits = config.limits
        return cls(
            rate=RateShown.of(limits.rate),
            concurrency=limits.concurrency,
            group_rate=RateShown.of(limits.group_rate),
            group_concurrency=limits.group_concurrency,
        )


class BoundsShown(Shown, frozen=True, kw_only=True):
    jobs: int | None
    bytes: int | None
    push_rate: RateShown | None

    @classmethod
    def of(cls, config: QueueConfig) -> "BoundsShown":
        bounds = config.bounds
        return cls(jobs=bounds.jobs, bytes=bounds.bytes, push_rate=RateShown.of(bounds.push_rate))


class Counts(Shown, frozen=True, kw_only=True):
    held: int = 0
    blocked: int = 0
    scheduled: int = 0
    ready: int = 0
    active: int = 0
    completed: int = 0
    dead: int = 0
    cancelled: int = 0
    expired: int = 0

    @classmethod
    def of(cls, counts: dict[State, int]) -> "Counts":
        return cls(**{state.value: count for state, count in counts.items()})


class QueueShown(Shown, frozen=True, kw_only=True):
    queue: str
    paused: bool
    counts: Counts
    limits: LimitsShown
    bounds: BoundsShown
    oldest_ready_ms: int | None

    @classmethod
    def of(cls, info: QueueInfo) -> "QueueShown":
        return cls(
            queue=info.queue,
            paused=info.config.paused,
            counts=Counts.of(info.counts),
            limits=LimitsShown.of(info.config),
            bounds=BoundsShown.of(info.config),
            oldest_ready_ms=info.oldest_ready_ms,
        )


class Queues(Shown, frozen=True, kw_only=True):
    """The queues that hold jobs, kept keys or configuration, by name."""

    queues: tuple[QueueShown, ...]


class ConfigShown(Shown, frozen=True, kw_only=True):
    """A queue's configuration as it is from now on."""

    limits: LimitsShown
    bounds: BoundsShown
    retain_ms: int
    retain_count: int
    retain_dead_ms: int

    @classmethod
    def of(cls, config: QueueConfig) -> "ConfigShown":
        return cls(
            limits=LimitsShown.of(config),
            bounds=BoundsShown.of(config),
            retain_ms=config.retain_ms,
            retain_count=config.retain_count,
            retain_dead_ms=config.retain_dead_ms,
        )


class Counted(Shown, frozen=True, kw_only=True):
    """How many jobs it was."""

    count: int


class RedrivenShown(Shown, frozen=True, kw_only=True, omit_defaults=True):
    """How many jobs are ready again; `conflicts` are those whose key is taken meanwhile."""

    count: int
    conflicts: tuple[int, ...] = ()

    @classmethod
    def of(cls, answer: Redriven) -> "RedrivenShown":
        return cls(count=len(answer.ids), conflicts=answer.conflicts)


class DeadGroup(Shown, frozen=True, kw_only=True):
    """Dead jobs that died of the same error, as far as this page has looked."""

    fingerprint: str
    kind: str = msgspec.field(name="class")
    message: str  # with what varies from job to job replaced by the name of its kind
    count: int
    first_id: int
    last_id: int
    first_at: int  # when the first of them failed for the last time
    last_at: int  # when the last of them failed

    @classmethod
    def begin(cls, fingerprint: str, error: JobError, job_id: int) -> "DeadGroup":
        return cls(
            fingerprint=fingerprint,
            kind=error.kind,
            message=masked(error.message),
            count=1,
            first_id=job_id,
            last_id=job_id,
            first_at=error.at,
            last_at=error.at,
        )


class DeadGroups(Shown, frozen=True, kw_only=True):
    """Dead letters by their error, most frequent first, over the jobs from one cursor to the next:
    groups of several pages with the same fingerprint are one."""

    groups: tuple[DeadGroup, ...]
    cursor: int | None


# -- schedules -----------------------------------------------------------------------------------


class CronShown(Shown, frozen=True, kw_only=True):
    """A cron, its next instants, and how many have come due."""

    name: str
    queue: str
    payload: Raw | UnsetType = UNSET
    payload_base64: bytes | UnsetType = UNSET
    codec: Codec
    task: str
    lease_ms: int | None
    priority: int
    max_attempts: int
    backoff: BackoffSaid
    timeout_ms: int | None
    ttl_ms: int | None
    lifo: bool
    tags: tuple[str, ...]
    retain_ms: int | None
    retain_dead_ms: int | None
    expression: str | UnsetType = UNSET
    every_ms: int | UnsetType = UNSET
    daily: tuple[str, ...] | UnsetType = UNSET
    tz: str | UnsetType = UNSET
    overlap: Overlap
    missed: Missed
    limit: int | None
    next_run: int | None
    pending: tuple[int, ...]
    executions: int

    @classmethod
    def of(cls, info: CronInfo) -> "CronShown":
        spec, options = info.spec, info.spec.options
        payload, encoded = shown(spec.payload, spec.codec)
        when: dict[str, Any]
        match spec.schedule:
            case Cron(expression=expression, tz=tz):
                when = {"expression": expression, "tz": tz}
            case Every(every_ms=every_ms):
                when = {"every_ms": every_ms}
            case Daily(at=at, tz=tz):
                when = {"daily": at, "tz": tz}
        return cls(
            name=spec.name,
            queue=spec.queue,
            payload=payload,
            payload_base64=encoded,
            codec=spec.codec,
            task=options.task,
            lease_ms=options.lease_ms,
            priority=options.priority,
            max_attempts=options.max_attempts,
            backoff=BackoffSaid(**msgspec.structs.asdict(options.backoff)),
            timeout_ms=options.timeout_ms,
            ttl_ms=options.ttl_ms,
            lifo=options.lifo,
            tags=options.tags,
            retain_ms=options.retain_ms,
            retain_dead_ms=options.retain_dead_ms,
            overlap=spec.overlap,
            missed=spec.missed,
            limit=spec.limit,
            next_run=min(info.pending, default=None),
            pending=info.pending,
            executions=info.executions,
            **when,
        )


class Crons(Shown, frozen=True, kw_only=True):
    crons: tuple[CronShown, ...]
