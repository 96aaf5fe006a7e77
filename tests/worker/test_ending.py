"""How a worker ends: what runs may finish, the rest goes back, and no attempt is spent."""

import asyncio
import threading
import time
from pathlib import Path

import pytest

from penstock import Context, Penstock, at_once
from penstock.client.home import Home
from penstock.model.errors import Conflict
from penstock.model.lifecycle import State
from penstock.open import open_store
from penstock.stores.clock import SystemClock
from penstock.worker.settings import WorkerSettings
from penstock.worker.worker import Worker
from tests.worker.harness import closing, ending, eventually, run, seen


def app_on(url: str = "memory://") -> Penstock:
    return Penstock(url, max_attempts=1, backoff=at_once())


def test_running_jobs_finish_and_unstarted_ones_go_back_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "penstock.worker")
    app = app_on()
    began, go_on = asyncio.Event(), asyncio.Event()

    @app.task
    async def long() -> str:
        began.set()
        await go_on.wait()
        return "finished"

    async def case() -> None:
        async with closing(app):
            jobs = [await long.apush() for _ in range(2)]
            worker = Worker(app, WorkerSettings(concurrency=1, cron=False, name="w"))
            living = asyncio.create_task(worker.run())
            await began.wait()
            worker.stop()
            lease = None
            store = await app.store()
            while lease is None:
                lease = await store.claim(app.tenant, ["default"], 10, wait_ms=1_000)
            assert lease.ids == [jobs[1].id]
            assert lease.jobs[0].attempt == 1
            await asyncio.sleep(0)
            assert not living.done()

            async def told() -> bool:
                """Whoever has pressed Ctrl-C: what it waits for, and how not to wait."""
                said = "w waits up to 30s for 1 job that runs; a second signal ends it at once"
                return said in caplog.messages

            await eventually(told)
            go_on.set()
            counts = await living
            assert counts.completed == 1
            assert (await seen(app, jobs[0].id)).result == b'"finished"'

    run(case)


def test_ended_by_a_limit_it_waits_at_the_first_signal_and_ends_at_the_second(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    app = app_on()

    @app.task
    async def endless() -> None:
        await asyncio.sleep(60)

    async def told() -> bool:
        return (
            "w waits up to 1m for 1 job that runs; a second signal ends it at once"
            in caplog.messages
        )

    async def case() -> None:
        async with closing(app):
            job = await endless.apush()
            settings = WorkerSettings(max_jobs=1, shutdown_s=60, cron=False, name="w")
            worker = Worker(app, settings)
            living = asyncio.create_task(worker.run())
            await eventually(told)
            worker.stop()
            await asyncio.sleep(0.05)
            assert not living.done()
            worker.stop()
            await living
            assert (await seen(app, job.id)).attempt == 0

    run(case)


@pytest.mark.parametrize("pool", ["async", "thread"])
def test_what_does_not_finish_in_time_is_stopped_and_given_back(pool: str) -> None:
    app = app_on()
    began = threading.Event()
    ended: list[bool] = []

    @app.task
    async def endless(ctx: Context) -> None:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(ctx.cancelled)

    async def case() -> None:
        async with closing(app):
            job = await endless.apush()
            worker = Worker(app, WorkerSettings(pool=pool, shutdown_s=0.05, cron=False))  # type: ignore[arg-type]
            living = asyncio.create_task(worker.run())
            await asyncio.to_thread(began.wait)
            worker.stop()
            counts = await living
            assert counts.released == 1
            back = await seen(app, job.id)
            assert (back.state, back.attempt, back.errors) == (State.READY, 0, ())
        assert ended == [True]

    run(case)


def test_told_twice_it_ends_at_once() -> None:
    app = app_on()
    began = asyncio.Event()

    @app.task
    async def endless() -> None:
        began.set()
        await asyncio.sleep(60)

    async def case() -> None:
        async with closing(app):
            job = await endless.apush()
            worker = Worker(app, WorkerSettings(shutdown_s=60, cron=False))
            living = asyncio.create_task(worker.run())
            await began.wait()
            worker.stop()
            worker.stop()
            await living
            assert (await seen(app, job.id)).attempt == 0

    run(case)


def test_cancelled_it_gives_back_what_it_has() -> None:
    app = app_on()
    began = asyncio.Event()

    @app.task
    async def endless() -> None:
        began.set()
        await asyncio.sleep(60)

    async def case() -> None:
        async with closing(app):
            job = await endless.apush()
            living = asyncio.create_task(Worker(app, WorkerSettings(cron=False)).run())
            await began.wait()
            living.cancel()
            with pytest.raises(asyncio.CancelledError):
                await living
            assert (await seen(app, job.id)).state is State.READY

    run(case)


def test_it_ends_after_as_many_jobs_as_it_may_run() -> None:
    app = app_on()

    @app.task
    async def one() -> None: ...

    async def case() -> None:
        async with closing(app):
            await one.apush_many(() for _ in range(50))
            worker = Worker(app, WorkerSettings(max_jobs=20, cron=False))
            counts = await worker.run()
            assert worker.outlived
            assert (counts.claimed, counts.completed) == (20, 20)

    run(case)


def test_it_ends_when_it_has_grown_too_large() -> None:
    app = app_on()

    @app.task
    async def one() -> None: ...

    async def case() -> None:
        async with closing(app):
            await one.apush()
            worker = Worker(app, WorkerSettings(max_rss_mb=1, cron=False))
            await worker.run()
            assert worker.outlived

    run(case)


class OwnTime(SystemClock):
    """Time in which this process computes: a machine that is busy with others does not end leases."""

    def elapsed_ms(self) -> int:
        return time.process_time_ns() // 1_000_000

    def instant(self) -> tuple[int, int]:
        return self.now_ms(), self.elapsed_ms()


def test_a_handler_that_computes_for_three_leases_runs_once(tmp_path: Path) -> None:
    """Neither its own job nor one that is handed over meanwhile loses its lease."""
    app = app_on()
    url = f"sqlite:///{tmp_path}/jobs.db"
    app.home = Home(url, app.tenant, lambda: open_store(url, clock=OwnTime()))
    ran: list[int] = []

    @app.task
    async def computes(n: int, seconds: float) -> None:
        ran.append(n)
        until = time.process_time() + seconds
        while time.process_time() < until:
            pass

    async def case() -> None:
        async with closing(app):
            worker = Worker(app, WorkerSettings(lease_ms=800, cron=False))
            living = asyncio.create_task(worker.run())
            jobs = [await computes.apush(1, 2.4), await computes.apush(2, 0.0)]
            for job in jobs:
                assert await ending(job) == "None"
            worker.stop()
            await living
            for job in jobs:
                known = await seen(app, job.id)
                assert (known.state, known.attempt) == (State.COMPLETED, 1)
        assert sorted(ran) == [1, 2]

    run(case)


@pytest.mark.parametrize("url", ["memory://", "sqlite"])
def test_the_app_that_a_worker_runs_stays_open_until_the_worker_ends(
    tmp_path: Path, url: str
) -> None:
    app = app_on(f"sqlite:///{tmp_path}/jobs.db" if url == "sqlite" else url)

    @app.task
    async def closes() -> None:
        await app.aclose()

    @app.task
    async def closes_here() -> None:
        app.close()

    @app.task
    def closes_in_a_thread() -> None:
        with app:
            pass

    @app.task
    async def after() -> str:
        return "done"

    async def case() -> None:
        async with closing(app):
            worker = Worker(app, WorkerSettings(cron=False))
            living = asyncio.create_task(worker.run())
            for each in (closes, closes_here, closes_in_a_thread):
                job = await each.apush()
                assert await ending(job) == "dead Conflict", each
                (error,) = (await seen(app, job.id)).errors
                assert error.message == "a worker runs this app, which stays open until that ends"
            assert await ending(await after.apush()) == "'done'"
            with pytest.raises(Conflict):
                await app.aclose()
            worker.stop()
            await living
            await app.aclose()
            assert (await (await app.store()).health()).ok

    run(case)
