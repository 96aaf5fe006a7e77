"""`penstock queues`."""

import re

import pytest

from tests.cli.cli import Cli


def test_queues_are_listed_with_their_counts(cli: Cli) -> None:
    cli("push", "emails", "--lines", "-", given="1\n2\n3\n")
    cli("push", "reports", "--delay", "1h")
    cli("queues", "pause", "reports")
    listed = cli.json("queues", "ls")["queues"]
    assert [(each["queue"], each["paused"]) for each in listed] == [
        ("emails", False),
        ("reports", True),
    ]
    assert listed[0]["counts"]["ready"] == 3
    said = cli("queues", "ls")
    assert re.search(r"^emails +0 +3 ", said, re.MULTILINE)
    assert re.search(r"^reports +1 +0 +- +paused", said, re.MULTILINE)


def test_a_store_without_queues_has_none(cli: Cli) -> None:
    cli("push", "q")
    cli("queues", "purge", "q", "--yes")
    assert cli("queues", "ls", code=1) == "no queues\n"
    assert cli.json("queues", "ls", code=1) == {"queues": []}


def test_a_queue_is_paused_and_resumed(cli: Cli) -> None:
    cli("push", "emails")
    assert cli("queues", "pause", "emails") == "emails is paused\n"
    cli("claim", "emails", code=1)
    assert cli.json("queues", "resume", "emails")["paused"] is False
    cli("claim", "emails")


def test_a_queue_that_does_not_exist_is_an_error_that_names_the_nearest(cli: Cli) -> None:
    cli("push", "emails")
    for words in (
        "queues pause",
        "queues resume",
        "queues limit",
        "queues drain --yes",
        "queues purge --yes",
        "dead redrive",
        "dead purge --yes",
        "dead ls",
        "dead groups",
    ):
        cli(*words.split(), "email", code=1)
        told = "there is no queue email; did you mean emails?"
        new = words in ("queues pause", "queues limit")
        assert cli.told == told + (" --new makes it before its first job\n" if new else "\n"), words
    assert [each["queue"] for each in cli.json("queues", "ls")["queues"]] == ["emails"]


def test_a_queue_can_be_paused_and_limited_before_its_first_job(cli: Cli) -> None:
    cli("push", "other")
    cli("queues", "pause", "emails", "--new")
    cli("queues", "limit", "reports", "--new", "--concurrency", 2)
    cli("push", "emails")
    cli("claim", "emails", code=1)


def test_limits_are_set_one_by_one_and_lifted(cli: Cli) -> None:
    cli("push", "q")
    before = cli.json("queues", "limit", "q")
    cli("queues", "limit", "q", "--rate", "100/s", "--burst", 5, "--concurrency", 3)
    config = cli.json(
        *("queues", "limit", "q", "--group-rate", "10/5m", "--group-concurrency", 2),
        *("--max-jobs", 1_000, "--max-bytes", 5_000, "--push-rate", "7/500ms"),
        *("--retain", "2h", "--retain-count", 50, "--retain-dead", "3d"),
    )
    assert config == {
        "limits": {
            "rate": {"tokens": 100, "per_ms": 1_000, "burst": 5},
            "concurrency": 3,
            "group_rate": {"tokens": 10, "per_ms": 300_000, "burst": 10},
            "group_concurrency": 2,
        },
        "bounds": {
            "jobs": 1_000,
            "bytes": 5_000,
            "push_rate": {"tokens": 7, "per_ms": 500, "burst": 7},
        },
        "retain_ms": 7_200_000,
        "retain_count": 50,
        "retain_dead_ms": 3 * 86_400_000,
    }
    said = cli("queues", "limit", "q")
    assert re.search(r"^rate +100/s, 5 at once", said, re.MULTILINE)
    assert re.search(r"^group rate +10/5m", said, re.MULTILINE)
    assert "rate 100/s" in cli("queues", "ls")
    lifted = cli.json(
        *("queues", "limit", "q", "--rate", "none", "--concurrency", "none"),
        *("--group-rate", "none", "--group-concurrency", 1, "--max-jobs", "none"),
        *("--max-bytes", "none", "--push-rate", "none", "--retain", "1h"),
        *("--retain-count", 10_000, "--retain-dead", "30d"),
    )
    assert lifted == before


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--rate", "fast"], "is no rate like 100/s"),
        (["--rate", "10"], "is no rate like 100/s"),
        (["--rate", "10/"], "is not a duration"),
        (["--rate", "10/week"], "is not a duration"),
        (["--rate", "0/s"], "--rate: 0 is not"),
        (["--concurrency", "few"], "is neither a number nor none"),
        (["--concurrency", "0"], "concurrency"),
        (["--retain", "1y"], "is not a duration"),
        (["--burst", "5"], "burst: goes with a rate"),
    ],
)
def test_a_limit_that_is_none_is_refused(cli: Cli, words: list[str], told: str) -> None:
    cli("push", "q")
    cli("queues", "limit", "q", *words, code=2)
    assert told in " ".join(cli.told.replace("│", " ").split())


def test_what_cannot_be_undone_is_not_done_unasked(cli: Cli) -> None:
    cli("push", "q", "--lines", "-", given="1\n2\n3\n")
    for words in (("queues", "drain"), ("queues", "purge"), ("dead", "purge")):
        cli(*words, "q", code=2)
        assert cli.told.endswith("say --yes\n")
    assert cli.json("stats")["counts"]["ready"] == 3
    lease = cli.lease("q")
    assert cli("queues", "drain", "q", "--yes") == "2 jobs forgotten\n"
    cli("extend", lease)
    assert cli.json("queues", "purge", "q", "-y") == {"count": 1}
    cli("extend", lease, code=1)
