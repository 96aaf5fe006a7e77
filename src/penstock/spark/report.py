"""The report: one HTML file that needs nothing else, made from the gold tables.

Numbers come from Spark as a few rows a minute and are drawn here as SVG: no script, no font, no
picture from elsewhere, so it opens from a disk, in a mail and without a network, light or dark.
"""

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from penstock.spark.histogram import SHARES, percentile_of
from penstock.spark.lake import Lake
from penstock.spark.plots import COLOURS, Line, bars, plot

POINTS: Final = 360  # of a plot; longer spans are put together
TOP: Final = 8  # queues and workers drawn by themselves; the rest is one
COUNTS: Final = ("pushed", "claimed", "completed", "failed", "retried", "dead", "expired")


class Slot(msgspec.Struct):
    """What happened in a stretch of minutes."""

    counts: dict[str, int] = {}
    wait: dict[int, int] = {}
    run: dict[int, int] = {}
    backlog: dict[str, int] = {}  # by queue, at its end


def report(lake: Lake, title: str = "Penstock") -> str:
    """The page."""
    minutes = lake.read("gold.queue_minutes")
    if minutes is None:
        return _page(title, "<p>There is nothing in this lake yet.</p>")
    # As seconds: a timestamp would come in the time zone of whoever asks.
    rows = (
        minutes.withColumn("minute", f.unix_seconds("minute"))
        .orderBy("minute", "tenant", "queue")
        .collect()
    )
    slots, width_s = _slots(rows)
    parts = [
        _tiles(rows),
        _throughput(slots, width_s),
        _waits(slots),
        _backlog(slots),
        _failures(slots, width_s),
        _queues(rows),
        _errors(lake.read("gold.errors")),
        _workers(lake.read("gold.workers")),
        _bad(lake.read("bronze.bad")),
    ]
    first, last = (datetime.fromtimestamp(row.minute, UTC) for row in (rows[0], rows[-1]))
    span = f"{first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC"
    return _page(title, f"<p class=dim>{span}</p>" + "".join(parts))


# -- by time ---------------------------------------------------------------------------------------


def _slots(rows: Sequence[Any]) -> tuple[dict[datetime, Slot], float]:
    """Minutes put together so that at most POINTS are drawn; by their beginning."""
    first, last = rows[0].minute, rows[-1].minute
    minutes = max((last - first) // 60 + 1, 1)
    width_s = 60 * -(-minutes // POINTS)
    slots: dict[datetime, Slot] = {}
    left: dict[str, int] = {}
    for row in rows:
        begin = datetime.fromtimestamp(row.minute // width_s * width_s, UTC)
        slot = slots.get(begin)
        if slot is None:
            slot = slots[begin] = Slot(backlog=dict(left))
        for name in COUNTS:
            slot.counts[name] = slot.counts.get(name, 0) + row[name]
        for into, histogram in ((slot.wait, row.wait), (slot.run, row.run)):
            for pair in histogram or ():
                into[pair["bucket"]] = into.get(pair["bucket"], 0) + pair["count"]
        left[_name(row)] = slot.backlog[_name(row)] = row.backlog
    return slots, float(width_s)


def _name(row: Any) -> str:
    return row.queue if row.tenant == "default" else f"{row.tenant}/{row.queue}"


def _throughput(slots: dict[datetime, Slot], width_s: float) -> str:
    lines = [
        Line(name, [slot.counts.get(name, 0) / width_s for slot in slots.values()])
        for name in ("pushed", "claimed", "completed")
    ]
    return _section("Throughput", "jobs a second", plot(list(slots), lines))


def _waits(slots: dict[datetime, Slot]) -> str:
    made = []
    for title, which in (("Waiting", "wait"), ("Running", "run")):
        lines = [
            Line(label, [percentile_of(getattr(slot, which), share) for slot in slots.values()])
            for label, share in SHARES.items()
        ]
        says = "ms from ready to claimed" if which == "wait" else "ms from claimed to completed"
        made.append(_section(title, says, plot(list(slots), lines, log=True)))
    return "".join(made)


def _backlog(slots: dict[datetime, Slot]) -> str:
    last: dict[str, int] = defaultdict(int)
    for slot in slots.values():
        for name, jobs in slot.backlog.items():
            last[name] = max(last[name], jobs)
    shown = sorted(last, key=lambda name: -last[name])[:TOP]
    lines = [Line(name, [slot.backlog.get(name, 0) for slot in slots.values()]) for name in shown]
    return _section("Backlog", "jobs left at the end of a minute", plot(list(slots), lines))


def _failures(slots: dict[datetime, Slot], width_s: float) -> str:
    lines = [
        Line(name, [slot.counts.get(name, 0) / width_s for slot in slots.values()])
        for name in ("failed", "retried", "dead", "expired")
    ]
    return _section("Failures", "a second", plot(list(slots), lines))


# -- tables ----------------------------------------------------------------------------------------


def _tiles(rows: Sequence[Any]) -> str:
    totals = {name: sum(row[name] for row in rows) for name in COUNTS}
    wait, run = _merged(rows, "wait"), _merged(rows, "run")
    seconds = max(rows[-1].minute - rows[0].minute + 60, 1)
    tiles = [
        ("pushed", f"{totals['pushed']:,}"),
        ("completed", f"{totals['completed']:,}"),
        ("a second", f"{totals['completed'] / seconds:,.0f}"),
        ("retried", f"{totals['retried']:,}"),
        ("dead", f"{totals['dead']:,}"),
        ("wait p50 / p99", f"{_ms(percentile_of(wait, 0.5))} / {_ms(percentile_of(wait, 0.99))}"),
        ("run p50 / p99", f"{_ms(percentile_of(run, 0.5))} / {_ms(percentile_of(run, 0.99))}"),
    ]
    made = "".join(
        f"<div><b>{escape(value)}</b><span>{label}</span></div>" for label, value in tiles
    )
    return f"<div class=tiles>{made}</div>"


def _merged(rows: Sequence[Any], which: str) -> dict[int, int]:
    whole: dict[int, int] = defaultdict(int)
    for row in rows:
        for pair in row[which] or ():
            whole[pair["bucket"]] += pair["count"]
    return whole


def _queues(rows: Sequence[Any]) -> str:
    by_queue: dict[str, list[Any]] = defaultdict(list)
    for row in rows:
        by_queue[_name(row)].append(row)
    made = []
    for name, own in sorted(by_queue.items()):
        counts = [f"{sum(row[each] for row in own):,}" for each in COUNTS]
        wait, run = _merged(own, "wait"), _merged(own, "run")
        times = [_ms(percentile_of(each, share)) for each in (wait, run) for share in (0.5, 0.99)]
        made.append([name, *counts, *times, f"{own[-1].backlog:,}"])
    heads = ["queue", *COUNTS, "wait p50", "p99", "run p50", "p99", "left"]
    return _section("Queues", "", _table(heads, made))


def _errors(errors: DataFrame | None) -> str:
    if errors is None:
        return ""
    first = f.min_by(f.struct("error_kind", "error_message", "sample_id"), "first_seen")
    found = (
        errors.groupBy("tenant", "queue", "fingerprint")
        .agg(
            f.sum("failures").alias("failures"),
            f.sum("dead").alias("dead"),
            _when(f.min("first_seen")).alias("first"),
            _when(f.max("last_seen")).alias("last"),
            first.alias("sample"),
        )
        .orderBy(f.desc("failures"), "fingerprint")
        .limit(50)
        .collect()
    )
    made = [
        [
            _name(row),
            f"{row['sample']['error_kind']}: {row['sample']['error_message']}"[:120],
            f"{row.failures:,}",
            f"{row.dead:,}",
            row["first"],
            row["last"],
            row.fingerprint,
        ]
        for row in found
    ]
    if not made:
        return ""
    heads = ["queue", "error", "failures", "dead", "first", "last", "fingerprint"]
    return _section("Errors", "by fingerprint", _table(heads, made))


def _when(moment: Column) -> Column:
    return f.date_format(moment, "MM-dd HH:mm")


def _workers(workers: DataFrame | None) -> str:
    if workers is None:
        return ""
    found = (
        workers.groupBy("tenant", "worker")
        .agg(
            f.sum("jobs").alias("jobs"),
            f.sum("failures").alias("failures"),
            f.avg("busy").alias("busy"),
        )
        .orderBy(f.desc("jobs"), "worker")
        .limit(50)
        .collect()
    )
    drawn = bars([(row.worker, row.busy) for row in found[: 2 * TOP]])
    made = [[row.worker, f"{row.jobs:,}", f"{row.failures:,}", f"{row.busy:.0%}"] for row in found]
    heads = ["worker", "completed", "failures", "busy"]
    return _section("Workers", "share of the minutes they held jobs", drawn + _table(heads, made))


def _bad(bad: DataFrame | None) -> str:
    if bad is None:
        return ""
    many, found = bad.count(), bad.orderBy("file", "line").limit(20).collect()
    made = [
        [row.file.rsplit("/", 1)[-1], str(row.line), row.reason, row.text[:80]] for row in found
    ]
    table = _table(["file", "line", "reason", "text"], made)
    return _section("Lines that are no events", f"{many:,}, kept apart", table)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(each)}</th>" for each in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(each)}</td>" for each in row) + "</tr>" for row in rows
    )
    return (
        f"<div class=wide><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _section(title: str, says: str, body: str) -> str:
    return f"<section><h2>{escape(title)} <small>{escape(says)}</small></h2>{body}</section>"


def _ms(value: int | None) -> str:
    if value is None:
        return "–"
    return f"{value / 1_000:.1f} s" if value >= 1_000 else f"{value} ms"


def _page(title: str, body: str) -> str:
    made = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8>"
        f"<meta name=viewport content='width=device-width'><title>{escape(title)}</title>"
        f"<style>{STYLE}</style><main><h1>{escape(title)}</h1>{body}"
        f"<p class=dim>made {made}</p></main></html>"
    )


_COLOURS: Final = "".join(f".c{place}{{--c:{colour}}}" for place, colour in enumerate(COLOURS))
STYLE: Final = (
    ":root{color-scheme:light dark;--ink:#1a1c20;--dim:#6b7280;--line:#d7dae0;--ground:#fff;--tile:#f5f6f8}"
    "@media(prefers-color-scheme:dark){:root{--ink:#e8eaee;--dim:#9aa1ad;--line:#363b45;"
    "--ground:#14161a;--tile:#1d2026}}"
    "body{margin:0;background:var(--ground);color:var(--ink);font:15px/1.45 system-ui,sans-serif}"
    "main{max-width:1100px;margin:auto;padding:24px}h1{margin:0}h2{margin:28px 0 8px;font-size:18px}"
    "small,.dim{color:var(--dim);font-weight:normal}"
    ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(130px,1fr));gap:10px}"
    ".tiles div{background:var(--tile);border-radius:8px;padding:10px 14px}"
    ".tiles b{display:block;font-size:20px}.tiles span{color:var(--dim)}"
    "svg{width:100%;height:auto;display:block}svg text{fill:var(--dim);font-size:11px}"
    "svg .grid{stroke:var(--line);stroke-width:1}svg .line{fill:none;stroke:var(--c);stroke-width:1.6}"
    "svg .bar{fill:var(--c)}.legend{display:flex;flex-wrap:wrap;gap:14px;color:var(--dim)}"
    ".legend i{display:inline-block;width:12px;height:3px;background:var(--c);margin-right:5px;"
    "vertical-align:middle}.wide{overflow-x:auto}"
    "table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}"
    "th,td{text-align:right;padding:4px 10px;border-bottom:1px solid var(--line);white-space:nowrap}"
    "th:first-child,td:first-child,td:nth-child(2){text-align:left}th{color:var(--dim);font-weight:500}"
    + _COLOURS
)
