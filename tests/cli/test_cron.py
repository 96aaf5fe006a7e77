"""`penstock cron`."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.cli.cli import Cli


def test_a_cron_is_installed_listed_and_removed(cli: Cli) -> None:
    said = cli(
        *("cron", "put", "nightly", "reports", '{"full": true}', "-e", "30 2 * * *"),
        *("--tz", "Europe/Berlin", "--overlap", "skip", "--missed", "none", "--limit", 9),
        *("--task", "report", "--priority", 3, "--timeout", "10m"),
    )
    assert said.startswith("nightly: 30 2 * * * Europe/Berlin; next ")
    assert "penstock serve or a worker" in cli.told
    (cron,) = cli.json("cron", "ls")["crons"]
    assert (cron["expression"], cron["tz"]) == ("30 2 * * *", "Europe/Berlin")
    assert (cron["overlap"], cron["missed"], cron["limit"]) == ("skip", "none", 9)
    assert (cron["payload"], cron["task"], cron["priority"]) == ({"full": True}, "report", 3)
    assert cron["timeout_ms"] == 600_000
    (job,) = cli.json("jobs", "ls", "--state", "scheduled", "-n", 1)["jobs"]
    assert job["run_at"] == cron["next_run"]
    assert re.search(
        r"nightly +reports +30 2 \* \* \* Europe/Berlin .* in \d+[hm]", cli("cron", "ls")
    )
    assert cli.json("cron", "rm", "nightly") == {"removed": "nightly"}
    assert cli("cron", "ls", code=1) == "no crons\n"
    cli("cron", "rm", "nightly", code=1)
    assert cli.told == "there is no cron nightly; penstock cron ls names them\n"


def test_a_cron_fires_every_so_often_or_daily(cli: Cli) -> None:
    assert cli.json("cron", "put", "a", "q", "--every", "1h30m")["every_ms"] == 5_400_000
    daily = cli.json("cron", "put", "b", "q", "--daily", "02:00", "--daily", "14:00")
    assert (daily["daily"], daily["tz"]) == (["02:00", "14:00"], "UTC")
    said = cli("cron", "ls")
    assert "every 1h30m" in said
    assert "daily 02:00, 14:00 UTC" in said


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "exactly one of --expression, --every and --daily"),
        (["--every", "5m", "--daily", "02:00"], "exactly one of"),
        (["--every", "5m", "--tz", "UTC"], "tz: does not go with --every"),
        (["--every", "0s"], "not longer than nothing"),
        (["--every", "often"], "is not a duration"),
        (["--daily", "25:00"], "is not an hour"),
        (["-e", "* *"], "is not a cron expression"),
        (["-e", "* * * * *", "--tz", "Mars"], "is not a time zone"),
        (["-e", "* * * * *", "--overlap", "maybe"], "--overlap"),
    ],
)
def test_a_cron_that_is_wrong_is_refused(cli: Cli, words: list[str], told: str) -> None:
    cli("cron", "put", "a", "q", *words, code=2)
    assert told in " ".join(cli.told.replace("│", " ").split())


def test_a_preview_shows_where_the_clock_is_moved(cli: Cli) -> None:
    said = cli(
        *("cron", "next", "30 2 * * *", "--tz", "Europe/Berlin", "-n", 3),
        *("--after", "2026-03-28T00:00:00+01:00"),
    ).splitlines()[2:]
    assert [line[:29] for line in said] == [
        "Sat 2026-03-28 02:30:00 +0100",
        "Sun 2026-03-29 03:00:00 +0200",
        "Mon 2026-03-30 02:30:00 +0200",
    ]
    assert "2026-03-29 01:00:00" in said[1]
    assert "the clock was put forward 1h" in said[1]
    assert "clock" not in said[0] + said[2]
    autumn = cli.json(
        *("cron", "next", "30 2 * * *", "--tz", "Europe/Berlin", "-n", 2),
        *("--after", "2026-10-24T12:00:00Z"),
    )["instants"]
    assert [datetime.fromtimestamp(each / 1_000, UTC).isoformat() for each in autumn] == [
        "2026-10-25T00:30:00+00:00",
        "2026-10-26T01:30:00+00:00",
    ]
    assert "put back 1h" in cli(
        *("cron", "next", "0 12 * * *", "--tz", "Europe/Berlin", "--after", "1792749600000"),
    )


def test_a_preview_of_an_expression_makes_no_store(place: Path) -> None:
    assert len(Cli().json("cron", "next", "*/5 * * * *")["instants"]) == 10
    assert list(place.iterdir()) == []


def test_a_preview_of_a_cron_is_by_its_name(cli: Cli) -> None:
    cli("cron", "put", "tick", "q", "--every", "1h")
    assert cli.json("cron", "next", "tick", "-n", 2, "--after", "0")["instants"] == [
        3_600_000,
        7_200_000,
    ]
    cli("cron", "next", "tock", code=1)
    assert "neither a cron expression" in cli.told
    cli("cron", "next", "99 * * * *", code=2)
    assert "is not a cron expression" in cli.told
    cli("cron", "next", "* * * * *", "--tz", "Mars", code=2)
    assert "is not a time zone" in cli.told


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("@daily", "'@daily' is not a cron expression like '30 2 * * MON': say '0 0 * * *'"),
        ("@Hourly", "'@Hourly' is not a cron expression like '30 2 * * MON': say '0 * * * *'"),
        ("@reboot", "'@reboot' is not a cron expression like '30 2 * * MON'"),
        ("", "'' is neither a cron expression like '30 2 * * MON' nor the name of a cron"),
        (" ", "' ' is neither a cron expression like '30 2 * * MON' nor the name of a cron"),
    ],
)
def test_what_is_no_expression_is_told_without_a_store(place: Path, what: str, says: str) -> None:
    cli = Cli()
    cli("cron", "next", what, code=2)
    assert says in cli.told
    assert "store" not in cli.told


def test_an_empty_time_zone_is_none(cli: Cli) -> None:
    cli("cron", "next", "* * * * *", "--tz", "", code=2)
    assert "'' is not a time zone" in cli.told
    for schedule in (["-e", "* * * * *"], ["--daily", "02:00"]):
        cli("cron", "put", "c", "q", *schedule, "--tz", "", code=2)
        assert "--tz: is empty" in cli.told
