"""`Penstock`: an app's tasks and its connection to a store. Where everything of the SDK begins.

    app = Penstock("sqlite:///jobs.db")

    @app.task(queue="emails")
    async def welcome(user_id: int) -> str: ...

    welcome.push(1)

Nothing is opened before it is used; what is open is closed with the app, or with the process.
"""

import os
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from msgspec.structs import replace

from penstock.client.context import Context
from penstock.client.declare import Anything, Declare, DeclareBatch
from penstock.client.errors import BadDeclaration, UnknownTask
from penstock.client.execute import Executor
from penstock.client.home import Home
from penstock.client.job import PushedJob, known_by_id
from penstock.client.lent import Lent
from penstock.client.middleware import Middleware
from penstock.client.options import OF_TASKS, Options, Plan, TaskOptions, planned, softened
from penstock.client.origin import Origin
from penstock.client.said import some_time
from penstock.client.task import P, T, Task, check_handler
from penstock.model.checks_values import check_int, check_tenant, show
from penstock.model.checks_values import check_name as check_task_name
from penstock.model.duration import Duration
from penstock.model.errors import Invalid
from penstock.model.job import MAX_BATCH
from penstock.model.schedule import (
    Cron,
    CronSpec,
    Daily,
    Every,
    Missed,
    Overlap,
    Schedule,
    check_cron,
    check_schedule,
)
from penstock.model.store import Store
from penstock.stores.checking import check_url

if TYPE_CHECKING:
    from penstock.client.testing import Testing

DEFAULT_URL: Final = "sqlite:///penstock.db"
TENANT: Final = "default"

AnyTask = TypeVar("AnyTask", bound=Task[..., Any, Any])


class Penstock:
    """Tasks by name, and the store that their jobs go to."""

    def __init__(
        self,
        url: str | None = None,
        *,
        tenant: str = TENANT,
        middleware: Sequence[Middleware] = (),
        **options: Unpack[Options],
    ) -> None:
        """`url` is any store's (default: PENSTOCK_URL, else a file here); `options` are those that
        its tasks have where they do not say otherwise."""
        check_tenant(tenant)
        self.home = Home(_url(url) or os.environ.get("PENSTOCK_URL") or DEFAULT_URL, tenant)
        self.middleware = _middleware(middleware)
        self.tasks: dict[str, Task[..., Any, Any]] = {}
        self.crons: dict[str, CronSpec] = {}
        self._scheduled_of: dict[str, Origin] = {}  # the tasks of the crons
        self.executor = Executor(self.middleware)
        self._plan = planned(Plan(), options)

    @property
    def url(self) -> str:
        return self.home.url

    @property
    def tenant(self) -> str:
        return self.home.tenant

    async def store(self) -> Store:
        """The store itself, for whatever the SDK has no word for. It is closed with the app."""
        return Lent(await self.home.store())

    # -- tasks -----------------------------------------------------------------------------------

    @overload
    def task(
        self, handler: Callable[Concatenate[Anything, ...], Coroutine[Any, Any, T]], /
    ) -> Task[..., T, Coroutine[Any, Any, T]]: ...
    @overload
    def task(self, handler: Callable[Concatenate[Anything, ...], T], /) -> Task[..., T, T]: ...
    @overload
    def task(
        self, handler: Callable[Concatenate[Context, P], Coroutine[Any, Any, T]], /
    ) -> Task[P, T, Coroutine[Any, Any, T]]: ...
    @overload
    def task(self, handler: Callable[Concatenate[Context, P], T], /) -> Task[P, T, T]: ...
    @overload
    def task(
        self, handler: Callable[P, Coroutine[Any, Any, T]], /
    ) -> Task[P, T, Coroutine[Any, Any, T]]: ...
    @overload
    def task(self, handler: Callable[P, T], /) -> Task[P, T, T]: ...
    @overload
    def task(self, *, batch: int, **options: Unpack[TaskOptions]) -> DeclareBatch: ...
    @overload
    def task(self, **options: Unpack[TaskOptions]) -> Declare: ...
    def task(self, *handler: Any, **options: Any) -> Any:
        """Make a function a task: `@app.task`, or `@app.task(queue="emails", max_attempts=5)`.

        With `batch` the handler is called with a list of up to so many jobs' items; the other
        options are those of `TaskOptions`.
        """
        batch: int | None = options.pop("batch", None)
        if batch is not None:
            check_int(batch, "batch", 1, MAX_BATCH)
        own = {name: options.pop(name) for name in OF_TASKS & options.keys()}
        name = own.pop("name", None)
        if name is not None:
            check_task_name(name, "name")
        plan = planned(self._plan, cast(Options, options))
        plan = softened(plan, own.pop("soft_timeout", None))

        def declare(function: Callable[..., Any]) -> Task[..., Any, Any]:
            check_handler(function)
            named = name or function.__name__
            return self._add(Task(self, function, named, plan, batch=batch, **own))

        if len(handler) > 1:
            raise BadDeclaration("a task has one function; options are said by name", "handler")
        return declare(*handler) if handler else declare

    def _add(self, task: Task[..., Any, Any]) -> Task[..., Any, Any]:
        known = self.tasks.get(task.name)
        if known is not None and not task.origin.again(known.origin):
            raise task.origin.refused(task.name, known.origin)
        task.plan = replace(task.plan, job=replace(task.plan.job, task=task.name))
        self.tasks[task.name] = task
        return task

    def named(self, name: str) -> Task[..., Any, Any]:
        task = self.tasks.get(name)
        if task is None:
            raise UnknownTask(name, sorted(self.tasks))
        return task

    def job(self, job_id: int) -> PushedJob[Any]:
        """The job of that id, whatever its task: its result is plain values. `task.job(…)` knows more."""
        return known_by_id(self.home, job_id)

    @property
    def queues(self) -> list[str]:
        """The queues that its tasks are pushed to."""
        return sorted({task.plan.queue for task in self.tasks.values()})

    # -- schedules -------------------------------------------------------------------------------

    def cron(
        self, expression: str, *, tz: str = "UTC", **more: Unpack["Repeats"]
    ) -> Callable[[AnyTask], AnyTask]:
        """Run a task at every instant of a cron expression, local time in `tz`."""
        return self._scheduled(Cron(expression=expression, tz=tz), more)

    def every(self, period: Duration, **more: Unpack["Repeats"]) -> Callable[[AnyTask], AnyTask]:
        """Run a task at the multiples of a period since the epoch."""
        return self._scheduled(Every(every_ms=some_time(period, "period")), more)

    def daily(
        self, *at: str, tz: str = "UTC", **more: Unpack["Repeats"]
    ) -> Callable[[AnyTask], AnyTask]:
        """Run a task each day at these hours, `"02:00"`, local time in `tz`."""
        return self._scheduled(Daily(at=at, tz=tz), more)

    def _scheduled(self, schedule: Schedule, more: "Repeats") -> Callable[[AnyTask], AnyTask]:
        for name in more.keys() - Repeats.__annotations__.keys():
            known = ", ".join(sorted(Repeats.__annotations__))
            raise BadDeclaration(f"no option of a schedule is called so; there are {known}", name)
        arguments = more.get("arguments", {})
        if not isinstance(arguments, Mapping):
            raise BadDeclaration(
                f"is {show(arguments)}, not a mapping of arguments by name", "arguments"
            )
        check_schedule(schedule)

        def declare(task: AnyTask) -> AnyTask:
            if not isinstance(task, Task):
                raise BadDeclaration("a schedule stands above @app.task, not below it", "handler")
            spec = CronSpec(
                name=more.get("name") or task.name,
                queue=task.plan.queue,
                schedule=schedule,
                payload=task.arguments.encode(task.plan.job.codec, (), arguments),
                codec=task.plan.job.codec,
                options=task.plan.job,
                overlap=more.get("overlap", "allow"),
                missed=more.get("missed", "last"),
                limit=more.get("limit"),
            )
            check_cron(spec)
            known = self._scheduled_of.get(spec.name)
            again = known is not task.origin and known is not None and task.origin.again(known)
            if spec.name in self.crons and not again:
                raise Invalid(f"two schedules are called {spec.name!r}: name one", "name")
            self.crons[spec.name] = spec
            self._scheduled_of[spec.name] = task.origin
            return task

        return declare

    # -- tests -----------------------------------------------------------------------------------

    def testing(
        self, *, now: datetime | None = None, crons: bool = True, seed: int = 0
    ) -> "Testing":
        """`with app.testing() as t:` sends jobs to a store of the test's own, whose clock it moves.

        See `penstock.client.testing`.
        """
        from penstock.client.testing import Testing

        return Testing(self, now=now, crons=crons, seed=seed)

    # -- life ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the store; the next use opens it again."""
        self.home.close()

    async def aclose(self) -> None:
        await self.home.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _url(said: Any) -> str | None:
    """Whether a store of that name could be, and not whether it is there."""
    if said is None:
        return None
    if isinstance(said, str) and ("://" in said or not said):
        check_url(said)
        return said
    path = said if isinstance(said, str | os.PathLike) else "jobs.db"
    raise BadDeclaration(f"{show(said)} is no url: a store in a file is sqlite:///{path}", "url")


def _middleware(said: Sequence[Middleware]) -> tuple[Middleware, ...]:
    if isinstance(said, Middleware) or not isinstance(said, Iterable):
        raise BadDeclaration(f"is {show(said)}, not a list of Middleware", "middleware")
    each = tuple(said)
    for one in each:
        if isinstance(one, type) and issubclass(one, Middleware):
            raise BadDeclaration(f"has a class in it: say {one.__name__}()", "middleware")
        if not isinstance(one, Middleware):
            raise BadDeclaration(f"{show(one)} is no Middleware: subclass it", "middleware")
    return each


class Repeats(TypedDict, total=False):
    """What may be said of a schedule beside its instants."""

    name: str  # default: the task's
    arguments: Mapping[str, Any]  # of every run
    overlap: Overlap  # skip: an instant does nothing while an earlier one is live
    missed: Missed  # which instants still run that no scheduler installed in time
    limit: int | None  # runs in all
