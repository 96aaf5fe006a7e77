"""The kernel beside a heap of objects and the oracle: speed, memory, growth.

    python -m benchmarks.kernel [--quick]

A full run writes `kernel.md` (the tables), `kernel.json` (every sample) and `kernel.svg` into
`results/`; a quick one only prints.
"""

import argparse
import asyncio
import gc
import time
from collections.abc import Sequence
from typing import Final

from benchmarks import _kernel_growth as growth
from benchmarks import _kernel_memory as memory
from benchmarks import _kernel_speed as speed
from benchmarks._measure import (
    RESULTS,
    ROUNDS,
    TARGET_HEADINGS,
    Figure,
    Report,
    Target,
    machine,
    ratio,
    shown,
    spread,
    table,
    write_json,
)
from benchmarks._plot import Chart, Line, svg

SAME: Final = "same options"
THREE: Final = "three alternating priorities"


def batches(work: str) -> tuple[int, ...]:
    """A batch of one has one priority."""
    return speed.BATCHES if work == SAME else speed.BATCHES[1:]


async def report_speed(report: Report, slices: int, rounds: int) -> None:
    # A coroutine because the oracle asks for the running loop.
    for name, priorities in ((SAME, (0,)), (THREE, (0, 1, 2))):
        rows = []
        for batch in batches(name):
            work = speed.Work(name, batch, priorities)
            report.figures += speed.measure(work, slices=slices, rounds=rounds)
            rows += [_speed_row(report, name, batch, operation) for operation in speed.OPERATIONS]
        report.say(f"## Jobs per second, {name}")
        headings = ["batch", "operation"]
        for label in speed.LABELS.values():
            headings += [label, "spread"]
        report.say(table([*headings, "kernel ÷ heap", "spread"], rows))
    for what, name, batch, bound in (
        ("push+claim+ack by 1,000, same options, ÷ heap", SAME, 1_000, 20.0),
        ("push+claim+ack by 1,000, three alternating priorities, ÷ heap", THREE, 1_000, 5.0),
        ("push+claim+ack one by one, through apply, ÷ heap", SAME, 1, 0.45),
    ):
        figure = _against_heap(report, name, batch, "cycle")
        report.targets.append(Target(what, figure, bound, at_least=True))


def _against_heap(report: Report, work: str, batch: int, operation: str) -> Figure:
    ours, heap = (
        report.pick(work=work, batch=batch, operation=operation, subject=subject)
        for subject in ("kernel", "heap")
    )
    return ratio(f"{work} · {operation} by {batch:,} · kernel ÷ heap", ours, heap)


def _speed_row(report: Report, work: str, batch: int, operation: str) -> list[str]:
    whole = "push+claim+ack" if operation == "cycle" else operation
    row = [f"{batch:,}", whole]
    for subject in speed.SUBJECTS:
        if subject == "oracle" and batch > speed.ORACLE_BATCH:
            row += ["–", ""]
            continue
        figure = report.pick(work=work, batch=batch, operation=operation, subject=subject)
        row += [shown(figure.median, figure.unit), spread(figure)]
    against = _against_heap(report, work, batch, operation)
    return [*row, shown(against.median, "×"), spread(against)]


def report_memory(report: Report, jobs: int) -> None:
    figures = memory.measure(jobs)
    report.figures += figures
    rows = []
    for case, (what, bound) in memory.CASES.items():
        mine = [figure for figure in figures if figure.settings["case"] == case]
        worst = max(mine, key=lambda figure: figure.median)
        target = Target(f"{what}: bytes a job over its payload", worst, bound, at_least=False)
        report.targets.append(target)
        measured = [f"{figure.median:.1f} B ({figure.settings['jobs']:,})" for figure in mine]
        rows.append([what, *measured, f"≤ {bound:.0f} B", "ok" if target.ok else "MISSED"])
    report.say("## Bytes per queued job over its payload, at the memory store")
    report.say(
        f"Payloads of {memory.SIZE} bytes, codec bytes, no keys, events off. Each case in a fresh "
        "process, one run (it hardly varies). rss: growth of `Private_Dirty` in "
        "`/proc/self/smaps_rollup`, what the allocators waste included; tracemalloc: what Python "
        "allocated. In brackets how many jobs; delays are distinct, shuffled, within a day."
    )
    report.say(table(["", "rss", "tracemalloc", "target", ""], rows))


def report_growth(report: Report, sizes: Sequence[int], rounds: int) -> None:
    figures = growth.claims(sizes, rounds)
    report.figures += figures
    rows = []
    for priorities, work in ((1, SAME), (3, THREE)):
        for n in (1, 1_000):
            found = [report.pick(claim_of=n, queued=q, priorities=priorities) for q in sizes]
            grown = ratio(f"{work} · claim of {n:,}, most ÷ fewest queued", found[-1], found[0])
            cells = [f"{shown(one.median, 'ns')} ({spread(one)})" for one in found]
            rows.append([f"{work}, claim of {n:,}", *cells, f"{shown(grown.median, '×')}"])
            what = f"claim of {n:,} ({work}) with {sizes[-1]:,} queued ÷ with {sizes[0]:,}"
            report.targets.append(Target(what, grown, 1.5, at_least=False))
    report.say("## Claims as the queue grows")
    report.say(
        f"CPU time per claim, queues filled by {growth.BATCH:,}, leases left open, retention by "
        "default, events off."
    )
    report.say(table(["", *(f"{size:,} queued" for size in sizes), "last ÷ first"], rows))
    ends = (sizes[0], sizes[-1])
    touched = growth.touches(ends, rounds)
    report.figures += touched
    rows = []
    for name in growth.TOUCHES:
        found = [report.pick(operation=name, queued=size) for size in ends]
        cells = [f"{shown(one.median, 'ns')} ({spread(one)})" for one in found]
        rows.append([name, *cells])
        what = f"{name} of one of {ends[-1]:,} queued jobs"
        report.targets.append(Target(what, found[-1], 10_000, at_least=False))
    report.say("## One job among many")
    report.say("CPU time per call, jobs drawn at random, one per call, through `apply`.")
    report.say(table(["", *(f"{size:,} queued" for size in ends)], rows))


def plot(report: Report, sizes: Sequence[int]) -> str:
    def points(work: str, subject: str) -> list[tuple[float, float, float, float]]:
        found: list[tuple[float, float, float, float]] = []
        for batch in batches(work):
            if subject == "oracle" and batch > speed.ORACLE_BATCH:
                continue
            one = report.pick(work=work, batch=batch, operation="cycle", subject=subject)
            found.append((batch, one.median, one.low, one.high))
        return found

    rates = [
        Line(label, points(work, subject), dashed=work != SAME)
        for subject, work, label in (
            ("kernel", SAME, "kernel"),
            ("heap", SAME, "heap"),
            ("store", SAME, "memory store"),
            ("oracle", SAME, "oracle"),
            ("kernel", THREE, "kernel, 3 prio."),
            ("heap", THREE, "heap, 3 prio."),
        )
    ]
    costs = []
    for priorities, suffix in ((1, ""), (3, ", 3 prio.")):
        for n in (1, 1_000):
            found = [report.pick(claim_of=n, queued=q, priorities=priorities) for q in sizes]
            line = [
                (size, one.median, one.low, one.high)
                for size, one in zip(sizes, found, strict=True)
            ]
            costs.append(Line(f"claim of {n:,}{suffix}", line, dashed=priorities > 1))
    return svg(
        [
            Chart("push + claim + ack", "jobs per call", "jobs per second", rates),
            Chart("claims as the queue grows", "jobs queued", "ns per claim", costs),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer jobs and rounds, nothing written: about 20 s"
    )
    quick = parser.parse_args().quick
    rounds = 3 if quick else ROUNDS
    sizes = growth.SIZES[:3] if quick else growth.SIZES
    began = time.monotonic()
    gc.collect()
    gc.freeze()  # the modules' own objects are nobody's cost
    report = Report()
    facts = ", ".join(f"{name} {value}" for name, value in machine().items())
    report.say("# The kernel")
    report.say(
        f"{facts}. Medians of {rounds} rounds, finely interleaved, spread = lowest – highest; ratios are "
        "medians of each round's ratio. CPU time of one thread, garbage collection on. Payloads "
        f"of {len(speed.PAYLOAD)} bytes, codec bytes, default options but the priority, retention by "
        f"default (the last {speed.KEPT:,} finished jobs are kept, and full from the start), "
        f"leases of {speed.LEASE_MS // 1000} s, events off, no durability. push, claim and ack alone: "
        f"{speed.DEPTH:,} jobs are pushed, then all claimed, then all acked (oracle: "
        f"{speed.ORACLE_JOBS}, a new one each time); push+claim+ack: batch after batch. The kernel is measured through "
        "`apply`, commands and tokens made in the loop; payload bytes lie outside it. The memory "
        "store adds checks, payloads and the lease as its claimer gets it."
    )
    asyncio.run(report_speed(report, 2 if quick else 8, rounds))
    report_memory(report, 50_000 if quick else 1_000_000)
    report_growth(report, sizes, rounds)
    report.say("## Targets")
    report.say(table(TARGET_HEADINGS, [target.row() for target in report.targets]))
    took = time.monotonic() - began
    report.say(f"{'Quick run' if quick else 'Run'} of {took:.0f} s.")
    if quick:
        return  # what a full run found stays
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "kernel.md").write_text("\n\n".join(report.parts) + "\n", encoding="utf-8")
    (RESULTS / "kernel.svg").write_text(plot(report, sizes), encoding="utf-8")
    write_json("kernel", report.figures, report.targets, rounds=rounds)


if __name__ == "__main__":
    main()
