"""What requests of the HTTP interface say, and how that reads in the words of the model.

A field that a shape does not have is refused, with its name: a misspelt option must not be a
default. What the values may be is the store's business; see `http_types.py` for the exceptions.
"""

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from penstock.model.checks import check_name
from penstock.model.errors import Invalid
from penstock.model.job import (
    DEFAULT_OPTIONS,
    MAX_BATCH,
    Codec,
    JobError,
    JobOptions,
    LogLine,
    OnDependencyFailure,
    Run,
)
from penstock.model.policy import (
    BULK_DEADLINE_MS,
    DEFAULT_CONFIG,
    Backoff,
    BackoffKind,
    Bounds,
    Jitter,
    Limits,
    OnConflict,
    QueueConfig,
    Rate,
)
from penstock.model.schedule import (
    MAX_EXPRESSION,
    Cron,
    CronSpec,
    Daily,
    Every,
    Missed,
    Overlap,
    Schedule,
)
from penstock.protocol.http_types import (
    Base64,
    Count,
    Dependencies,
    Duration,
    Fingerprint,
    Headers,
    Hour,
    Id,
    Ids,
    Instant,
    LeaseMs,
    Many,
    Name,
    NameOrNone,
    Number,
    Percent,
    Priority,
    QueueName,
    Results,
    ResultsBase64,
    Small,
    Span,
    Tags,
    WaitMs,
    Waits,
    Word,
)
from penstock.protocol.json_values import payload_of

_BACKOFF: Final = Backoff()


class Said(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every shape that comes in."""


# -- producing -----------------------------------------------------------------------------------


class BackoffSaid(Said, frozen=True, kw_only=True):
    """How long a failed attempt waits for the next one."""

    kind: BackoffKind = _BACKOFF.kind
    base_ms: Duration = _BACKOFF.base_ms
    cap_ms: Duration = _BACKOFF.cap_ms
    jitter: Jitter = _BACKOFF.jitter
    list_ms: Waits = ()

    def read(self) -> Backoff:
        return Backoff(
            kind=self.kind,
            base_ms=self.base_ms,
            cap_ms=self.cap_ms,
            jitter=self.jitter,
            list_ms=self.list_ms,
        )


class WorkSaid(Said, frozen=True, kw_only=True):
    """What jobs and the jobs of crons have in common."""

    payload: Raw | UnsetType = UNSET
    payload_base64: Base64 | UnsetType = UNSET
    codec: Codec | UnsetType = UNSET
    task: NameOrNone = ""
    lease_ms: LeaseMs | None = None
    priority: Priority = 0
    max_attempts: Number = 3
    backoff: BackoffSaid | None = None
    timeout_ms: Span | None = None
    ttl_ms: Span | None = None
    lifo: bool = False
    tags: Tags = ()
    retain_ms: Duration | None = None
    retain_dead_ms: Duration | None = None

    def options(self, codec: Codec, **more: Any) -> JobOptions:
        return JobOptions(
            codec=codec,
            task=self.task,
            priority=self.priority,
            max_attempts=self.max_attempts,
            backoff=_BACKOFF if self.backoff is None else self.backoff.read(),
            lease_ms=self.lease_ms,
            timeout_ms=self.timeout_ms,
            ttl_ms=self.ttl_ms,
            lifo=self.lifo,
            tags=self.tags,
            retain_ms=self.retain_ms,
            retain_dead_ms=self.retain_dead_ms,
            **more,
        )


class JobSaid(WorkSaid, frozen=True, kw_only=True):
    """One job. A payload is a JSON value, or bytes in `payload_base64`."""

    delay_ms: Duration | None = None
    run_at: Instant | None = None
    key: Name | None = None
    on_conflict: OnConflict = "return"
    keep_key: Literal["live", "started", "retained"] | Span = "live"
    group: Name | None = None
    depends_on: Dependencies = ()
    on_dependency_failure: OnDependencyFailure = "fail"
    headers: Headers | None = None


class JobsSaid(Said, frozen=True, kw_only=True):
    """Jobs pushed together, all or nothing."""

    jobs: Annotated[
        tuple[JobSaid, ...], Meta(extra_json_schema={"minItems": 1, "maxItems": MAX_BATCH})
    ]
    bulk: Name | None = None
    part: NameOrNone = ""
    producer: Name | None = None
    sequence: Many | None = None
    durability: Literal["fsync", "os"] | None = None


class FlowJobSaid(JobSaid, frozen=True, kw_only=True):
    """One job of a graph: it waits for those that it names in `after`."""

    name: Name
    queue: QueueName
    after: Annotated[tuple[Name, ...], Meta(extra_json_schema={"maxItems": 1_000})] = ()


class FlowSaid(Said, frozen=True, kw_only=True):
    """A graph of jobs, pushed at once or not at all."""

    jobs: Annotated[
        tuple[FlowJobSaid, ...], Meta(extra_json_schema={"minItems": 1, "maxItems": MAX_BATCH})
    ]


def run_of(
    queue: str, jobs: Sequence[JobSaid], after: Sequence[tuple[int, ...]] | None = None
) -> Run:
    """Jobs of one queue as a run; `after` are dependencies beside those that the jobs name."""
    table: dict[JobOptions, int] = {}
    option_of, payloads = [], []
    for job in jobs:
        payload, codec = payload_of(job.payload, job.payload_base64, job.codec)
        options = job.options(
            codec,
            on_conflict=job.on_conflict,
            keep_key=job.keep_key,
            on_dependency_failure=job.on_dependency_failure,
        )
        payloads.append(payload)
        option_of.append(table.setdefault(options, len(table)))
    depends_on = [job.depends_on for job in jobs]
    if after is not None:
        depends_on = [own + more for own, more in zip(depends_on, after, strict=True)]
    return Run(
        queue=queue,
        data=b"".join(payloads),
        ends=array("I", accumulate(map(len, payloads))),
        options=tuple(table) or (DEFAULT_OPTIONS,),
        option_of=option_of if len(table) > 1 else None,
        delay_ms=_column([job.delay_ms for job in jobs]),
        run_at=_column([job.run_at for job in jobs]),
        keys=_column([job.key for job in jobs]),
        groups=_column([job.group for job in jobs]),
        headers=_column([job.headers for job in jobs]),
        depends_on=depends_on if any(depends_on) else None,
    )


def _column(values: list[Any]) -> list[Any] | None:
    return values if any(value is not None for value in values) else None


def graph_of(jobs: Sequence[FlowJobSaid]) -> tuple[list[Run], list[str]]:
    """A graph as runs, one for each queue, and the names in the order of the runs.

    A job of the same push is named by its place in it, counted from 1, with a minus.
    """
    by_queue: dict[str, list[FlowJobSaid]] = {}
    for job in jobs:
        check_name(job.name, "name")
        by_queue.setdefault(job.queue, []).append(job)
    names = [job.name for own in by_queue.values() for job in own]
    place = {name: -number for number, name in enumerate(names, 1)}
    if len(place) != len(names):
        twice = next(name for name in place if names.count(name) > 1)
        raise Invalid(f"{twice[:60]!r} is the name of two jobs", "name")
    runs = []
    for queue, own in by_queue.items():
        after = [tuple(_place(place, name) for name in job.after) for job in own]
        runs.append(run_of(queue, own, after))
    return runs, names


def _place(places: dict[str, int], name: str) -> int:
    if name not in places:
        raise Invalid(f"{name[:60]!r} is no job of this flow", "after")
    return places[name]


class BulkSaid(Said, frozen=True, kw_only=True):
    """A two-phase push to be opened."""

    name: Name | None = None
    deadline_ms: Annotated[
        int, Meta(extra_json_schema={"minimum": 1_000, "maximum": 604_800_000})
    ] = BULK_DEADLINE_MS


class CommitSaid(Said, frozen=True, kw_only=True):
    """Which parts are published; without any, all."""

    parts: (
        Annotated[tuple[NameOrNone, ...], Meta(extra_json_schema={"maxItems": MAX_BATCH})] | None
    ) = None


# -- working -------------------------------------------------------------------------------------


class ClaimSaid(Said, frozen=True, kw_only=True):
    """How much work is wanted, for how long, and how long that is waited for."""

    n: Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": MAX_BATCH})] = 1
    lease_ms: LeaseMs | None = None
    worker: NameOrNone = ""
    wait_ms: WaitMs = 0


class ClaimAnySaid(ClaimSaid, frozen=True, kw_only=True):
    """The first of these queues that has work gives it."""

    queues: Annotated[
        tuple[QueueName, ...], Meta(extra_json_schema={"minItems": 1, "maxItems": 1_000})
    ]


class AckSaid(Said, frozen=True, kw_only=True):
    """Which jobs are done (without `ids` all that are held), and what came of them."""

    ids: Ids | None = None
    results: Results | None = None
    results_base64: ResultsBase64 | None = None
    codec: Codec | UnsetType = UNSET

    def values(self) -> tuple[dict[int, bytes] | None, Codec]:
        """The results as a store takes them: by id, all of one codec."""
        if self.results_base64 is not None:
            if self.results is not None:
                raise Invalid("cannot go with results; give one of them", "results_base64")
            return self.results_base64, "bytes" if self.codec is UNSET else self.codec
        if self.results is None:
            return None, "json"
        codec: Codec = "json"
        values: dict[int, bytes] = {}
        for job_id, value in self.results.items():
            values[job_id], codec = payload_of(value, UNSET, self.codec, "results")
        return values, codec


class ErrorSaid(Said, frozen=True, kw_only=True):
    """Why an attempt failed."""

    kind: Name = msgspec.field(name="class", default="Error")
    message: str = ""
    trace: str = ""

    def read(self) -> JobError:
        return JobError(kind=self.kind, message=self.message, trace=self.trace)


class FailSaid(Said, frozen=True, kw_only=True):
    """Which jobs failed (without `ids` all that are held), why, and whether to try again."""

    ids: Ids | None = None
    error: ErrorSaid
    retry_in_ms: Duration | None = None
    dead: bool = False


class ReleaseSaid(Said, frozen=True, kw_only=True):
    """Which jobs are given back; without `ids` all that are held."""

    ids: Ids | None = None


class ExtendSaid(Said, frozen=True, kw_only=True):
    """How long the lease lasts from now on; as long as at first where nothing is said."""

    lease_ms: LeaseMs | None = None


class LogSaid(Said, frozen=True, kw_only=True):
    message: Annotated[str, Meta(description="at most 16 KiB of UTF-8")]
    level: Word = "info"
    at: Instant = 0


class ProgressSaid(Said, frozen=True, kw_only=True):
    """Something about one running job. A partial result is an event and not kept."""

    id: Id
    progress: Percent | None = None
    message: Annotated[str, Meta(description="at most 4 KiB of UTF-8")] | None = None
    logs: Annotated[tuple[LogSaid, ...], Meta(extra_json_schema={"maxItems": 1_000})] = ()
    partial: Raw | UnsetType = UNSET

    def lines(self) -> list[LogLine]:
        return [LogLine(line.at, line.message, line.level) for line in self.logs]


# -- changing ------------------------------------------------------------------------------------


class EditSaid(Said, frozen=True, kw_only=True):
    """What is to change of a job that neither runs nor has ended. `delay_ms` 0 promotes it."""

    priority: Priority | None = None
    run_at: Instant | None = None
    delay_ms: Duration | None = None
    payload: Raw | UnsetType = UNSET
    payload_base64: Base64 | UnsetType = UNSET
    codec: Codec | UnsetType = UNSET

    def content(self) -> tuple[bytes | None, Codec | None]:
        if self.payload is UNSET and self.payload_base64 is UNSET:
            return None, None if self.codec is UNSET else self.codec
        return payload_of(self.payload, self.payload_base64, self.codec)


class RedriveSaid(Said, frozen=True, kw_only=True):
    """Which dead jobs are made ready again; where nothing is said, all of the queue."""

    ids: Ids | None = None
    limit: Count | None = None
    fingerprint: Fingerprint | None = None


class RateSaid(Said, frozen=True, kw_only=True):
    """So many per so many milliseconds; `burst` at one instant, 0 stands for `tokens`."""

    tokens: Small
    per_ms: Span = 1_000
    burst: Number = 0

    def read(self) -> Rate:
        return Rate(tokens=self.tokens, per_ms=self.per_ms, burst=self.burst)


class LimitsSaid(Said, frozen=True, kw_only=True):
    """What claims may take, across all workers."""

    rate: RateSaid | None = None
    concurrency: Small | None = None
    group_rate: RateSaid | None = None
    group_concurrency: Small = 1

    def read(self) -> Limits:
        return Limits(
            rate=self.rate.read() if self.rate else None,
            concurrency=self.concurrency,
            group_rate=self.group_rate.read() if self.group_rate else None,
            group_concurrency=self.group_concurrency,
        )


class BoundsSaid(Said, frozen=True, kw_only=True):
    """What pushes may put in; counts the jobs that have not ended."""

    jobs: Many | None = None
    bytes: Many | None = None
    push_rate: RateSaid | None = None

    def read(self) -> Bounds:
        return Bounds(
            jobs=self.jobs,
            bytes=self.bytes,
            push_rate=self.push_rate.read() if self.push_rate else None,
        )


class ConfigSaid(Said, frozen=True, kw_only=True):
    """All of a queue's configuration but whether it is paused; what is left out is the default."""

    limits: LimitsSaid | None = None
    bounds: BoundsSaid | None = None
    retain_ms: Duration = DEFAULT_CONFIG.retain_ms
    retain_count: Number = DEFAULT_CONFIG.retain_count
    retain_dead_ms: Duration = DEFAULT_CONFIG.retain_dead_ms

    def read(self, paused: bool) -> QueueConfig:
        return QueueConfig(
            paused=paused,
            limits=self.limits.read() if self.limits else DEFAULT_CONFIG.limits,
            bounds=self.bounds.read() if self.bounds else DEFAULT_CONFIG.bounds,
            retain_ms=self.retain_ms,
            retain_count=self.retain_count,
            retain_dead_ms=self.retain_dead_ms,
        )


class CronSaid(WorkSaid, frozen=True, kw_only=True):
    """A schedule (`expression`, `every_ms` or `daily`) and the job that each instant becomes."""

    queue: QueueName
    expression: (
        Annotated[str, Meta(extra_json_schema={"maxLength": MAX_EXPRESSION})] | UnsetType
    ) = UNSET
    every_ms: Span | UnsetType = UNSET
    daily: (
        Annotated[tuple[Hour, ...], Meta(extra_json_schema={"minItems": 1, "maxItems": 1_440})]
        | UnsetType
    ) = UNSET
    tz: Name | UnsetType = UNSET
    overlap: Overlap = "allow"
    missed: Missed = "last"
    limit: Count | None = None

    def read(self, name: str) -> CronSpec:
        payload, codec = payload_of(self.payload, self.payload_base64, self.codec)
        return CronSpec(
            name=name,
            queue=self.queue,
            schedule=self._schedule(),
            payload=payload,
            codec=codec,
            options=self.options("json"),  # the codec of a cron stands beside its options
            overlap=self.overlap,
            missed=self.missed,
            limit=self.limit,
        )

    def _schedule(self) -> Schedule:
        said = (self.expression, self.every_ms, self.daily)
        if sum(one is not UNSET for one in said) != 1:
            raise Invalid("give exactly one of expression, every_ms and daily", "expression")
        if self.every_ms is not UNSET:
            if self.tz is not UNSET:
                raise Invalid("does not go with every_ms, which counts from the epoch", "tz")
            return Every(every_ms=self.every_ms)
        tz = "UTC" if self.tz is UNSET else self.tz
        if self.expression is not UNSET:
            return Cron(expression=self.expression, tz=tz)
        assert self.daily is not UNSET
        return Daily(at=self.daily, tz=tz)
