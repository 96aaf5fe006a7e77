"""The options of tasks and pushes as people say them, and as a Store takes them.

`Options` is what `@app.task(…)` and `task.options(…)` accept: durations as "5m" or timedelta,
instants as datetime, priorities as words. `Plan` is what comes of it: everything about a push but
the payloads. What is not said keeps the meaning that it has in the contract.
"""

from array import array
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Generic, Literal, TypedDict, TypeVar, get_args

import msgspec
from msgspec.structs import replace

from penstock.client.errors import BadDeclaration
from penstock.client.said import (
    backoff,
    header_map,
    instant_ms,
    job_ids,
    lease_time,
    number,
    optional_name,
    some_time,
    tag_list,
)
from penstock.model.answers import Durability
from penstock.model.checks_values import (
    MAX_INT32,
    MIN_INT32,
    check_bool,
    check_codec,
    check_one_of,
    check_queue,
    show,
)
from penstock.model.duration import Duration, duration_ms, say_ms
from penstock.model.errors import Invalid
from penstock.model.job import Codec, JobOptions, OnDependencyFailure, Run
from penstock.model.policy import Backoff, OnConflict

T = TypeVar("T")

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
    backoff: Backoff | str | timedelta  # a duration: always the same wait
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


class _Once(Generic[T]):
    """What is found out about a plan when it is first asked for, and kept with it: a plan is made
    once, and pushed with for as long as there are jobs. `cached_property` does the same under a
    lock, which a fork could leave taken."""

    def __init__(self, find: "Callable[[Plan], T]") -> None:
        self._find = find
        self.__doc__ = find.__doc__

    def __get__(self, plan: "Plan", kind: type["Plan"]) -> T:
        value = plan.__dict__[self._find.__name__] = self._find(plan)
        return value


class Plan(msgspec.Struct, frozen=True, kw_only=True, dict=True):
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
    soft_timeout_ms: int | None = None  # of the task, and for no store: a timeout is longer

    @_Once
    def plain(self) -> bool:
        """Whether nothing is said but the queue and the options of jobs."""
        return (
            self.delay_ms is None
            and self.run_at is None
            and self.key is None
            and self.group is None
            and not self.headers
            and not self.depends_on
            and self.durability is None
        )

    @_Once
    def options(self) -> tuple[JobOptions, ...]:
        """`job` as a run has it: one object, by which a store knows again what it has looked at."""
        return (self.job,)

    def run(self, data: bytes, ends: list[int]) -> Run:
        """The jobs whose payloads lie end to end in `data`."""
        # Packed, as they travel: a store knows by that, too, that it need not look at each of them.
        run = Run(queue=self.queue, data=data, ends=array("I", ends), options=self.options)
        if self.plain:
            return run
        many = len(ends)
        if self.key is not None and many > 1:
            raise Invalid("one key cannot be carried by several jobs: push them one by one", "key")
        return replace(
            run,
            delay_ms=self.delay_ms,
            run_at=self.run_at,
            keys=None if self.key is None else [self.key],
            groups=None if self.group is None else [self.group] * many,
            headers=None if not self.headers else [dict(self.headers)] * many,
            depends_on=[self.depends_on] * many if self.depends_on else None,
        )


def _priority(said: Priority, field: str) -> int:
    if isinstance(said, str):
        if said not in PRIORITIES:
            raise Invalid(f"{said!r} is not high, normal, low or a number", field)
        return PRIORITIES[said]
    return number(said, field, MIN_INT32, MAX_INT32)


def _keep_key(said: Duration | str, field: str) -> Any:
    if said in _KEEP_KEY:
        return said
    try:
        return some_time(said, field)
    except Invalid as error:
        raise Invalid(f"{error.message}, nor one of {', '.join(_KEEP_KEY)}", field) from None


def _max_attempts(said: int, field: str) -> int:
    return number(said, field, 0, MAX_INT32)


_KEEP_KEY: Final = ("live", "started", "retained")

Reader = Callable[[Any, str], Any]


def _or_none(read: Reader) -> Reader:
    return lambda said, field: None if said is None else read(said, field)


def _checked(check: Callable[[Any, str], None]) -> Reader:
    def read(said: Any, field: str) -> Any:
        check(said, field)
        return said

    return read


def _one_of(*words: str) -> Reader:
    return _checked(partial(check_one_of, words=words))


# By the name in `Options`: the field of JobOptions, or of Plan, and what reads its value.
_JOB: Final[dict[str, tuple[str, Reader]]] = {
    "priority": ("priority", _priority),
    "max_attempts": ("max_attempts", _max_attempts),
    "backoff": ("backoff", backoff),
    "timeout": ("timeout_ms", _or_none(some_time)),
    "lease": ("lease_ms", _or_none(lease_time)),
    "ttl": ("ttl_ms", _or_none(some_time)),
    "on_conflict": ("on_conflict", _one_of(*get_args(OnConflict))),
    "keep_key": ("keep_key", _keep_key),
    "on_dependency_failure": ("on_dependency_failure", _one_of(*get_args(OnDependencyFailure))),
    "lifo": ("lifo", _checked(check_bool)),
    "tags": ("tags", tag_list),
    "retain": ("retain_ms", _or_none(duration_ms)),
    "retain_dead": ("retain_dead_ms", _or_none(duration_ms)),
    "codec": ("codec", _checked(check_codec)),
}
_PLAN: Final[dict[str, tuple[str, Reader]]] = {
    "queue": ("queue", _checked(check_queue)),
    "delay": ("delay_ms", _or_none(duration_ms)),
    "run_at": ("run_at", instant_ms),
    "key": ("key", optional_name),
    "group": ("group", optional_name),
    "headers": ("headers", header_map),
    "depends_on": ("depends_on", job_ids),
    "durability": ("durability", _or_none(_one_of(*get_args(Durability)))),
}


def planned(plan: Plan, options: Options) -> Plan:
    """The plan with what the options say; of `delay` and `run_at` the one said last counts."""
    job: dict[str, Any] = {}
    here: dict[str, Any] = {}
    for name, said in options.items():
        if name in _JOB:
            field, read = _JOB[name]
            job[field] = read(said, name)
        elif name in _PLAN:
            field, read = _PLAN[name]
            here[field] = read(said, name)
        else:
            known = ", ".join(sorted(_JOB | _PLAN))
            raise BadDeclaration(f"no option is called {name!r}; there are {known}", name)
    if here.get("delay_ms") is not None and here.get("run_at") is not None:
        raise Invalid("say either delay or run_at", "run_at")
    if here.get("delay_ms") is not None:
        here["run_at"] = None
    elif here.get("run_at") is not None:
        here["delay_ms"] = None
    if job:
        here["job"] = replace(plan.job, **job)
    if not here:
        return plan
    made = replace(plan, **here)
    delay, ttl = made.delay_ms, made.job.ttl_ms
    if delay is not None and ttl is not None and ttl <= delay:
        raise Invalid(f"{say_ms(ttl)} is over before the delay of {say_ms(delay)} is", "ttl")
    if made.job.lifo and made.group is not None:
        raise Invalid(f"cannot go with a group ({show(made.group)}), which keeps order", "lifo")
    soft, hard = made.soft_timeout_ms, made.job.timeout_ms
    if soft is not None and hard is not None and hard <= soft:
        raise Invalid(
            f"{say_ms(hard)} is not longer than the soft_timeout of {say_ms(soft)}, which would"
            f" never come: say a timeout above {say_ms(soft)}",
            "timeout",
        )
    return made


def softened(plan: Plan, soft_timeout: Duration | None) -> Plan:
    """The plan of a task that has this soft timeout."""
    if soft_timeout is None:
        return plan
    soft, hard = some_time(soft_timeout, "soft_timeout"), plan.job.timeout_ms
    if hard is not None and hard <= soft:
        raise Invalid(
            f"{say_ms(soft)} is not shorter than the timeout of {say_ms(hard)}, so that it would"
            f" never come: say a soft_timeout below {say_ms(hard)}, or a longer timeout",
            "soft_timeout",
        )
    return replace(plan, soft_timeout_ms=soft)
