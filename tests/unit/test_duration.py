"""Durations as people say them, and back."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.checks_values import show
from penstock.model.duration import about_ms, duration_ms, say_ms
from penstock.model.errors import Invalid
from penstock.model.policy import DAY_MS, HOUR_MS, MAX_DURATION_MS, MINUTE_MS


def test_a_measured_duration_is_said_in_its_largest_unit() -> None:
    measured = (0, 0.34, 999, 1_040, 61_000, 5_400_000, 864_000_000)
    assert [*map(about_ms, measured)] == ["0ms", "0.3ms", "999ms", "1s", "1m", "1.5h", "10d"]


@pytest.mark.parametrize(
    ("said", "ms"),
    [
        ("250ms", 250),
        ("30s", 30_000),
        ("90s", 90_000),
        ("5m", 5 * MINUTE_MS),
        ("1h30m", 90 * MINUTE_MS),
        ("2d", 2 * DAY_MS),
        ("1d2h3m4s5ms", DAY_MS + 2 * HOUR_MS + 3 * MINUTE_MS + 4_005),
        ("1h5ms", HOUR_MS + 5),
        ("1.5h", 90 * MINUTE_MS),
        ("0.1s", 100),
        ("0s", 0),
        ("0", 0),
        ("36600d", MAX_DURATION_MS),
        (0, 0),
        (90, 90_000),
        (0.25, 250),
        (1e-9, 1),
        (0.1 + 0.2, 300),
        (timedelta(minutes=5), 5 * MINUTE_MS),
        (timedelta(days=36_600), MAX_DURATION_MS),
        (timedelta(microseconds=1), 1),
        (timedelta(0), 0),
    ],
)
def test_a_duration_is_read(said: Any, ms: int) -> None:
    read = duration_ms(said)
    assert read == ms
    assert type(read) is int


@pytest.mark.parametrize(
    "said",
    [
        "",
        " ",
        "90",
        "1.5",
        "s",
        "ms",
        "-5s",
        "+5s",
        "5 s",
        " 5s",
        "5s\n",
        "5S",
        "30m1h",
        "5s5s",
        "1e3s",
        ".5s",
        "5.s",
        "٣s",
        "1w",
        "soon",
        "36601d",
        "9" * 15 + "d",
        "9" * 10_000 + "s",
        "x" * 10_000,
        "a\ud800",
        -1,
        -0.001,
        10**5_000,
        float("nan"),
        float("inf"),
        float("-inf"),
        1e300,
        timedelta(microseconds=-1),
        timedelta.max,
        timedelta.min,
        True,
        None,
        b"5s",
        [5],
    ],
    ids=lambda said: show(said)[:20].encode("ascii", "replace").decode(),
)
def test_anything_else_is_refused_and_names_its_field(said: Any) -> None:
    with pytest.raises(Invalid) as caught:
        duration_ms(said, "delay")
    assert caught.value.field == "delay"
    assert len(str(caught.value)) < 200


def test_a_number_in_a_text_is_told_its_units() -> None:
    with pytest.raises(Invalid, match='it is "90s" or "90ms"'):
        duration_ms("90")


@given(st.integers(0, MAX_DURATION_MS))
def test_what_is_said_is_read_back(ms: int) -> None:
    assert duration_ms(say_ms(ms)) == ms
    assert duration_ms(timedelta(milliseconds=ms)) == ms


@pytest.mark.parametrize(
    ("ms", "said"), [(0, "0s"), (90_000, "1m30s"), (1_500, "1s500ms"), (DAY_MS, "1d")]
)
def test_durations_are_said_in_their_largest_units(ms: int, said: str) -> None:
    assert say_ms(ms) == said
