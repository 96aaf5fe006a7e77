"""The page from rows as gold has them, without Spark: what is drawn, and what is said."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import Row

from penstock.spark import report
from penstock.spark.plots import Line, plot

MIDNIGHT = 1_794_787_200


def minute(at: int, queue: str = "emails", **said: Any) -> Row:
    counts = dict.fromkeys(report.COUNTS, 0)
    rest = {"tenant": "default", "queue": queue, "wait": [], "run": [], "backlog": 0}
    return Row(minute=MIDNIGHT + 60 * at, **(counts | rest | said))


def times(many: int, minutes: int = 1) -> list[datetime]:
    first = datetime.fromtimestamp(MIDNIGHT, UTC) - timedelta(minutes=10)
    return [first + timedelta(minutes=minutes * place) for place in range(many)]


def labels(page: str) -> list[str]:
    inner = page.partition("<div class=times>")[2].partition("</div>")[0]
    return re.findall(r"<span[^>]*>(.*?)</span>", inner)


def scale(page: str) -> list[str]:
    inner = page.partition("<div class=scale>")[2].partition("</div>")[0]
    return re.findall(r"<span[^>]*>(.*?)</span>", inner)


def test_minutes_without_events_have_their_place() -> None:
    rows = [minute(0, pushed=120, backlog=7), minute(3, queue="other", pushed=60, backlog=1)]
    slots, width_s = report._slots(rows)
    assert (len(slots), width_s) == (4, 60)
    assert [slot.counts.get("pushed", 0) for slot in slots.values()] == [120, 0, 0, 60]
    assert [slot.backlog for slot in slots.values()][1:3] == [{"emails": 7}, {"emails": 7}]
    assert list(slots.values())[3].backlog == {"emails": 7, "other": 1}


def test_a_long_time_is_drawn_with_as_many_points_as_can_be_seen() -> None:
    rows = [minute(at, pushed=1, backlog=at) for at in range(report.POINTS * 3 + 1)]
    slots, width_s = report._slots(rows)
    assert width_s == 240
    assert len(slots) <= report.POINTS + 1
    assert sum(slot.counts["pushed"] for slot in slots.values()) == len(rows)


def test_a_moment_has_no_course() -> None:
    assert "<svg" not in report._course([minute(0, pushed=5), minute(0, queue="b", pushed=5)])
    assert "There was none" in report._course([minute(0, pushed=5), minute(1, completed=5)])


def test_queues_beyond_the_largest_are_one_line() -> None:
    rows = [minute(at, queue=f"q{n}", backlog=n) for at in range(2) for n in range(report.TOP + 3)]
    drawn = report._backlog(report._slots(rows)[0])
    assert "3 others" in drawn
    assert ">q3<" in drawn
    assert ">q2<" not in drawn


def test_what_others_named_is_escaped() -> None:
    rows = [minute(at, queue="<b>&", pushed=1, backlog=1) for at in range(2)]
    page = report._course(rows) + report._queues(rows)
    assert "<b>&" not in page
    assert page.count("&lt;b&gt;&amp;") == 2


@pytest.mark.parametrize(
    ("minutes", "many", "wanted"),
    [
        (1, 25, ["<b>Nov 15</b> 23:50", "23:55", "<b>Nov 16</b> 00:00", "00:05", "00:10"]),
        (10, 36, ["<b>Nov 16</b> 00:00", "01:00", "02:00", "03:00", "04:00", "05:00"]),
        (1, 2, ["<b>Nov 15</b> 23:50", "23:51"]),
    ],
)
def test_times_are_round(minutes: int, many: int, wanted: list[str]) -> None:
    found = times(many, minutes)
    assert labels(plot(found, [Line("a", [1.0] * many)])) == wanted


@pytest.mark.parametrize(
    ("most", "wanted"),
    [
        (0, ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        (0.0031, ["0", "0.001", "0.002", "0.003", "0.004"]),
        (12, ["0", "5", "10", "15"]),
        (99_999, ["0", "20k", "40k", "60k", "80k", "100k"]),
    ],
)
def test_scales_are_round_and_nothing_exceeds_them(most: float, wanted: list[str]) -> None:
    assert scale(plot(times(2), [Line("a", [0, most])])) == wanted


def test_durations_are_said_as_people_would() -> None:
    drawn = plot(times(3), [Line("a", [30, None, 200_000])], durations=True)
    assert scale(drawn) == ["10ms", "100ms", "1s", "10s", "1m", "10m"]
    assert scale(plot(times(1), [Line("a", [None])], durations=True)) == ["1ms", "10ms"]


def test_where_nothing_is_known_nothing_is_drawn_and_a_single_point_is_a_dot() -> None:
    values = [1.0] * 50 + [None, 2.0, None] + [1.0] * 50
    drawn = plot(times(len(values)), [Line("a", values)])
    line, dots = re.findall(r' d="(.*?)"', drawn)
    assert line.count("M") == 3
    assert dots.count("h0") == 1
