"""A task: a handler with a name, that can be called as before and pushed as a job.

The handler's signature survives: type checkers see the arguments of `push`, and what `result()`
gives. `options` gives the same task with other options; nothing is changed in place.
"""

import inspect
import logging
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar, Unpack

from penstock.client.arguments import Arguments, Items
from penstock.client.context import Context
from penstock.client.errors import BadDeclaration, Dead, Retry
from penstock.client.job import PushedJob, PushedJobs, known_by_id
from penstock.client.options import Errors, Options, Plan, planned
from penstock.client.origin import Origin
from penstock.client.said import in_words, iterable
from penstock.client.sending import Sending
from penstock.model.answers import PushedRun
from penstock.model.checks_values import check_bool, show
from penstock.model.errors import Invalid, Overloaded
from penstock.model.job import MAX_BATCH

if TYPE_CHECKING:
    from penstock.client.app import Penstock
    from penstock.client.flow import Signature

log: Final = logging.getLogger("penstock.push")

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
        result: bool = True,
    ) -> None:
        self.app = app
        self.handler = handler
        self.origin = Origin.of(handler)
        self.name = name
        self.plan = plan
        self.batch = batch  # the most jobs of one call; None: one job a call
        _check_codec(plan, batch)
        check_bool(result, "result")
        self.retry_on = _errors(retry_on, "retry_on")
        self.dead_on = _errors(dead_on, "dead_on")
        self._retried_groups = tuple(
            each for each in self.retry_on if issubclass(each, BaseExceptionGroup)
        )  # whatever is in them
        self.keeps_result = result
        self.is_async = inspect.iscoroutinefunction(handler)
        self.arguments: Any = (Arguments if batch is None else Items)(handler, name)
        # Whether each of its jobs is one call of which nobody wants a Context.
        self.unseen = batch is None and self.arguments.context is None
        self._context_at = _place(inspect.signature(handler), self.arguments.context)
        self.__name__ = getattr(handler, "__name__", name)
        self.__doc__ = handler.__doc__
        self.__module__ = handler.__module__
        self.__wrapped__ = handler

    def __repr__(self) -> str:
        return f"<task {self.name} on {self.plan.queue}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        """A plain call: the handler runs here and now, and no job is made."""
        name, at = self.arguments.context, self._context_at
        if name is None or name in kwargs or any(isinstance(each, Context) for each in args):
            return self.handler(*args, **kwargs)  # type: ignore[no-any-return]
        context = Context.alone(self.plan.queue, self.name)
        if at is not None and len(args) >= at:
            return self.handler(*args[:at], context, *args[at:], **kwargs)  # type: ignore[no-any-return]
        return self.handler(*args, **kwargs, **{name: context})  # type: ignore[no-any-return]

    def retries(self, error: BaseException) -> bool:
        """Whether another attempt may help after this error.

        After a group of errors it does if it may help after each of them: the handler would meet
        those again that it does not mend. What is no Exception (a soft timeout, an exit, an
        interrupt) says nothing about the job.
        """
        if isinstance(error, Retry):
            return True
        if isinstance(error, (Dead, *self.dead_on)):
            return False
        if isinstance(error, BaseExceptionGroup) and not isinstance(error, self._retried_groups):
            return all(map(self.retries, error.exceptions))
        return isinstance(error, self.retry_on) or not isinstance(error, Exception)

    def options(self, **options: Unpack[Options]) -> "Task[P, T, C]":
        """The same task, pushed with these options."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.plan = planned(self.plan, options)
        _check_codec(other.plan, self.batch)
        return other

    def s(self, *args: Any, **kwargs: Any) -> "Signature[T]":
        """A call of this task as a part of a flow: see `chain` and `group`.

        The result of what runs before it takes the first parameter that is not said here.
        """
        from penstock.client.flow import Signature

        return Signature(self, args, kwargs)

    def si(self, *args: P.args, **kwargs: P.kwargs) -> "Signature[T]":
        """The same where nothing is taken from what runs before it."""
        from penstock.client.flow import Signature

        return Signature(self, args, kwargs, immutable=True)

    def job(self, job_id: int) -> PushedJob[T]:
        """The job of that id, which was pushed earlier or elsewhere: a web page that comes back asks
        for its result. It should be one of this task, whose annotation says what the result is."""
        return known_by_id(self.app.home, job_id, self.arguments.returns)

    # -- pushing ---------------------------------------------------------------------------------

    async def apush(self, *args: P.args, **kwargs: P.kwargs) -> PushedJob[T]:
        """Push one job; it is safe when this answers."""
        app, arguments = self.app, self.arguments
        if app.middleware:
            plan = self._before()
            job = await self._send(plan, arguments.encode(plan.job.codec, args, kwargs))
            self._after([job.id])
            return job
        plan = self.plan
        payload = arguments.encode(plan.job.codec, args, kwargs)
        home = app.home
        if not plan.plain or (store := home.ready) is None:
            return await self._send(plan, payload)
        begun = store.push_begun(home.tenant, plan.queue, payload, plan.options)
        if begun is None:
            return await self._send(plan, payload)
        try:  # as `_send` would, without other coroutines that each push would go through
            job_id = await begun
        except Invalid as error:
            raise in_words(error) from None
        except Overloaded as error:
            if error.field != "producer":
                raise
            return await self._send(plan, payload)
        return PushedJob(home, job_id, "created", arguments.returns)

    def push(self, *args: P.args, **kwargs: P.kwargs) -> PushedJob[T]:
        # Everything but the sending happens in the caller's thread: arguments, hooks, errors.
        home = self.app.home
        home.may_block("push()", "apush()")
        plan = self._before()
        payload = self.arguments.encode(plan.job.codec, args, kwargs)
        job = home.wait(self._send(plan, payload))
        self._after([job.id])
        return job

    async def apush_many(
        self,
        jobs: "Iterable[Any] | AsyncIterable[Any]",
        *,
        chunk: int = MAX_BATCH,
        atomic: bool = False,
    ) -> PushedJobs[T]:
        """Push many jobs: a tuple of arguments, or a mapping of named ones, for each; of a batch task
        the items themselves.

        They go in chunks of at most 10,000 (and 32 MiB), each all or nothing. With `atomic` all of
        them appear at one instant, or none.
        """
        sending = Sending(self.app.home, self._before(), self.arguments, chunk, atomic)
        try:
            async for said in _chunks(jobs, sending.chunk, self.arguments.many):
                for run in sending.packed(said):
                    await sending.send(run)
            await sending.commit()
        except BaseException:
            await sending.abort()
            raise
        return self._made_many(sending.runs)

    def push_many(
        self, jobs: Iterable[Any], *, chunk: int = MAX_BATCH, atomic: bool = False
    ) -> PushedJobs[T]:
        home = self.app.home
        home.may_block("push_many()", "apush_many()")
        sending = Sending(home, self._before(), self.arguments, chunk, atomic)
        source = iter(iterable(jobs, "jobs", self.arguments.many))
        try:
            while said := list(islice(source, sending.chunk)):
                for run in sending.packed(said):
                    home.wait(sending.send(run))
            home.wait(sending.commit())
        except BaseException:
            home.wait(sending.abort())
            raise
        return self._made_many(sending.runs)

    async def _send(self, plan: Plan, payload: bytes) -> PushedJob[T]:
        home = self.app.home
        store = home.at_hand()
        if store is None:
            store = await home.store()
        try:
            if plan.plain:
                job_id = await store.push_one(home.tenant, plan.queue, payload, plan.options)
                return PushedJob(home, job_id, "created", self.arguments.returns)
            run = plan.run(payload, [len(payload)])
            pushed = await store.push(home.tenant, (run,), durability=plan.durability)
        except Invalid as error:
            raise in_words(error) from None
        return PushedJobs(home, pushed.runs, self.arguments.returns)[0]

    def _made_many(self, runs: Sequence[PushedRun]) -> PushedJobs[T]:
        made: PushedJobs[T] = PushedJobs(self.app.home, runs, self.arguments.returns)
        if self.app.middleware:
            self._after(made.ids)
        return made

    def _before(self) -> Plan:
        plan = self.plan
        for each in self.app.middleware:
            plan = each.before_push(self, plan)
        return plan

    def _after(self, ids: list[int]) -> None:
        for each in reversed(self.app.middleware):
            try:
                each.after_push(self, ids)
            except Exception:
                log.exception("%s.after_push failed", type(each).__name__)


def _errors(said: Errors | type[BaseException], option: str) -> Errors:
    each: tuple[Any, ...] = tuple(said) if isinstance(said, tuple | list) else (said,)
    for one in each:
        if not (isinstance(one, type) and issubclass(one, BaseException)):
            raise BadDeclaration(f"{option} takes classes of exceptions, not {one!r}", option)
    return each


def check_handler(handler: Any) -> None:
    """Raises BadDeclaration for what cannot be called as a task."""
    if isinstance(handler, Task):
        raise BadDeclaration(f"{handler!r} is a task already", "handler")
    if not inspect.isroutine(handler):
        hint = f": say @app.task(queue={handler!r})" if isinstance(handler, str) else ""
        raise BadDeclaration(
            f"{show(handler)} is no function: @app.task stands above a def{hint}", "handler"
        )
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise BadDeclaration(
            f"{handler.__name__!r} answers by return, not by yield: a job has one result", "handler"
        )


def _check_codec(plan: Plan, batch: int | None) -> None:
    if plan.job.codec == "bytes" and batch is None:
        raise BadDeclaration("bytes carries no arguments: only items of a batch task", "codec")


def _place(signature: inspect.Signature, name: str | None) -> int | None:
    """Where the parameter stands among those that are given by position, if it is one."""
    for place, each in enumerate(signature.parameters.values()):
        if each.name == name:
            by_name = each.kind is inspect.Parameter.KEYWORD_ONLY
            return None if by_name else place
    return None


async def _chunks(
    jobs: "Iterable[Any] | AsyncIterable[Any]", chunk: int, many: str
) -> AsyncIterator[Iterable[Any]]:
    if not isinstance(jobs, AsyncIterable):
        source = iter(iterable(jobs, "jobs", many))
        while said := list(islice(source, chunk)):
            yield said
        return
    held = []
    async for each in jobs:
        held.append(each)
        if len(held) == chunk:
            yield held
            held = []
    if held:
        yield held
