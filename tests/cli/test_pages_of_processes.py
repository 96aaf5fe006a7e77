"""The pages about what goes on until a signal ends it: its commands, run for real on free ports."""

import json
import re
import shlex
import signal
import socket
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from penstock.settings import Settings
from tests.cli.cli import COMMAND, Cli, environment, process
from tests.snippets import blocks
from tools.commands import commands
from tools.docs import ROOT

README = (ROOT / "README.md").read_text("utf-8").partition("\n## A server\n")[2]
README = README.partition("\n## ")[0]
SERVER = (ROOT / "docs/how-to/run-a-server.md").read_text("utf-8")
WORKERS = (ROOT / "docs/how-to/run-workers.md").read_text("utf-8")

FREE = {"PENSTOCK_PORT": "0", "PENSTOCK_HTTP_PORT": "0"}  # whatever else a page says of ports
SOON_S = 60.0
TASKS = """
from penstock import Penstock

app = Penstock("sqlite:///jobs.db?durability=os")


@app.task(queue="emails")
def welcome(user: int) -> str:
    return f"welcome, {user}"
"""


def shown(page: str, language: str = "sh") -> list[str]:
    return [block for said, block in blocks(page) if said == language]


def words(block: str) -> list[str]:
    """Of a block with one command in it, without the program."""
    program, *rest = shlex.split(block)
    assert program == "penstock"
    return rest


def ran(said: list[str], place: Path, code: int = 0, **variables: str) -> str:
    """What a command prints that comes to an end."""
    done = subprocess.run(
        [*COMMAND, *said],
        cwd=place,
        env=environment(**variables),
        capture_output=True,
        text=True,
        check=False,
        timeout=SOON_S,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@contextmanager
def going_on(said: list[str], place: Path, **variables: str) -> "Iterator[subprocess.Popen[str]]":
    """The command while it runs, its standard error in a file. It ends gracefully when told so."""
    with (
        (place / "log").open("w") as log,
        process(
            said, cwd=place, env=environment(**variables), stdout=subprocess.PIPE, stderr=log
        ) as running,
    ):
        try:
            yield running
        finally:
            running.send_signal(signal.SIGTERM)
            try:
                code = running.wait(SOON_S)
            except subprocess.TimeoutExpired:
                running.kill()
                raise
    assert code == 0, (place / "log").read_text()


def where(line: str) -> dict[str, str]:
    """The addresses in what a server prints for people."""
    return dict(re.findall(r"(tcp|http) ([\d.]+:\d+)", line))


@contextmanager
def serving(said: list[str], place: Path, **variables: str) -> Iterator[str]:
    """A server, and the line by which it says where it is."""
    with going_on(said, place, **variables) as running:
        assert running.stdout is not None
        yield running.stdout.readline()


# -- a server ------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [README, SERVER], ids=["README", "run-a-server"])
def test_the_first_command_puts_a_store_on_the_network(page: str, tmp_path: Path) -> None:
    with serving(words(shown(page)[0]), tmp_path, **FREE) as line:
        assert "sqlite:///jobs.db" in line
        assert where(line).keys() == {"tcp", "http"}
        for path in ("/openapi.json", "/metrics", "/docs"):
            with urlopen(f"http://{where(line)['http']}{path}", timeout=SOON_S) as answer:
                assert answer.status == 200
    assert (tmp_path / "jobs.db").exists()


def test_anything_that_has_a_socket_says_what_the_readme_says(tmp_path: Path) -> None:
    ((asked, answered),) = re.findall(r"^```\n→ (.*)\n← (.*)\n```", README, re.MULTILINE)
    with serving(words(shown(README)[0]), tmp_path, **FREE) as line:
        host, port = where(line)["tcp"].split(":")
        with (
            socket.create_connection((host, int(port)), timeout=SOON_S) as connection,
            connection.makefile("rw", encoding="utf-8", newline="\n") as wire,
        ):
            wire.write(asked + "\n")
            wire.flush()
            assert wire.readline() == answered + "\n"


def test_the_line_of_json_has_what_the_page_shows(tmp_path: Path) -> None:
    (text,) = shown(SERVER, "json")
    said = [*words(shown(SERVER)[0]), "--port", "0", "--http-port", "0", "--json"]
    with serving([*said, "--unix", "penstock.sock"], tmp_path) as line:
        told, example = json.loads(line), json.loads(text)
        assert list(told) == list(example)
        assert (told["store"], told["grpc"]) == (example["store"], example["grpc"])
        assert told["unix"].endswith("penstock.sock")
        assert stat.S_IMODE((tmp_path / "penstock.sock").stat().st_mode) == 0o600
        assert re.fullmatch(r"127\.0\.0\.1:[1-9]\d*", told["tcp"])


def test_a_server_that_others_reach_does_not_start_without_tokens(tmp_path: Path) -> None:
    # An address that is nobody's: were the door left open, nobody could come in all the same.
    said = ran([*words(shown(SERVER)[0]), "--host", "192.0.2.1"], tmp_path, code=2, **FREE)
    assert "token" in said


def test_the_token_of_the_page_is_let_in_as_the_page_says(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = Cli()(*words(shown(SERVER)[1]))
    token = re.findall(r"^token: (\S+)$", said, re.MULTILINE)[0]
    table = said[said.index("[[tokens]]") :]
    (kept,) = tomllib.loads(table)["tokens"]
    assert Cli()("token", "hash", given=token).strip() == kept["hash"]
    assert token not in table

    beside, elsewhere = place / "tokens.toml", place / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)  # where no penstock.toml says more
    for settings in (table, f'tokens_file = "{beside.name}"\n'):
        (place / "penstock.toml").write_text(settings)
        with serving(words(shown(SERVER)[0]), place, **FREE) as line:
            cli = Cli("--url", f"penstock://{where(line)['tcp']}")
            monkeypatch.delenv("PENSTOCK_TOKEN", raising=False)
            cli("push", "emails-new", "1", code=2)
            monkeypatch.setenv("PENSTOCK_TOKEN", token)
            assert cli("push", "emails-new", "1").endswith(" created\n")
            assert cli("push", "reports", "1").endswith(" created\n")
            cli("ack", cli.lease("emails-new"))
            cli("claim", "reports", code=2)
            cli("queues", "pause", "emails-new", code=2)
        beside.write_text(table)
        beside.chmod(0o600)


@pytest.mark.parametrize("level", ["info", "warning"])
def test_what_happens_to_jobs_is_a_line_with_ranges(level: str, place: Path) -> None:
    (place / "lines").write_text("1\n" * 1_000)
    flags = ["--log-format", "json", "--log-level", level]
    with serving([*words(shown(SERVER)[0]), *flags], place, **FREE) as line:
        Cli("--url", f"penstock://{where(line)['tcp']}")("push", "q", "--lines", "lines")
    told = (place / "log").read_text()
    assert ('"ids":"1-1000"' in told) == (level == "info")


# -- workers -------------------------------------------------------------------------------------


def test_the_worker_of_the_page_runs_a_task_and_ends(tmp_path: Path) -> None:
    (block,) = shown(WORKERS)
    said = words(block)
    module = tmp_path / "shop" / "tasks.py"
    module.parent.mkdir()
    module.write_text(TASKS)
    push = "from shop.tasks import welcome; print(welcome.push(7).result(timeout='30s'))"
    choices = [[], ["-q", "emails:3,reports:1", "-c", "4", "--log-format", "json"]]
    for more in choices:
        with going_on([*said, *more], tmp_path):
            asked = subprocess.run(
                [sys.executable, "-c", push],
                cwd=tmp_path,
                env=environment(),
                capture_output=True,
                text=True,
                check=False,
                timeout=SOON_S,
            )
            assert asked.stdout == "welcome, 7\n", asked.stderr
    assert all(json.loads(line) for line in (tmp_path / "log").read_text().splitlines())


def test_an_app_that_is_not_there_is_said_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "tasks.py").write_text(TASKS)
    (block,) = shown(WORKERS)
    (said,) = words(block)[1:]
    for wrong, meant in ((said.replace(":app", ":ap"), "app"), ("shop.task:app", "shop.tasks")):
        told = ran(["worker", wrong], tmp_path, code=2)
        assert told.count("\n") == 1
        assert meant in told


# -- what cannot be run --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "of"),
    [(SERVER, ("serve", "token create")), (WORKERS, ("worker",))],
    ids=["run-a-server", "run-workers"],
)
def test_every_flag_that_the_page_names_exists(page: str, of: tuple[str, ...]) -> None:
    known = dict(commands())
    options = {
        option
        for name in of
        for each in known[name].params
        for option in (*each.opts, *each.secondary_opts)
    }
    # `--enable-optimizations` and its like are Python's own.
    text = page.partition("\n## Choose a Python\n")
    prose = text[0] + text[2].partition("\n## ")[2]
    named = set(re.findall(r"`(-{1,2}[a-z][a-z-]*)", prose))
    assert named
    assert named <= options


def test_every_setting_and_metric_that_the_page_about_servers_names_exists() -> None:
    tables = "\n".join(re.findall(r"^\|.*$", SERVER, flags=re.MULTILINE))
    prose = re.sub(r"^\|.*$", "", SERVER, flags=re.MULTILINE)
    named = set(re.findall(r"`([a-z]+_[a-z_]+)`", prose))
    metrics = {name for name in named if name.startswith("penstock_")}
    assert {"tokens_file", "audit_file", "shutdown_s"} <= named
    assert named - metrics <= set(Settings.__struct_fields__)
    # The table of metrics is held against the code in tests/unit/test_metrics.py.
    assert metrics <= set(re.findall(r"`(penstock_[a-z_]+)`", tables))
