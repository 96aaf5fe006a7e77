"""Asynchronous handlers on one loop, a task each.

The loop is not the one that keeps the leases. Work comes over from the home thread in lists, and
goes back in lists: what ends in one turn of the loop is told together.
"""

import asyncio
from collections.abc import Callable

from penstock.client.app import Penstock
from penstock.client.execute import INTERRUPTED, Batch, Prepared, gathered
from penstock.worker.contexts import Contexts
from penstock.worker.held import BatchWork, Work


class AsyncPool:
    def __init__(
        self,
        app: Penstock,
        contexts: Contexts,
        *,
        loop: asyncio.AbstractEventLoop,
        home: asyncio.AbstractEventLoop,
        ended: Callable[[list[Work]], None],
    ) -> None:
        self._executor = app.executor
        self._contexts = contexts
        self._loop = loop  # of the handlers
        self._home = home
        self._tell = ended
        self._done: list[Work] = []  # in this turn

    # -- on the home thread ----------------------------------------------------------------------

    def start(self, works: list[Work]) -> None:
        self._loop.call_soon_threadsafe(self.begin, works)

    def interrupt(self, work: Work) -> None:
        self._loop.call_soon_threadsafe(self._cancel, work)

    async def close(self) -> None:
        """Its loop is its owner's."""

    # -- on the handlers' loop -------------------------------------------------------------------

    def begin(self, works: list[Work]) -> None:
        create, prepare, run = self._loop.create_task, self._executor.prepare, self._run
        for work in works:
            if isinstance(work, BatchWork):
                work.handle = create(self._run_batch(work))
                continue
            work.context = context = self._contexts.of(work)
            prepared = prepare(work.task, context)
            if isinstance(prepared, Prepared):
                work.handle = create(run(work, prepared))
            else:
                work.outcome = prepared
                self._ended(work)

    async def _run(self, work: Work, prepared: Prepared) -> None:
        try:
            work.outcome = await self._executor.run(prepared)
        except Exception as error:  # noqa: BLE001 - ours, not the handler's
            work.broke(error)
        self._ended(work)

    async def _run_batch(self, work: BatchWork) -> None:
        try:
            work.context = self._contexts.of(work)
            codec = work.job.options.codec
            batch = gathered(work.task, codec, work.payloads, work.context)
            if isinstance(batch, Batch):
                work.outcome = await self._executor.run(batch)
            else:
                work.outcome = batch
        except Exception as error:  # noqa: BLE001
            work.broke(error)
        self._ended(work)

    def _cancel(self, work: Work) -> None:
        if work.context is not None:
            work.context.cancelled = True
        task: asyncio.Task[None] | None = work.handle
        if task is not None and task.cancel():
            task.add_done_callback(lambda _: self._cancelled(work))

    def _cancelled(self, work: Work) -> None:
        """A task that is cancelled before its first step never takes it."""
        if work.outcome is None:
            work.outcome = INTERRUPTED
            self._ended(work)

    def _ended(self, work: Work) -> None:
        if not self._done:
            self._loop.call_soon(self._flush)
        self._done.append(work)

    def _flush(self) -> None:
        done, self._done = self._done, []
        self._home.call_soon_threadsafe(self._tell, done)
