"""What a schedule's next instants look like to people."""

from datetime import UTC, datetime

import pytest

from penstock.cron.preview import upcoming
from penstock.model.errors import Invalid
from penstock.model.schedule import Cron, Daily, Every, Schedule


def ms(*when: int) -> int:
    return int(datetime(*when, tzinfo=UTC).timestamp() * 1_000)  # type: ignore[misc,arg-type]


def shown(schedule: Schedule, after: int, n: int) -> list[str]:
    return [
        each.local.isoformat(timespec="minutes") + (" *" if each.shifted else "")
        for each in upcoming(schedule, after, n)
    ]


def test_a_night_without_two_o_clock() -> None:
    nightly = Cron(expression="30 2 * * *", tz="Europe/Berlin")
    assert shown(nightly, ms(2026, 3, 27, 12), 3) == [
        "2026-03-28T02:30+01:00",
        "2026-03-29T03:00+02:00 *",
        "2026-03-30T02:30+02:00",
    ]


def test_a_night_with_two_o_clock_twice() -> None:
    assert shown(Daily(at=("02:30",), tz="Europe/Berlin"), ms(2026, 10, 24, 12), 2) == [
        "2026-10-25T02:30+02:00",
        "2026-10-26T02:30+01:00 *",
    ]


def test_every_has_no_zone() -> None:
    (first, second) = upcoming(Every(every_ms=90_000), ms(2026, 1, 1), 2)
    assert (first.at, second.at) == (ms(2026, 1, 1, 0, 1, 30), ms(2026, 1, 1, 0, 3))
    assert first.local.tzinfo is UTC
    assert not first.shifted


def test_what_is_no_schedule_is_refused() -> None:
    with pytest.raises(Invalid, match="not a cron expression"):
        upcoming(Cron(expression="0 0 31 2 *"), 0, 1)
