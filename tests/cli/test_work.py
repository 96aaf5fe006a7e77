"""`push`, `claim`, `ack`, `fail`, `release`, `extend`."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.cli import Cli, process


def test_a_job_is_pushed_claimed_and_acked(cli: Cli) -> None:
    assert cli("push", "emails", '{"user": 1}', "--task", "welcome") == "1 created\n"
    said = cli("claim", "emails", "--worker", "me", "--lease", "10m")
    assert said.startswith("lease ")
    assert "in 9m" in said or "in 10m" in said
    assert '{"user": 1}' in said
    assert "welcome" in said
    lease = said.split()[1].rstrip(",")
    assert cli("extend", lease, "--lease", "1h").startswith("until ")
    assert cli("ack", lease, "--result", '1={"sent": true}') == "1 job done\n"
    assert cli.json("jobs", "show", 1)["result"] == {"sent": True}


def test_every_option_of_a_job_can_be_said(cli: Cli) -> None:
    cli("push", "q", "1")
    options = """
        --task t --priority 7 --max-attempts 5 --backoff list --backoff-list 1s --backoff-list 2m
        --backoff-base 3s --backoff-cap 1h --jitter none --lease 45s --timeout 5m --ttl 1d
        --tag a --tag b --retain 2h --retain-dead 3d --delay 1h30m --key k --on-conflict replace
        --keep-key started --group g --depends-on 1 --on-dependency-failure ignore
        --header x=1 --header y=a=b --durability fsync
    """
    pushed = cli.json("push", "q", "[1.50]", *options.split())
    assert pushed == {"jobs": [{"id": 2, "outcome": "created"}]}
    job = cli.json("jobs", "show", 2)
    assert (job["state"], job["payload"], job["task"], job["priority"]) == (
        "blocked",
        [1.5],
        "t",
        7,
    )
    assert (job["key"], job["group"], job["tags"]) == ("k", "g", ["a", "b"])
    assert (job["headers"], job["children"]) == ({"x": "1", "y": "a=b"}, [1])
    assert job["max_attempts"] == 5
    assert job["run_at"] - job["created_at"] == 90 * 60_000
    cli("push", "q", "--lifo")
    assert cli.json("push", "q", "2", "--key", "k") == {"jobs": [{"id": 2, "outcome": "ignored"}]}


def test_a_payload_comes_from_a_file_or_from_standard_input(cli: Cli, place: Path) -> None:
    (place / "payload.json").write_text('{"from": "file"}\n')
    cli("push", "q", "@payload.json")
    cli("push", "q", "-", given='{"from": "stdin"}\n')
    cli("push", "q")
    cli("push", "q", "[1]", "--codec", "msgpack")
    cli("push", "q", "-", "--codec", "bytes", given=b"\x00\xff\n")
    jobs = cli.json("jobs", "ls")["jobs"]
    assert [job.get("payload") for job in jobs[:4]] == [
        {"from": "file"},
        {"from": "stdin"},
        None,
        [1],
    ]
    assert [job["codec"] for job in jobs] == ["json", "json", "json", "msgpack", "bytes"]
    assert jobs[4]["payload_base64"] == "AP8K"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["hello"], "a text in it has quotes"),
        (["@nowhere.json"], "nowhere.json cannot be read: No such file"),
        (["1", "--delay", "5"], 'with its unit it is "5s"'),
        (["1", "--delay", "1s", "--run-at", "2030-01-01"], "--run-at: cannot go with --delay"),
        (["1", "--run-at", "tomorrow"], "is no instant like"),
        (["1", "--keep-key", "ever"], "neither one of live, started, retained nor a duration"),
        (["1", "--header", "x"], "is no header like NAME=VALUE"),
        (["1", "--sequence", "1"], "goes with --producer"),
        (["1", "--producer", "p"], "needs --sequence"),
        (["1", "--lines", "x"], "does not go with --lines"),
        (["--key", "k", "--lines", "x"], "does not go with --lines"),
        (["--lines", "nowhere"], "nowhere cannot be read"),
        (["1", "--codec", "yaml"], "--codec"),
    ],
)
def test_a_push_that_is_wrong_says_why(cli: Cli, words: list[str], told: str) -> None:
    cli("push", "q", *words, code=2)
    assert told in " ".join(cli.told.replace("│", " ").split())


def test_lines_are_pushed_in_batches(cli: Cli, place: Path) -> None:
    (place / "jobs").write_text("".join(f'{{"n": {n}}}\n' for n in range(25)) + "\n")
    words = ("push", "q", "--lines", "jobs", "--batch", 10, "--group", "g", "--tag", "a")
    assert cli.json(*words) == {
        "created": 25,
        "updated": 0,
        "ignored": 0,
        "batches": 3,
        "first_id": 1,
        "last_id": 25,
    }
    assert cli("push", "q", "--lines", "-", given="1\r\n2") == "2 jobs created; ids 26 to 27\n"
    assert cli("push", "q", "--lines", "-", given="") == "nothing to push\n"
    jobs = cli.json("jobs", "ls", "-q", "q", "--tag", "a")["jobs"]
    assert [job["payload"]["n"] for job in jobs] == list(range(25))
    assert {job["group"] for job in jobs} == {"g"}


def test_lines_of_a_producer_are_pushed_once(cli: Cli) -> None:
    words = ("push", "q", "--lines", "-", "--batch", 2, "--producer", "import")
    first = cli.json(*words, given="1\n2\n3\n")
    assert cli.json(*words, given="1\n2\n3\n") == first
    assert cli.json("stats")["counts"]["ready"] == 3
    cli(*words, given="1\n2\n4\n", code=2)
    assert "sequence 1 was used for another push (2 jobs had been pushed)" in cli.told
    assert cli.json("push", "q", 1, "--producer", "p", "--sequence", 7) == cli.json(
        "push", "q", 1, "--producer", "p", "--sequence", 7
    )


def test_a_line_that_is_wrong_is_named_and_stops_its_batch(cli: Cli) -> None:
    cli("push", "q", "--lines", "-", "--batch", 2, given="1\n\n2\n3\nfour\n5\n", code=2)
    assert cli.told.startswith("line 5: is not JSON")
    assert "(2 jobs had been pushed)" in cli.told
    assert cli.json("stats")["counts"]["ready"] == 2


def test_nothing_to_claim_is_told_by_the_exit_code(cli: Cli) -> None:
    cli("push", "q", "--delay", "1h")
    assert cli("claim", "q", "p", code=1) == "nothing to claim\n"
    assert cli.json("claim", "q", "--wait", "10ms", code=1) is None


def test_a_claim_as_json_is_that_of_http(cli: Cli) -> None:
    cli("push", "q", "--lines", "-", given="1\n2\n3\n")
    claimed = cli.json("claim", "p", "q", "-n", 2)
    assert set(claimed) == {"lease", "expires_at", "jobs"}
    assert [(job["id"], job["attempt"], job["payload"]) for job in claimed["jobs"]] == [
        (1, 1, 1),
        (2, 1, 2),
    ]


def test_jobs_that_a_lease_does_not_hold_are_lost(cli: Cli) -> None:
    cli("push", "q", "--lines", "-", given="1\n2\n3\n4\n")
    lease = cli.lease("q", "-n", 4)
    assert cli.json("ack", lease, 1, 99, code=1) == {"acked": [1], "lost": [99]}
    assert "1 job not held by this lease (any more): 99" in cli.told
    assert cli.json("release", lease, 2) == {"released": [2], "lost": []}
    cli("jobs", "cancel", 3)
    assert cli.json("extend", lease, code=1)["lost"] == [3]
    cli("ack", lease)
    cli("ack", lease, code=1)
    assert cli.told.endswith("claim again\n")
    assert cli.told.count("\n") == 1


def test_a_failure_is_tried_again_or_dead(cli: Cli, place: Path) -> None:
    cli("push", "q", "--lines", "-", given="1\n2\n")
    lease = cli.lease("q", "-n", 2)
    (place / "trace").write_text("at line 1")
    said = cli(
        "fail", lease, 1, "-m", "no", "--class", "Boom", "--retry-in", "1h", "--trace", "@trace"
    )
    assert said.startswith("1 scheduled, due in ")
    failed = cli.json("fail", lease, "--dead")
    assert failed == {"jobs": [{"id": 2, "state": "dead", "run_at": None}], "lost": []}
    (error,) = cli.json("jobs", "show", 1)["errors"]
    assert (error["class"], error["message"], error["trace"]) == ("Boom", "no", "at line 1")


def test_a_result_that_is_none_is_refused(cli: Cli) -> None:
    cli("push", "q")
    lease = cli.lease("q")
    for result in ("1", "x=1", "1=", "1=yes", "99999999999999999999=1"):
        cli("ack", lease, "--result", result, code=2)
    assert cli.json("jobs", "show", 1)["state"] == "active"


def test_a_priority_may_be_said_in_words(cli: Cli) -> None:
    for said in ("high", "low", "-3"):
        cli("push", "q", "--priority", said)
    jobs = cli.json("jobs", "ls", "q")["jobs"]
    assert [job["priority"] for job in jobs] == [10, -10, -3]
    cli("push", "q", "--priority", "urgent", code=2)
    assert "neither a number nor one of high, normal, low" in " ".join(
        cli.told.replace("│", " ").split()
    )


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_jobs_whose_token_nobody_could_read_are_given_back(
    cli: Cli, place: Path, form: tuple[str, ...]
) -> None:
    cli("push", "q")
    with Path("/dev/full").open("w") as full:
        words = ("claim", "q", *form)
        done = process(words, cwd=place, env=dict(os.environ), stdout=full, stderr=subprocess.PIPE)
        _, told = done.communicate(timeout=60)
    assert (done.returncode, told) == (
        2,
        "the answer cannot be written: No space left on device\n",
    )
    (job,) = cli.json("jobs", "ls", "q")["jobs"]
    assert (job["state"], job["attempts"]) == ("ready", 0)


@pytest.mark.parametrize(
    "words",
    [("push", "q", "-"), ("push", "q", "--lines", "-"), ("push", "q", "--lines", "pipe")],
)
def test_whoever_waits_for_input_serves_others_meanwhile_and_ends_at_ctrl_c(
    place: Path, words: tuple[str, ...]
) -> None:
    os.mkfifo(place / "pipe")
    pipe = subprocess.PIPE
    command = process(words, cwd=place, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        while not _answers(place):  # it makes the store
            assert command.poll() is None
        command.send_signal(signal.SIGINT)
        command.wait(timeout=20)
        assert command.stdout is not None
        assert command.stderr is not None
        told = (command.stdout.read(), command.stderr.read())
        assert (command.returncode, told) == (130, ("", ""))
    finally:
        command.kill()
        command.communicate()


def _answers(place: Path) -> bool:
    pipe = subprocess.PIPE
    stats = process(("stats",), cwd=place, stdout=pipe, stderr=pipe)
    try:
        stats.communicate(timeout=20)
    finally:
        stats.kill()
        stats.communicate()
    return stats.returncode == 0
