"""gold.workers: how busy a worker was in a minute, and what it did.

Busy is the share of the minute in which it held at least one job: the union of the times from claim to
end, cut at the minute's edges. An attempt counts in the minute in which it ended.
"""

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from penstock.spark.instants import MINUTE_MS, day_of, floored, long

KEYS: Final = ("day", "tenant", "worker", "minute_ms")
LONGEST_MS: Final = 86_400_000  # of an attempt, as a lease goes


def workers(attempts: DataFrame) -> DataFrame:
    """From silver.attempts; a minute depends on attempts that touch it, also of the next day."""
    named = attempts.where(f.col("worker") != "")
    return (
        busy(named)
        .join(done(named), ["tenant", "worker", "minute_ms"], "full")
        .select(
            day_of("minute_ms").alias("day"),
            "tenant",
            "worker",
            f.timestamp_millis("minute_ms").alias("minute"),
            (f.coalesce("busy_ms", f.lit(0)) / MINUTE_MS).alias("busy"),
            f.coalesce("busy_ms", f.lit(0)).cast("long").alias("busy_ms"),
            f.coalesce("jobs", f.lit(0)).cast("long").alias("jobs"),
            f.coalesce("failures", f.lit(0)).cast("long").alias("failures"),
        )
    )


def done(attempts: DataFrame) -> DataFrame:
    minute = floored("finished_at", MINUTE_MS).alias("minute_ms")
    failed = f.col("outcome").isin("retried", "dead")
    return attempts.groupBy("tenant", "worker", minute).agg(
        f.sum(f.when(f.col("outcome") == "completed", f.col("count")).otherwise(0)).alias("jobs"),
        f.sum(f.when(failed, f.col("count")).otherwise(0)).alias("failures"),
    )


def busy(attempts: DataFrame) -> DataFrame:
    """The union of the attempts' times, by minute."""
    started = f.greatest(f.col("claimed_at"), f.col("finished_at") - LONGEST_MS)
    spans = attempts.where(f.col("finished_at") > f.col("claimed_at")).select(
        "tenant", "worker", started.alias("began"), f.col("finished_at").alias("ended")
    )
    # Equal spans are one before anything is sorted: a batch of a thousand ranges often is.
    first, last = floored("began", MINUTE_MS), floored("ended", MINUTE_MS)
    minutes = spans.distinct().withColumn(
        "minute_ms", f.explode(f.sequence(first, last, long(MINUTE_MS)))
    )
    cut = minutes.select(
        "tenant",
        "worker",
        "minute_ms",
        f.greatest("began", "minute_ms").alias("began"),
        f.least(f.col("ended"), f.col("minute_ms") + MINUTE_MS).alias("ended"),
    ).where(f.col("ended") > f.col("began"))
    line = Window.partitionBy("tenant", "worker", "minute_ms").orderBy("began", "ended")
    covered = f.max("ended").over(line.rowsBetween(Window.unboundedPreceding, -1))
    fresh = f.col("ended") - f.greatest(f.col("began"), f.coalesce("covered", f.col("began")))
    counted = cut.withColumn("covered", covered).withColumn("fresh", f.greatest(fresh, f.lit(0)))
    return counted.groupBy("tenant", "worker", "minute_ms").agg(f.sum("fresh").alias("busy_ms"))
