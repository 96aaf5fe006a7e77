"""Reading jobs, queues and events as DataFrames."""

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, functions

from penstock.model.errors import Invalid, Unavailable
from penstock.model.job import JobError, JobSpec, Run
from penstock.model.store import Store
from penstock.spark.plainly import plainly
from tests.spark.log import STORE, seal
from tests.spark.served import Served, served

PUSHED = dt.datetime.fromisoformat("2027-01-15T08:00:00")  # as Spark says it: without a zone


def read(spark: SparkSession, server: Served, schema: str | None = None, **said: Any) -> DataFrame:
    reader = spark.read.format("penstock").options(url=server.url, **said)
    return (reader if schema is None else reader.schema(schema)).load()


def test_a_job_as_a_row(spark: SparkSession, server: Served, queue: str) -> None:
    async def fill(store: Store) -> None:
        spec = JobSpec(
            payload=b'{"a":1}',
            task="welcome",
            priority=3,
            key="k",
            group="g",
            tags=("x", "y"),
            headers={"trace": "t"},
            max_attempts=1,
        )
        await store.push_jobs("default", queue, [spec, JobSpec(payload=b"\xff", codec="bytes")])
        lease = await store.claim("default", [queue], 1, worker="w1")
        assert lease is not None
        error = JobError(kind="Timeout", message="too slow")
        await store.fail("default", lease.token, error=error)

    server.ask(fill)
    dead, ready = read(spark, server, queue=queue).orderBy("id").collect()
    first, second = server.jobs(queue)
    assert dead.asDict() | {"id": 0, "created_at": 0} == {
        "id": 0,
        "queue": queue,
        "state": "dead",
        "task": "welcome",
        "payload": '{"a":1}',
        "codec": "json",
        "priority": 3,
        "attempt": 1,
        "max_attempts": 1,
        "created_at": 0,
        "run_at": dead.run_at,
        "started_at": dead.started_at,
        "finished_at": dead.finished_at,
        "key": dead.key,
        "group": "g",
        "tags": ["x", "y"],
        "headers": {"trace": "t"},
        "depends_on": [],
        "worker": "w1",
        "progress": None,
        "progress_message": None,
        "dead_reason": "max_attempts",
        "error_kind": "Timeout",
        "error_message": "too slow",
        "result": None,
        "result_codec": None,
    }
    assert first.created_at == int(dead.created_at.replace(tzinfo=dt.UTC).timestamp() * 1_000)
    assert (ready.state, ready.payload, ready.codec) == ("ready", "/w==", "bytes")
    asked = read(spark, server, "payload binary, created_at bigint", queue=queue, state="ready")
    assert [tuple(row) for row in asked.collect()] == [(b"\xff", second.created_at)]
    assert [row.id for row in read(spark, server, view="dead", queue=queue).collect()] == [first.id]


def test_many_jobs_are_shared_out_and_read_once(
    spark: SparkSession, server: Served, queue: str
) -> None:
    async def fill(store: Store) -> None:
        for begin in range(0, 30_000, 10_000):
            payloads = [b"%d" % number for number in range(begin, begin + 10_000)]
            await store.push("default", [Run.pack(queue, payloads)])
            await store.push_jobs("default", f"{queue}.other", [JobSpec()])
        await store.cancel("default", [(await store.find("default", queue)).jobs[5].id])

    server.ask(fill)
    frame = read(spark, server, "payload string, state string", queue=queue, partitions=4)
    assert frame.rdd.getNumPartitions() == 4
    assert frame.select(
        functions.sum(functions.col("payload").cast("long")), functions.count("*")
    ).first() == (
        sum(range(30_000)),
        30_000,
    )
    assert read(spark, server, queue=queue, state="cancelled").count() == 1
    assert read(spark, server, queue=queue, task="none").count() == 0
    assert read(spark, server, queue=f"{queue}.nothing").count() == 0


def test_two_filters_of_one_frame_do_not_meet(
    spark: SparkSession, server: Served, queue: str
) -> None:
    """Spark shares a reader's state between the scans of a frame: nothing is pushed into it."""

    async def fill(store: Store) -> None:
        await store.push_jobs("default", queue, [JobSpec(priority=n % 3) for n in range(30)])

    server.ask(fill)
    jobs = read(spark, server, queue=queue)
    ones, twos = jobs.where("priority = 1"), jobs.where("priority = 2")
    assert ones.union(twos).count() == 20
    assert ones.join(twos, "queue").count() == 100
    assert (ones.count(), twos.count(), jobs.count()) == (10, 10, 30)


def test_a_frame_that_was_read_can_be_written(
    spark: SparkSession, server: Served, queue: str
) -> None:
    async def fill(store: Store) -> None:
        jobs = [JobSpec(payload=b"%d" % n, priority=n, tags=("t",)) for n in range(100)]
        await store.push_jobs("default", queue, jobs)

    server.ask(fill)
    frame = read(spark, server, queue=queue).select("payload", "priority", "tags")
    target = f"{queue}.copy"
    frame.write.format("penstock").options(url=server.url, queue=target).mode("append").save()
    copied = [(job.payload, job.options.priority, job.options.tags) for job in server.jobs(target)]
    assert sorted(copied) == sorted((b"%d" % n, n, ("t",)) for n in range(100))


def test_queues_as_rows(spark: SparkSession, queue: str) -> None:
    with served() as server:

        async def fill(store: Store) -> None:
            await store.push_jobs("default", "a", [JobSpec(), JobSpec(delay_ms=60_000)])
            await store.push_jobs("default", "b", [JobSpec(group="g")])

        server.ask(fill)
        rows = read(spark, server, view="queues").orderBy("queue").collect()
        assert [(row.queue, row.ready, row.scheduled, row.dead) for row in rows] == [
            ("a", 1, 1, 0),
            ("b", 1, 0, 0),
        ]
        assert [row.paused for row in rows] == [False, False]
        (one,) = read(spark, server, "queue string, groups int", view="queues", queue="b").collect()
        assert tuple(one) == ("b", 1)


def test_events_as_rows(spark: SparkSession, events: Path) -> None:
    seal(events, 1, 3)
    seal(events, 9, 2)
    frame = spark.read.format("penstock").option("view", "events").load(str(events))
    first, *rest = frame.orderBy("position").collect()
    assert [row.position for row in rest] == [2, 3, 9, 10]
    assert (first.store, first["index"], first.kind, first.tenant) == (
        STORE,
        0,
        "completed",
        "acme",
    )
    assert (first["count"], [tuple(each) for each in first.ids]) == (12, [(1_000, 10), (1_500, 2)])
    assert (first.worker, first.task, first.held, first.bytes) == ("w1", "", False, 0)
    assert (first.claimed_at, first.pushed_at) == (None, PUSHED)
    few = spark.read.format("penstock").option("view", "events").schema("at bigint, count bigint")
    assert tuple(few.load(str(events)).orderBy("at").first() or ()) == (1_800_000_000_001, 12)


@pytest.mark.parametrize(
    ("schema", "said", "sentence"),
    [
        (None, {"view": "job"}, "view: 'job' is none of jobs, dead, queues, events"),
        (None, {"queue": None}, "queue: is required"),
        (None, {"url": "rocksdb:///jobs"}, "url: 'rocksdb:///jobs' is a store of one machine"),
        (None, {"state": "tired"}, "state: 'tired' is not one of held, blocked"),
        (None, {"where": "x"}, "where: there is no such option"),
        ("idd bigint", {}, "idd: there is no such column; did you mean 'id'?"),
        ("id boolean", {}, "id: cannot be read as bool"),
        (None, {"view": "events", "url": None, "queue": None}, "path: is required"),
        (None, {"view": "events", "path": "/no/such/place", "url": None, "queue": None}, "path: "),
    ],
)
def test_bad_input_is_told_in_one_sentence(
    spark: SparkSession,
    server: Served,
    queue: str,
    schema: str | None,
    said: dict[str, Any],
    sentence: str,
) -> None:
    async def fill(store: Store) -> None:
        await store.push_jobs("default", "read", [JobSpec()])

    server.ask(fill)
    options = {"url": server.url, "queue": "read"} | said
    options = {key: value for key, value in options.items() if value is not None}
    with pytest.raises(Invalid) as told, plainly():
        reader = spark.read.format("penstock").options(**options)
        (reader if schema is None else reader.schema(schema)).load().collect()
    assert sentence in str(told.value)
    assert "\n" not in str(told.value)


def test_a_corrupt_segment_is_told_in_one_sentence(spark: SparkSession, events: Path) -> None:
    path = seal(events, 1, 3)
    path.write_bytes(path.read_bytes() + b"{torn")
    with pytest.raises(Invalid, match=f"{path} has no event at byte") as told, plainly():
        spark.read.format("penstock").option("view", "events").load(str(events)).collect()
    assert "\n" not in str(told.value)


def test_what_spark_itself_refuses_is_one_sentence_too(spark: SparkSession) -> None:
    with pytest.raises(Unavailable, match="Spark says: ") as told, plainly():
        spark.sql("SELECT nothing FROM nowhere")
    assert "\n" not in str(told.value)
    with pytest.raises(ZeroDivisionError), plainly():
        _ = 1 // 0
