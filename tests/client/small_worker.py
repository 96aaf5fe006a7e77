"""Runs an app's jobs one after the other in the calling loop, as plainly as a worker can be."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from penstock import Penstock
from penstock.client.context import Context
from penstock.client.execute import Batch, Completed, Failed, Outcome, Prepared, gathered
from penstock.client.inputs import HEADER, with_inputs
from penstock.model.job import Job
from penstock.model.store import Store

STORES = ["memory://", "sqlite://"]


def url_of(kind: str, path: Path) -> str:
    return kind if kind == "memory://" else f"{kind}/{path}/jobs.db?durability=os"


@asynccontextmanager
async def working(app: Penstock) -> AsyncIterator["SmallWorker"]:
    """The app's store is closed with the block."""
    try:
        yield SmallWorker(app, await app.store())
    finally:
        await app.aclose()


class SmallWorker:
    def __init__(self, app: Penstock, store: Store) -> None:
        self.app = app
        self.store = store
        self.ran: list[tuple[str, Any]] = []  # the task, and what it was given

    async def drain(self) -> None:
        """Run whatever is ready, and what becomes ready by that."""
        while lease := await self.store.claim(self.app.tenant, self.app.queues, 1):
            (job,) = lease.jobs
            outcome = await self.run(job)
            if isinstance(outcome, Completed):
                results = {} if outcome.result is None else {job.id: outcome.result}
                await self.store.ack(self.app.tenant, lease.token, results=results)
            else:
                assert isinstance(outcome, Failed)
                await self.store.fail(
                    self.app.tenant, lease.token, error=outcome.error, dead=outcome.dead
                )

    async def run(self, job: Job) -> Outcome:
        task = self.app.named(job.options.task)
        if job.headers and HEADER in job.headers:
            job = replace(job, payload=await with_inputs(self.store, self.app.tenant, job))
        context = Context(job)
        if task.batch is not None:
            batch = gathered(task, job.options.codec, [job.payload], context)
            assert isinstance(batch, Batch)
            self.ran.append((task.name, batch.values))
            ended = self.app.executor.run_here(batch)
            return ended.all or ended.each[0]
        prepared = self.app.executor.prepare(task, context)
        if not isinstance(prepared, Prepared):
            return prepared
        self.ran.append((task.name, task.arguments.said(prepared.values)))
        if task.is_async:
            return await self.app.executor.run(prepared)
        return self.app.executor.run_here(prepared)
