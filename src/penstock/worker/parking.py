"""Jobs of tasks that are not known here: given back unspent and put off, never discarded.

They wait for a worker that knows them: one of a newer release, or of another app that shares the
queue. Each task is reported once in the log, and every job is told so in a line of its own.

A job that is given back may be taken by whoever waits, this worker too, before it can be put off.
Then it is back here at once, and the next try comes after a pause.
"""

import asyncio
import logging
from typing import Final

from penstock.client.app import Penstock
from penstock.model.errors import Conflict, NotFound, PenstockError
from penstock.model.job import Job, LogLine
from penstock.model.store import Store
from penstock.worker.acking import Acker
from penstock.worker.counts import Counts
from penstock.worker.held import Held
from penstock.worker.owned import Owned

log: Final = logging.getLogger("penstock.worker")

PUT_OFF_MS: Final = 60_000
PAUSE_S: Final = 1.0


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
        self._slipped: set[int] = set()  # jobs that were taken before they could be put off

    def park(self, held: Held, jobs: list[Job]) -> None:
        for job in jobs:
            if job.options.task not in self._reported:
                self._reported.add(job.options.task)
                log.error(
                    "no task is called %r here: its jobs are put off until a worker knows it",
                    job.options.task,
                    extra={"task": job.options.task, "queue": job.queue, "job": job.id},
                )
            self._counts.parked += 1
            held.telling += 1
            self._owned.start(self._park(held, job))

    async def _park(self, held: Held, job: Job) -> None:
        try:
            if job.id in self._slipped:
                await asyncio.sleep(PAUSE_S)
            known = ", ".join(sorted(self._app.tasks))
            line = f"no task is called {job.options.task!r} here; known are {known}"
            tenant = self._app.tenant
            # Sent together, so that as little as may be comes between them.
            await asyncio.gather(
                self._store.report(tenant, held.token, job.id, logs=[LogLine(0, line, "error")]),
                self._store.release(tenant, held.token, [job.id]),
                self._store.edit(tenant, job.id, delay_ms=PUT_OFF_MS),
            )
            self._slipped.discard(job.id)
        except (Conflict, NotFound):
            self._slipped.add(job.id)
        except PenstockError as error:
            log.warning("job %d could not be put off: %s", job.id, error, extra={"job": job.id})
        finally:
            self._acker.told(held)
