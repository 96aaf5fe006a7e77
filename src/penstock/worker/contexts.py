"""What handlers are told about their jobs: one Context per call, made where the handler runs."""

from collections.abc import Callable

from penstock.client.app import Penstock
from penstock.client.context import Context, Report
from penstock.worker.held import BatchWork, Work


class Contexts:
    def __init__(
        self, app: Penstock, worker: str, say: Callable[[Work], Callable[[int, Report], None]]
    ) -> None:
        self.watched = bool(app.middleware)  # whether every one of them is looked at
        self._worker = worker
        self._say = say

    def of(self, work: Work) -> Context:
        # Where nobody asks for it, nothing will be said and nothing looked at.
        if work.task.arguments.context is None and not self.watched:
            return Context(work.job, worker=self._worker)
        results = work.results
        return Context(
            work.job,
            worker=self._worker,
            say=self._say(work),
            results=None if results is None else lambda: results,
            jobs=work.jobs if isinstance(work, BatchWork) else None,
        )
