"""silver: attempts and ends of jobs, as ranges that went through the same thing at the same times.

A range is a row and `count` its weight; nobody explodes it to count. Terminal events carry the times of
what led to them, so both tables are projections of events: no state, no joins, and a day of silver
depends on that day of bronze alone. Whoever wants single jobs has `one_by_one`.
"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

# How an attempt ended, by the kind of event that says so.
ATTEMPT_ENDS: Final = ("completed", "retried", "dead", "released", "cancelled")
JOB_ENDS: Final = ("completed", "dead", "cancelled", "expired")


def attempts(events: DataFrame) -> DataFrame:
    """Ranges of attempts: who ran them, from when to when, and what came of it."""
    ended = events.where(f.col("kind").isin(*ATTEMPT_ENDS) & (f.col("claimed_at") > 0))
    return ended.select(
        "store",
        "position",
        "index",
        "tenant",
        "queue",
        "task",
        "worker",
        "ids",
        "count",
        "attempt",
        "priority",
        "pushed_at",
        "ready_at",
        "claimed_at",
        f.col("at").alias("finished_at"),
        f.greatest(f.col("claimed_at") - f.col("ready_at"), f.lit(0)).alias("wait_ms"),
        f.greatest(f.col("at") - f.col("claimed_at"), f.lit(0)).alias("run_ms"),
        f.col("kind").alias("outcome"),
        "cause",
        "error_kind",
        "error_message",
        "day",
    )


def jobs(events: DataFrame) -> DataFrame:
    """Ranges of jobs that ended: pushed when, ended when and how, after how many attempts.

    A job that was made to run again after its end has a row for each of its ends.
    """
    ended = events.where(f.col("kind").isin(*JOB_ENDS))
    return ended.select(
        "store",
        "position",
        "index",
        "tenant",
        "queue",
        "task",
        "ids",
        "count",
        f.col("attempt").alias("attempts"),
        "priority",
        "pushed_at",
        f.col("claimed_at").alias("last_claimed_at"),
        f.col("at").alias("ended_at"),
        f.col("kind").alias("outcome"),
        f.col("reason").alias("dead_reason"),
        f.col("worker").alias("last_worker"),
        "error_kind",
        "error_message",
        "day",
    )


def one_by_one(ranges: DataFrame) -> DataFrame:
    """A row per job or attempt, with its `id`: for those who ask."""
    run = f.explode("ids").alias("run")
    each = ranges.select("*", run).withColumn(
        "id", f.explode(f.sequence(f.col("run")[0], f.col("run")[0] + f.col("run")[1] - 1))
    )
    return each.drop("ids", "run", "count")
