"""Our worker beside those of the other job queues and a bare relay: drain, push to start, pushes.

    python -m benchmarks.worker [--quick] [--peers celery,rq]

A full run writes `worker.md`, `worker.json` and `worker.svg` into `results/`; a quick one, or one of
some peers, only prints. Redis and PostgreSQL are started here, for one round or one run; the peers
are installed on first use, into `benchmarks/.peers/`.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import Final

from benchmarks._bars import LIMIT, THEIRS, Bar, Chart, svg
from benchmarks._bars import OURS as OUR_COLOUR
from benchmarks._environments import HERE
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
from benchmarks._worker_adapter import PAUSE_S, PAYLOAD
from benchmarks._worker_brokers import postgres_program
from benchmarks._worker_peers import BULK, OURS, PEERS, RELAY, Entry, pythons
from benchmarks._worker_round import BLOCK, Round, Rounds

ROUNDS: Final = 5
STARTS: Final = 200  # jobs of a round whose starts are timed


def figures_of(peer: Entry, samples: list[tuple[float, ...]]) -> list[Figure]:
    found = []
    for at, what in enumerate(Round._fields):
        unit = "jobs/s" if what in {"push", "push_many", "drain"} else "ms"
        values = tuple(sample[at] for sample in samples)
        if not any(map(isnan, values)):
            settings = {
                "subject": peer.name,
                "what": what,
                "jobs": peer.jobs,
                "settings": peer.settings,
                "durability": peer.durability,
            }
            found.append(Figure(f"{peer.name} · {what}", unit, values, settings))
    return found


def report_drains(report: Report, ours: Sequence[Entry], peers: Sequence[Entry]) -> None:
    rates = {peer: report.pick(subject=peer.name, what="drain") for peer in (*ours, *peers)}
    best = max(peers, key=lambda peer: rates[peer].median)
    fastest = rates[best]
    for name, bound in (("Penstock", 5.0), ("Penstock batch", 100.0)):
        over = report.pick(subject=name, what="drain")
        what = f"drain of {name} ÷ {best.name}, the fastest peer"
        report.targets.append(Target(what, ratio(what, over, fastest), bound, at_least=True))
    rows = []
    for peer, rate in rates.items():
        share = ratio("", rate, fastest)
        rows.append(
            [
                peer.name,
                shown(rate.median, "jobs/s"),
                spread(rate),
                shown(share.median, "×"),
                f"{peer.jobs:,}",
                peer.durability,
            ]
        )
    report.say("## Drain: jobs a second between the first and the last start, one worker process")
    report.say(table(["", "rate", "spread", "÷ fastest peer", "jobs", "durability"], rows))


def report_starts(report: Report, ours: Sequence[Entry], peers: Sequence[Entry]) -> None:
    rows = []
    what = "push to start ÷ relay, p50"
    for peer in (RELAY, *ours, *peers):
        half = report.pick(subject=peer.name, what="start_p50")
        most = report.pick(subject=peer.name, what="start_p99")
        bare = report.pick(subject=peer.name, what="relay_p50")
        times = ratio(what, half, bare)
        if peer.name == "Penstock":
            on_one = Target(f"{what}, on one core", times, 2.5, at_least=False)
            report.targets.append(on_one)
        row = [_us(half.median), f"{_us(half.low)} – {_us(half.high)}", _us(most.median)]
        spread_of_times = f"{shown(times.low, '×')} – {shown(times.high, '×')}"
        row += [_us(bare.median), shown(times.median, "×"), spread_of_times]
        free = report.pick(subject=peer.name, what="roaming_p50")
        bare = report.pick(subject=peer.name, what="roaming_relay_p50")
        times = ratio(what, free, bare)
        if peer.name == "Penstock":
            report.targets.append(Target(f"{what}, roaming", times, 2.5, at_least=False))
        row += [_us(free.median), _us(bare.median), shown(times.median, "×")]
        rows.append([peer.name, *row])
    report.say("## From before a push to the job's start, on an idle worker")
    headings = ["", "p50", "spread", "p99", "a relay beside it", "p50 ÷ that", "spread"]
    headings += ["roaming, p50", "a relay", "÷"]
    report.say(table(headings, rows))


def report_pushes(report: Report, ours: Sequence[Entry], peers: Sequence[Entry]) -> None:
    rows = []
    for peer in (*ours, *peers):
        rate = report.pick(subject=peer.name, what="push")
        half = report.pick(subject=peer.name, what="push_p50")
        most = report.pick(subject=peer.name, what="push_p99")
        row = [shown(rate.median, "jobs/s"), spread(rate), _us(half.median), _us(most.median)]
        if peer.bulk_by:
            many = report.pick(subject=peer.name, what="push_many")
            row += [shown(many.median, "jobs/s"), spread(many), peer.bulk_by]
        else:
            row += ["–", "–", "not offered"]
        rows.append([peer.name, *row])
    report.say(f"## Pushes by one producer: one by one, and {BULK:,} at a time")
    headings = ["", "one by one", "spread", "p50", "p99", f"by {BULK:,}", "spread", "with"]
    report.say(table(headings, rows))


def report_settings(
    report: Report, everybody: Sequence[Entry], versions: dict[str, dict[str, str]]
) -> None:
    rows = []
    for peer in everybody:
        used = ", ".join(f"{name} {number}" for name, number in versions[peer.name].items())
        rows.append([peer.name, used, peer.settings, peer.durability])
    report.say("## What each was run with")
    report.say(table(["", "versions", "settings", "durability"], rows))


def _us(ms: float) -> str:
    return f"{ms * 1000:,.0f} µs"


# -- the whole -------------------------------------------------------------------------------------


def plot(report: Report, ours: Sequence[Entry], peers: Sequence[Entry]) -> str:
    def bar(peer: Entry, what: str) -> Bar:
        figure = report.pick(subject=peer.name, what=what)
        text = shown(figure.median, "jobs/s") if figure.unit == "jobs/s" else _us(figure.median)
        low, high = figure.low, figure.high
        colour = LIMIT if peer is RELAY else OUR_COLOUR if peer in ours else THEIRS
        return Bar(peer.name, figure.median, low, high, colour, text)

    return svg(
        [
            Chart("drain", "jobs per second", [bar(peer, "drain") for peer in (*ours, *peers)]),
            Chart(
                "push to start, idle worker, p50",
                "milliseconds",
                [bar(peer, "start_p50") for peer in (RELAY, *ours, *peers)],
            ),
        ]
    )


def chosen_peers(names: str) -> tuple[Entry, ...]:
    if not names:
        return PEERS
    wanted = [name.strip().lower() for name in names.split(",")]
    known = {peer.name.lower() for peer in PEERS}
    if unknown := [name for name in wanted if not any(one.startswith(name) for one in known)]:
        raise SystemExit(
            f"no such peer: {', '.join(unknown)}; there are {', '.join(sorted(known))}"
        )
    return tuple(p for p in PEERS if any(p.name.lower().startswith(name) for name in wanted))


def server_versions(peers: Sequence[Entry]) -> str:
    """Of Redis and PostgreSQL, as they say it themselves."""
    programs = []
    if any(peer.broker == "redis" for peer in peers):
        programs.append("redis-server")
    if any(peer.broker.startswith("postgres") for peer in peers):
        programs.append(postgres_program("postgres"))
    said = [
        subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
        for program in programs
    ]
    return ", ".join(" ".join(text.split()[:3]) for text in said)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one short round, nothing written")
    parser.add_argument("--peers", default="", help="only these, by how their names begin")
    parser.add_argument("--directory", type=Path, help="where PostgreSQL keeps its files")
    chosen = parser.parse_args()
    # Told to end, it unwinds: servers, workers and directories go with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    ours, peers = OURS, chosen_peers(chosen.peers)
    subprocess.run([HERE.parent / "tools" / "peers.sh"], check=True)
    environments = pythons((*ours, *peers, RELAY))
    rounds, starts = (1, 40) if chosen.quick else (ROUNDS, STARTS)
    if chosen.quick:
        ours = tuple(each.scaled(0.3) for each in ours)
        peers = tuple(each.scaled(0.3) for each in peers)
    began, report = time.monotonic(), Report()
    with tempfile.TemporaryDirectory(prefix="penstock-", dir=chosen.directory) as name:
        report.say("# The workers")
        facts = ", ".join(f"{key} {value}" for key, value in machine().items())
        report.say(
            f"{facts}, {server_versions(peers)}, {os.cpu_count()} cores with a load of "
            f"{os.getloadavg()[0]:.1f} before the run. Medians of {rounds} rounds, interleaved, "
            "spread = lowest – highest; ratios are medians of each round's ratio. In each round "
            "a subject has a broker, a producer and one worker process of its own, over loopback "
            f"TCP, and nobody else's is about. A no-op with a payload of {len(PAYLOAD)} bytes. "
            "Jobs are pushed, then the worker is started and drains them; then "
            f"{starts} more are pushed, each {PAUSE_S[0] * 1000:.0f} – {PAUSE_S[1] * 1000:.0f} ms "
            f"after the start of the one before, {BLOCK} of them in turn with {BLOCK} of a relay's, "
            "which is there for that alone, all processes on one core; and again with both left where "
            "the scheduler has put them, which after a drain is on all cores for a subject and on one "
            "for the relay. relay: producer, middle and worker on uvloop that pass "
            "on as many bytes as Penstock does for a job, and do nothing with them."
        )
        postgres = any(peer.broker.startswith("postgres") for peer in peers)
        runner = Rounds(Path(name), environments, starts, postgres)
        everybody = (RELAY, *ours, *peers)
        subjects = {peer.name: (lambda peer=peer: runner.run(peer)) for peer in everybody}
        taken = interleave(subjects, rounds)
    for peer in everybody:
        report.figures += figures_of(peer, taken[peer.name])
    report_drains(report, ours, peers)
    report_starts(report, ours, peers)
    report_pushes(report, ours, peers)
    report_settings(report, everybody, runner.versions)
    report.say("## Targets")
    report.say(table(TARGET_HEADINGS, [target.row() for target in report.targets]))
    report.say(f"{'Quick run' if chosen.quick else 'Run'} of {time.monotonic() - began:.0f} s.")
    if chosen.quick or chosen.peers:
        return  # what a full run found stays
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "worker.md").write_text("\n\n".join(report.parts) + "\n", encoding="utf-8")
    (RESULTS / "worker.svg").write_text(plot(report, ours, peers), encoding="utf-8")
    write_json("worker", report.figures, report.targets, rounds=rounds, versions=runner.versions)


if __name__ == "__main__":
    main()
