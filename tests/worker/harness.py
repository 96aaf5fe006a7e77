"""A worker in this process, for as long as a test needs it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import uvloop

from penstock import JobFailed, Penstock, PushedJob
from penstock.model.event import Event, EventKind
from penstock.model.job import Job, Lease
from penstock.model.store import Store
from penstock.worker.claiming import Claimer
from penstock.worker.settings import WorkerSettings
from penstock.worker.worker import Worker

T = TypeVar("T")

PATIENCE_S = 30


def run(case: Callable[[], Coroutine[Any, Any, T]], patience_s: float = 2 * PATIENCE_S) -> T:
    """On a loop like that of a worker process."""

    async def bounded() -> T:
        async with asyncio.timeout(patience_s):
            return await case()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(bounded())


@asynccontextmanager
async def working(app: Penstock, **settings: Any) -> AsyncIterator[Worker]:
    worker = Worker(app, WorkerSettings(cron=False, **settings))
    living = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await living


def claimer_of(store: Store, take: Callable[[Lease], None] = lambda _: None) -> Claimer:
    """One that always has room for a job."""
    return Claimer(
        store,
        "default",
        {"default": 1},
        batches={},
        lease_ms=None,
        worker="w",
        room=lambda: 1,
        left=lambda: 1,
        take=take,
        idle=asyncio.Event(),
    )


@asynccontextmanager
async def closing(app: Penstock) -> AsyncIterator[Penstock]:
    try:
        yield app
    finally:
        await app.aclose()


async def ending(job: "PushedJob[Any]") -> str:
    """Its result, or in a few words how it ended otherwise."""
    try:
        return repr(await job.aresult(PATIENCE_S))
    except JobFailed as failed:
        kind = "" if failed.error is None else f" {failed.error.kind}"
        return f"{failed.state.value}{kind}"


async def eventually(look: Callable[[], Awaitable[bool]]) -> None:
    """For what nobody tells: state that another thread will have reached soon."""
    async with asyncio.timeout(PATIENCE_S):
        while not await look():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def changing(app: Penstock, kind: EventKind) -> AsyncIterator[Event]:
    """What is told from now on of such changes."""
    return (await app.store()).watch(app.tenant, kinds=[kind])


async def told_of(events: AsyncIterator[Event], jobs: "Sequence[PushedJob[Any]]") -> None:
    """Wait until every one of the jobs was among them."""
    left = {job.id for job in jobs}
    async with asyncio.timeout(PATIENCE_S):
        while left:
            left -= set((await anext(events)).ids)


async def seen(app: Penstock, job_id: int) -> Job:
    (job,) = await (await app.store()).get(app.tenant, [job_id])
    assert job is not None
    return job
