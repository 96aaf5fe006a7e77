"""The options of tasks and pushes as people say them, and as a Store takes them.

`Options` is what `@app.task(…)` and `task.options(…)` accept: durations as "5m" or timedelta,
instants as datetime, priorities as words. `Plan` is what comes of it: everything about a push but
the payloads. What is not said keeps the meaning that it has in the contract.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, TypedDict

import msgspec
from msgspec.structs import replace

from penstock.model.duration import Duration, duration_ms
from penstock.model.errors import Invalid
from penstock.model.job import Codec, JobOptions, OnDependencyFailure, Run
from penstock.model.policy import Backoff, OnConflict
from penstock.model.store import Durability

PRIORITIES: Final = {"high": 10, "normal": 0, "low": -10}

Priority = int | Literal["high", "normal", "low"]
Errors = tuple[type[BaseException], ...]


class Options(TypedDict, total=False):
    """Everything that may be said about a job beside its arguments."""

    queue: str
    priority: Priority
    delay: Duration | None
    run_at: datetime | int | None  # an int: milliseconds since the epoch
    max_attempts: int
    backoff: Backoff
    timeout: Duration | None
    lease: Duration | None
    ttl: Duration | None
    key: str | None
    on_conflict: OnConflict
    keep_key: Duration | Literal["live", "started", "retained"]
    group: str | None
    depends_on: Iterable[Any]  # jobs, or their ids
    on_dependency_failure: OnDependencyFailure
    lifo: bool
    tags: Iterable[str]
    headers: Mapping[str, str] | None
    retain: Duration | None
    retain_dead: Duration | None
    codec: Codec
    durability: Durability | None


class TaskOptions(Options, total=False):
    """What may be said of a task: how its jobs are pushed, and how its handler is treated."""

    name: str  # what its jobs call it; default: the function's name
    retry_on: Errors | type[BaseException]  # the errors that are worth another attempt
    dead_on: Errors | type[BaseException]  # those that are not, whatever `retry_on` says
    soft_timeout: Duration | None  # after which SoftTimeout is raised in the handler
    result: bool  # False: nothing is kept of what the handler answers


OF_TASKS: Final = TaskOptions.__annotations__.keys() - Options.__annotations__.keys()


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How jobs are pushed."""

    queue: str = "default"
    job: JobOptions = JobOptions()
    delay_ms: int | None = None
    run_at: int | None = None
    key: str | None = None
    group: str | None = None
    headers: Mapping[str, str] | None = None
    depends_on: tuple[int, ...] = ()
    durability: Durability | None = None

    @property
    def plain(self) -> bool:
        """Whether nothing is said that belongs to single jobs."""
        return self.key is None and self.group is None and not self.headers and not self.depends_on

    def run(self, data: bytes, ends: list[int]) -> Run:
        """The jobs whose payloads lie end to end in `data`."""
        run = Run(queue=self.queue, data=data, ends=ends, options=(self.job,))
        if self.delay_ms is not None or self.run_at is not None:
            run = replace(run, delay_ms=self.delay_ms, run_at=self.run_at)
        if self.plain:
            return run
        many = len(ends)
        if self.key is not None and many > 1:
            raise Invalid("one key cannot be carried by several jobs: push them one by one", "key")
        return replace(
            run,
            keys=None if self.key is None else [self.key],
            groups=None if self.group is None else [self.group] * many,
            headers=None if not self.headers else [dict(self.headers)] * many,
            depends_on=[self.depends_on] * many if self.depends_on else None,
        )


def _maybe_ms(said: Duration | None, field: str) -> int | None:
    return None if said is None else duration_ms(said, field)


def _priority(said: Priority) -> int:
    if isinstance(said, str):
        if said not in PRIORITIES:
            raise Invalid(f"{said!r} is not high, normal, low or a number", "priority")
        return PRIORITIES[said]
    return said


def _keep_key(said: Duration | str) -> Any:
    return said if said in ("live", "started", "retained") else duration_ms(said, "keep_key")


def instant_ms(said: datetime | int | None, field: str = "run_at") -> int | None:
    """Milliseconds since the epoch."""
    if not isinstance(said, datetime):
        return said
    if said.tzinfo is None:
        raise Invalid("a datetime needs a time zone: datetime.now(UTC)", field)
    # Exact, and up: never before the instant that was said.
    return -((_EPOCH - said) // _MILLISECOND)


def _tags(said: Iterable[str]) -> tuple[str, ...]:
    if isinstance(said, str):
        raise Invalid(f"{said!r} is one text and not several: [{said!r}]", "tags")
    return tuple(said)


def _dependencies(said: Iterable[Any]) -> tuple[int, ...]:
    if isinstance(said, int) or hasattr(said, "id"):
        raise Invalid("takes several jobs, or their ids: [job]", "depends_on")
    return tuple(getattr(job, "id", job) for job in said)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)

# By the name in `Options`: the field of JobOptions and what makes its value.
_JOB: Final[dict[str, tuple[str, Any]]] = {
    "priority": ("priority", _priority),
    "max_attempts": ("max_attempts", None),
    "backoff": ("backoff", None),
    "timeout": ("timeout_ms", lambda said: _maybe_ms(said, "timeout")),
    "lease": ("lease_ms", lambda said: _maybe_ms(said, "lease")),
    "ttl": ("ttl_ms", lambda said: _maybe_ms(said, "ttl")),
    "on_conflict": ("on_conflict", None),
    "keep_key": ("keep_key", _keep_key),
    "on_dependency_failure": ("on_dependency_failure", None),
    "lifo": ("lifo", None),
    "tags": ("tags", _tags),
    "retain": ("retain_ms", lambda said: _maybe_ms(said, "retain")),
    "retain_dead": ("retain_dead_ms", lambda said: _maybe_ms(said, "retain_dead")),
    "codec": ("codec", None),
}
_PLAN: Final[dict[str, tuple[str, Any]]] = {
    "queue": ("queue", None),
    "delay": ("delay_ms", lambda said: _maybe_ms(said, "delay")),
    "run_at": ("run_at", instant_ms),
    "key": ("key", None),
    "group": ("group", None),
    "headers": ("headers", None),
    "depends_on": ("depends_on", _dependencies),
    "durability": ("durability", None),
}


def planned(plan: Plan, options: Options) -> Plan:
    """The plan with what the options say; of `delay` and `run_at` the one said last counts."""
    job: dict[str, Any] = {}
    here: dict[str, Any] = {}
    for name, said in options.items():
        if name in _JOB:
            field, make = _JOB[name]
            job[field] = said if make is None else make(said)
        elif name in _PLAN:
            field, make = _PLAN[name]
            here[field] = said if make is None else make(said)
        else:
            known = ", ".join(sorted(_JOB | _PLAN))
            raise TypeError(f"no option is called {name!r}; there are {known}")
    if here.get("delay_ms") is not None and here.get("run_at") is not None:
        raise Invalid("say either delay or run_at", "run_at")
    if here.get("delay_ms") is not None:
        here["run_at"] = None
    elif here.get("run_at") is not None:
        here["delay_ms"] = None
    if job:
        here["job"] = replace(plan.job, **job)
    return replace(plan, **here) if here else plan
