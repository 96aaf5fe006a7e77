"""Bars on one logarithmic axis, written as SVG by hand: subjects beside each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from typing import Final

WIDTH: Final = 560
LEFT: Final = 150
RIGHT: Final = 70
TOP: Final = 40
ROW: Final = 24
BOTTOM: Final = 46
OURS: Final = "#0b6e99"
LIMIT: Final = "#5b6470"
THEIRS: Final = "#c98a1b"


@dataclass(frozen=True)
class Bar:
    label: str
    median: float
    low: float
    high: float
    colour: str
    text: str  # the median as it is to be read


@dataclass(frozen=True)
class Chart:
    title: str
    axis: str
    bars: Sequence[Bar]


def _amount(value: float) -> str:
    for size, suffix in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g} {suffix}"
    return f"{value:g}"


def _draw(chart: Chart, shift: int) -> list[str]:
    low = floor(log10(min(bar.low for bar in chart.bars)))
    high = max(ceil(log10(max(bar.high for bar in chart.bars))), low + 1)
    inner, height = WIDTH - LEFT - RIGHT, ROW * len(chart.bars)

    def across(value: float) -> float:
        return shift + LEFT + inner * (log10(value) - low) / (high - low)

    parts = [f'<text x="{shift + LEFT}" y="22" class="title">{escape(chart.title)}</text>']
    for power in range(low, high + 1):
        x = across(10.0**power)
        parts.append(f'<path d="M{x:.1f} {TOP}V{TOP + height}" class="grid"/>')
        label = _amount(10.0**power)
        parts.append(f'<text x="{x:.1f}" y="{TOP + height + 16}" class="mid">{label}</text>')
    middle = shift + LEFT + inner / 2
    parts.append(
        f'<text x="{middle}" y="{TOP + height + 36}" class="mid">{escape(chart.axis)}</text>'
    )
    for number, bar in enumerate(chart.bars):
        y = TOP + ROW * number
        begin, end = shift + LEFT, across(bar.median)
        parts.append(
            f'<rect x="{begin}" y="{y + 4}" width="{end - begin:.1f}" height="{ROW - 8}" '
            f'fill="{bar.colour}"/>'
        )
        reach = f"M{across(bar.low):.1f} {y + ROW / 2}H{across(bar.high):.1f}"
        parts.append(f'<path d="{reach}" stroke="#222" stroke-width="1.5"/>')
        label = escape(bar.label)
        parts.append(f'<text x="{begin - 6}" y="{y + 16}" class="end">{label}</text>')
        beyond = max(end, across(bar.high)) + 6
        parts.append(f'<text x="{beyond:.1f}" y="{y + 16}">{escape(bar.text)}</text>')
    return parts


def svg(charts: Sequence[Chart]) -> str:
    """The charts side by side."""
    style = (
        "text{font:12px sans-serif;fill:#222}.title{font-weight:bold}.mid{text-anchor:middle}"
        ".end{text-anchor:end}.grid{stroke:#ddd;stroke-width:1}"
    )
    width = WIDTH * len(charts)
    height = TOP + BOTTOM + ROW * max(len(chart.bars) for chart in charts)
    body = [part for number, chart in enumerate(charts) for part in _draw(chart, number * WIDTH)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
            f"<style>{style}</style>",
            f'<rect width="{width}" height="{height}" fill="#fff"/>',
            *body,
            "</svg>\n",
        ]
    )
