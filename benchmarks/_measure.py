"""Taking figures on a noisy machine: interleaved samples, medians, spread, tables, JSON.

Whatever is compared is sampled in turn, round by round, so that a slow moment of the machine
falls on all alike; a ratio is the median of the ratios of each round. Times are CPU time of the
measuring thread: the work here is one thread without I/O, and the machine has other users.
"""

import gc
import json
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

ROUNDS: Final = 7
RESULTS: Final = Path(__file__).parent / "results"

clock_ns = time.thread_time_ns


@dataclass(frozen=True)
class Figure:
    """Samples of one quantity."""

    name: str
    unit: str
    samples: tuple[float, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def median(self) -> float:
        return median(self.samples)

    @property
    def low(self) -> float:
        return min(self.samples)

    @property
    def high(self) -> float:
        return max(self.samples)

    def map(self, name: str, unit: str, change: Callable[[float], float]) -> "Figure":
        return Figure(name, unit, tuple(map(change, self.samples)), self.settings)


@dataclass(frozen=True)
class Target:
    """A figure beside what it is meant to be."""

    what: str
    figure: Figure
    bound: float
    at_least: bool

    @property
    def ok(self) -> bool:
        value = self.figure.median
        return value >= self.bound if self.at_least else value <= self.bound

    def row(self) -> tuple[str, ...]:
        sign = "≥" if self.at_least else "≤"
        unit = self.figure.unit
        return (
            self.what,
            shown(self.figure.median, unit),
            spread(self.figure),
            f"{sign} {shown(self.bound, unit)}",
            "ok" if self.ok else "MISSED",
        )


TARGET_HEADINGS: Final = ("what", "median", "spread", "target", "")


def ratio(name: str, over: Figure, under: Figure) -> Figure:
    """over ÷ under, round by round."""
    pairs = zip(over.samples, under.samples, strict=True)
    return Figure(name, "×", tuple(a / b for a, b in pairs), over.settings)


def interleave(
    subjects: Mapping[str, Callable[[], Sequence[float]]], rounds: int = ROUNDS, slices: int = 1
) -> dict[str, list[tuple[float, ...]]]:
    """Sample each subject once per round, in turn; a sample may be several numbers.

    A sample is the mean of so many slices, between which the other subjects have theirs: the
    machine changes its pace within a second.
    """
    taken: dict[str, list[tuple[float, ...]]] = {name: [] for name in subjects}
    names = list(subjects)
    for turn in range(rounds):
        shift = turn % len(names)
        parts: dict[str, list[Sequence[float]]] = {name: [] for name in subjects}
        gc.collect()
        for _ in range(slices):
            for name in names[shift:] + names[:shift]:
                parts[name].append(subjects[name]())
        for name in names:
            taken[name].append(tuple(map(fmean, zip(*parts[name], strict=True))))
    return taken


def repeats(once: Callable[[int], float], target_ns: float, most: int) -> int:
    """How often to repeat so that a sample takes about that long; `once(n)` answers its ns."""
    n = 1
    while True:
        spent = once(n)
        if spent >= target_ns / 10 or n >= most:
            return max(1, min(most, round(n * target_ns / max(spent, 1))))
        n = min(most, n * 4)


# -- showing ---------------------------------------------------------------------------------------


def shown(value: float, unit: str) -> str:
    if unit == "×":
        return f"{value:.2f}×"
    if unit == "jobs/s":
        return _short(value)
    if unit == "ns":
        return f"{value / 1000:.2f} µs"
    return f"{value:.1f} {unit}"


def _short(value: float) -> str:
    for size, suffix in ((1e6, " M"), (1e3, " k")):
        if value >= size:
            scaled = value / size
            return f"{scaled:.{2 if scaled < 10 else 1 if scaled < 100 else 0}f}{suffix}"
    return f"{value:.0f}"


def spread(figure: Figure) -> str:
    if len(figure.samples) == 1:
        return "one run"
    return f"{shown(figure.low, figure.unit)} – {shown(figure.high, figure.unit)}"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, aligned to be read as it is."""
    lines = [list(headings), *map(list, rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(headings))]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return f"| {' | '.join(padded)} |"

    rule = [
        ("-" * width) if at == 0 else "-" * (width - 1) + ":" for at, width in enumerate(widths)
    ]
    return "\n".join([line(lines[0]), line(rule), *map(line, lines[1:])])


# -- keeping ---------------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    import msgspec

    from penstock import __version__

    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for text in cpuinfo.read_text().splitlines():
            if text.startswith("model name"):
                model = text.split(":", 1)[1].strip()
                break
    return {
        "penstock": __version__,
        "python": platform.python_version(),
        "msgspec": msgspec.__version__,
        "system": f"{platform.system()} {platform.release()}",
        "cpu": model,
    }


def write_json(
    name: str, figures: Iterable[Figure], targets: Iterable[Target], **more: Any
) -> None:
    RESULTS.mkdir(exist_ok=True)
    body = {
        **more,
        "machine": machine(),
        "targets": [
            {
                "what": target.what,
                "median": target.figure.median,
                "unit": target.figure.unit,
                "bound": target.bound,
                "at_least": target.at_least,
                "ok": target.ok,
            }
            for target in targets
        ],
        "figures": [
            {**asdict(figure), "median": figure.median, "low": figure.low, "high": figure.high}
            for figure in figures
        ],
    }
    text = json.dumps(body, indent=1, ensure_ascii=False)
    (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")


class Report:
    """What is printed is also what the file of results holds."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.figures: list[Figure] = []
        self.targets: list[Target] = []

    def say(self, text: str) -> None:
        self.parts.append(text)
        print(text, end="\n\n", flush=True)

    def pick(self, **settings: object) -> Figure:
        """The one figure with these settings."""
        (found,) = (
            figure
            for figure in self.figures
            if all(figure.settings.get(name) == value for name, value in settings.items())
        )
        return found
