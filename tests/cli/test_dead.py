"""`penstock dead`."""

import re

import pytest

from penstock.model.fingerprint import fingerprint
from penstock.model.job import JobError, JobSpec
from penstock.model.store import Store
from tests.cli.cli import Cli, beforehand

GONE = fingerprint(JobError(kind="LookupError", message="user 1 is gone"))


@pytest.fixture
def dead(cli: Cli) -> Cli:
    """Three of one error and one of another in `emails`, one discarded in `reports`."""

    async def die(store: Store) -> None:
        await store.push_jobs("default", "emails", [JobSpec()] * 4)
        lease = await store.claim("default", ["emails"], 4)
        assert lease is not None
        for user in (1, 2, 3):
            error = JobError(kind="LookupError", message=f"user {user} is gone")
            await store.fail("default", lease.token, [user], error=error, dead=True)
        error = JobError(kind="OSError", message="no disk")
        await store.fail("default", lease.token, error=error, dead=True)
        pushed = await store.push_jobs("default", "reports", [JobSpec()])
        await store.cancel("default", pushed.ids, discard=True)

    beforehand(die)
    return cli


def test_dead_letters_are_listed_with_their_errors(dead: Cli) -> None:
    page = dead.json("dead", "ls", "emails", "--limit", 3)
    assert [job["id"] for job in page["jobs"]] == [1, 2, 3]
    assert page["cursor"] == 4
    assert len(dead.json("dead", "ls")["jobs"]) == 5
    said = dead("dead", "ls", "-n", 4)
    assert re.search(r"1 +emails .* rejected +LookupError: user 1 is gone", said)
    assert dead.told.startswith("there are more: --cursor ")
    newest = dead.json("dead", "ls", "emails", "--newest", "-n", 2)
    assert ([job["id"] for job in newest["jobs"]], newest["cursor"]) == ([4, 3], 2)


def test_dead_letters_are_grouped_by_what_they_died_of(dead: Cli) -> None:
    emails, reports = dead.json("dead", "groups")["queues"]
    assert (emails["queue"], emails["cursor"]) == ("emails", None)
    first, second = emails["groups"]
    assert (first["fingerprint"], first["count"]) == (GONE, 3)
    assert (first["first_id"], first["last_id"]) == (1, 3)
    assert first["message"] == "user <number> is gone"
    assert first["first_at"] <= first["last_at"]
    assert (second["class"], second["count"]) == ("OSError", 1)
    assert [group["class"] for group in reports["groups"]] == [""]
    said = dead("dead", "groups", "emails")
    assert re.search(rf"emails +{GONE} +3 .* 1 +LookupError: user <number> is gone", said)
    assert "reports" not in said
    assert f"penstock dead redrive emails --fingerprint {GONE}" in said
    assert "(no error)" in dead("dead", "groups", "reports")


def test_groups_of_a_part_say_so(dead: Cli) -> None:
    (emails,) = dead.json("dead", "groups", "emails", "--limit", 2)["queues"]
    assert (sum(group["count"] for group in emails["groups"]), emails["cursor"]) == (2, 3)
    assert dead.told == "emails: only the first 2 dead jobs were looked at; see --limit\n"
    (emails,) = dead.json("dead", "groups", "emails", "--limit", 4)["queues"]
    assert emails["cursor"] is None


def test_dead_letters_are_redriven_by_group_by_id_and_all(dead: Cli) -> None:
    words = ("dead", "redrive", "emails")
    assert dead(*words, "--fingerprint", GONE, "-n", 1) == "1 job ready again\n"
    assert dead.json(*words, "--fingerprint", GONE) == {"count": 2}
    assert dead.json(*words, "--fingerprint", GONE, code=1) == {"count": 0}
    assert dead.json(*words, 4, 1, 999, code=1) == {"count": 1}
    assert dead.told == "not dead, or not of emails: 1, 999\n"
    assert dead.json("dead", "redrive", "reports") == {"count": 1}
    assert dead("dead", "ls", code=1) == "no dead jobs\n"
    assert dead.json("dead", "groups", code=1) == {"queues": []}


def test_a_redrive_whose_key_is_taken_says_so(cli: Cli) -> None:
    cli("push", "q", "--key", "k")
    cli("jobs", "cancel", 1, "--discard")
    cli("push", "q", "--key", "k")
    assert cli.json("dead", "redrive", "q", code=1) == {"count": 0, "conflicts": [1]}
    assert cli.told == "1 job: another has the key, still dead: 1\n"


def test_dead_letters_are_forgotten(dead: Cli) -> None:
    assert dead("dead", "purge", "emails", 1, 2, "--yes") == "2 dead jobs forgotten\n"
    assert dead.json("dead", "purge", "emails", "--yes") == {"count": 2}
    assert dead.json("dead", "purge", "reports", "--yes") == {"count": 1}
    dead("dead", "purge", "reports", "--yes", code=1)
