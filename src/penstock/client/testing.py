"""An app under test: `with app.testing() as t:`

Inside the block the app's jobs go to a store of their own, in memory, with the real kernel and the
real codec, and a clock that only the test moves. Nothing runs by itself: `t.drain()` runs what is
ready, `t.advance("1h")` lets time pass. Afterwards the app is as it was.

Plain handlers run in the thread that drains, asynchronous ones on a loop in it, so that fixtures,
debuggers and whatever is bound to a thread work as in any test. In asynchronous tests `adrain` is
awaited; everything else answers at once and may be called anywhere.
"""

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress
from contextvars import copy_context
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import msgspec

from penstock.client.arguments import BadArguments
from penstock.client.draining import Drain, Drained, Failure, Work
from penstock.client.errors import BadDeclaration
from penstock.client.execute import INTERRUPTED, BatchOutcome, Executor, Outcome
from penstock.client.home import Home
from penstock.client.task import Task
from penstock.model.answers import BulkInfo, Durability, Pushed, Result
from penstock.model.checks_values import check_int, show
from penstock.model.duration import Duration, duration_ms
from penstock.model.errors import Conflict, Deadline, Invalid, Unavailable
from penstock.model.job import MAX_ID, Job, JobOptions, Lease, Run
from penstock.model.lifecycle import State
from penstock.model.store import Store
from penstock.model.wrapper import Call, Wrapper
from penstock.stores.clock import ManualClock
from penstock.stores.embedded import EmbeddedStore

if TYPE_CHECKING:
    from penstock.client.app import Penstock

T = TypeVar("T")

LIMIT: Final = 100_000  # jobs that one drain runs before it asks whether that was meant
_entering: Final = threading.Lock()


class PushedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A job that was pushed, as its handler will see it."""

    id: int
    task: str
    queue: str
    arguments: Any  # by name, those that were said; of a batch task its item
    options: JobOptions
    delay_ms: int | None = None
    run_at: int | None = None
    key: str | None = None
    group: str | None = None
    headers: dict[str, str] | None = None
    depends_on: tuple[int, ...] = ()


class Testing:
    """Made by `app.testing()`."""

    __test__ = False  # whatever its name, it is no test

    def __init__(
        self,
        app: "Penstock",
        *,
        now: datetime | None = None,
        crons: bool = True,
        seed: int = 0,
    ) -> None:
        """The clock begins at `now` (the present); `crons=False` leaves the app's schedules out;
        `seed` decides the jitter of backoffs."""
        begin: Any = datetime.now(UTC) if now is None else now
        if not isinstance(begin, datetime):
            raise BadDeclaration(f"is {show(now)}, not a datetime: datetime.now(UTC)", "now")
        if begin.tzinfo is None:
            raise Invalid("a datetime needs a time zone: datetime.now(UTC)", "now")
        check_int(seed, "seed", 0, MAX_ID)
        self.app = app
        self.clock = ManualClock(now=int(begin.timestamp() * 1_000))
        self.results: dict[int, Any] = {}  # by id: what the jobs that completed have answered
        self.failures: list[Failure] = []  # every attempt that failed, in order
        self._seed = seed
        self._crons = crons
        self._instants: dict[str, tuple[int, ...]] = {}  # installed ahead, by the cron's name
        self._recorder: Recorder | None = None
        self._real: Home | None = None
        self._home: TestingHome | None = None
        self._draining = threading.Lock()

    # -- the block -------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        with _entering:
            if isinstance(self.app.home, TestingHome):
                raise Conflict(
                    "this app is in a testing() block already: one at a time, and not within"
                    " another; tests that run beside each other need processes, or apps, of their own"
                )
            if self._real is not None:
                raise Conflict("a testing() block is entered once: make another")
            self._real = self.app.home
            inner = EmbeddedStore.in_memory(clock=self.clock, seed=self._seed)
            self._recorder = Recorder(inner)
            self._home = self.app.home = TestingHome(self.app.tenant, self._recorder)
        try:
            at_once(self._plan_crons())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        home, real = self._home, self._real
        assert home is not None and real is not None
        self.app.home = real
        home.end()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self.__exit__()

    # -- time ------------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.clock.now / 1_000, UTC)

    def advance(self, by: Duration) -> None:
        """Let time pass: delays, retries, ttl and the app's crons become due. Nothing runs."""
        at_once(self._advance(duration_ms(by, "by")))

    async def _advance(self, left: int) -> None:
        """From instant to instant of the crons, so that each comes due when it should."""
        store = await self._store()
        end = self.clock.now + left
        while True:
            ahead = [at for instants in self._instants.values() for at in instants]
            step = min([end, *(at for at in ahead if at > self.clock.now)]) - self.clock.now
            self.clock.advance(step)
            await store.tick()
            await self._plan_crons()
            if self.clock.now == end:
                return

    async def _plan_crons(self) -> None:
        if self._crons and self.app.crons:
            store = await self._store()
            known = {each.spec.name for each in await store.crons(self.app.tenant)}
            for name, spec in self.app.crons.items():
                ended = name in self._instants and name not in known  # by its limit
                if not ended and max(self._instants.get(name, ()), default=0) <= self.clock.now:
                    info = await store.put_cron(self.app.tenant, spec)
                    self._instants[name] = info.pending

    # -- running ---------------------------------------------------------------------------------

    def drain(self, *, raise_errors: bool = False, limit: int = LIMIT) -> Drained:
        """Run everything that is ready, and what that makes ready, until nothing is.

        Queues take turns; within one the order is that of the contract. The clock stands still, so
        a retry waits until the test moves it. With `raise_errors` the first exception of a handler
        comes out here, once its job's attempt has failed by it; a `Retry` is none.
        """
        home = self._at_home
        home.may_block("drain()", "adrain()")
        drain = self._begin(limit, raise_errors)
        runner = asyncio.Runner()
        try:
            while (work := at_once(drain.next())) is not None:
                drain.told(_run_here(drain, work, runner))
        finally:
            runner.close()
            self._end(drain)
        return _done(drain, raise_errors)

    async def adrain(self, *, raise_errors: bool = False, limit: int = LIMIT) -> Drained:
        """The same in asynchronous tests; plain handlers run in a thread."""
        drain = self._begin(limit, raise_errors)
        try:
            while (work := at_once(drain.next())) is not None:
                drain.told(await _run_there(drain, work))
        finally:
            self._end(drain)
        return _done(drain, raise_errors)

    def _begin(self, limit: int, raise_errors: bool) -> Drain:
        check_int(limit, "limit", 1, MAX_ID)
        store = at_once(self._store())
        if not self._draining.acquire(blocking=False):
            raise Conflict("drain() is under way: a handler, or another thread, cannot drain too")
        return Drain(
            self.app,
            store,
            at_once,
            queues=self._known.pushed_to,
            limit=limit,
            stop_at_error=raise_errors,
        )

    def _end(self, drain: Drain) -> None:
        try:
            at_once(drain.end())
        finally:
            self._draining.release()
            self.results.update(drain.results)
            self.failures += drain.failures

    # -- looking ---------------------------------------------------------------------------------

    def pushed(self, task: "Task[..., Any, Any] | None" = None) -> list[PushedCall]:
        """What was pushed to the task, or at all, in order; its arguments as its handler gets
        them. Jobs whose key was taken are not among them, and crons push by themselves."""
        if task is not None and not isinstance(task, Task):
            raise BadDeclaration(f"{show(task)} is no task: say t.pushed(welcome)", "task")
        name = None if task is None else task.name
        return [
            self._call(each)
            for each in self._known.pushes
            if name is None or each.options.task == name
        ]

    def _call(self, push: PushedCall) -> PushedCall:
        task = self.app.tasks.get(push.task)
        payload: bytes = push.arguments
        try:
            if task is None:
                said: Any = msgspec.json.decode(payload)
            else:
                said = task.arguments.said(task.arguments.decode(push.options.codec, payload))
        except (BadArguments, msgspec.MsgspecError):
            said = payload  # as it is: nobody's arguments
        return msgspec.structs.replace(push, arguments=said)

    @property
    def dead(self) -> list[Job]:
        """The dead letters of every queue."""
        return at_once(self._in_state(State.DEAD))

    async def _in_state(self, state: State) -> list[Job]:
        store, tenant = await self._store(), self.app.tenant
        found: list[Job] = []
        for queue in await store.queues(tenant):
            cursor: int | None = 0
            while cursor is not None:
                page = await store.find(
                    tenant, queue.queue, state=state, cursor=cursor, limit=1_000
                )
                found += page.jobs
                cursor = page.cursor
        return found

    # -- reaching the store ----------------------------------------------------------------------

    @property
    def _at_home(self) -> "TestingHome":
        if self._home is None:
            raise Conflict("testing() has not begun: with app.testing() as t:")
        return self._home

    @property
    def _known(self) -> "Recorder":
        assert self._recorder is not None, "the store is opened with the block"
        return self._recorder

    async def _store(self) -> Store:
        return await self._at_home.store()


class TestingHome(Home):
    """A home without a thread: nothing in its store waits, so calls are made where they are said."""

    __test__ = False
    patient = False  # whoever waits here keeps the test from running what it waits for

    def __init__(self, tenant: str, store: Store) -> None:
        super().__init__("memory://", tenant)
        self._there: Store | None = store
        self._turns: asyncio.AbstractEventLoop | None = None  # for calls that ask several at once

    async def store(self) -> Store:
        if self._there is None:
            raise Unavailable("the testing() block is over, and its store with it")
        return self._there

    def wait(self, call: Call[T]) -> T:
        if self._there is None:
            return at_once(call)  # which says that it is over
        with self._lock:
            if self._turns is None:
                self._turns = asyncio.new_event_loop()
            return self._turns.run_until_complete(call)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        raise Conflict("the store of a testing() block has no loop of its own")

    def end(self) -> None:
        store, self._there = self._there, None
        if store is not None:
            at_once(store.close())
        if self._turns is not None:
            self._turns.close()

    async def aclose(self) -> None:
        """What the app closes is its real store: this one ends with the block."""

    def close(self) -> None:
        """Likewise."""


def at_once(call: Call[T]) -> T:
    """What a call answers that has nothing to wait for."""
    try:
        while call.send(None) is None:
            pass  # only let others have their turn
    except StopIteration as answered:
        return answered.value  # type: ignore[no-any-return]
    call.close()
    raise Deadline("in a test nothing happens by itself: this call would wait for ever")


class Recorder(Wrapper):
    """Remembers what was pushed, for as long as the test lasts; waits for nothing.

    One call at a time, from whichever threads a test has.
    """

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self._lock = threading.RLock()
        self._held: dict[str, list[PushedCall]] = {}  # by bulk
        self.pushes: list[PushedCall] = []
        self.pushed_to: dict[str, None] = {}  # in the order of their first push

    @property
    def inner(self) -> Store:
        return self._inner

    def _made(self, name: str, call: Call[T]) -> Call[T]:
        return self._alone(call)

    async def _alone(self, call: Call[T]) -> T:
        with self._lock:
            return at_once(call)

    async def push(
        self,
        tenant: str,
        runs: Sequence[Run],
        *,
        producer: str | None = None,
        sequence: int | None = None,
        content: bytes | None = None,
        bulk: str | None = None,
        part: str = "",
        durability: Durability | None = None,
    ) -> Pushed:
        # A store in memory has no durability to ask for, but the app's real one may.
        call = self._inner.push(
            tenant,
            runs,
            producer=producer,
            sequence=sequence,
            content=content,
            bulk=bulk,
            part=part,
        )
        with self._lock:
            pushed = at_once(call)
            into = self.pushes if bulk is None else self._held.setdefault(bulk, [])
            for run, made in zip(runs, pushed.runs, strict=True):
                self.pushed_to[run.queue] = None
                for place, (job_id, outcome) in enumerate(made):
                    if outcome != "ignored":
                        into.append(_pushed(run, place, job_id))
        return pushed

    async def commit_bulk(
        self, tenant: str, bulk: str, parts: Sequence[str] | None = None
    ) -> BulkInfo:
        with self._lock:
            info = at_once(self._inner.commit_bulk(tenant, bulk, parts))
            held = self._held.pop(bulk, [])
            there = at_once(self._inner.get(tenant, [each.id for each in held]))
            self.pushes += [each for each, job in zip(held, there, strict=True) if job is not None]
        return info

    def claim(
        self,
        tenant: str,
        queues: Sequence[str],
        n: int = 1,
        *,
        lease_ms: int | None = None,
        worker: str = "",
        wait_ms: int = 0,
    ) -> Call[Lease | None]:
        return super().claim(tenant, queues, n, lease_ms=lease_ms, worker=worker)

    async def result(self, tenant: str, job_id: int, *, wait_ms: int = 0) -> Result:
        try:
            return await self._alone(self._inner.result(tenant, job_id))
        except Deadline:
            raise Deadline(
                f"job {job_id} has not ended, and in a test nothing runs by itself:"
                " call t.drain() first, and t.advance() where it has to wait"
            ) from None


def _pushed(run: Run, place: int, job_id: int) -> PushedCall:
    def of(column: Any) -> Any:
        return column[place] if isinstance(column, Sequence) else column

    options = run.options[0 if run.option_of is None else run.option_of[place]]
    begin = run.ends[place - 1] if place else 0
    return PushedCall(
        id=job_id,
        task=options.task,
        queue=run.queue,
        arguments=run.data[begin : run.ends[place]],  # as bytes: decoded when somebody looks
        options=options,
        delay_ms=of(run.delay_ms),
        run_at=of(run.run_at),
        key=of(run.keys),
        group=of(run.groups),
        headers=of(run.headers),
        depends_on=of(run.depends_on) or (),
    )


def _run_here(drain: Drain, work: Work, runner: asyncio.Runner) -> Outcome | BatchOutcome:
    executor = drain.executor
    if not work.task.is_async:
        return executor.run_here(work)
    # Not `runner.run`: that would have Ctrl-C cancel the handler, and no test end of it.
    loop = runner.get_loop()
    call = _Call(executor, work, loop)
    call.task.add_done_callback(call.end)
    try:
        while not call.over:  # a handler may stop the loop, which ends nothing
            with suppress(SystemExit):  # of a task beside the handler's: whoever awaits it has it
                loop.run_forever()
    except KeyboardInterrupt:
        call.over = True
        if call.task.done():
            call.task.exception()  # the same, which asyncio would log as one that nobody has seen
        raise
    return call.outcome


async def _run_there(drain: Drain, work: Work) -> Outcome | BatchOutcome:
    executor = drain.executor
    if not work.task.is_async:
        return await asyncio.to_thread(executor.run_here, work)
    call = _Call(executor, work, asyncio.get_running_loop())
    try:
        await asyncio.wait([call.task])
    except asyncio.CancelledError:  # the test: its handler tidies up, and has no outcome
        call.task.cancel()
        await asyncio.wait([call.task])
        raise
    return call.outcome


class _Call:
    """An asynchronous handler in a task and a context of its own, as a worker runs it."""

    def __init__(self, executor: Executor, work: Work, loop: asyncio.AbstractEventLoop) -> None:
        self._work = work
        self._loop = loop
        self._ended: list[Outcome | BatchOutcome] = []
        self.over = False
        self.task = loop.create_task(self._run(executor), context=copy_context())

    async def _run(self, executor: Executor) -> None:
        self._ended.append(await executor.run(self._work))

    @property
    def outcome(self) -> Outcome | BatchOutcome:
        """A task that its handler has cancelled is cancelled, whatever the handler answered."""
        if not self.task.cancelled():
            self.task.result()
        return self._ended[0] if self._ended else self._work.ended(INTERRUPTED)

    def end(self, _: object) -> None:
        """Stop the loop, once: it is run for this call alone."""
        if not self.over:
            self.over = True
            self._loop.stop()


def _done(drain: Drain, raise_errors: bool) -> Drained:
    if raise_errors and drain.error is not None:
        raise drain.error
    return drain.drained
