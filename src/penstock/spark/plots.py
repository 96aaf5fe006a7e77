"""Plots as text: lines over time, in SVG that is stretched to whatever width there is.

What is written beside the lines is HTML, which is not stretched: it can be read on a telephone too.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from html import escape
from math import floor, log10
from typing import Final

import msgspec

from penstock.model.duration import about_ms

WIDE, HIGH = 1_000, 100  # units of the drawing, whatever size it is shown in
LABELS: Final = 6  # of times, at most
TIMES_S: Final = (
    *(60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200),
    *(86_400 * days for days in (1, 2, 7, 14, 28, 91, 364)),
)
DURATIONS_MS: Final = (
    *(1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000),
    *(86_400_000 * 10**power for power in range(4)),
)
DOTTED: Final = 40  # points, up to which each is marked
COLOURS: Final = (
    *("#2563eb", "#059669", "#d97706", "#dc2626"),
    *("#7c3aed", "#0891b2", "#be185d", "#65a30d"),
)


class Line(msgspec.Struct, frozen=True):
    name: str
    values: Sequence[float | None]  # None: nothing to be drawn there
    rest: bool = False  # of everything that has no line of its own


def plot(times: Sequence[datetime], lines: Sequence[Line], *, durations: bool = False) -> str:
    """Lines over the same times, evenly apart; durations on a logarithmic scale of milliseconds."""
    values = [value for line in lines for value in line.values if value is not None]
    ticks = _durations(values) if durations else _steps(max(values, default=0) or 1)
    low, top = ticks[0], ticks[-1]

    def height(value: float) -> float:
        return log10(max(value, low) / low) / log10(top / low) if durations else value / top

    def across(place: int) -> float:
        return place / (len(times) - 1) if len(times) > 1 else 0.5

    says = about_ms if durations else _number
    grid = "".join(f"<line class=grid x2={WIDE} {_at(height(tick))} />" for tick in ticks)
    scale = "".join(f"<span style=bottom:{height(tick):.1%}>{says(tick)}</span>" for tick in ticks)
    paths = "".join(
        _drawn(line, _colour(place, line), across, height) for place, line in enumerate(lines)
    )
    legend = "".join(
        f'<span class="{_colour(place, line)}"><i></i>{escape(line.name)}</span>'
        for place, line in enumerate(lines)
    )
    return (
        f"<div class=plot><div class=scale>{scale}</div>"
        f'<svg viewBox="0 0 {WIDE} {HIGH}" preserveAspectRatio=none aria-hidden=true>{grid}{paths}</svg>'
        f"<div class=times>{_times(times, across)}</div></div><div class=legend>{legend}</div>"
    )


def _at(height: float) -> str:
    y = f"{HIGH * (1 - height):.1f}"
    return f"y1={y} y2={y}"


def _colour(place: int, line: Line) -> str:
    return "rest" if line.rest else f"c{place % len(COLOURS)}"


def _times(times: Sequence[datetime], across: Callable[[int], float]) -> str:
    """Round ones; the day only where it is another one than before; the ends stay within the plot."""
    made, day = [], None
    for place in _round(times):
        when, where = times[place], across(place)
        edge = " class=left" if where < 0.05 else " class=right" if where > 0.95 else ""
        said = (
            f"{when:%H:%M}" if when.date() == day else f"<b>{when:%b} {when.day}</b> {when:%H:%M}"
        )
        day = when.date()
        made.append(f"<span{edge} style=left:{where:.1%}>{said}</span>")
    return "".join(made)


def _round(times: Sequence[datetime]) -> list[int]:
    """The places of a few times that are round, or of the first one if none is."""
    seconds = [int(each.timestamp()) for each in times]
    for step in TIMES_S:
        found = [
            place
            for place, second in enumerate(seconds)
            if place == 0 or second // step != seconds[place - 1] // step
        ]
        if seconds[0] % step:
            found = found[1:]  # a step began before it
        if len(found) <= LABELS:
            return found or [0]
    return [0]


def _drawn(
    line: Line, colour: str, across: Callable[[int], float], height: Callable[[float], float]
) -> str:
    """A path, and dots where it would not be seen, or where there are few points."""
    path, dots, pen = [], [], "M"
    alone = _alone(line.values)
    for place, value in enumerate(line.values):
        if value is None:
            pen = "M"
            continue
        point = f"{WIDE * across(place):.1f} {HIGH * (1 - height(value)):.1f}"
        path.append(pen + point)
        if place in alone or len(line.values) <= DOTTED:
            dots.append(f"M{point}h0")  # a stroke without length is a dot, since its ends are round
        pen = "L"
    made = f'<path class="line {colour}" d="{"".join(path)}" />'
    return made + (f'<path class="line dots {colour}" d="{"".join(dots)}" />' if dots else "")


def _alone(values: Sequence[float | None]) -> set[int]:
    """Points with nothing on either side, of which no line would be seen."""
    around = [None, *values, None]
    return {
        place
        for place, value in enumerate(values)
        if value is not None and around[place] is None and around[place + 2] is None
    }


def _steps(most: float) -> list[float]:
    """0 and up to five round numbers, the last of which nothing exceeds."""
    size = 10.0 ** floor(log10(most))
    step = next(each for each in (size / 5, size / 2, size, size * 2) if most <= 5 * each)
    many = int(-(-most // step))
    return [step * place for place in range(many + 1)]


def _durations(values: Sequence[float]) -> list[float]:
    """Round ones around all of these."""
    low, high = min(values, default=1), max(values, default=1)
    below = [each for each in DURATIONS_MS if each <= low] or [1]
    above = [each for each in DURATIONS_MS if each >= high and each > below[-1]]
    return [float(each) for each in DURATIONS_MS if below[-1] <= each <= (above or DURATIONS_MS)[0]]


def _number(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
