"""Running jobs: from a claimed job to what is to be told about it.

This is the one place where handlers are called, and it knows nothing of leases, stores or pools:
the worker, `testing()` and whoever else runs tasks gives it a job and gets an outcome. An outcome
is a value, never an exception: whatever a handler does, somebody has to be told.

A handler is `async def` or a plain function. `prepare` decodes the arguments; then `run` awaits an
asynchronous handler, and `run_here` calls a plain one in the thread that it is called in.
"""

import asyncio
import logging
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from penstock.client.arguments import BadArguments, Unsendable, encoded
from penstock.client.context import Context
from penstock.client.errors import Dead, Retry
from penstock.client.soft import within
from penstock.model.job import Codec, JobError

if TYPE_CHECKING:
    from penstock.client.middleware import Middleware
    from penstock.client.task import Task

log: Final = logging.getLogger("penstock.run")

TRACE_FRAMES: Final = 50


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
Ended = TypeVar("Ended", bound="Outcome | BatchOutcome")

DONE: Final = Completed()
INTERRUPTED: Final = Interrupted()

# What a handler may end with beside an answer; a cancellation is looked at before.
# Whatever a handler raises is its job's alone, also what Python itself lets through: a job whose end
# nobody hears of would hold its slot, and be kept from others, for as long as the worker lives.
RAISED: Final = BaseException


class ResultNotSendable(TypeError):
    """The handler answered what JSON cannot say."""


class Prepared(msgspec.Struct, frozen=True, gc=False):
    """A job whose arguments are what its handler wants."""

    task: Any  # Task
    values: Any
    context: Context


class Executor:
    """Runs the jobs of one app's tasks, with its middleware around them."""

    def __init__(self, middleware: "Sequence[Middleware]" = ()) -> None:
        self._middleware = tuple(middleware)

    # -- one job ---------------------------------------------------------------------------------

    def prepare(self, task: "Task[..., Any, Any]", context: Context) -> Prepared | Failed:
        """The job with its arguments decoded, or a failure that no further attempt would mend."""
        job = context.job
        try:
            values = task.arguments.decode(job.options.codec, job.payload)
        except BadArguments as error:
            return self.failed(task, error)
        return Prepared(task, values, context)

    async def run(self, prepared: Prepared) -> Outcome:
        """Await an asynchronous handler."""
        task, context = prepared.task, prepared.context
        entered: list[Middleware] = []
        try:
            self._before(context, entered)
            call = task.arguments.call(task.handler, prepared.values, context)
            soft_ms = task.soft_timeout_ms
            value = await (call if soft_ms is None else within(call, soft_ms))
            outcome: Outcome = answered(task, value)
        except asyncio.CancelledError:
            outcome = INTERRUPTED
        except RAISED as error:
            outcome = self.failed(task, error)
        return self._after(context, outcome, entered)

    def run_here(self, prepared: Prepared) -> Outcome:
        """Call a plain handler, in this thread."""
        task, context = prepared.task, prepared.context
        entered: list[Middleware] = []
        try:
            self._before(context, entered)
            value = task.arguments.call(task.handler, prepared.values, context)
            outcome: Outcome = answered(task, value)
        except asyncio.CancelledError:
            outcome = INTERRUPTED
        except RAISED as error:
            outcome = self.failed(task, error)
        return self._after(context, outcome, entered)

    def failed(self, task: "Task[..., Any, Any]", error: BaseException) -> Failed:
        """What an exception means for the job. Overridden by whoever wants to see the exception."""
        return failed(task, error)

    def _before(self, context: Context, entered: "list[Middleware]") -> None:
        for each in self._middleware:
            each.before_run(context)
            entered.append(each)

    def _after(self, context: Context, outcome: Ended, entered: "list[Middleware]") -> Ended:
        """Those whose `before_run` was passed hear of the end, the last one first."""
        for each in reversed(entered):
            try:
                each.after_run(context, outcome)
            except Exception:
                log.exception("%s.after_run failed", type(each).__name__)
        return outcome


def answered(task: "Task[..., Any, Any]", value: Any) -> Outcome:
    """Raises ResultNotSendable."""
    if value is None or not task.keeps_result:
        return DONE
    try:
        return Completed(encoded("json", value), "json")
    except Unsendable as error:
        raise ResultNotSendable(
            f"{error}; answer something that JSON can say, or say result=False"
        ) from None


def failed(task: "Task[..., Any, Any]", error: BaseException) -> Failed:
    """What an exception of the handler means for the job."""
    if isinstance(error, BadArguments | ResultNotSendable):
        # Trying again would change nothing, or do the work again for nothing; and no frame of the
        # handler has to do with it.
        return Failed(error=JobError(kind=type(error).__name__, message=str(error)), dead=True)
    told = job_error(error)
    if isinstance(error, Retry):
        return Failed(error=told, retry_in_ms=error.after_ms)
    dead = isinstance(error, Dead) or not task.retries(error)
    return Failed(error=told, dead=dead)


def job_error(error: BaseException) -> JobError:
    """The frames of the handler, not of what runs it."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__") in _OURS:
        frames = frames.tb_next
    lines = traceback.format_exception(type(error), error, frames, limit=-TRACE_FRAMES)
    try:
        message = str(error)
    except Exception as another:  # noqa: BLE001 - its own __str__ may be what is broken
        message = f"its message cannot be said: {type(another).__name__}"
    return JobError(kind=type(error).__name__, message=message, trace="".join(lines))


_OURS: Final = {__name__, "penstock.client.arguments", "penstock.client.soft"}


# -- batches -------------------------------------------------------------------------------------


class BatchOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How the jobs of a batch ended: all alike, or each by its place."""

    all: Outcome | None = None
    each: dict[int, Outcome] = {}  # by place; what is not in it is completed


class Batch(msgspec.Struct, frozen=True):
    """Jobs of a batch task that run together. `payloads` and places go by the same index."""

    task: Any  # Task
    items: list[Any]
    places: Sequence[int]  # of the items, among the jobs that were given
    refused: dict[int, Outcome]  # jobs whose payload is not an item
    context: Context


def gathered(
    task: "Task[..., Any, Any]", codec: Codec, payloads: Sequence[bytes], context: Context
) -> Batch:
    """The items of a batch; a payload that is none is refused by itself."""
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
    return Batch(task, items, places, refused, context)


class BatchExecutor(Executor):
    async def run_batch(self, batch: Batch) -> BatchOutcome:
        task, context = batch.task, batch.context
        if not batch.items:
            return BatchOutcome(each=batch.refused)
        entered: list[Middleware] = []
        try:
            self._before(context, entered)
            call = task.arguments.call(task.handler, batch.items, context)
            soft_ms = task.soft_timeout_ms
            value = await (call if soft_ms is None else within(call, soft_ms))
            outcome = self._batch_answered(batch, value)
        except asyncio.CancelledError:
            outcome = BatchOutcome(all=INTERRUPTED)
        except RAISED as error:
            outcome = _batch_failed(batch, self.failed(task, error))
        return self._after(context, outcome, entered)

    def run_batch_here(self, batch: Batch) -> BatchOutcome:
        task, context = batch.task, batch.context
        if not batch.items:
            return BatchOutcome(each=batch.refused)
        entered: list[Middleware] = []
        try:
            self._before(context, entered)
            value = task.arguments.call(task.handler, batch.items, context)
            outcome = self._batch_answered(batch, value)
        except asyncio.CancelledError:
            outcome = BatchOutcome(all=INTERRUPTED)
        except RAISED as error:
            outcome = _batch_failed(batch, self.failed(task, error))
        return self._after(context, outcome, entered)

    def _batch_answered(self, batch: Batch, value: Any) -> BatchOutcome:
        """Nothing: all are done. A list: each item's result, or the exception that it ended with."""
        if value is None:
            return BatchOutcome(each=batch.refused) if batch.refused else BatchOutcome(all=DONE)
        if not isinstance(value, list | tuple):
            raise TypeError(
                f"a batch task answers None or a list as long as its batch ({len(batch.items)}),"
                f" not {type(value).__name__}"
            )
        if len(value) != len(batch.items):
            raise TypeError(
                f"a batch task answers as many results as it got items ({len(batch.items)}),"
                f" not {len(value)}"
            )
        each = dict(batch.refused)
        for place, one in zip(batch.places, value, strict=True):
            if isinstance(one, BaseException):
                cancelled = isinstance(one, asyncio.CancelledError)
                each[place] = INTERRUPTED if cancelled else self.failed(batch.task, one)
            elif one is not None:
                try:
                    each[place] = answered(batch.task, one)
                except ResultNotSendable as error:
                    each[place] = self.failed(batch.task, error)
        return BatchOutcome(each=each) if each else BatchOutcome(all=DONE)


def _batch_failed(batch: Batch, outcome: Failed) -> BatchOutcome:
    if not batch.refused:
        return BatchOutcome(all=outcome)
    return BatchOutcome(each={**dict.fromkeys(batch.places, outcome), **batch.refused})
