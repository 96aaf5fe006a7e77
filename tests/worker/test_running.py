"""Jobs through a worker: outcomes, contexts, timeouts, cancellation, in a loop and in threads."""

import asyncio
import threading
import time
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any, cast

import pytest

from penstock import Context, Dead, Penstock, PushedJob, Retry, SoftTimeout, at_once
from penstock.client.flow import chain, group
from penstock.client.home import Home
from penstock.client.middleware import Middleware
from penstock.model.lifecycle import State
from penstock.open import open_store
from penstock.stores.clock import ManualClock
from penstock.worker.pools.threads import ThreadPool
from tests.worker.harness import changing, closing, ending, run, seen, told_of, working

each_pool = pytest.mark.parametrize("pool", ["async", "thread"])


def shop(url: str = "memory://", **options: Any) -> Penstock:
    return Penstock(url, max_attempts=1, backoff=at_once(), **options)


@each_pool
@pytest.mark.parametrize("scheme", ["memory", "sqlite"])
def test_handlers_answer_fail_and_ask_for_another_attempt(
    scheme: str, pool: str, tmp_path: Path
) -> None:
    app = shop("memory://" if scheme == "memory" else f"sqlite:///{tmp_path}/jobs.db")

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    @app.task
    def half(n: int) -> float:
        return n / 2

    @app.task(max_attempts=3)
    async def stubborn(ctx: Context) -> int:
        if ctx.attempt < 3:
            raise Retry("1ms")
        return ctx.attempt

    @app.task(max_attempts=3)
    def hopeless() -> None:
        raise Dead("never")

    async def case() -> None:
        async with closing(app), working(app, pool=pool) as worker:
            jobs: list[PushedJob[Any]] = [await double.apush(3), await half.apush(3)]
            jobs += [await stubborn.apush(), await hopeless.apush(), await half.apush(0)]
            bad = await double.apush("three")  # type: ignore[arg-type]
            assert [await ending(job) for job in jobs] == ["6", "1.5", "3", "dead Dead", "0.0"]
            assert await ending(bad) == "dead BadArguments"
            hopeless_job = await seen(app, jobs[3].id)
            assert hopeless_job.attempt == 1
            assert "never" in hopeless_job.errors[0].trace
            assert hopeless_job.worker == worker.settings.called()
        counts = worker.counts
        assert (counts.completed, counts.failed, counts.dead) == (4, 4, 2)

    run(case)


@each_pool
def test_many_jobs_are_completed_once_each(pool: str) -> None:
    app, ran = shop(), []

    @app.task
    async def note(n: int) -> None:
        if n % 7 == 0:
            await asyncio.sleep(0)
        ran.append(n)

    async def case() -> None:
        async with closing(app), working(app, pool=pool, concurrency=20) as worker:
            jobs = await note.apush_many((n,) for n in range(3_000))
            for job in jobs:
                assert await ending(job) == "None"
        assert sorted(ran) == list(range(3_000))
        assert (worker.counts.claimed, worker.counts.completed) == (3_000, 3_000)

    run(case)


@each_pool
def test_what_a_handler_says_is_kept_with_its_job(pool: str) -> None:
    app = shop()

    @app.task
    async def talk(ctx: Context, lines: int) -> str:
        for n in range(lines):
            ctx.log(f"line {n}")
        ctx.partial({"so": "far"})
        ctx.progress(10)
        ctx.progress(70, "nearly")
        ctx.heartbeat()
        return ctx.worker

    async def case() -> None:
        async with closing(app), working(app, pool=pool, name="w1"):
            store = await app.store()
            partials = store.watch(app.tenant, kinds=["partial"])
            job = await talk.apush(150)
            assert await ending(job) == "'w1'"
            kept = await seen(app, job.id)
            assert (kept.progress, kept.progress_message) == (70, "nearly")
            lines = [line.message for line in await store.logs(app.tenant, job.id)]
            assert lines == [f"line {n}" for n in range(50, 150)]
            event = await anext(partials)
            assert list(event.ids) == [job.id]
            await partials.aclose()  # type: ignore[attr-defined]

    run(case)


def spin() -> str:
    """A handler that never waits."""
    turns = 0
    try:
        while True:
            turns += 1
    except SoftTimeout:
        return "tidied up"


@each_pool
def test_a_soft_timeout_is_raised_in_the_handler(pool: str) -> None:
    app = shop()

    @app.task(soft_timeout="20ms")
    async def naps() -> str:
        try:
            await asyncio.sleep(60)
        except SoftTimeout:
            async with asyncio.timeout(60):  # is not confused by the cancellation
                await asyncio.sleep(0)
            return "tidied up"
        return "slept"

    spins = app.task(soft_timeout="20ms")(spin)

    @app.task(soft_timeout="20ms")
    async def ignores() -> None:
        await asyncio.sleep(60)

    @app.task(soft_timeout="60s")
    async def quick() -> str:
        await asyncio.sleep(0)
        return "done"

    async def case() -> None:
        async with closing(app), working(app, pool=pool):
            jobs = [await task.apush() for task in (naps, spins, ignores, quick)]
            ended = [await ending(job) for job in jobs]
            assert ended == ["'tidied up'", "'tidied up'", "dead SoftTimeout", "'done'"]
            (error,) = (await seen(app, jobs[2].id)).errors
            assert error.message == "it has run for 20ms"
            frames = [line for line in error.trace.splitlines() if "File" in line]
            assert "in ignores" in frames[0], "what drives the handler is not the reader's"

    run(case)


@each_pool
def test_a_soft_timeout_reaches_a_handler_that_waits_for_what_is_not_cancelled(pool: str) -> None:
    app = shop()

    async def stubborn() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "anyway"
        return "slept"

    @app.task(soft_timeout="20ms")
    async def waits() -> str:
        try:
            return await asyncio.create_task(stubborn())
        except SoftTimeout:
            return "tidied up"

    async def case() -> None:
        async with closing(app), working(app, pool=pool):
            assert await ending(await waits.apush()) == "'tidied up'"

    run(case)


def test_a_soft_timeout_reaches_a_handler_that_begins_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Arguments may take a while to be made, and threads to be scheduled."""
    app = shop()
    passed = threading.Event()
    time_out, begin = ThreadPool._time_out, ThreadPool._run

    def timing_out(pool: ThreadPool, work: Any) -> None:
        time_out(pool, work)
        passed.set()

    def late(pool: ThreadPool, *said: Any) -> None:
        assert passed.wait(60)
        begin(pool, *said)

    monkeypatch.setattr(ThreadPool, "_time_out", timing_out)
    monkeypatch.setattr(ThreadPool, "_run", late)

    spins = app.task(soft_timeout="1ms")(spin)

    async def case() -> None:
        async with closing(app), working(app):
            assert await ending(await spins.apush()) == "'tidied up'"

    run(case)


def test_a_soft_timeout_in_a_thread_leaves_alone_what_its_handler_has_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = shop()
    answered, passed = threading.Event(), threading.Event()
    time_out = ThreadPool._time_out

    def timing_out(pool: ThreadPool, work: Any) -> None:
        assert answered.wait(60)
        time_out(pool, work)
        passed.set()

    monkeypatch.setattr(ThreadPool, "_time_out", timing_out)

    class Far(tzinfo):
        """Of an answer that takes until then to be written down."""

        def utcoffset(self, at: datetime | None) -> timedelta:
            answered.set()
            while not passed.is_set():
                pass
            return timedelta(0)

        def dst(self, at: datetime | None) -> None: ...

        def tzname(self, at: datetime | None) -> None: ...

    @app.task(soft_timeout="1ms")
    def answers() -> datetime:
        return datetime(2030, 1, 1, tzinfo=Far())

    async def case() -> None:
        async with closing(app), working(app):
            assert await (await answers.apush()).aresult("60s") == datetime(2030, 1, 1, tzinfo=UTC)

    run(case)


def test_a_timeout_is_told_as_any_other_failure_is(caplog: pytest.LogCaptureFixture) -> None:
    app = shop()

    @app.task(timeout="30ms")
    async def waits() -> None:
        await asyncio.Event().wait()

    @app.task(timeout="30ms", batch=10)
    async def rows(items: list[int]) -> None:
        await asyncio.Event().wait()

    async def case() -> None:
        async with closing(app), working(app) as worker:
            job = await waits.options(max_attempts=2).apush()
            pair = await rows.apush_many([1, 2])
            for each in (job, *pair):
                assert await ending(each) == "dead timeout"
            said_there = {
                f"{error.kind}: {error.message}" for error in (await seen(app, job.id)).errors
            }
        assert (worker.counts.timed_out, worker.counts.dead) == (4, 3)
        said = {
            (record.levelname, record.getMessage())
            for record in caplog.records
            if "timeout" in record.getMessage()
        }
        why = "timeout: the attempt ran longer than 30ms"
        assert said_there == {why}, "by the store in the same words"
        assert said == {
            ("WARNING", f"job {job.id} failed: {why}"),
            ("ERROR", f"job {job.id} is dead: {why}"),
            *(("ERROR", f"job {each.id} is dead: {why}") for each in pair),
        }

    run(case)


@each_pool
def test_an_attempt_is_over_at_its_timeout_though_the_store_has_stood_still(pool: str) -> None:
    """It does not count the time in which it stood (ADR 0031): the worker does, and stops."""
    app = shop()
    app.home = Home("memory://", app.tenant, lambda: open_store("memory://", clock=ManualClock()))

    @app.task(timeout="30ms", max_attempts=2)
    async def waits() -> None:
        await asyncio.Event().wait()

    @app.task(timeout="30ms", batch=10)
    async def rows(items: list[int]) -> None:
        await asyncio.Event().wait()

    async def case() -> None:
        async with closing(app), working(app, pool=pool) as worker:
            jobs = [await waits.apush(), *await rows.apush_many([1, 2])]
            assert [await ending(each) for each in jobs] == ["dead timeout"] * 3
            assert [error.kind for error in (await seen(app, jobs[0].id)).errors] == ["timeout"] * 2
        counts = worker.counts
        assert (counts.timed_out, counts.dead, counts.failed, counts.lost) == (4, 3, 0, 0)

    run(case)


@each_pool
def test_a_handler_is_stopped_at_its_timeout_and_when_its_job_is_cancelled(pool: str) -> None:
    app = shop()
    stopped: list[str] = []
    began, ended = threading.Semaphore(0), threading.Semaphore(0)

    @app.task
    async def waits(ctx: Context, name: str) -> None:
        began.release()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.append(f"{name} {ctx.cancelled}" if pool == "async" else name)
            ended.release()

    @app.task
    def turns(name: str) -> None:
        began.release()
        try:
            while True:
                time.sleep(0.001)
        finally:
            stopped.append(name)
            ended.release()

    async def case() -> None:
        async with closing(app), working(app, pool=pool, lease_ms=900) as worker:
            jobs = [await task.apush("cancelled") for task in (waits, turns)]
            for _ in jobs:
                await asyncio.to_thread(began.acquire)
            assert [await job.acancel() for job in jobs] == [True, True]
            late = [await task.options(timeout="30ms").apush("late") for task in (waits, turns)]
            assert [await ending(job) for job in late] == ["dead timeout"] * 2
            for _ in (*jobs, *late):
                await asyncio.to_thread(ended.acquire)
        assert (
            sorted(each.partition(" ")[0] for each in stopped) == ["cancelled"] * 2 + ["late"] * 2
        )
        assert all(each in ("cancelled", "late") or each.endswith(" True") for each in stopped)
        assert (worker.counts.lost, worker.counts.timed_out) == (2, 2)

    run(case)


@pytest.mark.parametrize("pool", ["async", "thread"])
@pytest.mark.parametrize("raised", [KeyboardInterrupt, GeneratorExit, SystemExit, BaseException])
def test_whatever_a_handler_raises_ends_its_attempt_and_nothing_else(
    pool: str, raised: type[BaseException]
) -> None:
    """With one slot: a job whose end nobody heard of would keep the next one waiting."""
    app = shop("memory://")

    @app.task(max_attempts=2, backoff=at_once())
    async def awaited() -> None:
        raise raised

    @app.task(max_attempts=2, backoff=at_once())
    def plain() -> None:
        raise raised

    @app.task
    def after() -> int:
        return 1

    async def case() -> None:
        async with closing(app), working(app, pool=pool, concurrency=1):
            jobs: list[PushedJob[Any]] = [await awaited.apush(), await plain.apush()]
            last = await after.apush()
            assert [await ending(job) for job in jobs] == [f"dead {raised.__name__}"] * 2
            assert await ending(last) == "1"
            assert [(await seen(app, job.id)).attempt for job in jobs] == [2, 2]

    run(case)


class Unsayable(Exception):
    def __str__(self) -> str:
        raise SystemExit(2)


@dataclass
class Exiting:
    code: int

    def __post_init__(self) -> None:
        raise SystemExit(self.code)


class ExitsBehind(Middleware):
    def after_run(self, context: Context, outcome: Any) -> None:
        raise SystemExit(5)


@each_pool
def test_an_exit_beside_a_handler_ends_no_more_than_its_job(
    pool: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With one slot: a job whose end nobody heard of would keep the next one waiting."""
    app = shop("memory://", middleware=[ExitsBehind()])
    plain = shop("memory://")

    @app.task
    async def watched() -> int:
        return 1

    @plain.task
    async def wrong() -> None:
        raise Unsayable

    @plain.task
    def unwritable() -> None:
        error: Any = SyntaxError("a quote is missing")
        error.lineno, error.text = 1, b"name"
        raise error

    @plain.task
    async def takes(what: Exiting) -> None:
        pass

    async def case() -> None:
        async with closing(app), working(app, pool=pool, concurrency=1):
            assert [await ending(await watched.apush()) for _ in range(2)] == ["1", "1"]
        async with closing(plain), working(plain, pool=pool, concurrency=1):
            assert await ending(await wrong.apush()) == "dead Unsayable"
            assert await ending(await unwritable.apush()) == "dead SyntaxError"
            assert await ending(await takes.apush(cast(Exiting, {"code": 3}))) == "dead SystemExit"

    run(case)
    assert "ExitsBehind.after_run failed" in caplog.text


def test_a_handler_that_cancels_itself_has_failed() -> None:
    app = shop()

    @app.task
    async def gives_up() -> None:
        raise asyncio.CancelledError

    async def case() -> None:
        async with closing(app), working(app):
            assert await ending(await gives_up.apush()) == "dead CancelledError"

    run(case)


@each_pool
def test_a_batch_task_gets_the_jobs_of_a_lease_together(pool: str) -> None:
    app, sizes = shop(), []

    @app.task(queue="rows", batch=100)
    async def rows(items: list[int]) -> list[Any]:
        sizes.append(len(items))
        return [ValueError("odd") if n == 5 else n if n == 6 else None for n in items]

    @app.task(queue="rows")
    async def alone(n: int) -> int:
        return n

    async def case() -> None:
        async with closing(app):
            jobs = await rows.apush_many(range(250))
            beside = await alone.apush(1)
            wrong = await rows.apush("x")  # type: ignore[arg-type]
            async with working(app, pool=pool, concurrency=4):
                assert await ending(jobs[5]) == "dead ValueError"
                assert await ending(jobs[6]) == "6"
                assert await ending(jobs[249]) == "None"
                assert await ending(beside) == "1"
                assert await ending(wrong) == "dead BadArguments"
        assert max(sizes) == 100
        assert sum(sizes) == 250

    run(case)


def test_a_batch_that_completes_is_acked_whole() -> None:
    app = shop()
    seen_ids: list[int] = []

    @app.task(batch=1_000)
    async def rows(ctx: Context, items: list[int]) -> None:
        seen_ids.extend(job.id for job in ctx.jobs)

    async def case() -> None:
        async with closing(app):
            jobs = await rows.apush_many(range(3_000))
            async with working(app, concurrency=1) as worker:
                for job in jobs:
                    assert await ending(job) == "None"
        assert worker.counts.completed == 3_000
        assert sorted(seen_ids) == jobs.ids

    run(case)


def test_a_handler_can_ask_for_the_results_of_dependencies() -> None:
    app = shop()

    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    @app.task
    async def total(ctx: Context) -> int:
        return sum(ctx.results.values())

    async def case() -> None:
        async with closing(app), working(app):
            parts = [await add.apush(n, n) for n in range(4)]
            assert await ending(await total.options(depends_on=parts).apush()) == "12"

    run(case)


def test_middleware_stands_around_every_run() -> None:
    heard: list[str] = []

    class Listens(Middleware):
        def before_run(self, context: Context) -> None:
            heard.append(f"before {context.job.options.task}")
            context.progress(1)

        def after_run(self, context: Context, outcome: Any) -> None:
            heard.append(f"after {type(outcome).__name__}")

    app = shop(middleware=[Listens()])

    @app.task
    async def one() -> int:
        return 1

    @app.task
    def two() -> None:
        raise ValueError

    async def case() -> None:
        async with closing(app), working(app):
            job = await one.apush()
            assert await ending(job) == "1"
            assert (await seen(app, job.id)).progress == 1
            assert await ending(await two.apush()) == "dead ValueError"
        assert heard == ["before one", "after Completed", "before two", "after Failed"]

    run(case)


@each_pool
def test_middleware_is_in_the_context_of_its_handler_and_in_no_other(pool: str) -> None:
    whose = ContextVar("whose", default="nobody's")
    heard: list[str] = []

    class Traces(Middleware):
        def before_run(self, context: Context) -> None:
            heard.append(whose.get())
            whose.set("the hook's")

        def after_run(self, context: Context, outcome: Any) -> None:
            heard.append(whose.get())

    app = shop(middleware=[Traces()])

    @app.task
    async def awaited() -> None:
        heard.append(whose.get())
        whose.set("the handler's")

    @app.task
    def plain() -> None:
        heard.append(whose.get())
        whose.set("the handler's")

    async def case() -> None:
        async with closing(app), working(app, pool=pool, concurrency=1):
            for task in (awaited, plain, awaited, plain):
                await ending(await task.apush())
        assert heard == ["nobody's", "the hook's", "the handler's"] * 4

    run(case)


def test_a_result_that_the_store_refuses_ends_its_job_alone() -> None:
    app = shop()

    @app.task
    async def large(size: int) -> str:
        return "x" * size

    async def case() -> None:
        async with closing(app):
            sizes = (1, 11 << 20, 2, 3)
            jobs = list(await large.apush_many((size,) for size in sizes))
            async with working(app):
                ended = [await ending(job) for job in jobs]
        assert ended == ["'x'", "dead ResultRefused", "'xx'", "'xxx'"]

    run(case)


def test_tasks_that_are_not_known_are_put_off_and_nothing_is_spent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app, other = shop(), shop()

    @app.task
    async def known() -> int:
        return 1

    @other.task
    async def unknown() -> None: ...

    async def case() -> None:
        async with closing(app), working(app) as worker:
            other.home = app.home
            put_off = await changing(app, "edited")
            jobs = [await unknown.apush() for _ in range(3)]
            assert await ending(await known.apush()) == "1"
            await told_of(put_off, jobs)
            for job in jobs:
                assert (await seen(app, job.id)).state is State.SCHEDULED
                parked = await seen(app, job.id)
                assert (parked.attempt, parked.errors) == (0, ())
                assert parked.run_at > parked.created_at + 30_000
                lines = await (await app.store()).logs(app.tenant, job.id)
                assert "no task is called 'unknown' here" in lines[-1].message
            assert worker.counts.parked >= 3

    run(case)
    assert caplog.text.count("no task is called 'unknown' here") == 1


def test_workers_that_do_not_know_a_task_do_not_hand_its_job_round() -> None:
    app, other = shop(), shop()

    @app.task
    async def known() -> None: ...

    @other.task
    async def unknown() -> None: ...

    async def case() -> None:
        async with closing(app), working(app, name="a") as one, working(app, name="b") as two:
            other.home = app.home
            put_off = await changing(app, "edited")
            job = await unknown.apush()
            await told_of(put_off, [job])
            assert (await seen(app, job.id)).state is State.SCHEDULED
            assert one.counts.parked + two.counts.parked <= 10

    run(case)


@each_pool
def test_jobs_of_a_flow_get_the_results_of_those_before_them(pool: str) -> None:
    app = shop()

    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    @app.task
    def total(parts: list[int]) -> int:
        return sum(parts)

    @app.task(batch=10)
    async def squares(items: list[int]) -> list[int]:
        return [item * item for item in items]

    async def case() -> None:
        async with closing(app), working(app, pool=pool):
            flow = chain(group(add.s(1, 2), add.s(3, 4)).then(total.s()), squares.s())
            pushed = await flow.apush()
            assert await pushed.aresult("30s") == 100
            assert await (await group().then(total.s()).apush()).aresult("30s") == 0

    run(case)
