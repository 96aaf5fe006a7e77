"""The end of the demo: its own events become tables on Spark, and a report."""

import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from penstock.cli.demo.show import in_words
from penstock.model.duration import about_ms
from penstock.model.errors import PenstockError


def tables(console: Console, directory: Path, out: Path) -> None:
    """Run the pipeline over what the server has told, and show a few rows of gold."""
    from penstock.spark.session import opened

    began = time.perf_counter()
    try:
        with console.status("Spark starts") as status, opened(str(directory / "lake")) as lake:
            from penstock.spark.pipeline import Pipeline
            from penstock.spark.report import report

            pipeline = Pipeline(lake, status.update)
            pipeline.run(str(directory / "events"))
            out.write_text(report(lake, "Penstock demo"), encoding="utf-8")
            minutes = lake.read("gold.queue_minutes")
            rows = [] if minutes is None else minutes.orderBy("queue", "minute").collect()
    except PenstockError as error:
        console.print(f"no pipeline: {error}. Everything else works without.")
        return
    table = Table(title="gold.queue_minutes, made by Spark from the events", title_justify="left")
    table.add_column("queue")
    table.add_column("minute")
    for name in ("pushed", "completed", "retried", "dead", "wait p99", "run p99"):
        table.add_column(name, justify="right")
    for row in rows:
        counts = [f"{row[name]:,}" for name in ("pushed", "completed", "retried", "dead")]
        times = [in_words(row[name]) for name in ("wait_p99", "run_p99")]
        table.add_row(row.queue, f"{row.minute:%H:%M}", *counts, *times)
    console.print(table)
    seconds = time.perf_counter() - began
    console.print(
        f"{pipeline.lines:,} event lines in {about_ms(seconds * 1_000)} on Spark. The report: {out}"
    )
