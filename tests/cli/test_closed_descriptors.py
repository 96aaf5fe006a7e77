"""Programs that are started with nothing open where standard input, output or errors should be, as
some supervisors and cron daemons start them: they work, and end as any other."""

import signal
import subprocess
import sys
import time
from itertools import combinations
from pathlib import Path

import pytest

from tests.cli.cli import COMMAND, environment

CLOSED = ["<&-", ">&-", "2>&-"]
SOME = [" ".join(each) for many in (1, 2, 3) for each in combinations(CLOSED, many)]
URL = "sqlite:///jobs.db?durability=os"
APP = """
from penstock import Penstock

app = Penstock("sqlite:///jobs.db?durability=os")


@app.task
async def give(n: int) -> int:
    with open("given", "w") as file:
        file.write(str(n))
    return n
"""
PUSHES = """
import shop
assert shop.give.push(5).id == 1
"""
TIMEOUT_S = 30


def closing(place: Path, which: str, *command: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        ["sh", "-c", f'exec "$@" {which}', "sh", *command],
        cwd=place,
        env=environment(PENSTOCK_URL=URL),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: "subprocess.Popen[str]") -> tuple[int, str]:
    """Its exit code, and whatever it complained of."""
    _, told = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, told


def until(place: Path, name: str) -> None:
    last = time.monotonic() + TIMEOUT_S
    while not (place / name).exists():
        assert time.monotonic() < last
        time.sleep(0.02)


@pytest.mark.parametrize("which", SOME)
def test_a_program_of_the_sdk_ends_well(place: Path, which: str) -> None:
    (place / "shop.py").write_text(APP, encoding="utf-8")
    (place / "pushes.py").write_text(PUSHES, encoding="utf-8")
    assert ended(closing(place, which, sys.executable, "pushes.py")) == (0, "")


@pytest.mark.parametrize("which", CLOSED)
def test_commands_that_answer_and_end(place: Path, which: str) -> None:
    for words in (["push", "emails", "1"], ["queues", "ls"], ["jobs", "ls", "--json"]):
        assert ended(closing(place, which, *COMMAND, *words)) == (0, ""), words


def test_a_closed_standard_input_is_an_empty_one(place: Path) -> None:
    code, told = ended(closing(place, "<&-", *COMMAND, "push", "emails", "-"))
    assert code == 2
    assert "JSON" in told
    assert "Traceback" not in told
    assert ended(closing(place, "<&-", *COMMAND, "push", "emails", "--lines", "-")) == (0, "")


def test_an_error_that_cannot_be_told_is_still_the_exit_code(place: Path) -> None:
    assert ended(closing(place, "2>&-", *COMMAND, "queues", "pause", "nowhere")) == (2, "")


@pytest.mark.parametrize("which", [*CLOSED, " ".join(CLOSED)])
def test_a_server_ends_well(place: Path, which: str) -> None:
    words = ["serve", "--port", "0", "--no-http", "--unix", "here.sock", "--log-level", "error"]
    process = closing(place, which, *COMMAND, *words)
    until(place, "here.sock")
    process.send_signal(signal.SIGTERM)
    assert ended(process) == (0, "")


@pytest.mark.parametrize("pool", ["async", "process"])
@pytest.mark.parametrize("processes", ["1", "2"])
@pytest.mark.parametrize("which", ["<&-", " ".join(CLOSED)])
def test_a_worker_works_and_ends_well(place: Path, which: str, processes: str, pool: str) -> None:
    (place / "shop.py").write_text(APP, encoding="utf-8")
    (place / "pushes.py").write_text(PUSHES, encoding="utf-8")
    words = ["worker", "shop:app", "--processes", processes, "--pool", pool, "--log-level", "error"]
    process = closing(place, which, *COMMAND, *words)
    assert ended(closing(place, "", sys.executable, "pushes.py")) == (0, "")
    until(place, "given")
    process.send_signal(signal.SIGTERM)
    assert ended(process) == (0, "")
