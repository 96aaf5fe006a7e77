"""Jobs in and out of Spark as rows, and the event log made into tables.

    python -m benchmarks.spark [--quick] [--only rows|tables] [--store memory://] [--directory DIR]

A full run writes `spark.md` (the tables), `spark.json` (every sample) and `spark.svg` into
`results/`; any other only prints.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from benchmarks import _spark_rows as rows
from benchmarks import _spark_tables as tables
from benchmarks._measure import (
    RESULTS,
    TARGET_HEADINGS,
    Figure,
    Report,
    Target,
    interleave,
    machine,
    ratio,
    shown,
    spread,
    table,
    write_json,
)
from benchmarks._plot import Chart, Line, svg
from benchmarks._spark_history import BATCH
from benchmarks._spark_tables import Day
from penstock.spark.session import MASTER, start

MEMORY: Final = "memory://"
WARM: Final = 100_000  # jobs of the run that does not count
LIMIT_S: Final = 300.0
FORMS = COMPACT, EXPANDED = "compact", "one line a job"
SUBJECTS = PIPELINE, MINUTES, DUCKDB = "pipeline", "minutes", "DuckDB"


@dataclass(frozen=True)
class Sizes:
    rows: int  # written, and
    read_rows: int
    rounds: int
    jobs: Sequence[int]  # made into tables; the first of them also with a line for each
    once: int  # from this many jobs on, one run

    def rounds_of(self, jobs: int) -> int:
        return 1 if jobs >= self.once else self.rounds


FULL: Final = Sizes(5_000_000, 500_000, 3, (1_000_000, 10_000_000, 100_000_000), 100_000_000)
QUICK: Final = Sizes(500_000, 100_000, 1, (100_000, 1_000_000), 1_000_000)


# -- rows ------------------------------------------------------------------------------------------


def report_rows(
    report: Report, spark: SparkSession, sizes: Sizes, store: str, directory: Path
) -> None:
    with rows.served(store, directory) as url:
        report.figures += rows.measure(
            spark, url, sizes.rows, sizes.read_rows, sizes.rounds, directory
        )
    report.say("## Rows a second")
    report.say(
        f"{sizes.rows:,} rows written and {sizes.read_rows:,} read, the server in a process of its "
        f"own, store {store}. nothing: an Arrow sink or source in Python that does nothing, the "
        "least that a data source can cost."
    )
    lines = []
    for case in dict.fromkeys(figure.settings["case"] for figure in report.figures):
        nothing, ours, file = (report.pick(case=case, subject=name) for name in rows.SUBJECTS)
        share = ratio(f"{case} ÷ nothing", ours, nothing)
        rates = [shown(each.median, "jobs/s") for each in (nothing, ours, file)]
        lines.append([case, *rates, shown(share.median, "×"), spread(share)])
        if case != rows.READ:
            report.targets.append(Target(f"{case} ÷ nothing", share, 0.5, at_least=True))
    report.say(table(["", *rows.SUBJECTS, "penstock ÷ nothing", "spread"], lines))


# -- tables ----------------------------------------------------------------------------------------


def measured(
    spark: SparkSession, day: Day, form: str, rounds: int, chosen: Sequence[str] = SUBJECTS
) -> list[Figure]:
    """Jobs a second of these subjects, in turn; they agree on what they counted."""
    seconds = {
        PIPELINE: lambda: tables.pipeline(spark, day),
        MINUTES: lambda: tables.minutes(spark, day),
        DUCKDB: lambda: tables.duckdb(day),
    }

    def take(subject: str) -> Sequence[float]:
        spent = seconds[subject]()
        said = f"{subject}, {day.jobs:,} jobs in {day.lines:,} lines: {spent:.1f} s"
        print(said, file=sys.stderr, flush=True)  # so that somebody who waits sees it go on
        return (spent,)

    subjects = {subject: partial(take, subject) for subject in chosen}
    taken = interleave(subjects, rounds)
    assert tables.by_duckdb(spark, day) == 0, "Spark and DuckDB differ"
    return [
        Figure(
            f"{subject} · {day.jobs:,} jobs · {form}",
            "jobs/s",
            tuple(day.jobs / spent for (spent,) in samples),
            {
                "subject": subject,
                "jobs": day.jobs,
                "form": form,
                "lines": day.lines,
                "bytes": day.size,
            },
        )
        for subject, samples in taken.items()
    ]


def report_tables(report: Report, spark: SparkSession, sizes: Sizes, directory: Path) -> None:
    warm = tables.day_of(WARM, directory)
    measured(spark, warm, COMPACT, 1)
    warm.forget()
    smallest, largest = sizes.jobs[0], sizes.jobs[-1]
    for jobs in sizes.jobs:
        day = tables.day_of(jobs, directory)
        report.figures += measured(spark, day, COMPACT, sizes.rounds_of(jobs))
        if jobs == smallest:
            expanded = tables.day_of(jobs, directory, expanded=True)
            report.figures += measured(spark, expanded, EXPANDED, 1, (PIPELINE, DUCKDB))
            assert tables.different(spark, day.lake, expanded.lake) == 0, "the forms differ"
            expanded.forget()
        if jobs == largest:
            say_rebuilt(report, spark, day)
        day.forget()
    say_growth(report, sizes)
    say_forms(report, smallest)


def say_rebuilt(report: Report, spark: SparkSession, day: Day) -> None:
    """What the targets say of the largest size."""
    rate = _pick(report, PIPELINE, day.jobs, COMPACT)
    taken = rate.map(f"tables of {day.jobs:,} jobs", "s", lambda each: day.jobs / each)
    report.targets.append(
        Target(f"tables of {day.jobs:,} jobs by {BATCH:,}", taken, LIMIT_S, at_least=False)
    )
    before = tables.kept(day)
    seconds = Figure("rebuild", "s", (tables.rebuild(spark, day),), {"what": "rebuild"})
    rows = tables.different(spark, before, day.lake)
    other = Figure("rows of gold that a rebuild changed", "rows", (rows,), {"what": "changed"})
    report.figures += [seconds, other]
    report.targets.append(Target(other.name, other, 0, at_least=False))


def say_growth(report: Report, sizes: Sizes) -> None:
    report.say("## Tables: jobs a second")
    report.say(
        f"A day of two tenants with ten queues each and sixteen workers: jobs pushed, claimed and "
        f"acked by {BATCH:,}, one batch in 25 with some that fail, wait and are tried once more; "
        "segments of 64 MiB, by the project's own writer. pipeline: `penstock pipeline run` into "
        "an empty lake, all tables. minutes: gold.queue_minutes alone, by the pipeline's "
        f"transforms, from the segments. DuckDB {tables.duckdb_version()}: the same table from the same files but for its "
        "percentiles, two threads, a process of its own that is not counted until it reads. Its "
        "rows were compared with the pipeline's and are the same. Spark's session has made the "
        f"tables of {WARM:,} jobs before."
    )
    lines = [
        [f"{jobs:,}", *_told(report, jobs, COMPACT), *_alone(report, jobs)] for jobs in sizes.jobs
    ]
    report.say(table(["jobs", *TOLD, "minutes", "DuckDB", "DuckDB ÷ minutes"], lines))
    rebuilt = report.pick(what="rebuild")
    report.say(
        f"Silver and gold of {sizes.jobs[-1]:,} jobs made anew from bronze: "
        f"{shown(rebuilt.median, 's')}."
    )


def say_forms(report: Report, jobs: int) -> None:
    report.say(f"## The same {jobs:,} jobs, one line for each")
    report.say(
        "The same day with the same times, but an event log that knows no ranges: every line "
        "speaks of one job. The pipeline is the same, and so are its gold tables, row by row. The "
        "compact form is the median of its rounds, the other one run."
    )
    shares = {}
    for subject in (PIPELINE, DUCKDB):
        compact, expanded = (_pick(report, subject, jobs, form) for form in (COMPACT, EXPANDED))
        name = f"{subject}, {jobs:,} jobs: {COMPACT} ÷ {EXPANDED}"
        shares[subject] = Figure(name, "×", (compact.median / expanded.median,))
    lines = [
        [
            form,
            *_told(report, jobs, form),
            shown(_pick(report, DUCKDB, jobs, form).median, "jobs/s"),
        ]
        for form in FORMS
    ]
    report.say(table(["", *TOLD, "DuckDB"], lines))
    report.say(
        f"{COMPACT} ÷ {EXPANDED}: pipeline {shown(shares[PIPELINE].median, '×')}, "
        f"DuckDB {shown(shares[DUCKDB].median, '×')}."
    )
    report.targets.append(Target(shares[PIPELINE].name, shares[PIPELINE], 10.0, at_least=True))


TOLD: Final = ("lines", "MB", "pipeline", "spread", "seconds", "lines/s")


def _told(report: Report, jobs: int, form: str) -> list[str]:
    """How many lines, and how the pipeline fares with them."""
    rate = _pick(report, PIPELINE, jobs, form)
    lines = rate.settings["lines"]
    return [
        f"{lines:,}",
        f"{rate.settings['bytes'] / 1e6:,.1f}",
        shown(rate.median, "jobs/s"),
        spread(rate),
        f"{jobs / rate.median:.1f}",
        shown(rate.median * lines / jobs, "jobs/s"),
    ]


def _alone(report: Report, jobs: int) -> list[str]:
    """One table by Spark and by DuckDB."""
    ours, theirs = (_pick(report, subject, jobs, COMPACT) for subject in (MINUTES, DUCKDB))
    rates = [shown(each.median, "jobs/s") for each in (ours, theirs)]
    return [*rates, shown(ratio("", theirs, ours).median, "×")]


def _pick(report: Report, subject: str, jobs: int, form: str) -> Figure:
    return report.pick(subject=subject, jobs=jobs, form=form)


# -- the whole -------------------------------------------------------------------------------------


def plot(report: Report, sizes: Sizes) -> str:
    lines = []
    for subject in SUBJECTS:
        points = [
            (jobs, rate.median, rate.low, rate.high)
            for jobs in sizes.jobs
            for rate in [_pick(report, subject, jobs, COMPACT)]
        ]
        lines.append(Line(subject, points, dashed=subject == DUCKDB))
    smallest = sizes.jobs[0]
    rate = _pick(report, PIPELINE, smallest, EXPANDED)
    lines.append(Line(EXPANDED, [(smallest, rate.median, rate.low, rate.high)]))
    return svg([Chart("events into tables", "jobs of a day", "jobs per second", lines)])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, nothing written")
    parser.add_argument("--only", choices=("rows", "tables"), help="a part, nothing written")
    parser.add_argument("--store", default=MEMORY, help="of the rows: memory://, sqlite, rocksdb")
    parser.add_argument("--directory", type=Path, help="where everything lies meanwhile")
    said = parser.parse_args()
    sizes = QUICK if said.quick else FULL
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    began, report = time.monotonic(), Report()
    facts = ", ".join(f"{name} {value}" for name, value in machine().items())
    report.say("# Spark")
    report.say(
        f"{facts}, PySpark {version('pyspark')}, {MASTER} with the session's own settings, "
        f"{os.cpu_count()} cores with a load of {os.getloadavg()[0]:.1f} before the run. Medians of "
        f"{sizes.rounds} rounds, interleaved, spread = lowest – highest; ratios are medians of each "
        "round's ratio; from "
        f"{sizes.once:,} jobs on, one run. Wall time."
    )
    spark = start()
    with tempfile.TemporaryDirectory(prefix="penstock-spark-", dir=said.directory) as scratch:
        if said.only != "tables":
            report_rows(report, spark, sizes, said.store, Path(scratch))
        if said.only != "rows":
            report_tables(report, spark, sizes, Path(scratch))
    spark.stop()
    report.say("## Targets")
    report.say(table(TARGET_HEADINGS, [target.row() for target in report.targets]))
    load = os.getloadavg()[0]
    report.say(
        f"{'Quick run' if said.quick else 'Run'} of {time.monotonic() - began:.0f} s, with a load "
        f"of {load:.1f} at its end."
    )
    if said.quick or said.only or said.store != MEMORY:
        return  # what a full run found stays
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "spark.md").write_text("\n\n".join(report.parts) + "\n", encoding="utf-8")
    (RESULTS / "spark.svg").write_text(plot(report, sizes), encoding="utf-8")
    write_json("spark", report.figures, report.targets, rounds=sizes.rounds)


if __name__ == "__main__":
    main()
