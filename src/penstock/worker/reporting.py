"""What handlers say about their jobs while they run: joined per job, sent on without delaying them.

`say` may be called from any thread. On the home thread what was said about one job since the last
report is one report: the latest progress, all log lines. Partial results are events, each by itself.
A job's last words go out before its end does. One that was taken away is found out by what it says: its
lease is extended at once, so that its handler is stopped, and nothing more of it is sent.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from penstock.client.context import Report
from penstock.model.errors import LeaseLost, PenstockError
from penstock.model.job import LogLine
from penstock.model.store import Store
from penstock.worker.held import Held, Work, facts_of
from penstock.worker.owned import Owned
from penstock.worker.refusals import REFUSED, Refusals

log: Final = logging.getLogger("penstock.worker")

MOST_LINES: Final = 100  # of a job that a store keeps


class _Words:
    """About one job, not sent yet."""

    __slots__ = ("logs", "message", "partials", "progress", "sending", "work")

    def __init__(self, work: Work) -> None:
        self.work = work
        self.progress: int | None = None
        self.message: str | None = None
        self.logs: deque[LogLine] = deque(maxlen=MOST_LINES)
        self.partials: list[bytes] = []
        self.sending = False

    def add(self, report: Report) -> None:
        if report.progress is not None:
            self.progress, self.message = report.progress, report.message
        self.logs.extend(report.logs)
        if report.partial is not None:
            self.partials.append(report.partial)

    def take(self) -> dict[str, Any] | None:
        """What can be said in one report, once; None if nothing is left."""
        if self.progress is None and not self.logs and not self.partials:
            return None
        said = {
            "progress": self.progress,
            "message": self.message,
            "logs": list(self.logs),
            "partial": self.partials.pop(0) if self.partials else None,
        }
        self.progress = self.message = None
        self.logs.clear()
        return said


class Reports:
    def __init__(
        self, store: Store, tenant: str, beat: Callable[[Held], None], owned: Owned
    ) -> None:
        self._store = store
        self._tenant = tenant
        self._beat = beat
        self._owned = owned
        self._loop = asyncio.get_running_loop()
        self._heard: deque[tuple[Work, int, Report]] = deque()
        self._called = False  # whether the home thread has been told to listen
        self._words: dict[int, _Words] = {}  # by job
        self._refusals = Refusals("what jobs say is not heard")

    def say(self, work: Work) -> Callable[[int, Report], None]:
        """What the context of this work speaks to."""

        def say(job_id: int, report: Report) -> None:
            self._heard.append((work, job_id, report))
            if not self._called:
                self._called = True
                self._loop.call_soon_threadsafe(self.listen)

        return say

    def listen(self) -> None:
        """Send on what was said. Before a job's end is told, too: its lease would be over."""
        self._called = False
        while self._heard:
            work, job_id, report = self._heard.popleft()
            if report.heartbeat:
                self._beat(work.held)
                continue
            if job_id in work.unheard:
                continue
            words = self._words.get(job_id)
            if words is None or words.work is not work:
                words = self._words[job_id] = _Words(work)
            words.add(report)
            if not words.sending:
                words.sending = True
                self._owned.start(self._send(job_id, words))

    def last_words(self, work: Work) -> None:
        """The job ends: what is left to be said goes out now, whatever is under way."""
        for job_id in work.ids if self._words else ():
            words = self._words.get(job_id)
            if words is not None and words.work is work:
                del self._words[job_id]
                while (said := words.take()) is not None:
                    self._owned.start(self._report(job_id, work, said))

    async def _send(self, job_id: int, words: _Words) -> None:
        while (said := words.take()) is not None:
            await self._report(job_id, words.work, said)
        words.sending = False
        if self._words.get(job_id) is words:
            del self._words[job_id]

    async def _report(self, job_id: int, work: Work, said: dict[str, Any]) -> None:
        try:
            await self._store.report(self._tenant, work.held.token, job_id, **said)
            self._refusals.over()
        except REFUSED as error:
            self._refusals.say(error)
        except LeaseLost as error:
            if job_id not in work.unheard:
                work.unheard |= {job_id}
                _tell(job_id, work, error)
                self._beat(work.held)
        except PenstockError as error:
            _tell(job_id, work, error)


def _tell(job_id: int, work: Work, error: PenstockError) -> None:
    facts = {**facts_of(work.job), "job": job_id}  # of a batch, one of its jobs
    log.warning("what job %d said was not heard: %s", job_id, error, extra=facts)
