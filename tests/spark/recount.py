"""The gold tables counted from the raw event lines in plain Python: what Spark's are compared with.

Nothing of `penstock.spark` is used but the edges of the histogram's buckets: every job is counted by
itself, every percentile taken from the sorted durations, every busy millisecond from the union of
spans.
"""

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from penstock.spark.histogram import bucket_of, end_of

MINUTE = 60_000

Line = dict[str, Any]
Cell = dict[str, Any]


def lines_of(*directories: Path) -> list[Line]:
    """Every event of these directories once, in the order of their identity."""
    found: dict[tuple[str, int, int], Line] = {}
    for directory in directories:
        for path in sorted(directory.glob("events-*.jsonl")):
            for text in path.read_text().splitlines():
                try:
                    line = json.loads(text)
                    found[line["store"], line["position"], line.get("index", 0)] = line
                except (ValueError, KeyError, TypeError):
                    continue
    return [found[mark] for mark in sorted(found)]


def queue_minutes(lines: Iterable[Line]) -> dict[tuple[str, str, int], Cell]:
    cells: dict[tuple[str, str, int], Cell] = defaultdict(lambda: defaultdict(int))
    waits: dict[tuple[str, str, int], list[int]] = defaultdict(list)
    runs: dict[tuple[str, str, int], list[int]] = defaultdict(list)
    for line in lines:
        if not line["queue"]:
            continue
        spot = (line["tenant"], line["queue"], line["at"] // MINUTE * MINUTE)
        kind, jobs, cell = line["kind"], line.get("count", 0), cells[spot]
        if kind == "pushed" and line.get("held"):
            cell["bytes"] += line.get("bytes", 0)
            continue
        name = "pushed" if kind == "committed" else kind
        cell[name] += jobs
        if kind == "pushed":
            cell["bytes"] += line.get("bytes", 0)
        if kind == "retried" or (kind == "dead" and line.get("claimed_at")):
            cell["failed"] += jobs
        if kind == "claimed" and line.get("ready_at"):
            waits[spot] += [max(line["at"] - line["ready_at"], 0)] * jobs
        if kind == "completed" and line.get("claimed_at"):
            runs[spot] += [max(line["at"] - line["claimed_at"], 0)] * jobs
    for name, found in (("wait", waits), ("run", runs)):
        for spot, values in found.items():
            values.sort()
            for label, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
                nearest = values[-int(-len(values) * share // 1) - 1]
                cells[spot][f"{name}_{label}"] = end_of(bucket_of(nearest))
    left: dict[tuple[str, str], int] = defaultdict(int)
    for tenant, queue, minute in sorted(cells):
        cell = cells[tenant, queue, minute]
        left[tenant, queue] += cell["pushed"] + cell["redriven"]
        left[tenant, queue] -= sum(
            cell[each] for each in ("completed", "dead", "cancelled", "expired")
        )
        cell["backlog"] = left[tenant, queue]
    return cells


def errors(lines: Iterable[Line]) -> dict[tuple[str, str, int, str, str], tuple[int, int]]:
    """Failures and deaths by tenant, queue, hour, kind and message."""
    found: dict[tuple[str, str, int, str, str], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for line in lines:
        if line["kind"] in ("retried", "dead") and line.get("error_kind"):
            hour = line["at"] // 3_600_000 * 3_600_000
            spot = (
                line["tenant"],
                line["queue"],
                hour,
                line["error_kind"],
                line.get("error_message", ""),
            )
            failures, dead = found[spot]
            found[spot] = failures + line["count"], dead + line["count"] * (line["kind"] == "dead")
    return found


def workers(lines: Iterable[Line]) -> dict[tuple[str, str, int], tuple[int, int, int]]:
    """(busy ms, completed, failures) by tenant, worker and minute."""
    spans: dict[tuple[str, str], set[tuple[int, int]]] = defaultdict(set)
    done: dict[tuple[str, str, int], list[int]] = defaultdict(lambda: [0, 0, 0])
    ends = ("completed", "retried", "dead", "released", "cancelled")
    for line in lines:
        if line["kind"] not in ends or not line.get("claimed_at") or not line.get("worker"):
            continue
        who = (line["tenant"], line["worker"])
        spans[who].add((line["claimed_at"], line["at"]))
        cell = done[*who, line["at"] // MINUTE * MINUTE]
        cell[1] += line["count"] * (line["kind"] == "completed")
        cell[2] += line["count"] * (line["kind"] in ("retried", "dead"))
    for who, own in spans.items():
        covered = 0
        for began, ended in sorted(own):
            at = max(began, covered)
            while at < ended:
                minute = at // MINUTE * MINUTE
                until = min(ended, minute + MINUTE)
                done[*who, minute][0] += until - at
                at = until
            covered = max(covered, ended)
    return {spot: (cell[0], cell[1], cell[2]) for spot, cell in done.items()}
