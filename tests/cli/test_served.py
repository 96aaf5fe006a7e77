"""The command against a real server, with tokens, each in a process of its own."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.server.auth import hash_of, new_token
from tests.cli.cli import Cli, environment, process


class Served:
    """A server that knows an administrator of any tenant, and a producer of one."""

    def __init__(self, place: Path) -> None:
        self.admin, self.producer = new_token(), new_token()
        tokens = (
            f'[[tokens]]\nname = "admin"\nhash = "{hash_of(self.admin)}"\n'
            f'[[tokens]]\nname = "web"\nhash = "{hash_of(self.producer)}"\n'
            'tenant = "acme"\nscopes = ["push:emails"]\n'
        )
        (place / "penstock.toml").write_text(
            f'no_http = true\nport = 0\nlog_level = "error"\n{tokens}'
        )
        self._process = process(
            ["serve", "--json", "--url", "sqlite:///served.db"], cwd=place, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self.url = f"penstock://{json.loads(self._process.stdout.readline())['tcp']}"

    def end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.communicate(timeout=60)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    server = Served(tmp_path_factory.mktemp("served"))
    yield server
    server.end()


@pytest.fixture
def cli(served: Served, place: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("PENSTOCK_TOKEN", served.admin)
    return Cli("--url", served.url)


def test_work_goes_through_a_server(cli: Cli) -> None:
    pushed = cli.json("push", "work", "--lines", "-", given="1\n2\n3\n")
    lease = cli.lease("work", "-n", 2, "--worker", "w")
    assert cli.json("workers", "ls")["workers"][0]["worker"] == "w"
    cli("fail", lease, "-m", "no", "--dead")
    (found,) = cli.json("dead", "groups", "work")["queues"]
    assert found["groups"][0]["count"] == 2
    assert cli.json("dead", "redrive", "work") == {"count": 2}
    assert "the next claim takes it" in cli("jobs", "explain", pushed["last_id"])
    cli("queues", "limit", "work", "--rate", "1/s")
    assert cli.json("stats")["store"] == "sqlite"
    assert cli.json("cron", "put", "tick", "work", "--every", "1h")["every_ms"] == 3_600_000
    cli("cron", "next", "tick")
    cli("bench", "--time", "1ms", "--batch", 10)
    assert cli.json("queues", "purge", "work", "--yes")["count"] >= 3


def test_the_tenant_is_the_tokens(
    cli: Cli, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_TOKEN", served.producer)
    cli("push", "emails", "1")
    cli("push", "emails", "1", "--tenant", "other", code=2)
    assert "another tenant's" in cli.told
    monkeypatch.setenv("PENSTOCK_TOKEN", served.admin)
    assert cli.json("jobs", "ls", "-q", "emails", "--tenant", "acme")["jobs"]
    cli("jobs", "ls", "-q", "emails", code=1)


def test_who_may_not_is_told_what_is_needed(
    cli: Cli, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_TOKEN", served.producer)
    cli("push", "emails", "1")
    cli("queues", "pause", "emails", code=2)
    assert "penstock token create" in cli.told
    for token in ("pst_wrong", ""):
        monkeypatch.setenv("PENSTOCK_TOKEN", token)
        cli("stats", code=2)
        assert cli.told.count("\n") == 1
        assert "PENSTOCK_TOKEN" in cli.told
    monkeypatch.setenv("PENSTOCK_TOKEN", "pst_wrong")
    host = served.url.removeprefix("penstock://")
    Cli("--url", f"penstock://:{served.admin}@{host}")("stats")  # what the url says goes first


def test_the_url_is_shown_without_its_token(served: Served, place: Path) -> None:
    host = served.url.removeprefix("penstock://")
    said = Cli("--url", f"penstock://:{served.admin}@{host}")("stats")
    assert served.admin not in said
    assert "***" in said


def test_a_pipeline_of_processes(served: Served, place: Path) -> None:
    """Push, claim and ack as a shell script does it."""
    env = environment(PENSTOCK_URL=served.url, PENSTOCK_TOKEN=served.admin)

    def ran(*words: str, given: str = "") -> str:
        pipe = subprocess.PIPE
        command = process(words, cwd=place, env=env, stdin=pipe, stdout=pipe, stderr=pipe)
        said, told = command.communicate(given, timeout=60)
        assert (command.returncode, told) == (0, "")
        return said

    assert ran("push", "piped", "--lines", "-", given="1\n2\n").startswith("2 jobs created")
    lease = json.loads(ran("claim", "piped", "-n", "2", "--json"))["lease"]
    assert ran("ack", lease) == "2 jobs done\n"


def test_whoever_has_read_enough_ends_a_listing_in_silence(served: Served, place: Path) -> None:
    env = environment(PENSTOCK_URL=served.url, PENSTOCK_TOKEN=served.admin)
    reading, writing = os.pipe()
    os.close(reading)
    command = process(
        ["queues", "ls", "--json"], cwd=place, env=env, stdout=writing, stderr=subprocess.PIPE
    )
    os.close(writing)
    _, told = command.communicate(timeout=60)
    assert told == ""
