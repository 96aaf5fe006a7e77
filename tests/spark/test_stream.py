"""Streams: micro-batches as bulks, events as a source; repeated, each counts once."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.model.errors import Invalid
from penstock.spark.plainly import plainly
from tests.spark.log import seal
from tests.spark.served import Served


def run(stream: Any, checkpoint: Path, **said: str) -> None:
    """Everything that there is now, in as many micro-batches as it takes."""
    query = (
        stream.writeStream.format("penstock")
        .options(checkpointLocation=str(checkpoint), **said)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def positions(server: Served, queue: str) -> list[int]:
    return sorted(one["position"] for one in server.payloads(queue))  # type: ignore[index]


def events_of(spark: SparkSession, directory: Path, **said: Any) -> Any:
    reader = spark.readStream.format("penstock").options(view="events", **said)
    return reader.schema("position bigint").load(str(directory))


def test_events_are_read_in_bounded_batches_and_become_jobs_once(
    spark: SparkSession, server: Served, queue: str, events: Path, tmp_path: Path
) -> None:
    seal(events, 1, 20)
    seal(events, 30, 5)
    said = {"url": server.url, "queue": queue}
    run(events_of(spark, events, max_bytes_per_batch=2_000), tmp_path / "point", **said)
    assert positions(server, queue) == [*range(1, 21), *range(30, 35)]
    batches = len(list((tmp_path / "point" / "commits").glob("[0-9]*")))
    assert batches > 1
    assert len({job.created_at for job in server.jobs(queue)}) <= batches
    seal(events, 50, 2)
    run(events_of(spark, events, max_bytes_per_batch=2_000), tmp_path / "point", **said)
    assert positions(server, queue)[-2:] == [50, 51]
    assert len(positions(server, queue)) == 27


def test_a_micro_batch_that_spark_repeats_is_pushed_once(
    spark: SparkSession, server: Served, queue: str, events: Path, tmp_path: Path
) -> None:
    """As after a driver that was killed between our commit and Spark's own."""
    seal(events, 1, 20)
    said = {"url": server.url, "queue": queue}
    point = tmp_path / "point"
    run(events_of(spark, events), point, **said)
    for note in (point / "commits").iterdir():  # Spark forgets that it was done
        note.unlink()
    run(events_of(spark, events), point, **said)
    assert positions(server, queue) == list(range(1, 21))


def test_a_micro_batch_whose_task_fails_is_pushed_once(
    spark: SparkSession, server: Served, queue: str, events: Path, tmp_path: Path
) -> None:
    def fail_once(batches: Any) -> Any:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        yield from batches
        if context.attemptNumber() == 0:
            raise RuntimeError("the first attempt fails")

    seal(events, 1, 50)
    stream = events_of(spark, events).mapInArrow(fail_once, "position bigint")
    run(stream, tmp_path / "point", url=server.url, queue=queue)
    assert positions(server, queue) == list(range(1, 51))


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"queue": "q"}, "url: is required"),
        ({"url": "sqlite:///x", "queue": "q"}, "url: 'sqlite:///x' is a store of one machine"),
        ({"queue": "q", "bulk": "b", "url": "penstock://127.0.0.1:9"}, "bulk: the micro-batches"),
    ],
)
def test_bad_input_is_told_in_one_sentence(
    spark: SparkSession, events: Path, tmp_path: Path, said: dict[str, str], sentence: str
) -> None:
    seal(events, 1, 1)
    with pytest.raises(Invalid) as told, plainly():
        run(events_of(spark, events), tmp_path / "point", **said)
    assert sentence in str(told.value)
    assert "\n" not in str(told.value)


def test_jobs_are_no_stream(spark: SparkSession) -> None:
    with pytest.raises(Invalid, match="view: jobs is no stream; events is"), plainly():
        query = (
            spark.readStream.format("penstock")
            .load()
            .writeStream.format("memory")
            .queryName("none")
            .start()
        )
        query.awaitTermination()
