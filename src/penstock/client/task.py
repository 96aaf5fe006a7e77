"""A task: a handler with a name, that can be called as before and pushed as a job.

The handler's signature survives: type checkers see the arguments of `push`, and what `result()`
gives. `options` gives the same task with other options; nothing is changed in place.
"""

import inspect
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack

from penstock.client.arguments import Arguments, Items
from penstock.client.context import Context
from penstock.client.job import PushedJob, PushedJobs
from penstock.client.options import Errors, Options, Plan, planned
from penstock.model.duration import Duration, duration_ms
from penstock.model.job import MAX_BATCH
from penstock.model.store import PushedRun

if TYPE_CHECKING:
    from penstock.client.app import Penstock
    from penstock.client.flow import Signature

P = ParamSpec("P")
T = TypeVar("T")  # what a job's result is
C = TypeVar("C")  # what a plain call gives: the result, or its coroutine


class Task(Generic[P, T, C]):
    """Made by `@app.task`. `T` is what its jobs answer, `C` what a plain call gives."""

    def __init__(
        self,
        app: "Penstock",
        handler: Callable[..., Any],
        name: str,
        plan: Plan,
        *,
        batch: int | None = None,
        retry_on: Errors | type[BaseException] = (Exception,),
        dead_on: Errors | type[BaseException] = (),
        soft_timeout: Duration | None = None,
        result: bool = True,
    ) -> None:
        self.app = app
        self.handler = handler
        self.name = name
        self.plan = plan
        self.batch = batch  # the most jobs of one call; None: one job a call
        self.retry_on = _errors(retry_on)
        self.dead_on = _errors(dead_on)
        self.soft_timeout_ms = None if soft_timeout is None else duration_ms(soft_timeout)
        self.keeps_result = result
        self.is_async = inspect.iscoroutinefunction(handler)
        self.arguments: Any = (Arguments if batch is None else Items)(handler, name)
        parameters = iter(inspect.signature(handler).parameters)
        self._context_first = next(parameters, None) == self.arguments.context
        self.__name__ = getattr(handler, "__name__", name)
        self.__doc__ = handler.__doc__
        self.__module__ = handler.__module__
        self.__wrapped__ = handler

    def __repr__(self) -> str:
        return f"<task {self.name} on {self.plan.queue}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        """A plain call: the handler runs here and now, and no job is made."""
        name = self.arguments.context
        if name is not None and name not in kwargs and not any(_is_context(each) for each in args):
            context = Context.alone(self.plan.queue, self.name)
            if self._context_first:
                return self.handler(context, *args, **kwargs)  # type: ignore[no-any-return]
            return self.handler(*args, **kwargs, **{name: context})  # type: ignore[no-any-return]
        return self.handler(*args, **kwargs)  # type: ignore[no-any-return]

    def retries(self, error: BaseException) -> bool:
        """Whether another attempt may help after this error."""
        from penstock.client.errors import Retry, SoftTimeout

        if isinstance(error, self.dead_on):
            return False
        return isinstance(error, (*self.retry_on, Retry, SoftTimeout, SystemExit))

    def options(self, **options: Unpack[Options]) -> "Task[P, T, C]":
        """The same task, pushed with these options."""
        other = object.__new__(Task)
        other.__dict__.update(self.__dict__)
        other.plan = planned(self.plan, options)
        return other

    def s(self, *args: Any, **kwargs: Any) -> "Signature":
        """A call of this task as a part of a flow: see `chain` and `group`."""
        from penstock.client.flow import Signature

        return Signature(self, args, kwargs)

    # -- pushing ---------------------------------------------------------------------------------

    async def apush(self, *args: P.args, **kwargs: P.kwargs) -> PushedJob[T]:
        """Push one job; it is safe when this answers."""
        plan = self._before()
        payload = self.arguments.encode(plan.job.codec, args, kwargs)
        store = await self.app.home.store()
        pushed = await store.push(
            self.app.tenant, [plan.run(payload, [len(payload)])], durability=plan.durability
        )
        (run,) = pushed.runs
        if run.ids is None or run.outcomes is None:
            job: PushedJob[T] = PushedJob(
                self.app.home, run.first, "created", self.arguments.returns
            )
        else:
            job = PushedJobs[T](self.app.home, pushed.runs, self.arguments.returns)[0]
        self._after([job.id])
        return job

    def push(self, *args: P.args, **kwargs: P.kwargs) -> PushedJob[T]:
        return self.app.home.run(self.apush(*args, **kwargs), "push()", "apush()")

    async def apush_many(
        self,
        jobs: "Iterable[Any] | AsyncIterable[Any]",
        *,
        chunk: int = MAX_BATCH,
        atomic: bool = False,
    ) -> PushedJobs[T]:
        """Push many jobs: a tuple of arguments, or a mapping of named ones, for each.

        They go in chunks of at most 10,000, each all or nothing. With `atomic` all of them appear
        at one instant, or none.
        """
        plan = self._before()
        store = await self.app.home.store()
        bulk = (await store.open_bulk(self.app.tenant)).bulk if atomic else None
        runs: list[PushedRun] = []
        try:
            async for data, ends in self._packed(jobs, plan, min(chunk, MAX_BATCH)):
                pushed = await store.push(
                    self.app.tenant,
                    [plan.run(data, ends)],
                    bulk=bulk,
                    durability=None if bulk else plan.durability,
                )
                runs += pushed.runs
            if bulk is not None:
                await store.commit_bulk(self.app.tenant, bulk)
        except BaseException:
            if bulk is not None:
                await store.abort_bulk(self.app.tenant, bulk)
            raise
        made: PushedJobs[T] = PushedJobs(self.app.home, runs, self.arguments.returns)
        if self.app.middleware:
            self._after(made.ids)
        return made

    def push_many(
        self, jobs: Iterable[Any], *, chunk: int = MAX_BATCH, atomic: bool = False
    ) -> PushedJobs[T]:
        return self.app.home.run(
            self.apush_many(jobs, chunk=chunk, atomic=atomic), "push_many()", "apush_many()"
        )

    async def _packed(
        self, jobs: "Iterable[Any] | AsyncIterable[Any]", plan: Plan, chunk: int
    ) -> AsyncIterator[tuple[bytes, list[int]]]:
        """The payloads of every chunk, end to end, and where each ends."""
        async for said in _chunks(jobs, chunk):
            data = bytearray()
            ends = self.arguments.encode_many(plan.job.codec, said, data)
            if ends:
                yield bytes(data), ends

    def _before(self) -> Plan:
        plan = self.plan
        for each in self.app.middleware:
            plan = each.before_push(self, plan)
        return plan

    def _after(self, ids: Sequence[int]) -> None:
        for each in reversed(self.app.middleware):
            each.after_push(self, list(ids))


def _errors(said: Errors | type[BaseException]) -> Errors:
    return said if isinstance(said, tuple) else (said,)


def _is_context(value: object) -> bool:
    return isinstance(value, Context)


async def _chunks(
    jobs: "Iterable[Any] | AsyncIterable[Any]", chunk: int
) -> AsyncIterator[Iterable[Any]]:
    if not isinstance(jobs, AsyncIterable):
        source = iter(jobs)
        while held := list(islice(source, chunk)):
            yield held
        return
    held = []
    async for each in jobs:
        held.append(each)
        if len(held) == chunk:
            yield held
            held = []
    if held:
        yield held
