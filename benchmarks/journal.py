"""The durable stores beside the raw limit of their disk: pushes, stalls, memory, restart.

    python -m benchmarks.journal [--quick] [--directory DIR]

A full run writes `journal.md` (the tables), `journal.json` (every sample) and `journal.svg` into
`results/`; a quick one only prints. The stores lie in DIR, a directory of its own by default.
"""

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks import _journal_push as pushes
from benchmarks import _journal_restart as restart
from benchmarks import _journal_stalls as stalls
from benchmarks import _measure as measure
from benchmarks._measure import (
    RESULTS,
    TARGET_HEADINGS,
    Figure,
    Target,
    machine,
    ratio,
    shown,
    spread,
    table,
    write_json,
)
from benchmarks._plot import Chart, Line, svg
from penstock.stores.journal.settings import CACHE_BYTES
from penstock.stores.journal.space import file_system

ROUNDS: Final = 5
BATCHES: Final = (1, 10, 100, 1_000, 10_000)
FLIGHT: Final = 4  # batches in flight
FLIGHTS: Final = (1, 2, 4, 8, 16)  # of the largest batches; the target is that of FLIGHT
PRODUCERS: Final = (1, 4, 16, 64)
RAW: Final = {"sqlite": "bare sqlite", "rocksdb": "bare rocksdb"}
CACHED: Final = CACHE_BYTES // pushes.SIZE  # jobs whose payloads all fit into the cache
JOBS: Final = "jobs"
FSYNCS: Final = "fsyncs a push"


class Report(measure.Report):
    """With the rates of the subjects beside each other."""

    def rate(self, subject: str, case: pushes.Case) -> Figure:
        """Jobs a second; of the bare SQLite that of the page size that did best."""
        found = [
            self.pick(subject=name, case=case.name, what=JOBS)
            for name in pushes.SUBJECTS
            if name == subject or name.startswith(f"{subject},")
        ]
        return max(found, key=lambda figure: figure.median)


@contextmanager
def _room(parent: Path) -> Iterator[Path]:
    """A directory for one measurement; gone with all that it held before the next one."""
    path = Path(tempfile.mkdtemp(prefix="journal-", dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path)


# -- pushes ----------------------------------------------------------------------------------------


def _by_batch() -> list[pushes.Case]:
    return [pushes.Case(f"pushed by {batch:,}", batch, FLIGHT) for batch in BATCHES]


def _by_producers() -> list[pushes.Case]:
    return [pushes.Case(f"{producers} producers", 1, producers) for producers in PRODUCERS]


def report_pushes(report: Report, parent: Path, rounds: int) -> None:
    cases = _by_batch()
    for case in cases:
        with _room(parent) as directory:
            found = pushes.measure([case], directory, rounds)
        report.figures += found
    report.say(f"## Durable pushes by batch, {FLIGHT} in flight: jobs a second")
    report.say(
        table(_push_headings("batch"), [_push_row(report, f"{c.batch:,}", c) for c in cases])
    )
    for kind, raw in RAW.items():
        figure = _against(report, kind, raw, cases[-1])
        what = f"{kind}: push by {cases[-1].batch:,} ÷ {raw}"
        report.targets.append(Target(what, figure, 0.6, at_least=True))


def report_flights(report: Report, parent: Path, rounds: int) -> None:
    """How the largest batches fare with more or fewer of them in flight."""
    batch = BATCHES[-1]
    cases = [pushes.Case(f"{flight} in flight", batch, flight) for flight in FLIGHTS]
    for case in cases:
        with _room(parent) as directory:
            report.figures += pushes.measure([case], directory, rounds)
    report.say(f"## Durable pushes of {batch:,} jobs by how many are in flight: jobs a second")
    rows = [_push_row(report, f"{case.flight}", case) for case in cases]
    report.say(table(_push_headings("in flight"), rows))


def _push_headings(first: str) -> list[str]:
    headings = [first, "bytes a push"]
    for kind, raw in RAW.items():
        headings += [kind, "spread", raw, f"{kind} ÷ {raw}", "spread", f"{kind} ÷ fdatasync"]
    return [*headings, "fdatasync"]


def _push_row(report: Report, label: str, case: pushes.Case) -> list[str]:
    row = [label, f"{report.rate('fdatasync', case).settings['bytes_a_push']:,}"]
    for kind, raw in RAW.items():
        ours, bare = report.rate(kind, case), report.rate(raw, case)
        against = _against(report, kind, raw, case)
        row += [shown(ours.median, ours.unit), spread(ours), shown(bare.median, bare.unit)]
        row += [shown(against.median, "×"), spread(against)]
        row.append(shown(_against(report, kind, "fdatasync", case).median, "×"))
    limit = report.rate("fdatasync", case)
    return [*row, shown(limit.median, limit.unit)]


def _against(report: Report, kind: str, raw: str, case: pushes.Case) -> Figure:
    name = f"{kind} ÷ {raw} · {case.name}"
    return ratio(name, report.rate(kind, case), report.rate(raw, case))


def report_producers(report: Report, parent: Path, rounds: int) -> None:
    cases = _by_producers()
    with _room(parent) as directory:
        report.figures += pushes.measure(cases, directory, rounds)
    report.say("## Producers that push one job at a time: pushes a second")
    rows = [_push_row(report, f"{case.flight}", case) for case in cases]
    report.say(table(_push_headings("producers"), rows))
    rows = []
    for kind in RAW:
        synced = [report.pick(subject=kind, case=case.name, what=FSYNCS) for case in cases]
        rows.append([kind, *(f"1 in {1 / one.median:.1f}" for one in synced)])
        grown = ratio(
            f"{kind} · 64 producers ÷ one",
            report.rate(kind, cases[-1]),
            report.rate(kind, cases[0]),
        )
        report.targets.append(
            Target(f"{kind}: pushes by 64 producers ÷ by one", grown, 5.0, at_least=True)
        )
        report.targets.append(
            Target(
                f"{kind}: pushes an fsync, 64 producers",
                synced[-1].map(f"{kind} · pushes an fsync", "", lambda each: 1 / each),
                16,
                at_least=True,
            )
        )
    report.say("Pushes that share an fsync:")
    report.say(table(["producers", *(f"{case.flight}" for case in cases)], rows))


# -- stalls ----------------------------------------------------------------------------------------


def report_stalls(report: Report, parent: Path, jobs: int, rounds: int, seconds: float) -> None:
    rows = []
    for kind in RAW:
        with _room(parent) as directory:
            report.figures += stalls.measure(kind, jobs, directory, rounds, seconds)
        rows += [
            _stall_row(report, kind, what, share)
            for what in ("stall", "push")
            for share in stalls.SHARES
        ]
        report.targets.append(
            Target(
                f"{kind}: p99.9 of the stalls, checkpoints − none",
                _added(report, kind, "stall", "p99.9"),
                20,
                at_least=False,
            )
        )
    written = ", ".join(
        f"{kind} {report.pick(subject=kind, checkpoints='with', what='checkpoints').median:.0f}"
        for kind in RAW
    )
    report.say("## Stalls of the loop, checkpoints on and off in turn")
    report.say(
        f"{jobs:,} queued jobs, one in {stalls.KEYED} with a key and headers. Two tasks push, "
        f"claim and ack {stalls.BATCH} jobs at a time, {stalls.EDITED} edit jobs drawn from the "
        f"backlog, so that a checkpoint has blocks of all ages to write; {seconds:g} s a sample. "
        f"A checkpoint begins every {stalls.EVERY_BYTES >> 10} KiB of log (64 MiB by default); "
        f"written in a sample: {written}. stall: how late a task is that asks for every "
        f"{stalls.TICK_S * 1000:g} ms; push: until a push is answered."
    )
    headings = ["", "", "with", "spread", "without", "spread", "added", "spread"]
    report.say(table(headings, rows))


def _stall_row(report: Report, kind: str, what: str, share: str) -> list[str]:
    row = [kind, f"{what} {share}"]
    for name in ("with", "without"):
        figure = report.pick(subject=kind, checkpoints=name, what=what, share=share)
        row += [shown(figure.median, "ms"), spread(figure)]
    added = _added(report, kind, what, share)
    return [*row, shown(added.median, "ms"), spread(added)]


def _added(report: Report, kind: str, what: str, share: str) -> Figure:
    over, under = (
        report.pick(subject=kind, checkpoints=name, what=what, share=share).samples
        for name in ("with", "without")
    )
    added = tuple(a - b for a, b in zip(over, under, strict=True))
    return Figure(f"{kind} · {what} {share} · added by checkpoints", "ms", added)


# -- memory and restart ----------------------------------------------------------------------------


def report_restart(report: Report, parent: Path, sizes: Sequence[int]) -> None:
    rows = []
    for jobs in sizes:
        for kind in RAW:
            with _room(parent) as directory:
                report.figures += restart.measure(kind, jobs, directory, drain=jobs == sizes[0])
            rows.append(_restart_row(report, kind, jobs))
    most = sizes[-1]
    for kind in RAW:
        figures = [
            report.pick(subject=kind, jobs=most, step=step, what="bytes_a_job")
            for step in ("fill", "replay", "checkpoint")
        ]
        worst = max(figures, key=lambda figure: figure.median)
        if most > CACHED:
            what = f"{kind}: bytes of memory a job, {most:,} queued"
            report.targets.append(Target(what, worst, 40, at_least=False))
        for step in ("replay", "checkpoint"):
            opened = report.pick(subject=kind, jobs=most, step=step, what="opened_s")
            claimed = report.pick(subject=kind, jobs=most, step=step, what="claim_ms")
            what = f"{kind}: {most:,} jobs opened ({step})"
            report.targets.append(Target(what, opened, 10, at_least=False))
            what = f"{kind}: the first claim of {most:,} ({step})"
            report.targets.append(Target(what, claimed, 100, at_least=False))
    report.say("## Memory and restart")
    report.say(
        f"Jobs of {pushes.SIZE} bytes pushed by {restart.BATCH:,}, without keys; each step in a "
        "fresh process, one run. Memory: growth of `Private_Dirty` in `/proc/self/smaps_rollup`, "
        "the payload cache (64 MiB) included: while pushing, and from before the store was opened. "
        "replay: after a process that ended without closing; checkpoint: after a checkpoint and a "
        "close. Opened: until everything is there and on the disk; claim: the first one after."
    )
    headings = ["jobs", "", "pushed a second", "memory a job"]
    for step in ("replay", "checkpoint"):
        headings += [f"{step}: opened", "claim", "memory a job"]
    report.say(table(headings, rows))
    rows = []
    for kind in RAW:
        figures = [
            report.pick(subject=kind, jobs=sizes[0], step="drain", what=what)
            for what in ("jobs_a_second", "full_mib", "drained_mib", "after_mib", "closed_mib")
        ]
        rows.append([kind, *(shown(figure.median, figure.unit) for figure in figures)])
    report.say(f"## Files after {sizes[0]:,} jobs were claimed and acked")
    report.say(table(["", "acked a second", "full", "drained", "checkpoint", "closed"], rows))


def _restart_row(report: Report, kind: str, jobs: int) -> list[str]:
    def cell(step: str, what: str) -> str:
        figure = report.pick(subject=kind, jobs=jobs, step=step, what=what)
        return shown(figure.median, figure.unit)

    row = [f"{jobs:,}", kind, cell("fill", "jobs_a_second"), cell("fill", "bytes_a_job")]
    for step in ("replay", "checkpoint"):
        row += [cell(step, what) for what in ("opened_s", "claim_ms", "bytes_a_job")]
    return row


# -- the whole -------------------------------------------------------------------------------------


def plot(report: Report) -> str:
    def line(subject: str, cases: Sequence[pushes.Case], *, by_batch: bool) -> Line:
        points = []
        for case in cases:
            rate = report.rate(subject, case)
            at = case.batch if by_batch else case.flight
            points.append((at, rate.median, rate.low, rate.high))
        return Line(subject, points, dashed=subject not in RAW)

    subjects = [*RAW, *RAW.values(), "fdatasync"]
    return svg(
        [
            Chart(
                f"durable pushes, {FLIGHT} in flight",
                "jobs per push",
                "jobs per second",
                [line(subject, _by_batch(), by_batch=True) for subject in subjects],
            ),
            Chart(
                "durable pushes of one job",
                "producers",
                "pushes per second",
                [line(subject, _by_producers(), by_batch=False) for subject in subjects],
            ),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer jobs and rounds, nothing written: about 60 s"
    )
    parser.add_argument("--directory", type=Path, help="where the stores lie: the medium measured")
    chosen = parser.parse_args()
    quick, rounds = chosen.quick, 3 if chosen.quick else ROUNDS
    began = time.monotonic()
    report = Report()
    with tempfile.TemporaryDirectory(prefix="penstock-", dir=chosen.directory) as name:
        parent = Path(name)
        facts = ", ".join(f"{key} {value}" for key, value in machine().items())
        report.say("# The durable stores")
        report.say(
            f"{facts}, file system {file_system(parent)}, {os.cpu_count()} cores with a load of "
            f"{os.getloadavg()[0]:.1f} before the run: a store needs two threads, a bare "
            "engine one, so that a loaded machine counts against the store. "
            f"Medians of {rounds} rounds, interleaved, "
            "spread = lowest – highest; ratios are medians of each round's ratio. Wall time. "
            f"Payloads of {pushes.SIZE} bytes, codec bytes, default options, durability fsync. The "
            "stores are asked through their asyncio interface by one loop; their writer thread "
            "commits whatever has gathered. The bare engines get the same bytes (log records and "
            "payloads as the journal was given them for one push) without threads or hand-over: "
            "as many pushes as are in flight are one value and one commit. Bare SQLite: WAL, "
            f"synchronous=FULL, checkpoints every 16 MiB, pages of "
            f"{', '.join(map(str, pushes.PAGES))} KiB, the best of them shown; bare RocksDB: an "
            "unsynced put and flush_wal(True), memtable 64 MiB, blob files; fdatasync: pwrite and "
            "fdatasync over a file that has been written before."
        )
        report_pushes(report, parent, rounds)
        report_flights(report, parent, rounds)
        report_producers(report, parent, rounds)
        report_stalls(report, parent, 100_000 if quick else 1_000_000, rounds, 1 if quick else 4)
        sizes = (100_000, 1_000_000) if quick else (1_000_000, 10_000_000)
        report_restart(report, parent, sizes)
    report.say("## Targets")
    report.say(table(TARGET_HEADINGS, [target.row() for target in report.targets]))
    took = time.monotonic() - began
    report.say(f"{'Quick run' if quick else 'Run'} of {took:.0f} s.")
    if quick:
        return  # what a full run found stays
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "journal.md").write_text("\n\n".join(report.parts) + "\n", encoding="utf-8")
    (RESULTS / "journal.svg").write_text(plot(report), encoding="utf-8")
    write_json("journal", report.figures, report.targets, rounds=rounds)


if __name__ == "__main__":
    main()
