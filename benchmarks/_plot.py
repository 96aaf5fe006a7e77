"""A line chart with two logarithmic axes, written as SVG by hand: one picture needs no library."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from typing import Final

WIDTH: Final = 560
HEIGHT: Final = 380
LEFT: Final = 64
RIGHT: Final = 150
TOP: Final = 40
BOTTOM: Final = 52
COLOURS: Final = ("#0b6e99", "#d1495b", "#3c8d5a", "#8a6fb0", "#c98a1b", "#5b6470")


@dataclass(frozen=True)
class Line:
    label: str
    points: Sequence[tuple[float, float, float, float]]  # x, median, low, high
    dashed: bool = False


@dataclass(frozen=True)
class Chart:
    title: str
    x: str
    y: str
    lines: Sequence[Line]


def _amount(value: float) -> str:
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g} {suffix}"
    return f"{value:g}"


def _decades(values: Sequence[float]) -> tuple[int, int]:
    low, high = floor(log10(min(values))), ceil(log10(max(values)))
    return low, max(high, low + 1)


def _draw(chart: Chart, shift: int) -> list[str]:
    xs = [point[0] for line in chart.lines for point in line.points]
    ys = [y for line in chart.lines for point in line.points for y in point[1:]]
    (x_low, x_high), (y_low, y_high) = _decades(xs), _decades(ys)
    inner_width, inner_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def across(x: float) -> float:
        return shift + LEFT + inner_width * (log10(x) - x_low) / (x_high - x_low)

    def down(y: float) -> float:
        return TOP + inner_height * (1 - (log10(y) - y_low) / (y_high - y_low))

    parts = [f'<text x="{shift + LEFT}" y="22" class="title">{escape(chart.title)}</text>']
    for power in range(x_low, x_high + 1):
        x = across(10.0**power)
        parts.append(f'<path d="M{x:.1f} {TOP}V{TOP + inner_height}" class="grid"/>')
        label = _amount(10.0**power)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 32}" class="mid">{label}</text>')
    for power in range(y_low, y_high + 1):
        y = down(10.0**power)
        parts.append(f'<path d="M{shift + LEFT} {y:.1f}h{inner_width}" class="grid"/>')
        label = _amount(10.0**power)
        parts.append(f'<text x="{shift + LEFT - 6}" y="{y + 4:.1f}" class="end">{label}</text>')
    middle = shift + LEFT + inner_width / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 12}" class="mid">{escape(chart.x)}</text>')
    turned = f"rotate(-90 {shift + 14} {TOP + inner_height / 2})"
    parts.append(
        f'<text x="{shift + 14}" y="{TOP + inner_height / 2}" class="mid" '
        f'transform="{turned}">{escape(chart.y)}</text>'
    )
    for number, line in enumerate(chart.lines):
        colour = COLOURS[number % len(COLOURS)]
        dash = ' stroke-dasharray="5 4"' if line.dashed else ""
        path = "L".join(f"{across(x):.1f} {down(y):.1f}" for x, y, _, _ in line.points)
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        for x, y, low, high in line.points:
            bar = f"M{across(x):.1f} {down(low):.1f}V{down(high):.1f}"
            parts.append(f'<path d="{bar}" stroke="{colour}" stroke-width="1"/>')
            parts.append(f'<circle cx="{across(x):.1f}" cy="{down(y):.1f}" r="3" fill="{colour}"/>')
        at = TOP + 14 + number * 20
        key = shift + WIDTH - RIGHT + 10
        parts.append(f'<path d="M{key} {at - 4}h18" stroke="{colour}" stroke-width="2"{dash}/>')
        parts.append(f'<text x="{key + 24}" y="{at}">{escape(line.label)}</text>')
    return parts


def svg(charts: Sequence[Chart]) -> str:
    """The charts side by side."""
    style = (
        "text{font:12px sans-serif;fill:#222}.title{font-weight:bold}.mid{text-anchor:middle}"
        ".end{text-anchor:end}.grid{stroke:#ddd;stroke-width:1}"
    )
    width = WIDTH * len(charts)
    body = [part for number, chart in enumerate(charts) for part in _draw(chart, number * WIDTH)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}">',
            f"<style>{style}</style>",
            f'<rect width="{width}" height="{HEIGHT}" fill="#fff"/>',
            *body,
            "</svg>\n",
        ]
    )
