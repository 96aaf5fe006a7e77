"""What a handler may know and say about the job that it runs.

A handler asks for it by annotation: `async def report(ctx: Context, year: int)`. Everything that it
says goes out without waiting, from asynchronous handlers, from threads and from other processes
alike; whoever runs the job sends it on. `progress` may be said as often as one likes: what has not
been sent yet is replaced.
"""

import logging
from collections.abc import Callable
from math import floor
from typing import Any, Final

import msgspec

from penstock.client.finite import check_finite
from penstock.model.checks import MAX_MESSAGE_BYTES, MAX_TRACE_BYTES, MAX_WORD_BYTES, kept_text
from penstock.model.checks_values import check_bytes, check_text, show
from penstock.model.errors import Invalid
from penstock.model.job import Job, JobOptions, LogLine

log: Final = logging.getLogger("penstock.job")

_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class Report(msgspec.Struct, kw_only=True):
    """Something that a handler says about its job while it runs."""

    progress: int | None = None
    message: str | None = None
    logs: list[LogLine] = []
    partial: bytes | None = None
    heartbeat: bool = False


class Context:
    """The job that is running, and how to speak of it."""

    # And whatever a middleware likes to keep there; nothing is paid for that where none does.
    __slots__ = ("__dict__", "_jobs", "_results", "_say", "cancelled", "job", "worker")

    def __init__(
        self,
        job: Job,
        *,
        worker: str = "",
        say: Callable[[int, Report], None] | None = None,
        results: Callable[[], dict[int, Any]] | None = None,
        jobs: tuple[Job, ...] | Callable[[], tuple[Job, ...]] | None = None,
    ) -> None:
        self.job = job  # of a batch: its first
        self._jobs = jobs
        self.worker = worker
        self.cancelled = False  # set when the job is taken away: whatever it does now is in vain
        self._say = say
        self._results = results

    @classmethod
    def alone(cls, queue: str, task: str) -> "Context":
        """Of a plain call: there is no job, and nobody listens."""
        options = JobOptions(task=task)
        job = Job(
            id=0, queue=queue, payload=b"null", options=options, attempt=1, created_at=0, run_at=0
        )
        return cls(job)

    @property
    def jobs(self) -> tuple[Job, ...]:
        """Of a batch: all of them."""
        if callable(self._jobs):
            self._jobs = self._jobs()
        return self._jobs or (self.job,)

    @property
    def attempt(self) -> int:
        return self.job.attempt

    def progress(self, percent: float, message: object = None) -> None:
        """How far the job is, 0 to 100. Kept in whole percents: 33.3 is 33, and 100.4 is 100."""
        try:
            whole = floor(min(max(percent, 0), 100))
        except (TypeError, ValueError):  # a NaN is no number, either
            raise Invalid(f"is {show(percent)}, not a number", "percent") from None
        said = None if message is None else kept_text(str(message), MAX_MESSAGE_BYTES)
        self._tell(Report(progress=whole, message=said))

    def log(self, message: object, level: str = "info") -> None:
        """A line kept with the job (the last 100 are), and in the worker's own log."""
        check_text(level, "level", MAX_WORD_BYTES, empty_ok=False)
        said = str(message)
        log.log(_LEVELS.get(level, logging.INFO), said, extra={"job": self.job.id})
        self._tell(Report(logs=[LogLine(0, kept_text(said, MAX_TRACE_BYTES), level)]))

    def partial(self, value: Any) -> None:
        """A part of the result, for whoever watches: an event, kept nowhere."""
        data = msgspec.json.encode(value)
        check_finite(value, data)
        check_bytes(data, "partial")
        self._tell(Report(partial=data))

    def heartbeat(self) -> None:
        """Extend the lease now. Workers do so by themselves; nobody has to call this."""
        self._tell(Report(heartbeat=True))

    @property
    def results(self) -> dict[int, Any]:
        """The results of the jobs that this one depends on, by id: plain JSON values."""
        return {} if self._results is None else self._results()

    def _tell(self, report: Report) -> None:
        if self._say is not None:
            self._say(self.job.id, report)
