"""gold.errors: which errors there were, by queue and hour; errors that differ in numbers are one."""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from penstock.model.fingerprint import fingerprint
from penstock.model.job import JobError
from penstock.spark.instants import HOUR_MS, floored

KEYS: Final = ("day", "tenant", "queue", "hour", "fingerprint")


def errors(events: DataFrame) -> DataFrame:
    """Failures by fingerprint: how many, of which how many the last, first and last seen, a sample."""
    failed = events.where(f.col("kind").isin("retried", "dead") & (f.col("error_kind") != ""))
    marked = failed.join(marks(failed), ["error_kind", "error_message"])
    hour = f.timestamp_millis(floored("at", HOUR_MS))
    # The sample is that of the first failure, so that it is the same whoever counts.
    first = f.struct(
        "at", "store", "position", "index", "error_kind", "error_message", "task", "ids"
    )
    return (
        marked.withColumn("hour", hour)
        .groupBy(*KEYS)
        .agg(
            f.sum("count").alias("failures"),
            f.sum(f.when(f.col("kind") == "dead", f.col("count")).otherwise(0)).alias("dead"),
            f.min("at").alias("first_at"),
            f.max("at").alias("last_at"),
            f.min(first).alias("sample"),
        )
        .select(
            *KEYS,
            "failures",
            "dead",
            f.timestamp_millis("first_at").alias("first_seen"),
            f.timestamp_millis("last_at").alias("last_seen"),
            _of_sample("error_kind"),
            _of_sample("error_message"),
            _of_sample("task"),
            f.col("sample")["ids"][0][0].alias("sample_id"),
        )
    )


def marks(failed: DataFrame) -> DataFrame:
    """The fingerprint of every distinct error, made where the rest of Penstock makes it."""
    distinct = failed.select("error_kind", "error_message").distinct()
    return distinct.mapInArrow(
        _marked, "error_kind string, error_message string, fingerprint string"
    )


def _marked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        kinds, messages = batch.column(0).to_pylist(), batch.column(1).to_pylist()
        found = [
            fingerprint(JobError(kind=kind, message=message))
            for kind, message in zip(kinds, messages, strict=True)
        ]
        names = ["error_kind", "error_message", "fingerprint"]
        yield pa.RecordBatch.from_arrays(
            [batch.column(0), batch.column(1), pa.array(found, pa.string())], names
        )


def _of_sample(name: str) -> Column:
    return f.col("sample")[name].alias(name)
