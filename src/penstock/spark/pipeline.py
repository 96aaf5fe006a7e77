"""From event segments to tables: by Structured Streaming, a step at a time, each of which may be repeated.

A step takes segments that no step has seen, adds their events to bronze, and makes silver and gold of
the days that they touch anew. Spark remembers in its checkpoint which segments a step has; a step that
was cut short is done again with the same segments under the same number, and overwrites what it had
written. So tables are the same whenever and however often the pipeline was killed, whatever came late
or twice: a day's tables are a function of that day's events.
"""

from collections.abc import Callable, Iterable
from datetime import date, timedelta
from time import perf_counter
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from penstock.model.duration import about_ms
from penstock.spark import bronze, silver
from penstock.spark.gold_errors import errors
from penstock.spark.gold_minutes import backlog_before, queue_minutes, with_backlog
from penstock.spark.gold_workers import workers
from penstock.spark.lake import Lake

SEGMENTS: Final = "events-*.jsonl"
A_STEP: Final = 256  # segments
TEXT: Final = 1_000  # characters of a bad line that are kept

Say = Callable[[str], None]


class Pipeline:
    """The tables of one lake, made from one directory of events."""

    def __init__(self, lake: Lake, say: Say = lambda _: None) -> None:
        self.lake = lake
        self.spark: SparkSession = lake.spark
        self._say = say
        self.lines = 0  # of all steps of this run
        self.bad = 0

    # -- runs ------------------------------------------------------------------------------------

    def run(self, events: str, *, follow_s: float | None = None, a_step: int = A_STEP) -> None:
        """Take in every segment that is there; with `follow_s`, look again so often until stopped."""
        lines = (
            self.spark.readStream.format("text")
            .option("pathGlobFilter", SEGMENTS)
            .option("maxFilesPerTrigger", a_step)
            .load(events)
            .select("value", f.col("_metadata.file_path").alias("file"))
        )
        writer = lines.writeStream.foreachBatch(self.step).option(
            "checkpointLocation", self.lake.checkpoint
        )
        if follow_s is None:
            query = writer.trigger(availableNow=True).start()
        else:
            query = writer.trigger(processingTime=f"{follow_s} seconds").start()
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def rebuild(self) -> None:
        """Make silver and gold of every day anew, from bronze alone."""
        self.derive(self.lake.days("bronze.events"))
        self.lake.note(step="rebuild")

    # -- a step ----------------------------------------------------------------------------------

    def step(self, lines: DataFrame, number: int) -> None:
        began = perf_counter()
        rows = bronze.parsed(lines).drop("value").persist()
        try:
            (found,) = bronze.found(rows).collect()
            touched, total = sorted(found.days), found.lines
            self._say(f"step {number}: {total:,} lines, days {_span(touched)}")
            if touched:
                self._add(bronze.events(rows), touched, number)
        finally:
            rows.unpersist()
        bad = self._set_apart(found.files, number) if found.files else 0
        self.lines += total
        self.bad += bad
        self.derive(touched)
        seconds = perf_counter() - began
        self.lake.note(
            step=number,
            lines=total,
            bad=bad,
            days=list(map(str, touched)),
            seconds=round(seconds, 1),
        )
        self._say(
            f"step {number}: done in {about_ms(seconds * 1_000)}"
            + (f", {bad:,} bad lines" if bad else "")
        )

    def _add(self, fresh: DataFrame, days: list[date], number: int) -> None:
        """Add the events that bronze does not have yet from another step."""
        known = self.lake.read("bronze.events", days)
        if known is not None:
            fresh = bronze.unknown(fresh, known.where(f.col("batch") != number))
        rows = fresh.withColumn("batch", f.lit(number).cast("long"))
        self.lake.overwrite("bronze.events", rows, ("day", "batch"))

    def _set_apart(self, files: list[str], number: int) -> int:
        """Keep the bad lines with their file, line and reason; answers how many there are."""
        # Only the files that have any are read again, whole: that is where line numbers are.
        whole = self.spark.read.text(files, wholetext=True).select(
            f.posexplode(f.split("value", "\n")).alias("place", "value"),
            f.col("_metadata.file_path").alias("file"),
        )
        numbered = bronze.parsed(whole.select("value", f.struct("file", "place").alias("file")))
        found = (
            numbered.where(f.col("bad").isNotNull() & (f.col("value") != ""))
            .select(
                f.col("file")["file"].alias("file"),
                (f.col("file")["place"] + 1).alias("line"),
                f.col("bad").alias("reason"),
                f.substring("value", 1, TEXT).alias("text"),
                f.lit(number).cast("long").alias("batch"),
            )
            .persist()
        )
        self.lake.overwrite("bronze.bad", found, ("batch",))
        many = found.count()
        found.unpersist()
        return many

    # -- silver and gold -------------------------------------------------------------------------

    def derive(self, days: Iterable[date]) -> None:
        """Silver and gold of these days, from bronze."""
        touched = set(days)
        days = sorted(touched | self._torn(touched))
        events = self.lake.read("bronze.events", days) if days else None
        if events is None:
            return
        events = self._each_once(events.drop("batch"), days)
        try:
            self._say("silver")
            self.lake.overwrite("silver.attempts", silver.attempts(events))
            self.lake.overwrite("silver.jobs", silver.jobs(events))
            self._say("gold.queue_minutes")
            self._minutes(queue_minutes(events), days)
            self._say("gold.errors")
            self.lake.overwrite("gold.errors", errors(events))
        finally:
            events.unpersist()
        self._say("gold.workers")
        self._workers(days)

    def _each_once(self, events: DataFrame, days: list[date]) -> DataFrame:
        """Only where a compaction was cut short between joining and forgetting are they there twice."""
        batches = map(self.lake.batches, days)
        if any(len(each) > 1 and each[0] < 0 for each in batches):
            return events.dropDuplicates(list(bronze.IDENTITY)).persist()
        return events

    def _torn(self, days: set[date]) -> set[date]:
        """Days whose minutes a killed step had taken away and not put back.

        It gave them a new backlog without an event of theirs, so nothing else says that they are
        to be made again. Spark replaces a partition by deleting it first.
        """
        first = min(days, default=None)
        if first is None or not self.lake.has("gold.queue_minutes"):
            return set()
        missing = set(self.lake.days("bronze.events")) - set(self.lake.days("gold.queue_minutes"))
        return {day for day in missing if day > first}

    def _minutes(self, minutes: DataFrame, days: list[date]) -> None:
        """What is left at the end of a minute is less or more in every later one."""
        known = self.lake.read("gold.queue_minutes")
        first = days[0]
        if known is None:
            before = self.spark.createDataFrame([], "tenant string, queue string, backlog long")
        else:
            before = backlog_before(known.where(f.col("day") < f.lit(first)))
            later = known.where((f.col("day") > f.lit(first)) & ~f.col("day").isin(*days))
            minutes = minutes.unionByName(later.drop("backlog"))
        # Read before it is overwritten: a table is a few rows a minute.
        whole = with_backlog(minutes, before).localCheckpoint()
        self.lake.overwrite("gold.queue_minutes", whole)

    def _workers(self, days: list[date]) -> None:
        """An attempt that ended just after midnight kept its worker busy the day before."""
        day = timedelta(days=1)
        touched = {each - day for each in days} | set(days)
        near = touched | {each + day for each in touched} | {each - day for each in touched}
        attempts = self.lake.read("silver.attempts", near)
        if attempts is None:
            return
        rows = workers(attempts).where(f.col("day").isin(*sorted(touched)))
        self.lake.overwrite("gold.workers", rows)

    # -- compaction ------------------------------------------------------------------------------

    def compact(self) -> int:
        """Join the files of every day that has several steps; answers how many days.

        The joined rows go under a number below zero, which no step has: a step that is done again
        finds its events known and adds nothing. Not while a run is at work on the same lake.
        """
        done = 0
        for day in self.lake.days("bronze.events"):
            batches = self.lake.batches(day)
            if len(batches) < 2:
                continue
            rows = self.lake.read("bronze.events", [day])
            assert rows is not None
            joined = min(0, *batches) - 1
            kept = (
                rows.drop("batch")
                .dropDuplicates(list(bronze.IDENTITY))
                .coalesce(1)
                .sortWithinPartitions(*bronze.IDENTITY)
                .withColumn("batch", f.lit(joined).cast("long"))
            )
            self.lake.overwrite("bronze.events", kept, ("day", "batch"))
            for batch in batches:
                self.lake.forget("bronze.events", f"day={day}/batch={batch}")
            done += 1
            self._say(f"{day}: {len(batches)} steps joined")
        self.lake.note(step="compact", days=done)
        return done


def _span(days: list[date]) -> str:
    if not days:
        return "none"
    return str(days[0]) if len(days) == 1 else f"{days[0]} to {days[-1]}"
