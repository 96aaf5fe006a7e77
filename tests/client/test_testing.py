"""`app.testing()`: real jobs, a clock that the test moves, and nothing that happens by itself."""

import asyncio
import functools
import signal
import threading
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from penstock import (
    Context,
    Dead,
    JobFailed,
    Penstock,
    Retry,
    chain,
    exponential,
    fixed,
    group,
)
from penstock.client.draining import Drained
from penstock.client.testing import Testing
from penstock.model.errors import Conflict, Deadline, Invalid, Unavailable
from penstock.model.lifecycle import DeadReason, State
from penstock.model.policy import Limits, QueueConfig, Rate


@pytest.fixture
def real() -> Penstock:
    """An app whose real store is never opened."""
    return Penstock("penstock://127.0.0.1:1")


def _drained(t: Testing, how: str) -> Drained:
    return t.drain() if how == "drain" else asyncio.run(t.adrain())


def test_a_job_travels_as_it_really_does(real: Penstock) -> None:
    @real.task(queue="mail")
    async def send(to: UUID, at: datetime | None = None) -> UUID:
        return to

    with real.testing() as t:
        job = send.push(UUID(int=1))
        assert job.get().state is State.READY
        drained = t.drain()
        assert (drained.completed, drained.failed, drained.ran) == (1, 0, 1)
        assert job.result() == UUID(int=1)
        assert t.results == {job.id: UUID(int=1)}
        assert t.drain().ran == 0


def test_afterwards_the_app_is_as_it_was(real: Penstock) -> None:
    step = real.task(name="step")(lambda: None)
    before = real.home
    with pytest.raises(LookupError), real.testing() as t:
        job = step.push()
        assert real.home is not before
        raise LookupError
    assert real.home is before
    for late in (job.get, job.result, t.drain, lambda: t.advance(1), lambda: t.dead):
        with pytest.raises(Unavailable, match=r"the testing\(\) block is over"):
            late()
    with real.testing() as t:
        assert t.pushed() == []


def test_one_block_at_a_time(real: Penstock) -> None:
    with real.testing() as t:
        with pytest.raises(Conflict, match=r"in a testing\(\) block already"):
            real.testing().__enter__()
        said: list[Exception] = []

        def beside() -> None:
            try:
                with real.testing():
                    pass
            except Conflict as error:
                said.append(error)

        thread = threading.Thread(target=beside)
        thread.start()
        thread.join()
        assert len(said) == 1
        t.drain()
    with pytest.raises(Conflict, match="entered once"):
        t.__enter__()
    with pytest.raises(Conflict, match="has not begun"):
        Testing(real).drain()


def test_handlers_run_where_the_test_does(real: Penstock) -> None:
    where: list[Any] = []

    @real.task
    def plain() -> None:
        where.append(threading.current_thread())
        awaited.push()  # what a plain handler may do

    @real.task
    async def awaited() -> None:
        where.append(threading.current_thread())
        await last.apush()

    @real.task
    async def last() -> None:
        where.append("last")

    with real.testing() as t:
        plain.push()
        assert t.drain().completed == 3
        assert where == [threading.current_thread()] * 2 + ["last"]


def test_an_asynchronous_test(real: Penstock) -> None:
    @real.task
    def plain(n: int) -> int:
        assert threading.current_thread() is not threading.main_thread()
        return awaited.push(n).id

    @real.task
    async def awaited(n: int) -> int:
        loops.append(asyncio.get_running_loop())
        return n

    loops: list[Any] = []

    async def test() -> None:
        async with real.testing() as t:
            job = await plain.apush(5)
            assert (await t.adrain()).completed == 2
            assert t.results[await job.aresult()] == 5
            assert loops == [asyncio.get_running_loop()]
            await awaited.options(delay="1h").apush(6)
            assert (await t.adrain()).ran == 0
            t.advance("1h")
            assert (await t.adrain()).ran == 1
            assert [call.arguments for call in t.pushed(awaited)] == [{"n": 5}, {"n": 6}]
            assert t.dead == []
            with pytest.raises(RuntimeError, match=r"await adrain\(\)"):
                t.drain()
        with real.testing() as t:
            assert (await t.adrain()).ran == 0

    asyncio.run(test())


def test_a_drain_that_is_cancelled_gives_its_job_back(real: Penstock) -> None:
    @real.task
    async def forever() -> None:
        began.set()
        await asyncio.Event().wait()

    began: Any = None

    async def test() -> None:
        nonlocal began
        began = asyncio.Event()
        async with real.testing() as t:
            job = await forever.apush()
            draining = asyncio.create_task(t.adrain())
            await began.wait()
            draining.cancel()
            with pytest.raises(asyncio.CancelledError):
                await draining
            told = await job.aget()
            assert (told.state, told.attempt) == (State.READY, 0)

    asyncio.run(test())


# -- time ----------------------------------------------------------------------------------------


def test_retries_wait_for_the_clock(real: Penstock) -> None:
    @real.task(max_attempts=3, backoff=exponential("1s", jitter="none"))
    def flaky(ctx: Context) -> int:
        if ctx.attempt < 3:
            raise ConnectionError(f"attempt {ctx.attempt}")
        return ctx.attempt

    with real.testing() as t:
        job = flaky.push()
        assert (t.drain().failed, t.drain().ran) == (1, 0)
        t.advance("999ms")
        assert t.drain().ran == 0
        t.advance("1ms")
        assert t.drain().failed == 1
        t.advance("1s")
        assert t.drain().ran == 0
        t.advance("1s")
        assert t.drain().completed == 1
        assert job.result() == 3
        assert [str(failure.error) for failure in t.failures] == ["attempt 1", "attempt 2"]
        assert {failure.state for failure in t.failures} == {State.SCHEDULED}
        assert t.dead == []


def test_the_last_failure_makes_a_dead_letter(real: Penstock) -> None:
    @real.task(max_attempts=2, backoff=fixed("1m"))
    def broken(n: int) -> None:
        raise ValueError(n)

    @real.task
    def hopeless() -> None:
        raise Dead("no such user")

    with real.testing() as t:
        job, other = broken.push(7), hopeless.push()
        t.drain()
        t.advance("1m")
        t.drain()
        assert {dead.id for dead in t.dead} == {job.id, other.id}
        reasons = {dead.id: dead.dead_reason for dead in t.dead}
        assert reasons == {job.id: DeadReason.MAX_ATTEMPTS, other.id: DeadReason.REJECTED}
        assert t.failures[-1].state is State.DEAD
        assert t.failures[-1].run_at is None
        with pytest.raises(JobFailed, match="ValueError: 7"):
            job.result()


def test_delays_and_time_to_live(real: Penstock) -> None:
    ran: list[str] = []
    task = real.task(name="t")(ran.append)
    begin = datetime(2024, 1, 1, tzinfo=UTC)
    with real.testing(now=begin) as t:
        task.options(delay="1h").push("delayed")
        task.options(run_at=datetime(2024, 1, 1, 2, tzinfo=UTC)).push("dated")
        late = task.options(ttl="30m").push("short-lived")
        t.advance("59m")
        assert late.get().state is State.EXPIRED
        assert t.drain().ran == 0
        t.advance("1m")
        t.drain()
        t.advance("1h")
        assert t.now == datetime(2024, 1, 1, 2, tzinfo=UTC)
        t.drain()
        assert ran == ["delayed", "dated"]


def test_a_naive_now_is_refused(real: Penstock) -> None:
    with pytest.raises(Invalid, match="time zone"):
        real.testing(now=datetime(2024, 1, 1))  # noqa: DTZ001


def test_retry_says_when(real: Penstock) -> None:
    @real.task
    def busy(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise Retry("10m")

    with real.testing() as t:
        busy.push()
        t.drain(raise_errors=True)  # asking to be tried again is no error
        t.advance("599s")
        assert t.drain().ran == 0
        t.advance("1s")
        assert t.drain().completed == 1


def test_crons_come_due(real: Penstock) -> None:
    ran: list[Any] = []

    @real.cron("30 2 * * *", tz="Europe/Berlin")
    @real.task
    def nightly() -> None:
        ran.append("nightly")

    @real.every("15m", arguments={"n": 5}, name="often")
    @real.task
    async def often(n: int) -> None:
        ran.append(n)

    with real.testing(now=datetime(2024, 1, 1, tzinfo=UTC)) as t:
        assert t.drain().ran == 0
        t.advance("1h")
        t.drain()
        assert ran == [5] * 4
        t.advance("30m")
        t.drain()
        assert sorted(map(str, ran)) == ["5"] * 6 + ["nightly"]
        t.advance("3d")
        assert t.drain().completed == 3 * 96 + 3
        assert t.pushed() == []  # what the code under test pushed, and crons are not that
    with real.testing(crons=False) as t:
        t.advance("3d")
        assert t.drain().ran == 0


def test_a_cron_with_an_end(real: Penstock) -> None:
    @real.every("1h", limit=3)
    @real.task
    def thrice() -> None: ...

    with real.testing() as t:
        t.advance("10h")
        assert t.drain().completed == 3
        t.advance("10h")
        assert t.drain().ran == 0


def test_a_handler_that_takes_longer_than_it_may(real: Penstock) -> None:
    @real.task(timeout="1m", max_attempts=1)
    def slow() -> str:
        t.advance("2m")
        return "too late"

    with real.testing() as t:
        job = slow.push()
        assert t.drain().lost == 1
        assert t.results == {}
        with pytest.raises(JobFailed, match="dead"):
            job.result()


# -- what runs -----------------------------------------------------------------------------------


def test_order(real: Penstock) -> None:
    ran: list[str] = []
    task = real.task(name="t")(ran.append)
    with real.testing() as t:
        task.push("third")
        task.options(priority="low").push("last")
        task.options(priority="high").push("first")
        task.options(lifo=True).push("second")
        t.drain()
        assert ran == ["first", "second", "third", "last"]
        ran.clear()
        for n in range(2):
            for queue in ("b", "a"):
                task.options(queue=queue).push(f"{queue}{n}")
        t.drain()
        assert ran == ["b0", "a0", "b1", "a1"]  # queues take turns


def test_batches(real: Penstock) -> None:
    seen: list[list[int]] = []

    @real.task(batch=3)
    async def index(ctx: Context, items: list[int]) -> list[Any]:
        seen.append(items)
        assert [job.payload for job in ctx.jobs] == [b"%d" % item for item in items]
        return [ValueError("four") if item == 4 else item * 10 for item in items]

    other = real.task(name="other")(lambda: seen.append([]))
    with real.testing() as t:
        jobs = index.push_many(range(5))
        other.push()
        index.push(9)
        drained = t.drain()
        assert seen == [[0, 1, 2], [3, 4], [], [9]]
        assert (drained.completed, drained.failed) == (6, 1)
        assert [jobs[n].result() for n in range(4)] == [0, 10, 20, 30]
        assert [(each.job.id, str(each.error)) for each in t.failures] == [(jobs[4].id, "four")]
        assert [call.arguments for call in t.pushed(index)] == [0, 1, 2, 3, 4, 9]


def test_jobs_that_wait_for_others(real: Penstock) -> None:
    @real.task
    def fetch(n: int) -> int:
        if n < 0:
            raise Dead("negative")
        return n

    @real.task
    def total(ctx: Context) -> int:
        return sum(ctx.results.values())

    with real.testing() as t:
        jobs = fetch.push_many([(1,), (2,)])
        sum_of = total.options(depends_on=jobs, priority="high").push()
        doomed = total.options(depends_on=[fetch.push(-1)]).push()
        t.drain()
        assert sum_of.result() == 3
        assert doomed.get().dead_reason is DeadReason.DEPENDENCY_FAILED
        assert doomed.id in {dead.id for dead in t.dead}


def test_flows(real: Penstock) -> None:
    @real.task(queue="in")
    def fetch(n: int) -> int:
        return n

    @real.task
    async def double(n: int) -> int:
        return n * 2

    @real.task(batch=10)
    def total(items: list[list[int]]) -> list[int]:
        return [sum(item) for item in items]

    with real.testing() as t:
        chained = chain(fetch.s(3), double.s(), double.s()).push()
        fanned = group(*[fetch.s(n) for n in range(4)]).then(total.s()).push()
        assert t.drain().completed == 3 + 5
        assert (chained.result(), fanned.result()) == (12, 6)


def test_limits_hold(real: Penstock) -> None:
    task = real.task(name="t", queue="q")(lambda: None)

    async def limit() -> None:
        rate = Rate(tokens=2, per_ms=1_000, burst=2)
        store = await real.store()
        await store.configure("default", "q", QueueConfig(limits=Limits(rate=rate)))

    with real.testing() as t:
        asyncio.run(limit())
        task.push_many([()] * 5)
        assert t.drain().ran == 2
        t.advance("1s")
        assert t.drain().ran == 2


@pytest.mark.parametrize("how", ["drain", "adrain"])
def test_what_a_handler_sets_in_its_context_is_gone_with_it(real: Penstock, how: str) -> None:
    whose = ContextVar("whose", default="nobody's")

    @real.task
    def plain() -> str:
        found = whose.get()
        whose.set("a job's")
        return found

    @real.task
    async def awaited() -> str:
        return plain.handler()  # type: ignore[no-any-return]

    with real.testing() as t:
        for task in (plain, plain, awaited, awaited):
            task.push()
        whose.set("the test's")
        _drained(t, how)
        assert list(t.results.values()) == ["the test's"] * 4
        assert whose.get() == "the test's"


@pytest.mark.parametrize("how", ["drain", "adrain"])
def test_a_handler_that_cancels_itself_fails_as_in_a_worker(real: Penstock, how: str) -> None:
    @real.task(max_attempts=2, backoff=fixed("1s"))
    async def gives_up() -> None:
        raise asyncio.CancelledError

    @real.task(max_attempts=1)
    async def is_cancelled() -> None:
        _current().cancel()
        await asyncio.sleep(60)

    @real.task(max_attempts=1)
    def gives_up_here() -> None:
        raise asyncio.CancelledError

    @real.task
    async def is_cancelled_and_answers() -> str:
        _current().cancel()
        return "went on"

    with real.testing() as t:
        jobs = [gives_up.push(), is_cancelled.push(), gives_up_here.push()]
        answers = is_cancelled_and_answers.push()
        drained = _drained(t, how)
        assert (drained.completed, drained.failed, drained.parked) == (1, 3, ())
        assert [(each.job.id, each.state) for each in t.failures] == [
            (jobs[0].id, State.SCHEDULED),
            (jobs[1].id, State.DEAD),
            (jobs[2].id, State.DEAD),
        ]
        for failure in t.failures:
            assert isinstance(failure.error, asyncio.CancelledError)
        for job in jobs:
            (error,) = job.get().errors
            assert (error.kind, error.message) == ("CancelledError", "the handler cancelled itself")
        assert answers.result() == "went on"
        t.advance("1s")
        _drained(t, how)
        assert jobs[0].get().state is State.DEAD


def _current() -> "asyncio.Task[Any]":
    task = asyncio.current_task()
    assert task is not None
    return task


@pytest.mark.parametrize("how", ["drain", "adrain"])
def test_an_item_of_a_batch_that_was_cancelled_fails_by_itself(real: Penstock, how: str) -> None:
    @real.task(batch=3, max_attempts=1)
    async def rows(items: list[int]) -> list[int | BaseException]:
        return [asyncio.CancelledError() if item == 2 else item for item in items]

    with real.testing() as t:
        jobs = rows.push_many([1, 2, 3])
        drained = _drained(t, how)
        assert (drained.completed, drained.failed) == (2, 1)
        assert [job.get().state for job in jobs] == [State.COMPLETED, State.DEAD, State.COMPLETED]


def test_a_handler_that_stops_its_loop_or_exits_beside_itself_ends_no_test(real: Penstock) -> None:
    @real.task
    async def stops() -> str:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0)
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0.001)
        return "went on"

    @real.task
    async def stops_and_ends() -> str:
        asyncio.get_running_loop().stop()
        return "went on"

    @real.task(max_attempts=1)
    async def exits() -> None:
        async def leaves() -> None:
            raise SystemExit(3)

        await asyncio.create_task(leaves())

    @real.task
    async def quick() -> int:
        return 1

    with real.testing() as t:
        stopped, exited, after = stops.push(), exits.push(), quick.push()
        t.drain()
        assert (stopped.result(), after.result()) == ("went on", 1)
        assert exited.get().errors[0].kind == "SystemExit"
        last = stops_and_ends.push()
        t.drain()
        assert last.result() == "went on"


@pytest.mark.parametrize("late", [False, True])
def test_an_interrupt_of_a_test_comes_out_of_its_drain(real: Penstock, late: bool) -> None:
    @real.task
    async def waits() -> None:
        if late:
            await asyncio.sleep(0.001)
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(60)

    with real.testing() as t:
        job = waits.push()
        with pytest.raises(KeyboardInterrupt):
            t.drain()
        assert (job.get().state, job.get().attempt) == (State.READY, 0)


def test_a_test_that_is_cancelled_takes_its_handler_with_it(real: Penstock) -> None:
    ended: list[str] = []

    @real.task
    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            ended.append("tidied up")

    async def case() -> None:
        with real.testing() as t:
            job = await waits.apush()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await t.adrain()
            assert ended == ["tidied up"]
            left = await job.aget()
            assert (left.state, left.attempt, t.failures) == (State.READY, 0, [])

    asyncio.run(case())


def test_unknown_tasks_are_parked(real: Penstock) -> None:
    with Penstock("memory://") as other:
        stranger = other.task(name="stranger", queue="q")(lambda n: None)
        known = real.task(name="known", queue="q")(lambda: None)
        with real.testing() as t:
            stranger.app = real
            job = stranger.push(1)
            known.push()
            drained = t.drain()
            assert (drained.completed, [parked.id for parked in drained.parked]) == (1, [job.id])
            told = job.get()
            assert (told.state, told.attempt) == (State.READY, 0)
            call = t.pushed()[0]
            assert (call.task, call.arguments) == ("stranger", {"n": 1})


def test_arguments_of_strangers(real: Penstock) -> None:
    @real.task
    def count(n: int) -> None: ...

    async def push(payload: bytes) -> None:
        from penstock.model.job import JobSpec

        store = await real.store()
        await store.push_jobs("default", "default", [JobSpec(payload=payload, task="count")])

    with real.testing() as t:
        asyncio.run(push(b'{"n":"x"}'))
        asyncio.run(push(b'{"n":2}'))
        drained = t.drain()
        assert (drained.completed, drained.failed) == (1, 1)
        (dead,) = t.dead
        assert dead.errors[0].kind == "BadArguments"
        assert dead.errors[0].message == "Expected `int`, got `str` - at `$.n`"
        assert [call.arguments for call in t.pushed(count)] == [b'{"n":"x"}', {"n": 2}]
        asyncio.run(push(b"[]"))
        with pytest.raises(ValueError, match="Expected `object`"):
            t.drain(raise_errors=True)


def test_errors_come_out_if_that_is_asked_for(real: Penstock) -> None:
    error = LookupError("mine")

    @real.task
    def broken(n: int) -> None:
        if n == 1:
            raise error

    with real.testing() as t:
        jobs = broken.push_many([(0,), (1,), (2,)])
        with pytest.raises(LookupError) as raised:
            t.drain(raise_errors=True)
        assert raised.value is error
        states = [job.get().state for job in jobs]
        assert states == [State.COMPLETED, State.SCHEDULED, State.READY]
        assert len(t.failures) == 1
        assert t.drain(raise_errors=True).completed == 1


def test_an_exception_that_cannot_be_asked_is_a_failure_like_any_other(real: Penstock) -> None:
    class Shy(Exception):
        @property  # type: ignore[misc]
        def __class__(self) -> Any:
            raise Shy

    error = Shy()

    @real.task(max_attempts=1)
    def plain() -> None:
        raise error

    @real.task(max_attempts=1)
    async def awaited() -> None:
        raise error

    with real.testing() as t:
        plain.push()
        awaited.push()
        assert t.drain().failed == 2
        assert [job.errors[0].kind for job in t.dead] == ["Shy", "Shy"]
        assert all(each.error is error for each in t.failures)
        plain.push()
        try:  # `pytest.raises` would ask it
            t.drain(raise_errors=True)
        except Shy as raised:
            assert raised is error
        else:
            pytest.fail("it did not come out")


def test_a_decorator_that_hides_an_async_def_is_told_of(real: Penstock) -> None:
    def counted(handler: Any) -> Any:
        @functools.wraps(handler)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return handler(*args, **kwargs)

        return wrapper

    async def charge(cents: int) -> int:
        raise AssertionError("nobody awaits it")

    task = real.task(result=False)(counted(charge))
    with real.testing() as t:
        job = task.push(5)
        assert t.drain().failed == 1
        (error,) = job.get().errors
        assert (job.get().state, error.kind) == (State.DEAD, "NotAwaited")


def test_what_is_not_an_exception_of_the_handler_passes(real: Penstock) -> None:
    @real.task
    def interrupted() -> None:
        raise KeyboardInterrupt

    with real.testing() as t:
        job = interrupted.push()
        with pytest.raises(KeyboardInterrupt):
            t.drain()
        assert job.get().state is State.READY


def test_a_task_that_pushes_itself_is_noticed(real: Penstock) -> None:
    @real.task
    def again(n: int) -> None:
        again.push(n + 1)

    with real.testing() as t:
        again.push(0)
        with pytest.raises(RuntimeError, match="10 jobs ran and there are more"):
            t.drain(limit=10)
        assert len(t.results) == 10


def test_nobody_drains_while_somebody_drains(real: Penstock) -> None:
    @real.task(max_attempts=1)
    def nested() -> None:
        t.drain()

    with real.testing() as t:
        nested.push()
        with pytest.raises(Conflict, match=r"drain\(\) is under way"):
            t.drain(raise_errors=True)


def test_waiting_for_what_nobody_runs_ends_at_once(real: Penstock) -> None:
    task = real.task(name="t")(lambda: None)
    with real.testing():
        for timeout in (None, "1h"):
            with pytest.raises(Deadline, match=r"call t.drain\(\) first"):
                task.push().result(timeout=timeout)


def test_what_handlers_say(real: Penstock) -> None:
    @real.task
    async def report(ctx: Context) -> None:
        ctx.progress(40, "nearly half")
        ctx.log("a line", "warning")
        ctx.partial({"rows": 1})
        ctx.heartbeat()
        assert (ctx.worker, ctx.results) == ("testing", {})

    async def logs(job_id: int) -> list[str]:
        return [line.message for line in await (await real.store()).logs("default", job_id)]

    with real.testing() as t:
        job = report.push()
        t.drain(raise_errors=True)
        assert (job.get().progress, job.get().progress_message) == (40, "nearly half")
        assert asyncio.run(logs(job.id)) == ["a line"]


# -- what was pushed -----------------------------------------------------------------------------


def test_what_was_pushed(real: Penstock) -> None:
    @real.task(queue="mail", durability="fsync")
    def send(to: int, at: datetime | None = None, *more: str) -> None: ...

    when = datetime(2024, 1, 1, tzinfo=UTC)
    other = real.task(name="other")(lambda: None)
    with real.testing() as t:
        send.push(1, at=when)
        send.options(key="k", delay="5m", group="g", headers={"h": "1"}).push(2)
        send.options(key="k").push(3)  # taken: no job
        other.push()
        send.push_many([(4,), (5,)], atomic=True)
        with pytest.raises(TypeError):
            send.push_many([(6,), ()], chunk=1, atomic=True)
        calls = t.pushed(send)
        assert [call.arguments["to"] for call in calls] == [1, 2, 4, 5]
        assert calls[0].arguments == {"to": 1, "at": when}
        keyed = calls[1]
        assert (keyed.key, keyed.delay_ms, keyed.group) == ("k", 300_000, "g")
        assert (keyed.queue, keyed.headers, keyed.task) == ("mail", {"h": "1"}, "send")
        assert len(t.pushed()) == 5
        t.drain()
        t.advance("30d")  # long after the jobs were forgotten
        assert len(t.pushed(send)) == 4


def test_the_result_of_a_handler_that_answers_something_else(real: Penstock) -> None:
    @real.task
    def count() -> int:
        return "one"  # type: ignore[return-value]

    with real.testing() as t:
        job = count.push()
        t.drain()
        assert t.results == {job.id: "one"}
        with pytest.raises(ValueError, match="not as annotated"):
            job.result()
