"""`penstock pipeline run` whose driver is killed, wherever it is: the next run's tables are a recount.

A first run has made two days. Then an event of the first day comes late: the days after it get another
backlog, though none of their own events is new. That is the run that is killed. One such kill is part of
`test_tables`, which is run every time.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.spark.lake import TABLES, Lake
from penstock.spark.pipeline import Pipeline
from tests.spark.compare import compare
from tests.spark.histories import happen, in_six
from tests.spark.running import kill, program
from tests.spark.served import PATIENCE_S

pytestmark = pytest.mark.long

POINTS = [(when, table) for table in TABLES for when in ("before", "amid", "after")]


class Late:
    """A lake of two days, and an event of the first of them that it has not taken in yet."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark = spark
        self.events, self.root = directory / "events", directory / "lake"
        told = directory / "told"
        asyncio.run(happen(7, told, 80))
        self.events.mkdir()
        first, *rest = in_six(told)
        for path in rest:
            shutil.copy(path, self.events)
        self.run()
        assert len(self.lake().days("gold.queue_minutes")) == 2
        shutil.copy(first, self.events)
        (self.events / f"events-{'b' * 32}-000000000001.jsonl").write_text("broken\n")

    def lake(self) -> Lake:
        return Lake(self.spark, str(self.root)).open()

    def run(self) -> None:
        Pipeline(self.lake()).run(str(self.events))

    def is_whole(self) -> None:
        self.run()
        compare(self.lake(), self.events)
        bad = self.lake().read("bronze.bad")
        assert bad is not None
        assert [(row.line, row.reason) for row in bad.collect()] == [(1, "not an event line")]


@pytest.fixture
def late(spark: SparkSession, tmp_path: Path) -> Late:
    return Late(spark, tmp_path)


def test_a_run_is_killed_at_every_point_and_continued(late: Late) -> None:
    for when, table in POINTS:
        kill(late.events, late.root, when, table)
    late.is_whole()


@pytest.mark.parametrize("table", TABLES)
def test_a_run_that_is_killed_while_it_writes_a_table(late: Late, table: str) -> None:
    """The command as it is, as soon as Spark has begun to write."""
    place = late.root / TABLES[table]
    words = ("pipeline", "run", "--events", str(late.events), "--lake", str(late.root))
    with program(*words, module="penstock.cli.main") as process:
        assert _writes(process, place)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    late.is_whole()


def _writes(process: "subprocess.Popen[str]", place: Path) -> bool:
    """Whether it begins to write there before it ends. Spark tells nobody, so one has to look."""
    until = time.monotonic() + PATIENCE_S
    while process.poll() is None and time.monotonic() < until:
        if any(place.glob(".spark-staging-*")):
            return True
        time.sleep(0.001)
    return False
