"""Where the tables lie: Parquet under one directory, on whatever file system Spark can reach.

    bronze/events/day=…/batch=…    every event line once; `batch` is the run's step that brought it
    bronze/bad/batch=…             lines that are none: file, line, reason, text
    silver/attempts/day=…          silver/jobs/day=…
    gold/queue_minutes/day=…       gold/errors/day=…          gold/workers/day=…
    manifest.json                  the version of all this, and the latest steps
    _checkpoint/                   which segments have been read

A day is overwritten whole or not at all, so every step may be done again. What a version change needs:
raise VERSION, say below what changed, and have `Lake.open` refuse older lakes with the advice to build
them anew from the events.

Version 1: as above.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from penstock.model.errors import Invalid

VERSION: Final = 1
STEPS: Final = 100  # that the manifest remembers

TABLES: Final = {
    "bronze.events": "bronze/events",
    "bronze.bad": "bronze/bad",
    "silver.attempts": "silver/attempts",
    "silver.jobs": "silver/jobs",
    "gold.queue_minutes": "gold/queue_minutes",
    "gold.errors": "gold/errors",
    "gold.workers": "gold/workers",
}


class Lake:
    def __init__(self, spark: SparkSession, root: str) -> None:
        self.spark = spark
        self.root = root.rstrip("/")
        self._hadoop: Any = spark._jvm.org.apache.hadoop.fs  # type: ignore[union-attr]
        path = self._hadoop.Path(self.root)
        self._files = path.getFileSystem(spark._jsc.hadoopConfiguration())

    def open(self) -> "Lake":
        """Ready for use, or a sentence that says why not."""
        version = self.manifest().get("version", VERSION)
        if version != VERSION:
            raise Invalid(
                f"{self.root} is a lake of version {version}, and this release writes version"
                f" {VERSION}: build another one from the events",
                "lake",
            )
        return self

    def path(self, table: str) -> str:
        return f"{self.root}/{TABLES[table]}"

    @property
    def checkpoint(self) -> str:
        return f"{self.root}/_checkpoint"

    # -- tables ----------------------------------------------------------------------------------

    def has(self, table: str) -> bool:
        return bool(self._files.exists(self._hadoop.Path(self.path(table))))

    def read(self, table: str, days: Iterable[date] | None = None) -> DataFrame | None:
        """A table, or some of its days; None if it is not there."""
        if not self.has(table) or not self.partitions(table):
            return None
        rows = self.spark.read.parquet(self.path(table))
        return rows if days is None else rows.where(f.col("day").isin(*sorted(days)))

    def overwrite(self, table: str, rows: DataFrame, by: Sequence[str] = ("day",)) -> None:
        """Put the partitions that the rows are of in the place of those of before."""
        (
            rows.write.mode("overwrite")
            .option("partitionOverwriteMode", "dynamic")
            .partitionBy(*by)
            .parquet(self.path(table))
        )

    def partitions(self, table: str) -> list[str]:
        """The names of the first level, `day=2026-11-16`."""
        path = self._hadoop.Path(self.path(table))
        if not self._files.exists(path):
            return []
        names = (each.getPath().getName() for each in self._files.listStatus(path))
        return sorted(name for name in names if "=" in name)

    def days(self, table: str) -> list[date]:
        names = self.partitions(table)
        return [date.fromisoformat(name.partition("=")[2]) for name in names if name[:4] == "day="]

    def batches(self, day: date) -> list[int]:
        """The steps that brought events of a day."""
        path = self._hadoop.Path(f"{self.path('bronze.events')}/day={day}")
        names = [each.getPath().getName() for each in self._files.listStatus(path)]
        return sorted(int(name.partition("=")[2]) for name in names if name.startswith("batch="))

    def forget(self, table: str, partition: str) -> None:
        self._files.delete(self._hadoop.Path(f"{self.path(table)}/{partition}"), True)

    # -- the manifest ----------------------------------------------------------------------------

    def manifest(self) -> dict[str, Any]:
        path = self._hadoop.Path(f"{self.root}/manifest.json")
        if not self._files.exists(path):
            return {}
        stream = self._files.open(path)
        try:
            text = self.spark._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")  # type: ignore[union-attr]
        finally:
            stream.close()
        return json.loads(text)  # type: ignore[no-any-return]

    def note(self, **step: Any) -> None:
        """Write down what a step did. The manifest is for people: nothing rests on it."""
        known = self.manifest()
        said = {"at": datetime.now(UTC).isoformat(timespec="seconds"), **step}
        steps = [*known.get("steps", ()), said][-STEPS:]
        text = json.dumps({"version": VERSION, "tables": TABLES, "steps": steps}, indent=1)
        path = self._hadoop.Path(f"{self.root}/manifest.json")
        fresh = self._hadoop.Path(f"{self.root}/_manifest.json")
        out = self._files.create(fresh, True)
        try:
            out.write(bytearray(text.encode()))
        finally:
            out.close()
        self._files.delete(path, False)
        self._files.rename(fresh, path)
