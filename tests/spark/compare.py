"""The gold of a lake beside the recount of the events that it was made of."""

from pathlib import Path
from typing import Any

from pyspark.sql import functions as f

from penstock.model.fingerprint import fingerprint
from penstock.model.job import JobError
from penstock.spark.lake import Lake
from tests.spark import recount

_COUNTS = ("pushed", "claimed", "completed", "failed", "retried", "dead", "cancelled", "expired")
_TIMES = [f"{which}_{label}" for which in ("wait", "run") for label in ("p50", "p95", "p99")]


def compare(lake: Lake, events: Path) -> None:
    """Raises where they differ."""
    lines = [each for each in recount.lines_of(events) if "at" in each and "position" in each]
    wanted = recount.queue_minutes(lines)
    minutes = lake.read("gold.queue_minutes")
    assert minutes is not None
    rows = minutes.withColumn("minute", f.unix_millis("minute")).collect()
    assert {(row.tenant, row.queue, row.minute) for row in rows} == set(wanted)
    for row in rows:
        cell = wanted[row.tenant, row.queue, row.minute]
        for name in (*_COUNTS, "bytes", "backlog"):
            assert row[name] == cell[name], (name, row)
        for name in _TIMES:
            assert row[name] == cell.get(name), (name, row)
    assert _errors(lake) == _marked(recount.errors(lines))
    workers = lake.read("gold.workers")
    assert workers is not None
    found = workers.withColumn("minute", f.unix_millis("minute")).collect()
    assert {(r.tenant, r.worker, r.minute): (r.busy_ms, r.jobs, r.failures) for r in found} == (
        recount.workers(lines)
    )


def _errors(lake: Lake) -> dict[tuple[Any, ...], tuple[int, int]]:
    table = lake.read("gold.errors")
    if table is None:
        return {}
    rows = table.withColumn("hour", f.unix_millis("hour")).collect()
    return {(r.tenant, r.queue, r.hour, r.fingerprint): (r.failures, r.dead) for r in rows}


def _marked(
    found: dict[tuple[str, str, int, str, str], tuple[int, int]],
) -> dict[tuple[Any, ...], Any]:
    merged: dict[tuple[Any, ...], tuple[int, int]] = {}
    for (tenant, queue, hour, kind, message), (failures, dead) in found.items():
        spot = (tenant, queue, hour, fingerprint(JobError(kind=kind, message=message)))
        known = merged.get(spot, (0, 0))
        merged[spot] = known[0] + failures, known[1] + dead
    return merged
