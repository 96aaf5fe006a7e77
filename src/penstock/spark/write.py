"""Writing jobs: a bulk in two phases, so that all rows become jobs at one instant, once, or none.

Every attempt of every task pushes under a part of its own, held and invisible. Spark tells the driver
which attempt of each partition counts, and the commit publishes those parts and drops the rest:
failed, killed, speculative and repeated attempts leave nothing. A part's name has random bytes in
it, because Spark numbers attempts anew when it runs a stage, or a stream, again.

A micro-batch of a stream is a bulk named after its query and its number: one that Spark repeats
after a crash finds its bulk committed and pushes nothing.
"""

import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from penstock.model.answers import BulkInfo, Pushed
from penstock.model.duration import say_ms
from penstock.model.errors import BatchTooLarge, Conflict, NotFound, Unavailable
from penstock.model.job import MAX_BATCH, Run
from penstock.model.lifecycle import State
from penstock.model.store import Store
from penstock.spark.columns import JobColumns
from penstock.spark.connection import Connection
from penstock.spark.options import WriteOptions

# What an overwritten queue is rid of beside the jobs that wait: those that are over.
ENDED: Final = (State.COMPLETED, State.DEAD, State.CANCELLED, State.EXPIRED)


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What one attempt of a task left in the bulk: nothing, if it names no part."""

    bulk: str
    part: str = ""
    jobs: int = 0


class BulkWriter(DataSourceArrowWriter):
    """One batch write. Made where the driver plans it; its tasks and its end are elsewhere."""

    def __init__(self, options: WriteOptions, columns: JobColumns, overwrite: bool) -> None:
        self._options = options
        self._columns = columns
        self._overwrite = overwrite
        self._bulk = options.bulk or f"spark/{os.urandom(16).hex()}"
        # Before any task works in vain: is there a server, does it let us in, is there anything to do?
        with Connection(options.where, patience_s=0) as store:
            self._done = store.ask(self._open).state == "committed"

    async def _open(self, store: Store, tenant: str) -> BulkInfo:
        return await store.open_bulk(tenant, self._bulk, deadline_ms=self._options.deadline_ms)

    def write(self, iterator: Iterator[Any]) -> Written:
        if self._done:
            return Written(self._bulk)
        with Connection(self._options.where) as store:
            part = Part(store, self._bulk, self._options)
            return part.written(run for batch in iterator for run in self._columns.runs(batch))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        parts = parts_of(messages)
        with Connection(self._options.where) as store:
            if self._overwrite and not self._done:
                store.ask(self._make_room)
            publish(store, self._bulk, parts)

    async def _make_room(self, store: Store, tenant: str) -> None:
        """Forget what is not active, as late as can be: everything that replaces it is there."""
        queue = self._options.queue
        await store.drain(tenant, queue)
        for state in ENDED:
            await store.clean(tenant, queue, state)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        with Connection(self._options.where) as store:
            forget(store, self._bulk)


class StreamBulkWriter(DataSourceStreamArrowWriter):
    """The micro-batches of a stream."""

    def __init__(self, options: WriteOptions, columns: JobColumns) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[Any]) -> Written:
        bulk = _micro_batch()
        runs = (run for batch in iterator for run in self._columns.runs(batch))
        first = next(runs, None)
        if first is None:
            return Written(bulk)

        async def open_it(store: Store, tenant: str) -> BulkInfo:
            return await store.open_bulk(tenant, bulk, deadline_ms=self._options.deadline_ms)

        with Connection(self._options.where) as store:
            if store.ask(open_it).state == "committed":
                return Written(bulk)
            return Part(store, bulk, self._options).written(_with(first, runs))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        parts = parts_of(messages)
        if parts:
            with Connection(self._options.where) as store:
                publish(store, _bulk_of(messages), parts)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing is left but what the deadline ends where no task told which bulk it was."""
        bulk = _bulk_of(messages)
        if bulk:
            with Connection(self._options.where) as store:
                forget(store, bulk)


class Part:
    """What one attempt of a task pushes: some pushes at a time, all answered before it is done."""

    def __init__(self, store: Connection, bulk: str, options: WriteOptions) -> None:
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        attempt = context.attemptNumber() if context is not None else 0
        self._store = store
        self._bulk = bulk
        self._options = options
        self._part = f"{partition}/{attempt}/{os.urandom(8).hex()}"
        self._answers: deque[Future[Pushed]] = deque()
        self._heard = time.monotonic()  # when the bulk was surely alive

    def written(self, runs: Iterable[Run]) -> Written:
        jobs = 0
        for run in runs:
            if len(self._answers) >= self._options.in_flight:
                self._settle()
            self._push(run)
            jobs += len(run)
        while self._answers:
            self._settle()
        return Written(self._bulk, self._part if jobs else "", jobs)

    def _push(self, run: Run) -> None:
        async def push(store: Store, tenant: str) -> Pushed:
            return await store.push(
                tenant,
                [run],
                bulk=self._bulk,
                part=self._part,
                durability=self._options.durability,
            )

        self._answers.append(self._store.begin(push))

    def _settle(self) -> None:
        """Wait for the oldest answer.

        A bulk that nobody pushed into for as long as its deadline is dropped, and another task of
        a stream may have opened it anew since, without what we pushed before.
        """
        self._answers.popleft().result()
        now = time.monotonic()
        if (now - self._heard) * 1_000 >= self._options.deadline_ms:
            raise Unavailable(
                f"nothing was pushed for {say_ms(self._options.deadline_ms)}, so that what was pushed"
                " before may have been dropped; say a longer deadline_ms"
            )
        self._heard = now


def parts_of(messages: list[WriterCommitMessage | None]) -> list[str]:
    """The parts that count. Empty ones were never pushed."""
    parts = [said.part for said in messages if isinstance(said, Written) and said.part]
    if len(parts) > MAX_BATCH:
        raise BatchTooLarge(
            f"{len(parts)} partitions hold rows, and one write may have {MAX_BATCH}:"
            " .coalesce() them"
        )
    return parts


def publish(store: Connection, bulk: str, parts: list[str]) -> None:
    async def commit(open_store: Store, tenant: str) -> BulkInfo:
        return await open_store.commit_bulk(tenant, bulk, parts)

    store.ask(commit)


def forget(store: Connection, bulk: str) -> None:
    """Drop what is held. A bulk that is gone already, or was committed after all, stays so."""

    async def abort(open_store: Store, tenant: str) -> None:
        try:
            await open_store.abort_bulk(tenant, bulk)
        except (NotFound, Conflict):
            return

    store.ask(abort)


def _micro_batch() -> str:
    """The bulk of the micro-batch that this task belongs to: the same, whenever it is run."""
    context = TaskContext.get()
    assert context is not None, "Spark runs write() in a task"
    query = context.getLocalProperty("sql.streaming.queryId")
    batch = context.getLocalProperty("streaming.sql.batchId")
    if query is None or batch is None:
        raise Unavailable("Spark does not say which micro-batch this is")
    return f"spark/{query}/{batch}"


def _bulk_of(messages: list[WriterCommitMessage | None]) -> str:
    return next((said.bulk for said in messages if isinstance(said, Written)), "")


def _with(first: Run, rest: Iterable[Run]) -> Iterator[Run]:
    yield first
    yield from rest
