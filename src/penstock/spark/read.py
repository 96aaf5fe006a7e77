"""Reading jobs and queues, as they are while they are read.

The jobs of a queue are shared out among tasks by id: what lies between the first and the last id at
the time of planning, in stretches. A job that is there all the while is read once; one that is
pushed later is not; one that changes is read as it was when its page was.

Filters are options. `pushFilters` is not implemented, and must not be: Spark shares the reader's state
between all scans of a DataFrame, and a filter of one would be applied to another.
"""

from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.model import checks
from penstock.model.answers import Page, QueueInfo
from penstock.model.job import MAX_ID, Codec, Job
from penstock.model.lifecycle import State
from penstock.model.store import Store
from penstock.spark.connection import Connection
from penstock.spark.options import JobsOptions
from penstock.spark.views import arrow_schema, batch_of

PAGE: Final = 1_000  # the most that a store finds at once
LEAST: Final = 4_096  # ids that are worth a task

Cell = Callable[[Any, bool], Any]


class Stretch(InputPartition):
    """Ids from `first` to before `end`."""

    def __init__(self, first: int, end: int) -> None:
        self.first = first
        self.end = end


class JobsReader(DataSourceReader):
    """The views `jobs` and `dead`."""

    def __init__(self, options: JobsOptions, schema: StructType) -> None:
        checks.check_queue(options.queue)
        self._options = options
        self._state = State.DEAD if options.view == "dead" else options.state
        self._schema = arrow_schema(schema, options.view)

    def partitions(self) -> list[Stretch]:
        with Connection(self._options.where, patience_s=0) as store:
            first = self._next(store, 0)
            if first is None:
                return [Stretch(0, 0)]
            last = self._last(store, first)
        size = max(LEAST, -(-(last + 1 - first) // self._options.partitions))
        return [
            Stretch(begin, min(begin + size, last + 1)) for begin in range(first, last + 1, size)
        ]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Stretch)
        cursor: int | None = partition.first
        with Connection(self._options.where) as store:
            while cursor is not None and cursor < partition.end:
                page = self._find(store, cursor, PAGE, filtered=True)
                jobs = [job for job in page.jobs if job.id < partition.end]
                if jobs:
                    yield batch_of(jobs, self._schema, CELLS)
                cursor = page.cursor

    def _find(self, store: Connection, cursor: int, limit: int, *, filtered: bool) -> Page:
        said = self._options

        async def find(open_store: Store, tenant: str) -> Page:
            if not filtered:
                return await open_store.find(tenant, said.queue, cursor=cursor, limit=limit)
            return await open_store.find(
                tenant,
                said.queue,
                state=self._state,
                task=said.task,
                tag=said.tag,
                cursor=cursor,
                limit=limit,
            )

        return store.ask(find)

    def _next(self, store: Connection, cursor: int) -> int | None:
        """The first id from there on."""
        at: int | None = cursor
        while at is not None and at <= MAX_ID:
            page = self._find(store, at, 1, filtered=False)
            if page.jobs:
                return page.jobs[0].id
            at = page.cursor
        return None

    def _last(self, store: Connection, first: int) -> int:
        """The last id, by looking ever further and then ever closer: a store cannot be asked."""
        known, step = first, LEAST
        while (found := self._next(store, known + step)) is not None:
            known, step = found, step * 2
        low, high = known, known + step  # nothing lies at `high` or behind it
        while high - low > 1:
            middle = (low + high) // 2
            found = self._next(store, middle)
            low, high = (low, middle) if found is None else (found, high)
        return low


def _text(content: bytes | None, codec: Codec | None, raw: bool) -> bytes | str | None:
    """Bytes where they are asked for; else JSON as it is, and other codecs as base64."""
    if content is None or raw:
        return content
    return content.decode() if codec == "json" else b64encode(content).decode()


# What each column says of a job; the flag tells whether bytes were asked for.
CELLS: Final[dict[str, Cell]] = {
    "id": lambda job, _: job.id,
    "queue": lambda job, _: job.queue,
    "state": lambda job, _: job.state.value,
    "task": lambda job, _: job.options.task,
    "payload": lambda job, raw: _text(job.payload, job.options.codec, raw),
    "codec": lambda job, _: job.options.codec,
    "priority": lambda job, _: job.priority,
    "attempt": lambda job, _: job.attempt,
    "max_attempts": lambda job, _: job.options.max_attempts,
    "created_at": lambda job, _: job.created_at,
    "run_at": lambda job, _: job.run_at,
    "started_at": lambda job, _: job.started_at,
    "finished_at": lambda job, _: job.finished_at,
    "key": lambda job, _: job.key,
    "group": lambda job, _: job.group,
    "tags": lambda job, _: list(job.options.tags),
    "headers": lambda job, _: None if job.headers is None else list(job.headers.items()),
    "depends_on": lambda job, _: list(job.depends_on),
    "worker": lambda job, _: job.worker,
    "progress": lambda job, _: job.progress,
    "progress_message": lambda job, _: job.progress_message,
    "dead_reason": lambda job, _: None if job.dead_reason is None else job.dead_reason.value,
    "error_kind": lambda job, _: _last_error(job, "kind"),
    "error_message": lambda job, _: _last_error(job, "message"),
    "result": lambda job, raw: _text(job.result, job.result_codec, raw),
    "result_codec": lambda job, _: job.result_codec,
}


def _last_error(job: Job, what: str) -> str | None:
    return getattr(job.errors[-1], what) if job.errors else None


class QueuesReader(DataSourceReader):
    """The view `queues`: one row each, as they are at one instant."""

    def __init__(self, options: JobsOptions, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema, "queues")

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        names = [self._options.queue] if self._options.queue else None

        async def queues(store: Store, tenant: str) -> list[QueueInfo]:
            return await store.queues(tenant, names)

        with Connection(self._options.where) as store:
            found = store.ask(queues)
        if found:
            yield batch_of(found, self._schema, QUEUE_CELLS)


def _count(state: State) -> Cell:
    return lambda info, _: info.counts[state]


QUEUE_CELLS: Final[dict[str, Cell]] = {
    "queue": lambda info, _: info.queue,
    "paused": lambda info, _: info.config.paused,
    **{state.value: _count(state) for state in State},
    "oldest_ready_ms": lambda info, _: info.oldest_ready_ms,
    "groups": lambda info, _: info.groups,
    "config": lambda info, _: msgspec.json.encode(info.config).decode(),
}
