"""The report: one HTML file that needs nothing else, made from the gold tables.

Numbers come from Spark as a few rows a minute and are drawn here as SVG: no script, no font, no
picture from elsewhere, so it opens from a disk, in a mail and without a network, light or dark.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from penstock.model.duration import about_ms
from penstock.spark.histogram import SHARES, percentile_of
from penstock.spark.lake import Lake
from penstock.spark.plots import COLOURS, Line, plot

POINTS: Final = 360  # of a plot; longer spans are put together
TOP: Final = 7  # queues drawn by themselves; the rest is one
ROWS: Final = 50  # of a table that could be endless
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
    first, last = (datetime.fromtimestamp(row.minute, UTC) for row in (rows[0], rows[-1]))
    span = f"{first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC"
    parts = [
        _tiles(rows),
        _course(rows),
        _queues(rows),
        _errors(lake.read("gold.errors")),
        _workers(lake.read("gold.workers")),
        _bad(lake.read("bronze.bad")),
    ]
    return _page(title, f"<p class=dim>{span}</p>" + "".join(parts))


# -- by time ---------------------------------------------------------------------------------------


def _course(rows: Sequence[Any]) -> str:
    """The plots, if there is more than a moment to be drawn."""
    slots, width_s = _slots(rows)
    if len(slots) < 2:
        return "<p class=dim>All of it happened within a minute, so there is no course to draw.</p>"
    return "".join(
        (
            _throughput(slots, width_s),
            _waits(slots),
            _backlog(slots),
            _failures(slots, width_s),
        )
    )


def _slots(rows: Sequence[Any]) -> tuple[dict[datetime, Slot], float]:
    """Minutes put together so that at most POINTS are drawn; by their beginning.

    Minutes in which nothing happened have no rows, but a place among the others.
    """
    first, last = rows[0].minute, rows[-1].minute
    width_s = 60 * -(-((last - first) // 60 + 1) // POINTS)
    by_slot: dict[int, list[Any]] = defaultdict(list)
    for row in rows:
        by_slot[row.minute // width_s].append(row)
    slots: dict[datetime, Slot] = {}
    left: dict[str, int] = {}
    for number in range(first // width_s, last // width_s + 1):
        slot = slots[datetime.fromtimestamp(number * width_s, UTC)] = Slot()
        for row in by_slot[number]:
            for name in COUNTS:
                slot.counts[name] = slot.counts.get(name, 0) + row[name]
            for into, histogram in ((slot.wait, row.wait), (slot.run, row.run)):
                for pair in histogram or ():
                    into[pair["bucket"]] = into.get(pair["bucket"], 0) + pair["count"]
            left[_name(row)] = row.backlog
        slot.backlog = dict(left)
    return slots, float(width_s)


def _name(row: Any, which: str = "queue") -> str:
    return row[which] if row.tenant == "default" else f"{row.tenant}/{row[which]}"


def _throughput(slots: Mapping[datetime, Slot], width_s: float) -> str:
    lines = _rates(slots, width_s, ("pushed", "claimed", "completed"))
    return _section("Throughput", "jobs a second", plot(list(slots), lines))


def _rates(slots: Mapping[datetime, Slot], width_s: float, names: Sequence[str]) -> list[Line]:
    return [
        Line(name, [slot.counts.get(name, 0) / width_s for slot in slots.values()])
        for name in names
    ]


def _waits(slots: Mapping[datetime, Slot]) -> str:
    made = []
    for title, which in (("Waiting", "wait"), ("Running", "run")):
        lines = [
            Line(label, [percentile_of(getattr(slot, which), share) for slot in slots.values()])
            for label, share in SHARES.items()
        ]
        says = "from ready to claimed" if which == "wait" else "from claimed to completed"
        made.append(_section(title, says, plot(list(slots), lines, durations=True)))
    return "".join(made)


def _backlog(slots: Mapping[datetime, Slot]) -> str:
    most: dict[str, int] = defaultdict(int)
    for slot in slots.values():
        for name, jobs in slot.backlog.items():
            most[name] = max(most[name], jobs)
    ranked = sorted(most, key=lambda name: (-most[name], name))
    shown, others = ranked[:TOP], ranked[TOP:]
    lines = [Line(name, [slot.backlog.get(name, 0) for slot in slots.values()]) for name in shown]
    if others:
        rest = [sum(slot.backlog.get(name, 0) for name in others) for slot in slots.values()]
        lines.append(Line(f"{len(others)} others", rest, rest=True))
    return _section("Backlog", "jobs that are left", plot(list(slots), lines))


def _failures(slots: Mapping[datetime, Slot], width_s: float) -> str:
    lines = _rates(slots, width_s, ("failed", "retried", "dead", "expired"))
    happened = [line for line in lines if any(line.values)]
    drawn = plot(list(slots), happened) if happened else "<p class=dim>There was none.</p>"
    return _section("Failures", "jobs a second", drawn)


# -- tables ----------------------------------------------------------------------------------------


def _tiles(rows: Sequence[Any]) -> str:
    totals = {name: sum(row[name] for row in rows) for name in COUNTS}
    wait, run = _merged(rows, "wait"), _merged(rows, "run")
    seconds = rows[-1].minute - rows[0].minute + 60
    left = {_name(row): row.backlog for row in rows}  # the last of each queue
    tiles = [
        ("pushed", f"{totals['pushed']:,}"),
        ("completed", f"{totals['completed']:,}"),
        ("completed a second", f"{totals['completed'] / seconds:,.3g}"),
        ("retried", f"{totals['retried']:,}"),
        ("dead", f"{totals['dead']:,}"),
        ("left at the end", f"{sum(left.values()):,}"),
        (
            "wait p50 / p99",
            f"{_said(percentile_of(wait, 0.5))} / {_said(percentile_of(wait, 0.99))}",
        ),
        ("run p50 / p99", f"{_said(percentile_of(run, 0.5))} / {_said(percentile_of(run, 0.99))}"),
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
    happened = [each for each in COUNTS if any(row[each] for row in rows)]
    made = []
    for name, own in sorted(by_queue.items()):
        counts = [f"{sum(row[each] for row in own):,}" for each in happened]
        wait, run = _merged(own, "wait"), _merged(own, "run")
        times = [_said(percentile_of(each, share)) for each in (wait, run) for share in (0.5, 0.99)]
        made.append([name, *counts, *times, f"{own[-1].backlog:,}"])
    heads = ["queue", *happened, "wait p50", "wait p99", "run p50", "run p99", "left"]
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
        .limit(ROWS)
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
    return _section("Errors", "by fingerprint", _table(heads, made, texts=(0, 1)))


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
        .orderBy(f.desc("jobs"), "tenant", "worker")
        .limit(ROWS)
        .collect()
    )
    made = [
        [_name(row, "worker"), f"{row.jobs:,}", f"{row.failures:,}", _bar(row.busy)]
        for row in found
    ]
    heads = ["worker", "completed", "failures", "busy"]
    table = _table(heads, made, bars=(3,))
    return _section("Workers", "busy: the share of their minutes in which they held jobs", table)


def _bar(share: float) -> str:
    return f"<i style=width:{min(share, 1):.1%}></i><span>{share:.0%}</span>"


def _bad(bad: DataFrame | None) -> str:
    if bad is None:
        return ""
    many, found = bad.count(), bad.orderBy("file", "line").limit(20).collect()
    made = [
        [row.file.rsplit("/", 1)[-1], str(row.line), row.reason, row.text[:80]] for row in found
    ]
    table = _table(["file", "line", "reason", "text"], made, texts=(0, 2, 3))
    return _section("Lines that are no events", f"{many:,}, kept apart", table)


def _table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    texts: Sequence[int] = (0,),
    bars: Sequence[int] = (),
) -> str:
    """Numbers but for the columns of `texts`; those of `bars` are HTML already."""
    kinds = [
        " class=text" if place in texts else " class=bar" if place in bars else ""
        for place in range(len(heads))
    ]
    head = "".join(
        f"<th{kind}>{escape(each)}</th>" for kind, each in zip(kinds, heads, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{kinds[place]}>{each if place in bars else escape(each)}</td>"
            for place, each in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return (
        f"<div class=wide><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _section(title: str, says: str, body: str) -> str:
    return f"<section><h2>{escape(title)} <small>{escape(says)}</small></h2>{body}</section>"


def _said(ms: int | None) -> str:
    return "–" if ms is None else about_ms(ms)


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
    ":root{color-scheme:light dark;--ink:#1a1c20;--dim:#6b7280;--line:#d7dae0;--ground:#fff;--tile:#f5f6f8;--bar:#2563eb}"
    "@media(prefers-color-scheme:dark){:root{--ink:#e8eaee;--dim:#9aa1ad;--line:#363b45;"
    "--ground:#14161a;--tile:#1d2026;--bar:#5b8def}}"
    "body{margin:0;background:var(--ground);color:var(--ink);font:15px/1.45 system-ui,sans-serif}"
    "main{max-width:1100px;margin:auto;padding:24px}h1{margin:0}h2{margin:28px 0 8px;font-size:18px}"
    "small,.dim{color:var(--dim);font-weight:normal}"
    ".tiles{display:grid;grid-template-columns:repeat(4,1fr);gap:10px}"
    ".tiles div{background:var(--tile);border-radius:8px;padding:10px 14px}"
    ".tiles b{display:block;font-size:20px}.tiles span{color:var(--dim)}"
    ".plot{display:grid;grid-template:200px 24px/4.2em 1fr}.scale,.times{position:relative;"
    "color:var(--dim);font-size:12px;line-height:14px;font-variant-numeric:tabular-nums}"
    ".scale span{position:absolute;right:8px;transform:translateY(50%);white-space:nowrap}"
    ".times{grid-column:2}.times span{position:absolute;top:8px;transform:translateX(-50%);"
    "white-space:nowrap}.times .left{transform:none}.times .right{transform:translateX(-100%)}"
    ".times b{font-weight:600}"
    "svg{width:100%;height:100%;display:block;overflow:visible}"
    "svg .grid{stroke:var(--line)}svg .line{fill:none;stroke:var(--c);stroke-width:1.6;"
    "stroke-linejoin:round;stroke-linecap:round}svg .dots{stroke-width:5}"
    "svg *{vector-effect:non-scaling-stroke}"
    ".legend{display:flex;flex-wrap:wrap;gap:4px 16px;padding:6px 0 0 4.2em;color:var(--dim)}"
    ".legend i{display:inline-block;width:14px;height:3px;background:var(--c);margin-right:6px;"
    "vertical-align:middle}.rest{--c:var(--dim)}.wide{overflow-x:auto}"
    "table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}"
    "th,td{text-align:right;padding:5px 8px;border-bottom:1px solid var(--line);white-space:nowrap;"
    "vertical-align:top}th{color:var(--dim);font-weight:500}.text{text-align:left}"
    "td.text+td.text{white-space:normal;min-width:18em;overflow-wrap:anywhere}"
    "th:first-child,td:first-child{position:sticky;left:0;background:var(--ground);padding-left:0}"
    "th.bar{text-align:left}td.bar{text-align:left;width:34%;min-width:9em}"
    "td.bar i{display:inline-block;height:10px;border-radius:3px;background:var(--bar);"
    "max-width:calc(100% - 3.2em);margin-right:8px}"
    "@media(max-width:640px){main{padding:16px}.tiles{grid-template-columns:1fr 1fr}"
    ".times span:nth-child(even){display:none}"
    "td:first-child{min-width:8em;max-width:11em;white-space:normal;overflow-wrap:anywhere}}"
    + _COLOURS
)
