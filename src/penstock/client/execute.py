"""Running jobs: from a claimed job to what is to be told about it.

This is the one place where handlers are called, and it knows nothing of leases, stores or pools:
the worker, `testing()` and whoever else runs tasks gives it a job and gets an outcome. An outcome
is a value, never an exception: whatever a handler does, somebody has to be told.

A handler is `async def` or a plain function. `prepare` decodes the arguments of one job, `gathered`
the items of many; then `run` awaits an asynchronous handler, and `run_here` calls a plain one in
the thread that it is called in.
"""

import asyncio
import logging
import traceback
from collections.abc import Coroutine, Iterator, Sequence
from contextvars import copy_context
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, overload

import msgspec
from msgspec.structs import astuple

from penstock.client.arguments import BadArguments, Unsendable, encoded
from penstock.client.context import Context
from penstock.client.errors import Retry
from penstock.client.soft import within
from penstock.model.checks import check_error, kept_text
from penstock.model.checks_values import MAX_NAME_BYTES
from penstock.model.fingerprint import masked
from penstock.model.job import Codec, JobError

if TYPE_CHECKING:
    from penstock.client.middleware import Middleware
    from penstock.client.task import Task

log: Final = logging.getLogger("penstock.run")

TRACE_FRAMES: Final = 50
MOST_LEAVES: Final = 10  # of a group of exceptions, in its message


class Completed(msgspec.Struct, frozen=True, gc=False):
    result: bytes | None = None  # None: the handler answered nothing
    codec: Codec = "json"


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    error: JobError
    retry_in_ms: int | None = None  # None: by the job's backoff
    dead: bool = False


class Interrupted(msgspec.Struct, frozen=True):
    """The run was cancelled from outside, and the attempt says nothing about the job."""


Outcome = Completed | Failed | Interrupted

DONE: Final = Completed()
INTERRUPTED: Final = Interrupted()
# The same, where nobody outside has cancelled it. Given back unspent, it would do so without end.
CANCELLED_ITSELF: Final = Failed(
    error=JobError(kind="CancelledError", message="the handler cancelled itself")
)

# What a handler may end with beside an answer; a cancellation is looked at before.
# Whatever a handler raises is its job's alone, also what Python itself lets through: a job whose end
# nobody hears of would hold its slot, and be kept from others, for as long as the worker lives.
RAISED: Final = BaseException


class ResultNotSendable(TypeError):
    """The handler answered what JSON cannot say."""


class NotAwaited(ResultNotSendable):
    """The handler answered a coroutine, or what else has to be awaited: what it should do has not
    been done."""


class Prepared(msgspec.Struct, frozen=True, gc=False):
    """A job whose arguments are what its handler wants."""

    task: Any  # Task
    values: Any
    context: Context

    def answered(self, executor: "Executor", value: Any) -> Outcome:
        return DONE if value is None else answered(self.task, value)

    def ended(self, outcome: Outcome) -> Outcome:
        return outcome


class Executor:
    """Runs the jobs of one app's tasks, with its middleware around them."""

    def __init__(self, middleware: "Sequence[Middleware]" = ()) -> None:
        self._middleware = tuple(middleware)

    def prepare(self, task: "Task[..., Any, Any]", context: Context) -> Prepared | Failed:
        """The job with its arguments decoded, or a failure that no further attempt would mend."""
        job = context.job
        try:
            values = task.arguments.decode(job.options.codec, job.payload)
        except BadArguments as error:
            return self.failed(task, error)
        return Prepared(task, values, context)

    @overload
    async def run(self, call: Prepared) -> Outcome: ...
    @overload
    async def run(self, call: "Batch") -> "BatchOutcome": ...
    async def run(self, call: "Prepared | Batch") -> "Outcome | BatchOutcome":
        """Call the handler, and await it if it is asynchronous."""
        task, context = call.task, call.context
        entered: list[Middleware] = []
        outcome: Outcome | BatchOutcome
        try:
            for each in self._middleware:
                each.before_run(context)
                entered.append(each)
            value = task.arguments.call(task.handler, call.values, context)
            if task.is_async:
                soft_ms = task.plan.soft_timeout_ms
                value = await (value if soft_ms is None else within(value, soft_ms))
            outcome = call.answered(self, value)
        except asyncio.CancelledError:
            outcome = call.ended(INTERRUPTED)
        except RAISED as error:
            outcome = call.ended(self.failed(task, error))
        if entered:
            self._after(context, outcome, entered)
        return outcome

    async def run_unseen(
        self, task: "Task[..., Any, Any]", codec: Codec, payload: bytes
    ) -> Outcome:
        """`prepare` and `run` in one, for an asynchronous handler that asks for no Context, in an app
        without middleware: nobody looks at the job, and nothing is made for that. Nearly all jobs
        go this way; one that comes to a worker at rest starts after half as many steps."""
        arguments = task.arguments
        try:
            values = arguments.decode(codec, payload)
        except BadArguments as error:
            return self.failed(task, error)
        try:
            call = (
                task.handler(*astuple(values))
                if arguments.placed
                else arguments.call(task.handler, values, None)
            )
            soft_ms = task.plan.soft_timeout_ms
            value = await (call if soft_ms is None else within(call, soft_ms))
            return DONE if value is None else answered(task, value)
        except asyncio.CancelledError:
            return INTERRUPTED
        except RAISED as error:
            return self.failed(task, error)

    @overload
    def run_here(self, call: Prepared) -> Outcome: ...
    @overload
    def run_here(self, call: "Batch") -> "BatchOutcome": ...
    def run_here(self, call: "Prepared | Batch") -> "Outcome | BatchOutcome":
        """Call a plain handler, in this thread: the same, in which nothing waits. What it sets in
        context variables is gone with it."""
        try:
            copy_context().run(self.run(call).send, None)
        except StopIteration as ended:
            return ended.value  # type: ignore[no-any-return]
        raise AssertionError("a plain handler waits for nothing")

    def failed(self, task: "Task[..., Any, Any]", error: BaseException) -> Failed:
        """What an exception means for the job. Overridden by whoever wants to see the exception."""
        return failed(task, error)

    def _after(
        self, context: Context, outcome: "Outcome | BatchOutcome", entered: "list[Middleware]"
    ) -> None:
        """Those whose `before_run` was passed hear of the end, the last one first."""
        for each in reversed(entered):
            try:
                each.after_run(context, outcome)
            except RAISED:  # the handler has ended, whatever comes behind it
                log.exception("%s.after_run failed", type(each).__name__)


def answered(task: "Task[..., Any, Any]", value: Any) -> Outcome:
    """Raises ResultNotSendable."""
    if value is None:
        return DONE
    if not task.keeps_result:
        _check_awaited(value)
        return DONE
    try:
        return Completed(encoded("json", value), "json")
    except Unsendable as error:
        _check_awaited(value)
        raise ResultNotSendable(
            f"{error}; answer something that JSON can say, or say result=False"
        ) from None


def _check_awaited(value: Any) -> None:
    """Raises NotAwaited. Looked at where there is an answer, and nothing that JSON can say: nearly all
    answers go by. What a handler answers is known by its call alone: a plain wrapper of an `async def`
    may as well run it."""
    kind = type(value)
    if not hasattr(kind, "__await__"):
        return
    if issubclass(kind, Coroutine):
        value.close()  # or Python warns of it, wherever it goes
    raise NotAwaited(
        f"the handler answered a {kind.__name__}, and nobody awaits that: say `return await` in an"
        " async def; where a decorator stands around one, its wrapper has to be `async def`, too,"
        " with functools.wraps"
    )


def failed(task: "Task[..., Any, Any] | None", error: BaseException) -> Failed:
    """What an exception of the handler means for the job. None: it is not the handler's.

    An exception may be of the handler's own class, which is asked again and again here: for its
    message, for what is in a group, by `isinstance` itself. Whatever it does then is only another way
    to fail.
    """
    try:
        return _meant(task, error)
    except RAISED as another:
        message = f"what it is cannot be said: {_kind(another)}"
        return Failed(error=JobError(kind=_kind(error), message=message))


def broken(error: BaseException) -> Failed:
    """Whoever ran it made a mistake; its jobs must still come to an end."""
    return failed(None, error)


def _meant(task: "Task[..., Any, Any] | None", error: BaseException) -> Failed:
    if task is None:
        return Failed(error=job_error(error))
    if isinstance(error, BadArguments | ResultNotSendable):
        # Trying again would change nothing, or do the work again for nothing; and no frame of the
        # handler has to do with it.
        return Failed(error=JobError(kind=type(error).__name__, message=str(error)), dead=True)
    told = job_error(error)
    if not task.retries(error):
        return Failed(error=told, dead=True)
    waits = [leaf.after_ms for leaf in _leaves(error) if isinstance(leaf, Retry)]
    longest = max((each for each in waits if each is not None), default=None)
    return Failed(error=told, retry_in_ms=longest)


def job_error(error: BaseException) -> JobError:
    """The frames of the handler, not of what runs it."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__") in _OURS:
        frames = frames.tb_next
    kind, message = _told(error)
    # As it will be kept: from here it goes to another process, or into a log.
    return check_error(JobError(kind=kind, message=message, trace=_trace(error, frames)))


def _told(error: BaseException) -> tuple[str, str]:
    """What happened, by class and message: of a group what is in it.

    "unhandled errors in a TaskGroup" says nothing, and would make one dead letter of all of them.
    Leaves that differ only in what varies are said once, and in a fixed order: tasks of a group end
    as they like, and the same failure must be the same error.
    """
    if not isinstance(error, BaseExceptionGroup):
        return _kind(error), _message(error)
    leaves: dict[tuple[str, str], str] = {}
    for leaf in _leaves(error):
        kind, message = _kind(leaf), _message(leaf)
        leaves.setdefault((kind, masked(message)), message)
    if len(leaves) == 1:
        (((kind, _), message),) = leaves.items()
        return kind, message
    said = [f"{kind}: {text}" if text else kind for (kind, _), text in sorted(leaves.items())]
    more = [f"and {len(said) - MOST_LEAVES} more"] if len(said) > MOST_LEAVES else []
    return _kind(error), f"{error.message}: {'; '.join(said[:MOST_LEAVES] + more)}"


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


# An exception is the handler's, and so is its class: what they say of themselves may fail in turn.


def _kind(error: BaseException) -> str:
    """As it will be kept. Asks nobody: the attribute may be a metaclass's own."""
    return kept_text(_name_of(type(error)), MAX_NAME_BYTES) or "Exception"


_name_of: Final = vars(type)["__name__"].__get__


def _message(error: BaseException) -> str:
    try:
        return str.__str__(str(error))  # `str` lets subclasses of itself through
    except RAISED as another:
        return f"its message cannot be said: {_kind(another)}"


def _trace(error: BaseException, frames: TracebackType | None) -> str:
    try:
        lines = traceback.format_exception(type(error), error, frames, limit=-TRACE_FRAMES)
    except RAISED as another:
        return f"its trace cannot be said: {_kind(another)}"
    return "".join(lines)


_OURS: Final = {
    __name__,
    "penstock.client.arguments",
    "penstock.client.soft",
    "penstock.model.resuming",
}


# -- batches -------------------------------------------------------------------------------------


class BatchOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How the jobs of a batch ended: all alike, or each by its place."""

    all: Outcome | None = None
    each: dict[int, Outcome] = {}  # by place; what is not in it is completed


class Batch(msgspec.Struct, frozen=True):
    """Jobs of a batch task that run together."""

    task: Any  # Task
    values: list[Any]  # the items
    places: Sequence[int]  # of the items, among the jobs that were given
    refused: dict[int, Outcome]  # jobs whose payload is not an item
    context: Context

    def answered(self, executor: Executor, value: Any) -> BatchOutcome:
        """Nothing: all are done. A list: each item's result, or the exception that it ended with."""
        if value is None:
            return self.ended(DONE)
        if not isinstance(value, list | tuple):
            _check_awaited(value)
            raise TypeError(
                f"a batch task answers None or a list as long as its batch ({len(self.values)}),"
                f" not {type(value).__name__}"
            )
        if len(value) != len(self.values):
            raise TypeError(
                f"a batch task answers as many results as it got items ({len(self.values)}),"
                f" not {len(value)}"
            )
        each = dict(self.refused)
        for place, one in zip(self.places, value, strict=True):
            if isinstance(one, BaseException):
                # By its type: `isinstance` asks the exception itself, and here others would pay.
                cancelled = issubclass(type(one), asyncio.CancelledError)
                each[place] = INTERRUPTED if cancelled else executor.failed(self.task, one)
            elif one is not None:
                try:
                    each[place] = answered(self.task, one)
                except ResultNotSendable as error:
                    each[place] = executor.failed(self.task, error)
        return BatchOutcome(each=each) if each else BatchOutcome(all=DONE)

    def ended(self, outcome: Outcome) -> BatchOutcome:
        """All of its items alike."""
        if not self.refused:
            return BatchOutcome(all=outcome)
        alike = {} if outcome is DONE else dict.fromkeys(self.places, outcome)
        return BatchOutcome(each={**alike, **self.refused})


def gathered(
    task: "Task[..., Any, Any]", codec: Codec, payloads: Sequence[bytes], context: Context
) -> Batch | BatchOutcome:
    """The items of a batch; a payload that is none is refused by itself, and nothing is left to run
    if none of them is one."""
    try:
        items = task.arguments.decode_many(codec, payloads)
        if len(items) == len(payloads):
            return Batch(task, items, range(len(items)), {}, context)
    except BadArguments:
        pass  # one of them is: found below
    items, places = [], []
    refused: dict[int, Outcome] = {}
    for place, payload in enumerate(payloads):
        try:
            items.append(task.arguments.decode(codec, payload))
            places.append(place)
        except BadArguments as error:
            refused[place] = failed(task, error)
    return Batch(task, items, places, refused, context) if items else BatchOutcome(each=refused)
