"""Jobs: what a producer says (JobSpec, Run), what is known (Job), who holds it (Lease), and ids.

Work travels in runs. A `Run` is any number of jobs for one queue with their payloads packed end
to end and their options in a small table; nothing in it is paid per job where jobs are alike.
`JobSpec` is the friendly face for one job; `Run.of` packs many of them.

Validation lives in `checks.py`, decisions in the kernel; neither belongs here.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, compress, islice
from typing import Any, Final, Literal, NewType

import msgspec

from penstock.model.lifecycle import DeadReason, State
from penstock.model.policy import Backoff, KeepKey, OnConflict

JobId = NewType("JobId", int)  # positive, below 2**53, never reused

MAX_ID: Final = 2**53 - 1
MAX_BATCH: Final = 10_000
MAX_PAYLOAD: Final = 10 * 1024 * 1024
MAX_DEPENDENCIES: Final = 1_000
MAX_OPTION_SETS: Final = 10_000  # of one run: at most one per job

Codec = Literal["json", "msgpack", "bytes"]
OnDependencyFailure = Literal["fail", "ignore"]
Outcome = Literal["created", "updated", "ignored"]

CREATED: Final = 0
UPDATED: Final = 1
IGNORED: Final = 2
OUTCOMES: Final[tuple[Outcome, ...]] = ("created", "updated", "ignored")


class JobOptions(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The part of a job that many jobs share; a run holds each distinct set once."""

    codec: Codec = "json"
    task: str = ""
    priority: int = 0
    max_attempts: int = 3  # 0 = without end
    backoff: Backoff = Backoff()
    lease_ms: int | None = None  # used where the claim does not say
    timeout_ms: int | None = None  # of one attempt, however alive the heartbeat
    ttl_ms: int | None = None  # counted from the push
    on_conflict: OnConflict = "return"
    keep_key: KeepKey = "live"
    on_dependency_failure: OnDependencyFailure = "fail"
    lifo: bool = False
    tags: tuple[str, ...] = ()
    retain_ms: int | None = None  # None = by queue
    retain_dead_ms: int | None = None


DEFAULT_OPTIONS: Final = JobOptions()


class KeyClaim(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """One key that a job wants to carry. A job may carry several; the public API offers one."""

    key: str
    on_conflict: OnConflict = "return"
    keep_key: KeepKey = "live"


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One job as a producer says it."""

    payload: bytes = b"null"
    codec: Codec = "json"
    task: str = ""
    priority: int = 0
    delay_ms: int | None = None  # at most one of delay_ms and run_at
    run_at: int | None = None
    max_attempts: int = 3
    backoff: Backoff = Backoff()
    lease_ms: int | None = None
    timeout_ms: int | None = None
    ttl_ms: int | None = None
    key: str | None = None
    on_conflict: OnConflict = "return"
    keep_key: KeepKey = "live"
    group: str | None = None
    depends_on: tuple[int, ...] = ()  # ids; -k names the k-th job of the same push (from 1)
    on_dependency_failure: OnDependencyFailure = "fail"
    lifo: bool = False
    tags: tuple[str, ...] = ()
    headers: dict[str, str] | None = None
    retain_ms: int | None = None
    retain_dead_ms: int | None = None

    def options(self) -> JobOptions:
        return JobOptions(
            codec=self.codec,
            task=self.task,
            priority=self.priority,
            max_attempts=self.max_attempts,
            backoff=self.backoff,
            lease_ms=self.lease_ms,
            timeout_ms=self.timeout_ms,
            ttl_ms=self.ttl_ms,
            on_conflict=self.on_conflict,
            keep_key=self.keep_key,
            on_dependency_failure=self.on_dependency_failure,
            lifo=self.lifo,
            tags=self.tags,
            retain_ms=self.retain_ms,
            retain_dead_ms=self.retain_dead_ms,
        )


class Run(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Jobs pushed together into one queue. Lists are as long as the run, or None for "no job"."""

    queue: str
    data: bytes  # the payloads, end to end
    ends: Sequence[int]  # where each payload ends in `data`
    options: tuple[JobOptions, ...] = (DEFAULT_OPTIONS,)
    option_of: Sequence[int] | None = None  # index into `options` per job; None = all the first
    delay_ms: int | Sequence[int | None] | None = None  # one for all, or one each
    run_at: int | Sequence[int | None] | None = None
    keys: Sequence[str | None] | None = None
    more_keys: Sequence[tuple[KeyClaim, ...]] | None = None  # beside or instead of `keys`
    groups: Sequence[str | None] | None = None
    headers: Sequence[dict[str, str] | None] | None = None
    depends_on: Sequence[tuple[int, ...]] | None = None

    def __len__(self) -> int:
        return len(self.ends)

    def payloads(self) -> Iterator[bytes]:
        begin = 0
        for end in self.ends:
            yield self.data[begin:end]
            begin = end

    @classmethod
    def pack(
        cls,
        queue: str,
        payloads: Sequence[bytes],
        options: JobOptions = DEFAULT_OPTIONS,
        **more: Any,
    ) -> "Run":
        """Jobs that share one set of options."""
        ends = array("I", accumulate(map(len, payloads)))
        return cls(queue=queue, data=b"".join(payloads), ends=ends, options=(options,), **more)

    @classmethod
    def of(cls, queue: str, specs: Iterable[JobSpec]) -> "Run":
        """Jobs each said by themselves; equal options are held once."""
        jobs = list(specs)
        table: dict[JobOptions, int] = {}
        option_of = [table.setdefault(job.options(), len(table)) for job in jobs]

        def column(values: list[Any], nothing: Any = None) -> list[Any] | None:
            return values if any(value != nothing for value in values) else None

        return cls(
            queue=queue,
            data=b"".join(job.payload for job in jobs),
            ends=array("I", accumulate(len(job.payload) for job in jobs)),
            options=tuple(table) or (DEFAULT_OPTIONS,),
            option_of=option_of if len(table) > 1 else None,
            delay_ms=column([job.delay_ms for job in jobs]),
            run_at=column([job.run_at for job in jobs]),
            keys=column([job.key for job in jobs]),
            groups=column([job.group for job in jobs]),
            headers=column([job.headers for job in jobs]),
            depends_on=column([job.depends_on for job in jobs], ()),
        )


class IdRun(msgspec.Struct, frozen=True, gc=False):
    """Ids from `first` on: all `span` of them, or those whose byte in `mask` is 1."""

    first: int
    span: int
    mask: bytes | None = None

    def __len__(self) -> int:
        return self.span if self.mask is None else self.mask.count(1)

    def __iter__(self) -> Iterator[int]:
        ids = range(self.first, self.first + self.span)
        return iter(ids) if self.mask is None else compress(ids, self.mask)


class Ids(msgspec.Struct, frozen=True, gc=False):
    """A set of ids in compact form, in the order in which they were dealt with."""

    runs: tuple[IdRun, ...] = ()

    def __len__(self) -> int:
        return sum(map(len, self.runs))

    def __iter__(self) -> Iterator[int]:
        for run in self.runs:
            yield from run

    def __bool__(self) -> bool:
        return bool(self.runs)

    @classmethod
    def of(cls, ids: Iterable[int]) -> "Ids":
        """Compact form of single ids: neighbours are joined."""
        runs: list[IdRun] = []
        first = span = 0
        for job_id in ids:
            if span and job_id == first + span:
                span += 1
            else:
                if span:
                    runs.append(IdRun(first, span))
                first, span = job_id, 1
        if span:
            runs.append(IdRun(first, span))
        return cls(tuple(runs))


class JobError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why an attempt failed. The store fills in the last three."""

    kind: str = "Error"  # the exception's class name; "class" on the wire
    message: str = ""
    trace: str = ""  # cut to 16 KiB
    at: int = 0
    worker: str = ""
    attempt: int = 0


class LogLine(msgspec.Struct, frozen=True):
    at: int
    message: str
    level: str = "info"


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a job at one instant. A claimed job has the first part only."""

    id: int
    queue: str
    payload: bytes
    options: JobOptions
    attempt: int  # attempts counted so far, the running one included
    created_at: int
    run_at: int  # not before this instant; for a retry, when it is due
    key: str | None = None
    more_keys: tuple[str, ...] = ()  # those that it carries beside `key`
    group: str | None = None
    headers: dict[str, str] | None = None
    depends_on: tuple[int, ...] = ()
    state: State = State.ACTIVE
    priority: int = 0  # as edited; `options.priority` is as pushed

    dead_reason: DeadReason | None = None
    lease_expires_at: int | None = None  # wall clock, while active
    last_heartbeat: int | None = None  # while active: the claim, or the last extend
    worker: str | None = None  # of the current or last attempt; None before the first claim
    progress: int | None = None
    progress_message: str | None = None
    result: bytes | None = None
    result_codec: Codec | None = None
    errors: tuple[JobError, ...] = ()
    started_at: int | None = None  # of the current or last attempt
    finished_at: int | None = None
    dependants: tuple[int, ...] = ()  # known jobs that wait, or waited, for this one

    @property
    def redelivered(self) -> bool:
        return self.attempt > 1


class ClaimedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of claimed jobs: `ids` says which; columns are as long as the ids are many."""

    ids: IdRun
    data: bytes  # payloads of these jobs, end to end
    ends: Sequence[int]
    options: tuple[JobOptions, ...]
    option_of: Sequence[int] | None  # None = all the first
    created_at: int | Sequence[int]  # one for all, or one each
    run_at: int | Sequence[int]
    individual: dict[int, "Individual"] = {}  # by id: what only that job has

    @property
    def first(self) -> int:
        return self.ids.first

    @property
    def span(self) -> int:
        return self.ids.span


class Individual(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a claimed job does not share with its neighbours."""

    attempt: int = 1
    priority: int | None = None  # if edited
    key: str | None = None
    more_keys: tuple[str, ...] = ()
    group: str | None = None
    headers: dict[str, str] | None = None
    depends_on: tuple[int, ...] = ()


_ALONE: Final = Individual()


class Lease(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The exclusive, expiring right to the jobs that were claimed together."""

    token: str
    queue: str
    expires_at: int  # wall clock; the store's own clock decides
    runs: tuple[ClaimedRun, ...]

    def __len__(self) -> int:
        return sum([len(run.ids) for run in self.runs])

    @property
    def ids(self) -> list[int]:
        return [job_id for run in self.runs for job_id in run.ids]

    @property
    def jobs(self) -> list[Job]:
        """The jobs one by one, in claim order; cut out on first use."""
        cut: list[Job] | None = self.__dict__.get("_jobs")
        if cut is None:
            cut = []
            for run in self.runs:
                cut += jobs_of(run, self.queue)
            self.__dict__["_jobs"] = cut
        return cut

    def job(self, job_id: int) -> Job:
        """One of them, without cutting out the others."""
        for run in self.runs:
            if 0 <= job_id - run.first < run.span:
                ids = list(run.ids)
                if job_id in ids:
                    return next(_jobs_from(run, self.queue, ids.index(job_id)))
        raise KeyError(job_id)


def jobs_of(run: ClaimedRun, queue: str) -> Iterable[Job]:
    """The jobs of a run, one by one.

    Those that differ in nothing but id and payload, as nearly all do, are cut out in half of the
    time. So is one that comes alone, and which a worker at rest waits for.
    """
    created_at, run_at = run.created_at, run.run_at
    if (
        run.individual
        or run.option_of is not None
        or not isinstance(created_at, int)
        or not isinstance(run_at, int)
    ):
        return _jobs_from(run, queue)
    options = run.options[0]
    if run.span == 1:
        alone = Job(
            id=run.first,
            queue=queue,
            payload=run.data,
            options=options,
            attempt=1,
            created_at=created_at,
            run_at=run_at,
            priority=options.priority,
        )
        return (alone,)
    data = run.data
    jobs, begin = [], 0
    for job_id, end in zip(run.ids, run.ends, strict=True):
        job = Job(
            id=job_id,
            queue=queue,
            payload=data[begin:end],
            options=options,
            attempt=1,
            created_at=created_at,
            run_at=run_at,
            priority=options.priority,
        )
        jobs.append(job)
        begin = end
    return jobs


def _jobs_from(run: ClaimedRun, queue: str, start: int = 0) -> Iterator[Job]:
    data, ends = run.data, run.ends
    begin = ends[start - 1] if start else 0
    created_at, run_at = run.created_at, run.run_at
    ids = islice(run.ids, start, None) if start else run.ids
    for index, job_id in enumerate(ids, start):
        end = ends[index]
        options = run.options[run.option_of[index] if run.option_of is not None else 0]
        own = run.individual.get(job_id, _ALONE)
        yield Job(
            id=job_id,
            queue=queue,
            payload=data[begin:end],
            options=options,
            attempt=own.attempt,
            created_at=created_at if isinstance(created_at, int) else created_at[index],
            run_at=run_at if isinstance(run_at, int) else run_at[index],
            key=own.key,
            more_keys=own.more_keys,
            group=own.group,
            headers=own.headers,
            depends_on=own.depends_on,
            priority=options.priority if own.priority is None else own.priority,
        )
        begin = end
