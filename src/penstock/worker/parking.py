"""Jobs of tasks that are not known here: given back unspent and put off, never discarded.

They wait for a worker that knows them: one of a newer release, or of another app that shares the
queue. Each task is reported once in the log, and every job is told so in a line of its own.

A job that is given back is ready, and whoever waits takes it before it can be put off: rightly, if
that one knows its task. Those who do not would hand it round and round, so a worker claims nothing
while it puts jobs off, and for a while longer if one was taken before it could be. By then all who
wait have had it once, and nobody is left to take it.
"""

import asyncio
import logging
from contextlib import suppress
from typing import Final

from penstock.client.app import Penstock
from penstock.model.errors import Conflict, LeaseLost, NotFound, PenstockError
from penstock.model.job import Job, LogLine
from penstock.model.store import Store
from penstock.worker.acking import Acker
from penstock.worker.claiming import Claimer
from penstock.worker.counts import Counts
from penstock.worker.held import Held, facts_of
from penstock.worker.owned import Owned
from penstock.worker.refusals import REFUSED

log: Final = logging.getLogger("penstock.worker")

PUT_OFF_MS: Final = 60_000
LINGER_S: Final = 0.2


class Parking:
    def __init__(
        self, store: Store, app: Penstock, counts: Counts, owned: Owned, acker: Acker
    ) -> None:
        self._store = store
        self._app = app
        self._counts = counts
        self._owned = owned
        self._acker = acker
        self._reported: set[str] = set()  # tasks
        self.claimer: Claimer  # set when everything is wired together

    def park(self, held: Held, jobs: list[Job]) -> None:
        for job in jobs:
            if job.options.task not in self._reported:
                self._reported.add(job.options.task)
                log.error(
                    "no task is called %r here: its jobs are put off until a worker knows it",
                    job.options.task,
                    extra=facts_of(job),
                )
        self._counts.parked += len(jobs)
        held.telling += 1
        self._owned.start(self._park(held, jobs))

    async def _park(self, held: Held, jobs: list[Job]) -> None:
        try:
            async with self.claimer.held_back():
                # All of it in one turn of the loop, so that as little as may be comes between.
                calls = [self._explain(held, job) for job in jobs]
                calls.append(self._release(held, jobs))
                calls += [self._put_off(job) for job in jobs]
                if not all(await asyncio.gather(*calls)):
                    await asyncio.sleep(LINGER_S)
        finally:
            self._acker.told(held)

    async def _explain(self, held: Held, job: Job) -> bool:
        known = ", ".join(sorted(self._app.tasks))
        line = f"no task is called {job.options.task!r} here; known are {known}"
        try:
            await self._store.report(
                self._app.tenant, held.token, job.id, logs=[LogLine(0, line, "error")]
            )
        except PenstockError as error:
            log.warning("job %d could not be told: %s", job.id, error, extra=facts_of(job))
        return True

    async def _release(self, held: Held, jobs: list[Job]) -> bool:
        ids, tenant = [job.id for job in jobs], self._app.tenant
        with suppress(LeaseLost, *REFUSED):  # then they are given back already, or soon are
            await self._acker.repeated(
                lambda: self._store.release(tenant, held.token, ids), held.lease_s
            )
        return True

    async def _put_off(self, job: Job) -> bool:
        """Whether it was there to be put off."""
        try:
            await self._store.edit(self._app.tenant, job.id, delay_ms=PUT_OFF_MS)
        except (Conflict, NotFound):
            return False
        except PenstockError as error:
            log.warning("job %d could not be put off: %s", job.id, error, extra=facts_of(job))
        return True
