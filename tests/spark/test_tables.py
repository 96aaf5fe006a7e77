"""Gold equals a plain recount of the events, whatever came late, twice or broken, and after a rebuild."""

import asyncio
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.testing.utils import assertDataFrameEqual

from penstock.spark import bronze, silver
from penstock.spark.histogram import bucket, bucket_of, end_of, percentile_of, percentiles
from penstock.spark.lake import TABLES, Lake
from penstock.spark.pipeline import Pipeline
from penstock.spark.report import report
from penstock.spark.state import state_of
from tests.spark.compare import compare
from tests.spark.histories import happen, in_six
from tests.spark.running import kill
from tests.spark.served import ROOT

GOLD = ("gold.queue_minutes", "gold.errors", "gold.workers")


def line(**said: Any) -> str:
    return json.dumps({"v": 1, "store": "a" * 32, "tenant": "t", "queue": "q", **said})


def parsed(spark: SparkSession, *lines: str) -> DataFrame:
    return bronze.parsed(
        spark.createDataFrame([(each, "f") for each in lines], "value string, file string")
    )


# -- transforms ------------------------------------------------------------------------------------


def test_a_line_that_is_no_event_says_why(spark: SparkSession) -> None:
    good = line(position=1, kind="pushed", at=5, count=2, ids=[[1, 2]])
    cases = {
        "{": "not an event line",
        "[]": "not an event line",
        '{"v":"one"}': "not an event line",
        '{"v":7}': "of version 7",
        line(kind="pushed", at=5): "without position",
        line(position=1, kind="danced", at=5): "of the unknown kind danced",
        line(position=1, kind="pushed", at=0): "without a time",
        line(
            position=1, kind="pushed", at=5, count=2, ids=[[1, 3]]
        ): "with another count than its ids have",
        line(position=1, kind="pushed", at=5, count=2, ids=[[1]]): "with ids that are no ranges",
    }
    rows = parsed(spark, good, *cases)
    assert {row.value: row.bad for row in rows.collect()} == {good: None, **cases}


def test_an_event_told_twice_is_one_and_what_it_leaves_out_is_filled_in(
    spark: SparkSession,
) -> None:
    once = line(position=1, kind="pushed", at=86_400_000, count=2, ids=[[1, 2]])
    rows = bronze.events(parsed(spark, once, once)).select(
        "position", "index", "worker", "held", "day"
    )
    wanted = spark.sql("select 1L position, 0 index, '' worker, false held, date'1970-01-02' day")
    assertDataFrameEqual(rows, wanted)


def test_attempts_are_ranges_with_their_times_and_weights(spark: SparkSession) -> None:
    times = {"pushed_at": 10, "ready_at": 20, "claimed_at": 50, "attempt": 2, "worker": "w"}
    rows = silver.attempts(
        bronze.events(
            parsed(
                spark,
                line(position=1, kind="completed", at=90, count=3, ids=[[1, 2], [9, 1]], **times),
                line(position=2, kind="claimed", at=50, count=3, ids=[[1, 2], [9, 1]]),
                line(position=3, kind="dead", at=60, count=1, ids=[[4, 1]], reason="discarded"),
            )
        )
    )
    assertDataFrameEqual(
        rows.select("count", "attempt", "wait_ms", "run_ms", "outcome"),
        spark.sql("select 3L count, 2 attempt, 30L wait_ms, 40L run_ms, 'completed' outcome"),
    )
    assert sorted(row.id for row in silver.one_by_one(rows).collect()) == [1, 2, 9]


def test_buckets_are_the_same_in_spark_and_in_python_and_never_wide(spark: SparkSession) -> None:
    values = [*range(300), *(2**n + d for n in range(8, 42) for d in (-1, 0, 1)), -5]
    rows = spark.createDataFrame([(value,) for value in values], "ms long")
    for row in rows.select("ms", bucket(f.col("ms")).alias("bucket")).collect():
        assert row.bucket == bucket_of(row.ms)
        assert max(row.ms, 0) <= end_of(row.bucket) <= max(row.ms, 0) * 1.032


def test_percentiles_of_a_histogram_are_those_of_its_buckets(spark: SparkSession) -> None:
    shapes: list[list[tuple[int, int]]] = [[(0, 1)], [(3, 98), (70, 2)], [(1, 1), (2, 1)], []]
    rows = spark.createDataFrame(
        [(place, shape) for place, shape in enumerate(shapes)],
        "place int, wait array<struct<bucket:int,count:bigint>>",
    ).withColumns(percentiles("wait"))
    for row in rows.collect():
        shape = dict(shapes[row.place])
        assert row.wait_p50 == percentile_of(shape, 0.5)
        assert row.wait_p99 == percentile_of(shape, 0.99)


# -- the whole way ---------------------------------------------------------------------------------


LONG = [pytest.param(each, marks=pytest.mark.long) for each in range(1, 21) if each != 3]


@pytest.mark.parametrize("seed", [3, *LONG])
def test_gold_is_a_recount_of_the_events(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """Everything that a lake can go through, and what the doctor says of it meanwhile.

    Segments arrive in two runs, the later ones first, some a second time, one damaged. The second run
    is killed where that hurts most: while it replaces the minutes of all days, also of those that
    have no new events but another backlog. (With the first seed the late events are all of one day.)
    """
    told, events, root = tmp_path / "told", tmp_path / "events", tmp_path / "lake"
    asyncio.run(happen(seed, told, 150 if seed != 3 else 80))
    events.mkdir()
    segments = in_six(told)
    pipeline = Pipeline(Lake(spark, str(root)).open())

    for path in segments[2:]:
        shutil.copy(path, events)
    (events / f"events-{'b' * 32}-000000000001.jsonl").write_text(
        '{"v":1,"broken\n\n' + line(kind="x") + "\n"
    )
    pipeline.run(str(events), a_step=1 if seed != 3 else 10)
    compare(pipeline.lake, events)
    assert _bad(pipeline.lake) == [(1, "not an event line"), (3, "without position, at")]
    assert _told(root, "cut_short", "bad_lines", "behind_s") == [False, 2, 0]
    assert _told(root, "unread") == [{"segments": 0, "bytes": 0}]

    for path in segments[:2]:
        shutil.copy(path, events)
    again = segments[2].read_text() + segments[0].read_text()
    (events / f"events-{'c' * 32}-000000000001.jsonl").write_text(again)
    kill(events, root, "amid", "gold.queue_minutes")
    assert pipeline.lake.days("gold.queue_minutes") == []
    (unread, cut_short) = _told(root, "unread", "cut_short")
    assert (unread["segments"], cut_short) == (3, True)
    pipeline.run(str(events))
    compare(pipeline.lake, events)
    _as_described(pipeline.lake)
    assert _told(root, "cut_short", "bad_lines", "behind_s") == [False, 2, 0]

    before = {name: _rows(pipeline.lake, name) for name in GOLD}
    assert pipeline.compact() >= 1
    pipeline.rebuild()
    assert {name: _rows(pipeline.lake, name) for name in GOLD} == before
    page = report(pipeline.lake)
    assert "<svg" in page
    for word in ("http", "src=", "href=", "url(", "@import", "<script"):
        assert word not in page, "nothing is fetched from anywhere"


def _told(root: Path, *names: str) -> list[Any]:
    """By the doctor."""
    found, problems = state_of(str(root))
    assert problems == []
    return [found[name] for name in names]


def test_a_compaction_that_was_cut_short_makes_nothing_count_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Joined rows are there, and those that they were joined from are not forgotten yet."""
    told = tmp_path / "told"
    asyncio.run(happen(98, told, 60))
    segments = in_six(told)
    pipeline = Pipeline(Lake(spark, str(tmp_path / "lake")).open())
    pipeline.derive = lambda days: None  # type: ignore[method-assign]
    for number, some in enumerate((segments[::2], segments[1::2])):
        lines = spark.read.text(list(map(str, some)))
        pipeline.step(lines.select("value", f.col("_metadata.file_path").alias("file")), number)
    pipeline.lake.forget = lambda table, partition: None  # type: ignore[method-assign]
    assert pipeline.compact() >= 1
    Pipeline(pipeline.lake).rebuild()
    compare(pipeline.lake, told)


def test_a_lake_of_another_version_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"version": 99}')
    with pytest.raises(Exception, match="of version 99, and this release writes"):
        Lake(spark, str(tmp_path)).open()


def _rows(lake: Lake, table: str) -> list[Row]:
    rows = lake.read(table)
    return [] if rows is None else sorted(rows.collect(), key=str)


def _bad(lake: Lake) -> list[tuple[int, str]]:
    rows = lake.read("bronze.bad")
    assert rows is not None
    return sorted((row.line, row.reason) for row in rows.collect())


def _as_described(lake: Lake) -> None:
    """Their page names the columns of all tables, and no others."""
    page = (ROOT / "docs" / "reference" / "tables.md").read_text()
    for name in TABLES:
        rows = lake.read(name)
        assert rows is not None, name
        section = page.partition(f"## {name}\n")[2].partition("\n## ")[0]
        table = [each for each in section.splitlines() if each.startswith("| `")]
        described = {word for row in table for word in re.findall(r"`(\w+)`", row.split("|")[1])}
        assert described == set(rows.columns), name
