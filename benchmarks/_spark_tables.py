"""The same day of jobs made into tables: from its event log as it is, from one with a line for each
job, and by DuckDB.

`pipeline` is what `penstock pipeline run` does, all tables from segments that no step has
seen, into an empty lake. `minutes` is gold.queue_minutes alone by the same transforms, and `duckdb`
is that table by DuckDB from the same files. Wall time; the session is warm.
"""

import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from benchmarks._environments import HERE, python_of
from benchmarks._spark_history import history, one_by_one, write
from penstock.spark import bronze
from penstock.spark.gold_minutes import queue_minutes, with_backlog
from penstock.spark.lake import TABLES, Lake
from penstock.spark.pipeline import SEGMENTS, Pipeline

GOLD: Final = tuple(name for name in TABLES if name.startswith("gold."))
MINUTES: Final = "gold.queue_minutes"


@dataclass(frozen=True)
class Day:
    """An event log, and where what is made of it goes."""

    jobs: int
    lines: int
    size: int  # bytes
    events: Path
    scratch: Path

    @property
    def lake(self) -> Path:
        return self.scratch / "lake"

    @property
    def by_duckdb(self) -> Path:
        return self.scratch / "duckdb.parquet"

    def forget(self) -> None:
        shutil.rmtree(self.events)
        shutil.rmtree(self.scratch)


def day_of(jobs: int, directory: Path, *, expanded: bool = False) -> Day:
    told = one_by_one(history(jobs)) if expanded else history(jobs)
    events = directory / f"events-{jobs}{'-expanded' if expanded else ''}"
    scratch = directory / f"made-of-{events.name}"
    scratch.mkdir(parents=True)
    lines = write(events, told)
    size = sum(path.stat().st_size for path in events.glob(SEGMENTS))
    return Day(jobs, lines, size, events, scratch)


# -- subjects: seconds each ------------------------------------------------------------------------


def pipeline(spark: SparkSession, day: Day) -> float:
    shutil.rmtree(day.lake, ignore_errors=True)
    made = Pipeline(Lake(spark, str(day.lake)).open())
    seconds = _seconds(lambda: made.run(str(day.events)))
    assert (made.lines, made.bad) == (day.lines, 0)
    return seconds


def rebuild(spark: SparkSession, day: Day) -> float:
    return _seconds(Pipeline(Lake(spark, str(day.lake)).open()).rebuild)


def minutes(spark: SparkSession, day: Day) -> float:
    return _seconds(lambda: _minutes(spark, day))


def _minutes(spark: SparkSession, day: Day) -> None:
    lines = spark.read.text(str(day.events), pathGlobFilter=SEGMENTS)
    # Kept, as the pipeline does: Spark would parse once to choose the lines and once to use them.
    rows = bronze.parsed(lines.withColumn("file", f.lit(""))).drop("value").persist()
    nothing = spark.createDataFrame([], "tenant string, queue string, backlog long")
    table = with_backlog(queue_minutes(bronze.events(rows)), nothing)
    table.write.mode("overwrite").parquet(str(day.scratch / "minutes"))
    rows.unpersist()


def duckdb(day: Day) -> float:
    python = python_of("duckdb", "DuckDB")
    command: list[str | Path] = [python, HERE / "_spark_duckdb.py", day.events, day.by_duckdb]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout)


def duckdb_version() -> str:
    pins = (HERE / "peers-duckdb.txt").read_text().splitlines()
    return next(pin for pin in pins if pin.startswith("duckdb==")).split()[0].partition("==")[2]


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


# -- whether they are the same ---------------------------------------------------------------------


def kept(day: Day) -> Path:
    """A copy of its gold."""
    copy = day.scratch / "kept"
    shutil.copytree(day.lake / "gold", copy / "gold")
    return copy


def different(spark: SparkSession, one: Path, other: Path) -> int:
    """Rows of gold that are in one lake and not in the other."""
    lakes = Lake(spark, str(one)), Lake(spark, str(other))
    return sum(_different(*(lake.read(name) for lake in lakes)) for name in GOLD)


def by_duckdb(spark: SparkSession, day: Day) -> int:
    """Rows of gold.queue_minutes that are only in the lake's or only in DuckDB's."""
    theirs = spark.read.parquet(str(day.by_duckdb))
    ours = Lake(spark, str(day.lake)).read(MINUTES)
    assert ours is not None
    return _different(ours.select(*theirs.columns), theirs)


def _different(one: DataFrame | None, other: DataFrame | None) -> int:
    assert one is not None
    assert other is not None
    other = other.select(*one.columns)
    return one.exceptAll(other).count() + other.exceptAll(one).count()
