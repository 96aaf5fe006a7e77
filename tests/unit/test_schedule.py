"""Schedules: instants over daylight saving, keys that no name can forge, plans that fire once."""

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.model.errors import Invalid
from penstock.model.job import JobOptions
from penstock.model.policy import DAY_MS, HOUR_MS, MAX_DURATION_MS, SECOND_MS, Backoff
from penstock.model.schedule import (
    KEEP_AFTER_MS,
    MAX_CATCH_UP,
    MAX_INSTANT_MS,
    Cron,
    CronSpec,
    Daily,
    Every,
    Plan,
    Schedule,
    check_cron,
    check_schedule,
    config_hash,
    escape_name,
    instant_key,
    instants,
    keep_key_ms,
    latest_instants,
    parse_key,
    plan,
    unescape_name,
)

BERLIN = "Europe/Berlin"
NEW_YORK = "America/New_York"
LORD_HOWE = "Australia/Lord_Howe"

UNHURRIED = settings(deadline=None)  # the first look into a zone reads its file


def ms(iso: str) -> int:
    """Epoch ms of an ISO time; UTC unless it says otherwise."""
    moment = datetime.fromisoformat(iso)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def shown(schedule: Cron | Daily, after: str, count: int) -> list[str]:
    """The next instants as the wall clock of the schedule's zone shows them, with the offset."""
    zone = ZoneInfo(schedule.tz)
    found = instants(schedule, ms(after), count)
    return [datetime.fromtimestamp(i / 1000, zone).isoformat(timespec="seconds") for i in found]


def spec(schedule: Schedule | None = None, **more: Any) -> CronSpec:
    return CronSpec(
        name="report", queue="mail", schedule=schedule or Every(every_ms=60_000), **more
    )


# -- checking ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schedule",
    [
        Cron(expression="*/5 * * * *"),
        Cron(expression="30 2 * * MON-FRI", tz=BERLIN),
        Cron(expression="15 30 2 L * *"),
        Cron(expression="0 0 29 2 *"),
        Cron(expression="0 0 * 2 MON#5"),
        Every(every_ms=1),
        Every(every_ms=MAX_DURATION_MS),
        Daily(at=("00:00", "23:59:59"), tz=LORD_HOWE),
    ],
)
def test_a_sound_schedule_is_accepted(schedule: Schedule) -> None:
    check_schedule(schedule)


@pytest.mark.parametrize(
    ("schedule", "field"),
    [
        (Cron(expression=""), "expression"),
        (Cron(expression="* * * *"), "expression"),
        (Cron(expression="60 * * * *"), "expression"),
        (Cron(expression="@daily"), "expression"),
        (Cron(expression="* * * * * * *"), "expression"),
        (Cron(expression="*" * 1_001), "expression"),
        (Cron(expression="0 0 30 2 *"), "expression"),  # never
        (Cron(expression="0 0 31 4,6,9,11 *"), "expression"),  # never
        (Cron(expression="0 0 */31 * MON#5"), "expression"),  # a first that is a fifth Monday
        (Cron(expression="* * * * *", tz="Europe/Atlantis"), "tz"),
        (Cron(expression="* * * * *", tz=""), "tz"),
        (Cron(expression="* * * * *", tz="Europe"), "tz"),
        (Cron(expression="* * * * *", tz="../../etc/passwd"), "tz"),
        (Cron(expression="* * * * *", tz="localtime"), "tz"),
        (Cron(expression="* * * * *", tz="right/UTC"), "tz"),
        (Every(every_ms=0), "every_ms"),
        (Every(every_ms=-5), "every_ms"),
        (Every(every_ms=MAX_DURATION_MS + 1), "every_ms"),
        (Every(every_ms=1.5), "every_ms"),  # type: ignore[arg-type]
        (Every(every_ms=True), "every_ms"),
        (Daily(at=()), "at"),
        (Daily(at=("02:00", "2:00")), "at"),
        (Daily(at=("24:00",)), "at"),
        (Daily(at=("02:60",)), "at"),
        (Daily(at=("02:00:60",)), "at"),
        (Daily(at=("02:00\n",)), "at"),
        (Daily(at=("٠٢:٠٠",)), "at"),
        (Daily(at="02:00"), "at"),  # type: ignore[arg-type]
        (Daily(at=("02:00",), tz="Mars"), "tz"),
    ],
)
def test_an_unsound_schedule_is_refused_by_the_field_that_is_wrong(
    schedule: Schedule, field: str
) -> None:
    with pytest.raises(Invalid) as refusal:
        check_schedule(schedule)
    assert refusal.value.field == field


@UNHURRIED
@given(st.text(alphabet="0123456789*/,-#LW MONJA²", max_size=30))
@example("0 0 * * 5L/2")
@example("0 0 1/99999999999999999999 * *")
def test_any_expression_is_either_refused_as_invalid_or_fires(expression: str) -> None:
    schedule = Cron(expression=expression)
    try:
        check_schedule(schedule)
    except Invalid as refusal:
        assert refusal.field == "expression"
    else:
        assert len(instants(schedule, ms("2024-01-01"), 2)) == 2


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "é" * 101}, "name"),
        ({"name": "\ud800"}, "name"),
        ({"overlap": "queue"}, "overlap"),
        ({"missed": "some"}, "missed"),
        ({"limit": 0}, "limit"),
        ({"schedule": Every(every_ms=0)}, "every_ms"),
    ],
)
def test_an_unsound_cron_is_refused_by_the_field_that_is_wrong(
    change: dict[str, Any], field: str
) -> None:
    check_cron(spec())
    with pytest.raises(Invalid) as refusal:
        check_cron(msgspec.structs.replace(spec(), **change))
    assert refusal.value.field == field


# -- instants ------------------------------------------------------------------------------------


def test_every_n_fires_at_the_multiples_of_n_since_the_epoch() -> None:
    assert instants(Every(every_ms=250), 1_000, 3) == [1_250, 1_500, 1_750]
    assert instants(Every(every_ms=250), 999, 2) == [1_000, 1_250]
    assert instants(Every(every_ms=7), 0, 2) == [7, 14]


def test_instants_lie_strictly_after_the_given_one_to_the_millisecond() -> None:
    noon = ms("2024-06-01T12:00")
    for schedule in (
        Cron(expression="0 12 * * *"),
        Daily(at=("12:00",)),
        Every(every_ms=DAY_MS // 2),
    ):
        assert instants(schedule, noon - 1, 1) == [noon]
        assert instants(schedule, noon, 1) != [noon]
        assert instants(schedule, noon + 1, 1) == instants(schedule, noon, 1)
        assert instants(schedule, noon, 0) == []


def test_cron_and_daily_know_seconds() -> None:
    assert shown(Cron(expression="*/20 59 23 * * *"), "2024-06-01T12:00", 4) == [
        "2024-06-01T23:59:00+00:00",
        "2024-06-01T23:59:20+00:00",
        "2024-06-01T23:59:40+00:00",
        "2024-06-02T23:59:00+00:00",
    ]
    assert shown(Daily(at=("18:00", "06:30:15", "18:00:00")), "2024-06-01T12:00", 3) == [
        "2024-06-01T18:00:00+00:00",
        "2024-06-02T06:30:15+00:00",
        "2024-06-02T18:00:00+00:00",
    ]


def test_local_hours_follow_the_zone_through_the_year() -> None:
    hours = {i % DAY_MS // HOUR_MS for i in instants(Daily(at=("09:00",), tz=BERLIN), 0, 20_000)}
    assert hours == {7, 8}


SPRING = [
    # A time that does not exist fires at the first instant after the gap.
    (BERLIN, "30 2 * * *", "2024-03-31T00:00+01:00", ["03-31T03:00:00+02:00", "04-01T02:30:00+02:00"]),
    (BERLIN, "0 30 2 * * *", "2024-03-31T00:00+01:00", ["03-31T03:00:00+02:00", "04-01T02:30:00+02:00"]),
    (BERLIN, "59 59 2 * * *", "2024-03-31T00:00+01:00", ["03-31T03:00:00+02:00", "04-01T02:59:59+02:00"]),
    (NEW_YORK, "15 2 * * *", "2024-03-10T00:00-05:00", ["03-10T03:00:00-04:00", "03-11T02:15:00-04:00"]),
    (LORD_HOWE, "15 2 * * *", "2024-10-06T00:00+10:30", ["10-06T02:30:00+11:00", "10-07T02:15:00+11:00"]),
    (LORD_HOWE, "30 2 * * *", "2024-10-06T00:00+10:30", ["10-06T02:30:00+11:00", "10-07T02:30:00+11:00"]),
    # Where midnight is what does not exist, the day still fires; a day left out fires at the next.
    ("Africa/Cairo", "0 0 * * *", "2024-04-25T12:00+02:00", ["04-26T01:00:00+03:00", "04-27T00:00:00+03:00"]),
    ("Pacific/Apia", "0 9 30 * *", "2011-12-01T00:00-10:00", ["12-31T00:00:00+14:00", "01-30T09:00:00+14:00"]),
    # Several of them fire once, together with a match that lies there anyway.
    (BERLIN, "*/20 2 * * *", "2024-03-31T00:00+01:00", ["03-31T03:00:00+02:00", "04-01T02:00:00+02:00"]),
    (BERLIN, "0,30 2,3 * * *", "2024-03-31T00:00+01:00", ["03-31T03:00:00+02:00", "03-31T03:30:00+02:00"]),
    (BERLIN, "0 */2 * * *", "2024-03-31T00:00+01:00", ["03-31T03:00:00+02:00", "03-31T04:00:00+02:00"]),
    # Every hour is every real hour; a skipped hour adds nothing.
    (BERLIN, "30 * * * *", "2024-03-31T01:00+01:00", ["03-31T01:30:00+01:00", "03-31T03:30:00+02:00"]),
    (BERLIN, "30 0-23 * * *", "2024-03-31T01:00+01:00", ["03-31T01:30:00+01:00", "03-31T03:30:00+02:00"]),
    (BERLIN, "*/30 * * * *", "2024-03-31T01:15+01:00", ["03-31T01:30:00+01:00", "03-31T03:00:00+02:00"]),
    (NEW_YORK, "0 * * * *", "2024-03-10T00:30-05:00", ["03-10T01:00:00-05:00", "03-10T03:00:00-04:00"]),
    # Of an hour that is skipped in part, the rest stands for it.
    (LORD_HOWE, "15 * * * *", "2024-10-06T01:00+10:30", ["10-06T01:15:00+10:30", "10-06T02:30:00+11:00"]),
    (LORD_HOWE, "45 * * * *", "2024-10-06T01:00+10:30", ["10-06T01:45:00+10:30", "10-06T02:45:00+11:00"]),
]  # fmt: skip

AUTUMN = [
    # A time that exists twice fires once, the first time.
    (BERLIN, "30 2 * * *", "2024-10-27T00:00+02:00", ["10-27T02:30:00+02:00", "10-28T02:30:00+01:00"]),
    (BERLIN, "0 30 2 * * *", "2024-10-27T00:00+02:00", ["10-27T02:30:00+02:00", "10-28T02:30:00+01:00"]),
    (BERLIN, "*/30 2 * * *", "2024-10-27T02:15+02:00", ["10-27T02:30:00+02:00", "10-28T02:00:00+01:00"]),
    (BERLIN, "0 */2 * * *", "2024-10-27T00:30+02:00", ["10-27T02:00:00+02:00", "10-27T04:00:00+01:00"]),
    (NEW_YORK, "15 1 * * *", "2024-11-03T00:00-04:00", ["11-03T01:15:00-04:00", "11-04T01:15:00-05:00"]),
    (LORD_HOWE, "45 1 * * *", "2024-04-07T00:00+11:00", ["04-07T01:45:00+11:00", "04-08T01:45:00+10:30"]),
    # Asked between the two passes, or in the second, neither comes back.
    (BERLIN, "30 2 * * *", "2024-10-27T02:45+02:00", ["10-28T02:30:00+01:00", "10-29T02:30:00+01:00"]),
    (BERLIN, "30 2 * * *", "2024-10-27T02:15+01:00", ["10-28T02:30:00+01:00", "10-29T02:30:00+01:00"]),
    # Every hour is every real hour: both passes.
    (BERLIN, "30 * * * *", "2024-10-27T02:00+02:00", ["10-27T02:30:00+02:00", "10-27T02:30:00+01:00"]),
    (BERLIN, "30 * * * *", "2024-10-27T02:45+02:00", ["10-27T02:30:00+01:00", "10-27T03:30:00+01:00"]),
    (BERLIN, "20,40 * * * *", "2024-10-27T02:20+02:00", ["10-27T02:40:00+02:00", "10-27T02:20:00+01:00"]),
    (NEW_YORK, "0 * * * *", "2024-11-03T00:30-04:00", ["11-03T01:00:00-04:00", "11-03T01:00:00-05:00"]),
    (LORD_HOWE, "45 * * * *", "2024-04-07T01:30+11:00", ["04-07T01:45:00+11:00", "04-07T01:45:00+10:30"]),
    (LORD_HOWE, "15 * * * *", "2024-04-07T01:00+11:00", ["04-07T01:15:00+11:00", "04-07T02:15:00+10:30"]),
]  # fmt: skip


@pytest.mark.parametrize(("tz", "expression", "after", "expected"), SPRING + AUTUMN)
def test_a_cron_keeps_the_daylight_saving_rules(
    tz: str, expression: str, after: str, expected: list[str]
) -> None:
    found = shown(Cron(expression=expression, tz=tz), after, 2)
    assert [instant[len("2024-") :] for instant in found] == expected


@pytest.mark.parametrize(
    ("tz", "hour", "after", "expected"),
    [
        (BERLIN, "02:30", "2024-03-31T00:00+01:00", "2024-03-31T03:00:00+02:00"),
        (BERLIN, "02:30:30", "2024-10-27T00:00+02:00", "2024-10-27T02:30:30+02:00"),
        (NEW_YORK, "02:30", "2024-03-10T00:00-05:00", "2024-03-10T03:00:00-04:00"),
        (NEW_YORK, "01:30", "2024-11-03T00:00-04:00", "2024-11-03T01:30:00-04:00"),
        (LORD_HOWE, "02:10:05", "2024-10-06T00:00+10:30", "2024-10-06T02:30:00+11:00"),
        (LORD_HOWE, "01:45", "2024-04-07T00:00+11:00", "2024-04-07T01:45:00+11:00"),
    ],
)
def test_a_daily_hour_fires_once_on_the_days_that_change_the_clock(
    tz: str, hour: str, after: str, expected: str
) -> None:
    first, second = shown(Daily(at=(hour,), tz=tz), after, 2)
    assert first == expected
    assert second[:10] > first[:10]
    assert second[11:].startswith(hour)


@pytest.mark.parametrize("tz", [BERLIN, NEW_YORK, "UTC", "Asia/Kolkata"])
@UNHURRIED
@given(minute=st.integers(0, 59), hour=st.integers(0, 2 * 365 * 24))
def test_an_hourly_cron_fires_each_real_hour_whatever_the_clock_does(
    tz: str, minute: int, hour: int
) -> None:
    found = instants(
        Cron(expression=f"{minute} * * * *", tz=tz), ms("2023-01-01") + hour * HOUR_MS, 30
    )
    assert {b - a for a, b in pairwise(found)} == {HOUR_MS}


@pytest.mark.parametrize("change", ["2024-04-06T15:00", "2024-10-05T15:30"])
def test_an_hourly_cron_on_lord_howe_fires_in_every_clock_hour(change: str) -> None:
    zone, start = ZoneInfo(LORD_HOWE), ms(change) - 3 * HOUR_MS
    quarters = [datetime.fromtimestamp(start / 1000 + 900 * n, zone) for n in range(24)]
    for minute in range(60):
        found = instants(Cron(expression=f"{minute} * * * *", tz=LORD_HOWE), start - HOUR_MS, 10)
        fired = {datetime.fromtimestamp(i / 1000, zone).strftime("%dT%H") for i in found}
        assert fired >= {quarter.strftime("%dT%H") for quarter in quarters}
        assert max(b - a for a, b in pairwise(found)) <= HOUR_MS + HOUR_MS // 2


def test_a_cron_of_every_second_misses_and_repeats_no_second_over_a_change() -> None:
    for tz, change in (
        (BERLIN, "2024-03-31T01:00"),
        (BERLIN, "2024-10-27T01:00"),
        (LORD_HOWE, "2024-04-06T15:00"),
    ):
        start = ms(change) - 5_000
        found = instants(Cron(expression="* * * * * *", tz=tz), start, 4_000)
        assert found == [start + SECOND_MS * n for n in range(1, 4_001)]


ZONES = st.sampled_from(
    ["UTC", BERLIN, NEW_YORK, LORD_HOWE, "Africa/Cairo", "Pacific/Apia", "Africa/Casablanca",
     "Antarctica/Troll", "America/Havana", "America/Nuuk", "Europe/Dublin", "Asia/Kathmandu"]
)  # fmt: skip
HOURS = st.integers(0, 86_399).map(
    lambda second: f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
)
EXPRESSIONS = st.builds(
    "{} {} {} {} * {}".format,
    st.sampled_from(["0", "*/30", "15", "7,59"]),
    st.sampled_from(["0", "30", "*/20", "45", "59", "10-12"]),
    st.sampled_from(["*", "0-23", "*/2", "0", "1", "2", "3", "1-3", "23"]),
    st.sampled_from(["*", "*/2", "31", "L"]),
    st.sampled_from(["*", "SUN", "SAT,SUN"]),
)
SCHEDULES: st.SearchStrategy[Schedule] = st.one_of(
    st.builds(Every, every_ms=st.integers(1, 40 * DAY_MS)),
    st.builds(Daily, at=st.lists(HOURS, min_size=1, max_size=4).map(tuple), tz=ZONES),
    st.builds(Cron, expression=EXPRESSIONS, tz=ZONES),
)
# Half of the instants lie around a change of some clock.
MOMENTS = st.one_of(
    st.integers(0, ms("2040-01-01")),
    st.builds(
        lambda change, distance: ms(change) + distance,
        st.sampled_from([
            "2011-12-30T10:00", "2024-03-10T07:00", "2024-03-31T01:00", "2024-04-06T15:00",
            "2024-04-25T22:00", "2024-10-05T15:30", "2024-10-27T01:00", "2024-11-03T05:00",
            "2024-11-03T06:00",
        ]),
        st.integers(-4 * HOUR_MS, 4 * HOUR_MS),
    ),
)  # fmt: skip


@UNHURRIED
@given(ZONES, MOMENTS, st.sets(st.integers(0, 24 * 60 - 1), min_size=1, max_size=200))
def test_daily_hours_agree_with_watching_a_wall_clock_minute_by_minute(
    tz: str, start_ms: int, minutes: set[int]
) -> None:
    zone, minute = ZoneInfo(tz), timedelta(minutes=1)
    # A day and a half of watching before the window, to know what was shown before.
    start_ms = max(start_ms, ms("1980-01-01")) // 60_000 * 60_000
    clock = datetime.fromtimestamp(start_ms / 1000, UTC) - timedelta(hours=36)
    watched: dict[datetime, int] = {}  # the local minutes shown or skipped so far, and when
    previous = clock.astimezone(zone).replace(tzinfo=None, fold=0) - minute
    while clock.timestamp() * 1000 <= start_ms + 8 * HOUR_MS:
        local = clock.astimezone(zone).replace(tzinfo=None, fold=0)
        while previous < local:
            previous += minute
            watched.setdefault(previous, ms(clock.isoformat()))
        previous, clock = local, clock + minute
    expected = {at for local, at in watched.items() if local.hour * 60 + local.minute in minutes}
    window = [at for at in sorted(expected) if at > start_ms]
    schedule = Daily(at=tuple(f"{m // 60:02}:{m % 60:02}" for m in minutes), tz=tz)
    assert instants(schedule, start_ms, len(window)) == window


@UNHURRIED
@given(SCHEDULES, MOMENTS, st.integers(0, 12))
def test_asking_one_by_one_gives_the_same_instants_as_asking_at_once(
    schedule: Schedule, after_ms: int, count: int
) -> None:
    at_once = instants(schedule, after_ms, count)
    assert len(at_once) == count
    one_by_one: list[int] = []
    for _ in range(count):
        one_by_one += instants(schedule, one_by_one[-1] if one_by_one else after_ms, 1)
    assert at_once == one_by_one == sorted({i for i in one_by_one if i > after_ms})


@UNHURRIED
@given(SCHEDULES, MOMENTS, st.integers(1, 12))
def test_the_latest_instants_found_backwards_are_those_found_forwards(
    schedule: Schedule, after_ms: int, count: int
) -> None:
    forwards = instants(schedule, after_ms, 12)
    for until in (forwards[-1], forwards[-1] - 1, forwards[0] - 1):
        expected = [i for i in forwards if i <= until][-count:]
        assert latest_instants(schedule, after_ms, until, count) == expected


def test_instants_outside_the_calendar_are_refused() -> None:
    for after_ms in (-1, MAX_INSTANT_MS + 1):
        with pytest.raises(Invalid):
            instants(Daily(at=("02:00",)), after_ms, 1)
    assert len(instants(Cron(expression="0 0 29 2 *"), MAX_INSTANT_MS, 4)) == 4


# -- keys ----------------------------------------------------------------------------------------

NAMES = st.text(
    st.one_of(st.sampled_from("0123~/%_\\*?[\0"), st.characters(exclude_categories=["Cs"])),
    min_size=1,
    max_size=50,
)


@given(NAMES, NAMES)
def test_an_escaped_name_is_free_of_separators_and_patterns_and_comes_back(a: str, b: str) -> None:
    escaped = escape_name(a)
    assert not set("/%_\\*?[\0") & set(escaped)
    assert unescape_name(escaped) == a
    assert (a == b) == (escaped == escape_name(b))


@given(NAMES, NAMES, st.integers(0, MAX_INSTANT_MS))
def test_no_name_can_pass_for_another_in_a_key(a: str, b: str, instant_ms: int) -> None:
    hashed = config_hash(spec())
    key = instant_key(a, hashed, instant_ms)
    assert parse_key(key) == (a, hashed, instant_ms)
    assert key.startswith(f"{escape_name(b)}/") == (a == b)


def test_a_key_reads_as_name_hash_and_instant() -> None:
    hashed = config_hash(spec())
    assert instant_key("nightly report", hashed, 1_707_321_600_000) == (
        f"nightly report/{hashed}/1707321600000"
    )
    assert instant_key("a/b_c%d~", hashed, 5) == f"a~1b~3c~2d~0/{hashed}/5"


def test_the_longest_name_gives_a_key_within_512_bytes() -> None:
    for name in ("/" * 200, "\0" * 200, "é" * 100):
        check_cron(msgspec.structs.replace(spec(), name=name))
        assert len(instant_key(name, config_hash(spec()), MAX_INSTANT_MS).encode()) <= 512


@pytest.mark.parametrize(
    "key",
    ["", "a", "a/b/c", "a/0123456789abcdef", "a/0123456789abcdef/x", "a/0123456789abcdef/05",
     "a/0123456789ABCDEF/5", "a/0123456789abcdef/-5", "a/b/0123456789abcdef/5",
     "a_b/0123456789abcdef/5", "a~/0123456789abcdef/5", "a~9/0123456789abcdef/5"],
)  # fmt: skip
def test_what_is_not_a_key_is_refused(key: str) -> None:
    with pytest.raises(Invalid):
        parse_key(key)


# -- config hash ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"schedule": Every(every_ms=60_001)},
        {"schedule": Daily(at=("02:00",))},
        {"schedule": Daily(at=("02:00",), tz=BERLIN)},
        {"queue": "post"},
        {"payload": b"{}"},
        {"codec": "bytes"},
        {"options": JobOptions(priority=1)},
        {"options": JobOptions(tags=("a",))},
        {"options": JobOptions(backoff=Backoff(base_ms=5))},
        {"overlap": "skip"},
        {"missed": "all"},
        {"limit": 3},
    ],
)
def test_everything_that_decides_the_jobs_changes_the_hash(change: dict[str, Any]) -> None:
    assert config_hash(msgspec.structs.replace(spec(), **change)) != config_hash(spec())


def test_the_name_is_not_part_of_the_hash() -> None:
    assert config_hash(msgspec.structs.replace(spec(), name="other")) == config_hash(spec())


def test_the_hash_is_the_same_in_every_process_and_release() -> None:
    program = (
        "from penstock.model.schedule import *;"
        "print(config_hash(CronSpec(name='n', queue='q', schedule=Daily(at=('02:00',)))), end='')"
    )
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        assert (
            subprocess.check_output([sys.executable, "-c", program], env=env) == b"22d9fb2c01e79140"
        )


def test_a_cron_survives_the_wire_and_unknown_fields_do_not() -> None:
    for schedule in (Cron(expression="* * * * *"), Every(every_ms=5), Daily(at=("02:00",))):
        cron = spec(schedule)
        encoded = msgspec.json.encode(cron)
        assert msgspec.json.decode(encoded, type=CronSpec) == cron
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"type":"every","every_ms":5,"jitter":1}', type=Every)


# -- planning ------------------------------------------------------------------------------------

MINUTELY = Every(every_ms=60_000)


def test_a_cron_never_installed_has_missed_nothing_and_gets_the_next_four() -> None:
    for missed in ("last", "all", "none"):
        planned = plan(spec(MINUTELY, missed=missed), now_ms=600_000, installed_until_ms=None)
        assert planned == Plan(instants=(660_000, 720_000, 780_000, 840_000), refresh_ms=15_000)


@pytest.mark.parametrize(
    ("missed", "made_up"),
    [("all", (360_000, 420_000, 480_000)), ("last", (480_000,)), ("none", ())],
)
def test_missed_instants_are_made_up_for_by_policy(missed: str, made_up: tuple[int, ...]) -> None:
    planned = plan(
        spec(MINUTELY, missed=missed), now_ms=480_000, installed_until_ms=300_000, ahead=2
    )
    assert planned.instants == (*made_up, 540_000, 600_000)


def test_nothing_is_missed_while_the_plan_reaches_ahead() -> None:
    planned = plan(spec(MINUTELY, missed="all"), now_ms=615_000, installed_until_ms=780_000)
    assert planned.instants == (840_000,)
    again = plan(spec(MINUTELY, missed="all"), now_ms=616_000, installed_until_ms=840_000)
    assert again.instants == ()


def test_catching_up_is_bounded_to_the_latest_and_quick_after_years() -> None:
    now_ms = ms("2024-06-01")
    for schedule in (Every(every_ms=1_000), Cron(expression="* * * * * *", tz=BERLIN)):
        planned = plan(spec(schedule, missed="all"), now_ms=now_ms, installed_until_ms=0)
        first = now_ms - (MAX_CATCH_UP - 1) * SECOND_MS
        assert planned.instants == tuple(first + SECOND_MS * n for n in range(MAX_CATCH_UP + 4))


def test_an_instant_given_up_is_not_brought_back_by_a_scheduler_that_lags() -> None:
    cron = spec(MINUTELY, missed="none")
    timely = plan(cron, now_ms=600_000, installed_until_ms=300_000)
    lagging = plan(cron, now_ms=310_000, installed_until_ms=timely.instants[-1])
    assert lagging.instants == ()


@pytest.mark.parametrize(
    ("schedule", "refresh_ms"),
    [
        (Every(every_ms=1), 1_000),
        (Every(every_ms=4_000), 1_000),
        (Every(every_ms=60_000), 15_000),
        (Cron(expression="0 * * * *"), 15 * 60_000),
        (Daily(at=("02:00",)), HOUR_MS),
    ],
)
def test_a_plan_is_refreshed_four_times_a_period_within_a_second_and_an_hour(
    schedule: Schedule, refresh_ms: int
) -> None:
    planned = plan(spec(schedule), now_ms=ms("2024-06-01"), installed_until_ms=None)
    assert planned.refresh_ms == refresh_ms


@UNHURRIED
@given(SCHEDULES, MOMENTS, st.sampled_from([1, 4, 7]))
def test_a_plan_lasts_until_the_next_one_however_short_the_period(
    schedule: Schedule, now_ms: int, ahead: int
) -> None:
    first = plan(spec(schedule, missed="none"), now_ms=now_ms, installed_until_ms=None, ahead=ahead)
    assert len(first.instants) >= ahead
    later = now_ms + first.refresh_ms
    assert instants(schedule, first.instants[-1], 1)[0] > later


def test_a_plan_of_nothing_ahead_is_refused() -> None:
    with pytest.raises(Invalid):
        plan(spec(), now_ms=0, installed_until_ms=None, ahead=0)


def test_a_key_is_kept_until_a_day_after_the_instant_or_after_making_up_for_it() -> None:
    assert keep_key_ms(5_000, 1_000) == 4_000 + KEEP_AFTER_MS
    assert keep_key_ms(5_000, 5_000) == KEEP_AFTER_MS
    assert keep_key_ms(5_000, 9 * DAY_MS) == KEEP_AFTER_MS


class KeyedStore:
    """As much of a store as the promise needs: kept keys, and the latest instant installed."""

    def __init__(self) -> None:
        self.now_ms = ms("2024-03-30T22:00")
        self.kept: dict[str, int] = {}
        self.installed_until_ms: int | None = None
        self.fired: list[int] = []

    def push(self, cron: CronSpec, planned: Plan, planner_now_ms: int) -> None:
        for instant in planned.instants:
            key = instant_key(cron.name, config_hash(cron), instant)
            if self.kept.get(key, 0) <= self.now_ms:
                self.fired.append(instant)
                self.kept[key] = self.now_ms + keep_key_ms(instant, planner_now_ms)
            self.installed_until_ms = max(self.installed_until_ms or 0, instant)


# A few fixed distances, so that lags and expiring keys meet often.
PASSING = st.sampled_from([0, 1, HOUR_MS, 10 * HOUR_MS, 25 * HOUR_MS, 3 * DAY_MS])
SKEWS = st.sampled_from([0, 0, -HOUR_MS, HOUR_MS, -26 * HOUR_MS, 26 * HOUR_MS, -5 * DAY_MS])
STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),  # which scheduler
        PASSING,  # since the step before
        SKEWS,  # how far off its clock is, anew at each step: it runs back and forth
        st.booleans(),  # it pushes at once, or holds its plan until its next step
    ),
    min_size=4,
    max_size=25,
)


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.builds(Every, every_ms=st.sampled_from([HOUR_MS, 7 * HOUR_MS, DAY_MS])), SCHEDULES
    ),
    st.sampled_from(["last", "all", "none"]),
    STEPS,
)
# After three days without any, two schedulers make up for the same instants.
@example(
    Every(every_ms=HOUR_MS),
    "all",
    [(0, 0, 0, True), (1, 3 * DAY_MS, 0, False), (2, 0, 0, True), (1, 1, 0, True)],
)
def test_no_instant_fires_twice_whatever_the_clocks_of_the_schedulers(
    schedule: Schedule, missed: str, steps: list[tuple[int, int, int, bool]]
) -> None:
    cron = spec(schedule, missed=missed)
    store = KeyedStore()
    held: dict[int, tuple[int, Plan, int]] = {}
    for scheduler, passed_ms, skew_ms, at_once in steps:
        store.now_ms += passed_ms
        if scheduler in held:
            read_at_ms, planned, planner_now_ms = held.pop(scheduler)
            if store.now_ms - read_at_ms <= KEEP_AFTER_MS:
                store.push(cron, planned, planner_now_ms)
        now_ms = store.now_ms + skew_ms
        planned = plan(cron, now_ms=now_ms, installed_until_ms=store.installed_until_ms)
        if at_once:
            store.push(cron, planned, now_ms)
        else:
            held[scheduler] = (store.now_ms, planned, now_ms)
    assert len(store.fired) == len(set(store.fired))


@UNHURRIED
@given(SCHEDULES, MOMENTS, st.integers(-3 * DAY_MS, 0), st.integers(-3 * DAY_MS, 3 * DAY_MS))
def test_what_any_scheduler_plans_are_instants_of_the_schedule(
    schedule: Schedule, installed_ms: int, lag_ms: int, distance_ms: int
) -> None:
    cron = spec(schedule, missed="all")
    now_ms = max(installed_ms + distance_ms + lag_ms, 0)
    planned = plan(cron, now_ms=now_ms, installed_until_ms=installed_ms).instants
    assert list(planned) == sorted(set(planned))
    assert all(instant > installed_ms for instant in planned)
    for instant in planned:
        assert instants(schedule, instant - 1, 1) == [instant]
