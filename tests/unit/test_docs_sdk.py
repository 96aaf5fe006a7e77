"""The pages of the SDK are run as they stand; its tables name every option."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock.client.app import Repeats
from penstock.client.options import Options, TaskOptions

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TUTORIAL = (DOCS / "tutorial.md").read_text(encoding="utf-8")
TESTING = (DOCS / "how-to" / "test-your-tasks.md").read_text(encoding="utf-8")
REFERENCE = (DOCS / "reference" / "sdk.md").read_text(encoding="utf-8")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(penstock.__file__).parents[1])}


def programs(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def ran(directory: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=directory,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def comments(program: str) -> list[str]:
    return re.findall(r"print\(.*\)  # (.*)", program)


def test_the_tutorial(tmp_path: Path) -> None:
    files = {program.splitlines()[0].removeprefix("# "): program for program in programs(TUTORIAL)}
    assert list(files) == ["shop.py", "push.py", "ask.py", "test_shop.py"]
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert ran(tmp_path, "push.py").splitlines() == comments(files["push.py"])
    (command,) = re.findall(r"^penstock (worker .*)$", TUTORIAL, re.MULTILINE)
    worker = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli.main", *command.split()],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert ran(tmp_path, "ask.py").splitlines() == comments(files["ask.py"])
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
    ran(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_shop.py")


def test_the_page_about_tests(tmp_path: Path) -> None:
    page, fixture = programs(TESTING)
    test = "def test_it(jobs):\n    welcome.push(1)\n    assert jobs.drain().completed == 1\n"
    (tmp_path / "test_page.py").write_text(f"{page}\n{fixture}\n\n{test}", encoding="utf-8")
    ran(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_page.py")
    assert not (tmp_path / "shop.db").exists()


@pytest.mark.parametrize(
    ("first", "kind"),
    [("Of an app, of a task and of a push", Options), ("Of a task alone:", TaskOptions)],
)
def test_every_option_is_in_its_table(first: str, kind: type) -> None:
    section = REFERENCE.partition(first)[2].partition("|---|---|\n")[2].partition("\n\n")[0]
    listed = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    own = dict(kind.__annotations__)
    if kind is TaskOptions:
        own = {name: said for name, said in own.items() if name not in Options.__annotations__}
    assert listed == list(own)


def test_what_may_be_said_of_a_schedule_is_named() -> None:
    (row,) = [line for line in REFERENCE.splitlines() if "@app.every(" in line]
    assert [name for name in Repeats.__annotations__ if f"`{name}`" not in row] == []


def test_what_the_package_offers_is_named() -> None:
    pages = [DOCS / "tutorial.md", *DOCS.glob("how-to/*.md"), *DOCS.glob("reference/*.md")]
    told = "".join(page.read_text(encoding="utf-8") for page in pages)
    # Nobody makes these by hand; `Flow` and `PushedFlow` are what `chain` and `group` give.
    given = {"Flow", "PushedFlow", "PushedJob", "PushedJobs", "Task", "__version__"}
    missing = {name for name in penstock.__all__ if not re.search(rf"\b{name}\b", told)}
    assert missing - given == set()
