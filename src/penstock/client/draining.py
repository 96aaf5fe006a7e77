"""Running what is ready in a test, one call after the other, until nothing is.

A worker in miniature: the same store, the same executor, but nothing happens at the same time and
nothing by itself. `next` tells the store how the last call ended and gives the next one; whoever
drains makes it, in whichever thread or loop suits the test.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.client.arguments import BadArguments, decoded
from penstock.client.context import Context, Report
from penstock.client.errors import Retry
from penstock.client.execute import (
    CANCELLED_ITSELF,
    DONE,
    Batch,
    BatchOutcome,
    Completed,
    Executor,
    Failed,
    Interrupted,
    Outcome,
    Prepared,
    gathered,
)
from penstock.client.inputs import HEADER, with_inputs
from penstock.model.errors import LeaseLost, PayloadTooLarge
from penstock.model.job import Job, JobError, Lease
from penstock.model.lifecycle import State
from penstock.model.policy import DAY_MS
from penstock.model.store import Store

if TYPE_CHECKING:
    from penstock.client.app import Penstock
    from penstock.client.task import Task

WORKER: Final = "testing"
LEASE_MS: Final = DAY_MS  # no lease ends while its test looks at it

Work = Prepared | Batch


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that failed."""

    job: Job
    error: BaseException  # what the handler raised
    state: State  # of the job afterwards: scheduled, ready or dead
    run_at: int | None  # when the next attempt is due; None if there is none


class Drained(msgspec.Struct, frozen=True, kw_only=True):
    """What `drain` did."""

    completed: int = 0  # jobs
    failed: int = 0  # attempts
    lost: int = 0  # jobs that were taken away while they ran: cancelled, timed out, purged
    parked: tuple[Job, ...] = ()  # back where they were: no task here has their name

    @property
    def ran(self) -> int:
        return self.completed + self.failed + self.lost


class Noting(Executor):
    """Keeps the exceptions that outcomes were made of."""

    def __init__(self, app: "Penstock") -> None:
        super().__init__(app.middleware)
        self._raised: dict[int, tuple[Failed, BaseException]] = {}  # by the outcome's identity

    def failed(self, task: "Task[..., Any, Any]", error: BaseException) -> Failed:
        if issubclass(type(error), KeyboardInterrupt):  # `isinstance` asks the exception itself
            raise error  # of whoever runs the tests
        outcome = super().failed(task, error)
        self._raised[id(outcome)] = (outcome, error)
        return outcome

    def raised(self, outcome: Failed) -> BaseException:
        known = self._raised.get(id(outcome))
        return BadArguments(outcome.error.message) if known is None else known[1]


class Held(msgspec.Struct, frozen=True):
    """A claimed job."""

    job: Job
    lease: str


class Drain:
    def __init__(
        self,
        app: "Penstock",
        store: Store,
        wait: Callable[[Any], Any],
        *,
        queues: Iterable[str],
        limit: int,
        stop_at_error: bool,
    ) -> None:
        self.executor = Noting(app)
        self.results: dict[int, Any] = {}
        self.failures: list[Failure] = []
        self._app = app
        self._tenant = app.tenant
        self._store = store
        self._wait = wait  # makes a call of the store from wherever a handler runs
        self._queues = list(queues)
        self._limit = limit
        self._stop_at_error = stop_at_error
        self._running: list[Held] = []
        self._parked: list[Held] = []
        self._ended: BatchOutcome | None = None
        self._lost = 0

    # -- what the driver sees --------------------------------------------------------------------

    def told(self, outcome: Outcome | BatchOutcome) -> None:
        """How what `next` gave has ended."""
        self._ended = outcome if isinstance(outcome, BatchOutcome) else BatchOutcome(all=outcome)

    async def next(self) -> Work | None:
        """The next call to make; None if nothing is ready."""
        while True:
            if self._ended is not None:
                await self._settle(self._ended)
                if self._stop_at_error and self.error is not None:
                    return None
            held = await self._claim(1)
            if held is None:
                return None
            if len(self.results) + len(self.failures) >= self._limit:
                self._parked += held
                raise RuntimeError(
                    f"{self._limit} jobs ran and there are more: does a task push itself?"
                    " Or say drain(limit=…)"
                )
            task = self._app.tasks.get(held[0].job.options.task)
            if task is None:
                self._parked += held
                continue
            work = await self._prepared(task, held[0])
            if isinstance(work, Prepared | Batch):
                return work
            self.told(work)

    @property
    def error(self) -> BaseException | None:
        """The first that a handler raised; asking to be tried again is no error."""
        raised = (each.error for each in self.failures)
        return next((error for error in raised if not issubclass(type(error), Retry)), None)

    async def end(self) -> None:
        """Give back what did not run."""
        for held in (*self._running, *self._parked):
            try:
                await self._store.release(self._tenant, held.lease, [held.job.id])
            except LeaseLost:
                continue

    @property
    def drained(self) -> Drained:
        return Drained(
            completed=len(self.results),
            failed=len(self.failures),
            lost=self._lost,
            parked=tuple(held.job for held in self._parked),
        )

    # -- claiming --------------------------------------------------------------------------------

    async def _claim(self, n: int, queue: str | None = None) -> list[Held] | None:
        if queue is not None:
            lease = await self._claim_from([queue], n)
        else:
            lease = await self._claim_from(self._queues, n)
            if lease is None and await self._more_queues():
                lease = await self._claim_from(self._queues, n)
        if lease is None:
            return None
        if queue is None:  # queues take turns: whoever was served comes last
            self._queues.remove(lease.queue)
            self._queues.append(lease.queue)
        return [Held(job, lease.token) for job in lease.jobs]

    async def _claim_from(self, queues: list[str], n: int) -> Lease | None:
        if not queues:
            return None
        return await self._store.claim(self._tenant, queues, n, lease_ms=LEASE_MS, worker=WORKER)

    async def _more_queues(self) -> bool:
        """Whether there are queues that we did not know: of crons, of pushes since."""
        known = [each.queue for each in await self._store.queues(self._tenant)]
        more = [name for name in known if name not in self._queues]
        self._queues += more
        return bool(more)

    async def _prepared(
        self, task: "Task[..., Any, Any]", first: Held
    ) -> Work | Failed | BatchOutcome:
        self._running = [first]
        if task.batch is not None and task.batch > 1 and not _has_holes(first.job):
            await self._fill(task.batch - 1, first.job)
        try:
            self._running = [await self._filled(held) for held in self._running]
        except BadArguments as error:
            return self.executor.failed(task, error)
        if task.batch is None:
            return self.executor.prepare(task, self._context(self._running))
        payloads = [held.job.payload for held in self._running]
        context = self._context(self._running)
        return gathered(task, first.job.options.codec, payloads, context)

    async def _fill(self, room: int, first: Job) -> None:
        """More jobs of the same kind behind the first one; the others go back in line."""
        more = await self._claim(room, first.queue) or []
        alike = 0
        for held in more:
            options = held.job.options
            if options.task != first.options.task or options.codec != first.options.codec:
                break
            if _has_holes(held.job):
                break  # such a job is a batch of its own
            alike += 1
        self._running += more[:alike]
        if more[alike:]:
            ids = [held.job.id for held in more[alike:]]
            await self._store.release(self._tenant, more[0].lease, ids)

    async def _filled(self, held: Held) -> Held:
        """With the results that a job of a flow takes from those before it."""
        if not _has_holes(held.job):
            return held
        payload = await with_inputs(self._store, self._tenant, held.job)
        return Held(msgspec.structs.replace(held.job, payload=payload), held.lease)

    def _context(self, running: list[Held]) -> Context:
        leases = {held.job.id: held.lease for held in running}

        def say(job_id: int, report: Report) -> None:
            self._wait(self._report(leases[job_id], job_id, report))

        jobs = tuple(held.job for held in running)
        return Context(
            jobs[0],
            worker=WORKER,
            say=say,
            results=lambda: self._wait(self._inputs(jobs[0])),
            jobs=jobs,
        )

    async def _report(self, lease: str, job_id: int, report: Report) -> None:
        try:
            await self._store.report(
                self._tenant,
                lease,
                job_id,
                progress=report.progress,
                message=report.message,
                logs=report.logs,
                partial=report.partial,
            )
        except LeaseLost:
            return  # taken away while it speaks: nobody hears it any more

    async def _inputs(self, job: Job) -> dict[int, Any]:
        known = await self._store.get(self._tenant, list(job.depends_on))
        return {
            each.id: decoded(each.result_codec, each.result, Any)
            for each in known
            if each is not None and each.state is State.COMPLETED
        }

    # -- telling ---------------------------------------------------------------------------------

    async def _settle(self, ended: BatchOutcome) -> None:
        running, self._running, self._ended = self._running, [], None
        completed: dict[str, list[tuple[Job, Completed]]] = {}  # by lease
        for place, held in enumerate(running):
            outcome = ended.all or ended.each.get(place, DONE)
            if isinstance(outcome, Completed):
                completed.setdefault(held.lease, []).append((held.job, outcome))
            elif isinstance(outcome, Failed):
                await self._fail(held, outcome, self.executor.raised(outcome))
            elif isinstance(outcome, Interrupted):  # a test that is cancelled tells no outcome
                error = asyncio.CancelledError(CANCELLED_ITSELF.error.message)
                await self._fail(held, CANCELLED_ITSELF, error)
        for lease, jobs in completed.items():
            await self._complete(lease, jobs)

    async def _complete(self, lease: str, jobs: list[tuple[Job, Completed]]) -> None:
        ids = [job.id for job, _ in jobs]
        results = {job.id: one.result for job, one in jobs if one.result is not None}
        try:
            answer = await self._store.ack(self._tenant, lease, ids, results=results)
        except PayloadTooLarge as error:
            told = JobError(kind=type(error).__name__, message=str(error))
            for job, _ in jobs:
                await self._fail(Held(job, lease), Failed(error=told, dead=True), error)
            return
        except LeaseLost:
            self._lost += len(jobs)
            return
        self._lost += len(answer.lost)
        acked = set(answer.acked)
        for job, one in jobs:
            if job.id in acked:
                self._keep(job, one)

    def _keep(self, job: Job, outcome: Completed) -> None:
        returns = self._app.tasks[job.options.task].arguments.returns
        try:
            self.results[job.id] = decoded(outcome.codec, outcome.result, returns)
        except msgspec.MsgspecError:  # not as annotated: `result()` says so
            self.results[job.id] = decoded(outcome.codec, outcome.result, Any)

    async def _fail(self, held: Held, outcome: Failed, error: BaseException) -> None:
        try:
            failed = await self._store.fail(
                self._tenant,
                held.lease,
                [held.job.id],
                error=outcome.error,
                retry_in_ms=outcome.retry_in_ms,
                dead=outcome.dead,
            )
        except LeaseLost:
            self._lost += 1
            return
        (after,) = failed.jobs
        self.failures.append(
            Failure(job=held.job, error=error, state=after.state, run_at=after.run_at)
        )


def _has_holes(job: Job) -> bool:
    return job.headers is not None and HEADER in job.headers
