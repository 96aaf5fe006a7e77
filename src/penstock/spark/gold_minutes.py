"""gold.queue_minutes: what happened in a queue in a minute, how long jobs waited and ran, and what was
left at its end.

Weighted aggregates over events: the cost is that of the ranges, whatever number of jobs they speak of.
A minute depends on that minute's events alone, but for its backlog, which adds up everything before.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from penstock.spark.histogram import bucket, percentiles
from penstock.spark.instants import MINUTE_MS, floored, long

KEYS: Final = ("day", "tenant", "queue", "minute")

COUNTED: Final = {
    "pushed": ("pushed", "committed"),
    "claimed": ("claimed",),
    "completed": ("completed",),
    "retried": ("retried",),
    "released": ("released",),
    "dead": ("dead",),
    "cancelled": ("cancelled",),
    "expired": ("expired",),
    "redriven": ("redriven",),
}
# Which kinds add a job to what is left to do, and which take one away.
ADDS: Final = ("pushed", "redriven")
TAKES: Final = ("completed", "dead", "cancelled", "expired")


def queue_minutes(events: DataFrame) -> DataFrame:
    """All but the backlog, which needs the days before: see `with_backlog`."""
    rows = events.where(f.col("queue") != "").withColumn(
        "minute", f.timestamp_millis(floored("at", MINUTE_MS))
    )
    counts = rows.groupBy(*KEYS).agg(
        *(
            _jobs(f.col("kind").isin(*kinds) & _visible()).alias(name)
            for name, kinds in COUNTED.items()
        ),
        _jobs((f.col("kind") == "retried") | _failed_for_good()).alias("failed"),
        f.sum(f.when(f.col("kind") == "pushed", f.col("bytes")).otherwise(0)).alias("bytes"),
    )
    waits = _histogram(
        rows.where((f.col("kind") == "claimed") & (f.col("ready_at") > 0)),
        f.col("at") - f.col("ready_at"),
        "wait",
    )
    runs = _histogram(
        rows.where((f.col("kind") == "completed") & (f.col("claimed_at") > 0)),
        f.col("at") - f.col("claimed_at"),
        "run",
    )
    joined = counts.join(waits, list(KEYS), "left").join(runs, list(KEYS), "left")
    change = sum((f.col(name) for name in ADDS), long(0)) - sum(
        (f.col(name) for name in TAKES), long(0)
    )
    return joined.withColumns({**percentiles("wait"), **percentiles("run"), "change": change})


def with_backlog(minutes: DataFrame, before: DataFrame) -> DataFrame:
    """Minutes with what was left to do at the end of each; `before` has (tenant, queue, backlog)."""
    line = Window.partitionBy("tenant", "queue").orderBy("minute")
    base = before.select("tenant", "queue", f.col("backlog").alias("base"))
    so_far = f.sum("change").over(line.rowsBetween(Window.unboundedPreceding, 0))
    known = minutes.drop("backlog").join(base, ["tenant", "queue"], "left")
    return known.withColumn("backlog", f.coalesce("base", long(0)) + so_far).drop("base")


def backlog_before(minutes: DataFrame) -> DataFrame:
    """What is left behind all these minutes, by tenant and queue."""
    return minutes.groupBy("tenant", "queue").agg(f.sum("change").alias("backlog"))


def _visible() -> Column:
    """A push into a bulk is nothing that anybody sees before its commit."""
    return ~((f.col("kind") == "pushed") & f.col("held"))


def _failed_for_good() -> Column:
    return (f.col("kind") == "dead") & (f.col("claimed_at") > 0)


def _jobs(which: Column) -> Column:
    return f.sum(f.when(which, f.col("count")).otherwise(long(0)))


def _histogram(rows: DataFrame, ms: Column, name: str) -> DataFrame:
    counted = rows.groupBy(*KEYS, bucket(ms).alias("bucket")).agg(f.sum("count").alias("count"))
    pairs = f.sort_array(f.collect_list(f.struct("bucket", "count")))
    return counted.groupBy(*KEYS).agg(pairs.alias(name))
