"""Plots as SVG text: lines over time, and bars of shares."""

from collections.abc import Callable, Sequence
from datetime import datetime
from html import escape
from math import log10
from typing import Final

import msgspec

WIDTH: Final = 1_040
HEIGHT: Final = 220
LEFT, RIGHT, TOP, BOTTOM = 64, 8, 8, 22
COLOURS: Final = (
    *("#2563eb", "#059669", "#d97706", "#dc2626"),
    *("#7c3aed", "#0891b2", "#be185d", "#65a30d"),
)


class Line(msgspec.Struct, frozen=True):
    name: str
    values: Sequence[float | None]  # None: nothing to be drawn there


def plot(times: Sequence[datetime], lines: Sequence[Line], *, log: bool = False) -> str:
    """Lines over the same times, with a scale that begins at nothing, or a logarithmic one."""
    most = max((value or 0 for line in lines for value in line.values), default=0) or 1
    ticks = _decades(most) if log else _steps(most)
    top = ticks[-1]

    def height(value: float) -> float:
        share = log10(max(value, 1)) / (log10(max(top, 10)) or 1) if log else value / top
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)

    def across(place: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (place / max(len(times) - 1, 1))

    parts = [
        f"<line class=grid x1={LEFT} x2={WIDTH - RIGHT} y1={height(tick):.1f} y2={height(tick):.1f} />"
        f"<text x={LEFT - 6} y={height(tick) + 4:.1f} text-anchor=end>{_number(tick)}</text>"
        for tick in ticks
    ]
    for place in _labelled(len(times)):
        anchor = "start" if place == 0 else "end" if place == len(times) - 1 else "middle"
        parts.append(
            f"<text x={across(place):.1f} y={HEIGHT - 6} text-anchor={anchor}>"
            f"{times[place]:%m-%d %H:%M}</text>"
        )
    for place, line in enumerate(lines):
        parts.append(
            f'<path class="line c{place % len(COLOURS)}" d="{_path(line, across, height)}" />'
        )
    legend = "".join(
        f"<span class=c{place % len(COLOURS)}><i></i>{escape(line.name)}</span>"
        for place, line in enumerate(lines)
    )
    svg = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role=img>{"".join(parts)}</svg>'
    return f"{svg}<div class=legend>{legend}</div>"


def bars(shares: Sequence[tuple[str, float]]) -> str:
    """A bar for each name, from nothing to all."""
    if not shares:
        return ""
    step, left = 20, 220
    parts = []
    for place, (name, share) in enumerate(shares):
        y = place * step
        width = (WIDTH - left - 60) * min(max(share, 0), 1)
        parts.append(
            f"<text x={left - 8} y={y + 14} text-anchor=end>{escape(name[-34:])}</text>"
            f'<rect class="bar c0" x={left} y={y + 4} width={width:.1f} height={step - 8} rx=3 />'
            f"<text x={left + width + 6:.1f} y={y + 14}>{share:.0%}</text>"
        )
    return f'<svg viewBox="0 0 {WIDTH} {step * len(shares)}" role=img>{"".join(parts)}</svg>'


def _path(line: Line, across: Callable[[int], float], height: Callable[[float], float]) -> str:
    made, pen = [], "M"
    for place, value in enumerate(line.values):
        if value is None:
            pen = "M"
            continue
        made.append(f"{pen}{across(place):.1f} {height(value):.1f}")
        pen = "L"
    if len(made) == 1:  # a single point would not be seen
        made.append("h2")
    return "".join(made)


def _steps(most: float) -> list[float]:
    """0 and up to five round numbers, the last of which nothing exceeds."""
    size = 10.0 ** int(log10(most)) if most >= 1 else 0.1
    for step in (size / 5, size / 2, size, size * 2, size * 5):
        if most <= 5 * step:
            break
    many = int(-(-most // step))
    return [step * place for place in range(many + 1)]


def _decades(most: float) -> list[float]:
    ticks = [1.0]
    while ticks[-1] < most:
        ticks.append(ticks[-1] * 10)
    return ticks if len(ticks) > 1 else [1.0, 10.0]


def _labelled(many: int) -> list[int]:
    if many <= 1:
        return list(range(many))
    return sorted({round(place * (many - 1) / 5) for place in range(6)})


def _number(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
