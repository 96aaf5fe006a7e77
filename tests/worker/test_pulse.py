"""A handler that holds up its loop keeps no job from those who could run it."""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvloop

from penstock import Penstock
from penstock.model.lifecycle import State
from penstock.worker import pulse
from penstock.worker.settings import WorkerSettings
from penstock.worker.worker import Worker
from tests.worker.harness import closing, ending, eventually, run


@asynccontextmanager
async def working_elsewhere(app: Penstock, **settings: object) -> AsyncIterator[Worker]:
    """A worker whose handlers have a loop and a thread of their own, as in its process."""
    worker = Worker(app, WorkerSettings(cron=False, **settings))  # type: ignore[arg-type]

    def work() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(worker.run())

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        await asyncio.to_thread(thread.join)


class Shop:
    def __init__(self) -> None:
        self.app = app = Penstock("memory://")
        self.began, self.go_on = threading.Event(), threading.Event()

        @app.task(queue="slow")
        async def block() -> str:
            self.began.set()
            self.go_on.wait(60)
            return "done"

        @app.task(queue="slow")
        async def quick(n: int) -> int:
            return n

        @app.task(queue="plain")
        def plain(n: int) -> int:
            return n

        self.block, self.quick, self.plain = block, quick, plain

    async def blocks(self) -> object:
        job = await self.block.apush()
        assert await asyncio.to_thread(self.began.wait, 60)
        return job


def test_jobs_that_cannot_begin_go_back_unspent_and_others_have_them() -> None:
    shop = Shop()

    async def case() -> None:
        async with closing(shop.app) as app, working_elsewhere(app) as worker:
            blocked = await shop.blocks()
            try:
                jobs = [await shop.quick.apush(n) for n in range(5)]
                ids = [job.id for job in jobs]
                store = await app.store()

                async def all_back() -> bool:
                    found = await store.get(app.tenant, ids)
                    return all(job is not None and job.state is State.READY for job in found)

                await eventually(all_back)
                assert worker.counts.released == worker.counts.claimed - 1
                lease = await store.claim(app.tenant, ["slow"], 10)
                assert lease is not None
                assert [(job.id, job.attempt) for job in lease.jobs] == [(each, 1) for each in ids]
                await store.ack(app.tenant, lease.token)
                later = await shop.quick.apush(7)  # which nobody but others would be given now
                lease = await store.claim(app.tenant, ["slow"], wait_ms=0)
                assert lease is not None and lease.ids == [later.id]
                await store.release(app.tenant, lease.token)
            finally:
                shop.go_on.set()
            assert await ending(blocked) == "'done'"  # type: ignore[arg-type]
            assert await ending(later) == "7"
            assert await ending(await shop.quick.apush(8)) == "8"

    run(case)


def test_a_worker_that_is_told_to_end_meanwhile_keeps_none_of_them() -> None:
    shop = Shop()

    async def case() -> None:
        async with closing(shop.app) as app, working_elsewhere(app) as worker:
            blocked = await shop.blocks()
            try:
                waits = await shop.quick.apush(1)
                store = await app.store()

                async def claimed() -> bool:
                    return worker.counts.claimed == 2

                await eventually(claimed)
                worker.stop()

                async def back() -> bool:
                    (job,) = await store.get(app.tenant, [waits.id])
                    return job is not None and job.state is State.READY

                await eventually(back)
            finally:
                shop.go_on.set()
            assert await ending(blocked) == "'done'"  # type: ignore[arg-type]

    run(case)


def test_plain_functions_go_on_beside_it() -> None:
    shop = Shop()

    async def case() -> None:
        async with closing(shop.app) as app, working_elsewhere(app):
            blocked = await shop.blocks()
            try:
                waits = await shop.quick.apush(1)
                for n in range(3):
                    assert await ending(await shop.plain.apush(n)) == str(n)
                store = await app.store()

                async def back() -> bool:
                    (job,) = await store.get(app.tenant, [waits.id])
                    return job is not None and job.state is State.READY

                await eventually(back)
                assert await ending(await shop.plain.apush(9)) == "9"
            finally:
                shop.go_on.set()
            assert await ending(blocked) == "'done'"  # type: ignore[arg-type]
            assert await ending(waits) == "1"

    run(case)


def test_many_short_ones_in_a_row_are_not_taken_for_one_that_holds_up() -> None:
    app = Penstock("memory://")

    @app.task
    async def short(n: int) -> int:
        until = time.perf_counter() + 0.005
        while time.perf_counter() < until:
            pass
        return n

    async def case() -> int:
        async with closing(app), working_elsewhere(app, concurrency=100) as worker:
            jobs = await short.apush_many((n,) for n in range(100))
            for job in jobs:
                await job.aresult("30s")
            return worker.counts.released

    assert run(case) == 0


def test_who_holds_it_up_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pulse, "TOLD", 4)
    caplog.set_level(logging.INFO, "penstock.worker")
    shop = Shop()

    def said(what: str) -> list[str]:
        told = [each.getMessage() for each in caplog.records]
        return [each for each in told if what in each]

    async def case() -> None:
        async with closing(shop.app) as app, working_elsewhere(app):
            blocked = await shop.blocks()

            async def told() -> bool:
                return bool(said("has held up the handlers' loop"))

            try:
                await eventually(told)
            finally:
                shop.go_on.set()
            assert await ending(blocked) == "'done'"  # type: ignore[arg-type]

            async def over() -> bool:
                return bool(said("answers again"))

            await eventually(over)

    run(case)
    (line,) = said("has held up")
    assert line.startswith(f"task {shop.block.name!r} has held up")
    assert len(said("answers again")) == 1
