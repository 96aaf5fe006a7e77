"""What the event log costs on the way of a command, and what a line of it weighs.

    python -m benchmarks.events [--quick] [--dir DIR]

A full run writes `events.md` (the tables), `events.json` (every sample) and `events.svg` into
`results/`; a quick one only prints.
"""

import argparse
import gc
import os
import tempfile
import time
from pathlib import Path

from benchmarks import _events_push as push
from benchmarks._measure import (
    RESULTS,
    ROUNDS,
    Figure,
    Report,
    clock_ns,
    machine,
    ratio,
    shown,
    spread,
    table,
    write_json,
)
from benchmarks._plot import Chart, Line, svg
from penstock.events.segment import encode
from penstock.model.event import Event
from penstock.model.job import IdRun, Ids

EVENTS = 1_000  # encoded in a sample


def encoding(rounds: int) -> Figure:
    """CPU time of making one line, sixty-four at a time as the buffer does."""
    at = time.time_ns() // 1_000_000
    events = [
        Event(
            kind="completed",
            tenant="default",
            queue="work",
            at=at,
            ids=Ids((IdRun(number * 1_000, 1_000),)),
            attempt=1,
            pushed_at=at,
            ready_at=at,
            claimed_at=at,
            worker="w1",
            task="welcome",
            position=number,
        )
        for number in range(64)
    ]
    samples = []
    for _ in range(rounds):
        began = clock_ns()
        for _ in range(EVENTS):
            encode("0" * 32, events)
        samples.append((clock_ns() - began) / EVENTS / len(events))
    return Figure("a line made", "ns", tuple(samples), {"what": "encode"})


def report_commands(report: Report, directory: Path, rounds: int) -> None:
    for store in push.STORES:
        chosen = push.cases([store])
        report.figures += push.measure(chosen, directory / store, rounds)
        rows = []
        for case in chosen:
            for clock in push.CLOCKS:
                nobody, observer, log = (_pick(report, case, clock, who) for who in push.HEARD)
                added = Figure(
                    f"{case.name} · {clock} · log - observer",
                    "ns",
                    tuple(a - b for a, b in zip(log.samples, observer.samples, strict=True)),
                )
                row = [case.label, f"{case.batch:,}", clock]
                row += [shown(one.median, "ns") for one in (nobody, observer, log)]
                row.append(shown(added.median, "ns"))
                for under in (observer, nobody):
                    grown = ratio(f"{case.name} · {clock}", log, under)
                    row += [shown(grown.median, "×"), spread(grown)]
                rows.append(row)
        report.say(f"## {store}: time of a call")
        headings = ["", "batch", "clock", "nobody", "observer", "log", "log - observer"]
        report.say(table([*headings, "log ÷ observer", "spread", "log ÷ nobody", "spread"], rows))


def _pick(report: Report, case: push.Case, clock: str, heard: str) -> Figure:
    return report.pick(
        store=case.store, operation=case.operation, batch=case.batch, clock=clock, heard_by=heard
    )


def report_lines(report: Report, directory: Path, rounds: int) -> None:
    made = encoding(rounds)
    report.figures.append(made)
    report.say("## A line")
    report.say(
        f"Making one: {shown(made.median, 'ns')} ({spread(made)}), CPU time, 64 at a time. Its bytes "
        "on the disk, in the mean, with the names that this benchmark uses:"
    )
    rows = []
    for batch in (1, 1_000):
        sizes = push.line_sizes(directory / f"lines-{batch}", batch)
        for kind, size in sizes.items():
            report.figures.append(Figure(f"{kind} by {batch}", "B", (size,), {"bytes_of": kind}))
            rows.append([kind, f"{batch:,}", f"{size:.0f} B", f"{size / batch:.2f} B"])
    report.say(table(["kind", "jobs a call", "a line", "a job"], rows))


def plot(report: Report) -> str:
    charts = []
    for store in push.STORES:
        lines = []
        for operation in push.OPERATIONS:
            for heard in ("nobody", "log"):
                found = [
                    _pick(report, push.Case(store, batch, operation), "loop", heard)
                    for batch in push.BATCHES
                ]
                points = [
                    (batch, one.median, one.low, one.high)
                    for batch, one in zip(push.BATCHES, found, strict=True)
                ]
                label = f"{push.Case(store, 1, operation).label}, {heard}"
                lines.append(Line(label, points, dashed=heard == "nobody"))
        charts.append(Chart(f"{store}: the loop's thread", "jobs per call", "ns per call", lines))
    return svg(charts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds, nothing written")
    parser.add_argument("--dir", type=Path, default=None, help="where the stores are made")
    said = parser.parse_args()
    rounds = 3 if said.quick else ROUNDS
    began = time.monotonic()
    load = os.getloadavg()[0]
    gc.collect()
    gc.freeze()  # the modules' own objects are nobody's cost
    report = Report()
    facts = ", ".join(f"{name} {value}" for name, value in machine().items())
    report.say("# The event log")
    report.say(
        f"{facts}, {os.cpu_count()} cores with a load of {load:.1f} before the run. Medians of {rounds} "
        "rounds, interleaved, spread = lowest – highest; ratios are medians of each round's ratio. The columns "
        "say who hears of the events: nobody, an observer that does nothing with them (as much as any "
        "server pays, which counts by events), an event log. loop: CPU time of the loop's thread; process: CPU time of all threads, "
        "the event log's and the journal's included; wall: wall time, which other users of the machine "
        f"lengthen. Payloads of {push.SIZE} bytes, codec bytes. memory: calls one after the other; "
        f"sqlite: durability fsync, {push.FLIGHT} calls under way. Segments are sealed by size only."
    )
    with tempfile.TemporaryDirectory(prefix="penstock-events-", dir=said.dir) as scratch:
        for store in push.STORES:
            (Path(scratch) / store).mkdir()
        report_commands(report, Path(scratch), rounds)
        report_lines(report, Path(scratch), rounds)
    report.say(f"{'Quick run' if said.quick else 'Run'} of {time.monotonic() - began:.0f} s.")
    if said.quick:
        return  # what a full run found stays
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "events.md").write_text("\n\n".join(report.parts) + "\n", encoding="utf-8")
    (RESULTS / "events.svg").write_text(plot(report), encoding="utf-8")
    write_json("events", report.figures, report.targets, rounds=rounds)


if __name__ == "__main__":
    main()
