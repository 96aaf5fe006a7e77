"""The pages of the SDK are run as they stand; its tables name every option."""

import inspect
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.client.app import Repeats
from penstock.client.middleware import Middleware
from penstock.client.options import Options, TaskOptions
from penstock.model.job import Job, JobOptions
from tests.snippets import run

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


@contextmanager
def started(directory: Path, command: list[str]) -> "Iterator[subprocess.Popen[bytes]]":
    """A command of ours, until a signal ends it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli.main", *command],
        cwd=directory,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0


def comments(program: str) -> list[str]:
    return re.findall(r"print\(.*\)  # (.*)", program)


def test_the_tutorial(tmp_path: Path) -> None:
    files = {program.splitlines()[0].removeprefix("# "): program for program in programs(TUTORIAL)}
    beside = ["ask.py", "more.py"]  # a worker
    assert list(files) == ["shop.py", "push.py", *beside, "test_shop.py", "elsewhere.py"]
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    said = re.findall(r"^penstock ((?:worker|serve) .*)$", TUTORIAL, re.MULTILINE)
    worker, server, another = (each.split() for each in said)
    assert ran(tmp_path, "push.py").splitlines() == comments(files["push.py"])
    with started(tmp_path, worker):
        for name in beside:
            assert ran(tmp_path, name).splitlines() == comments(files[name])
    ran(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_shop.py")
    with started(tmp_path, [*server, "--port", "0", "--http-port", "0", "--json"]) as serving:
        assert serving.stdout is not None
        address = json.loads(serving.stdout.readline())["tcp"]
        text = files["elsewhere.py"]
        (tmp_path / "elsewhere.py").write_text(text.replace("127.0.0.1:6789", address))
        with started(tmp_path, [each.replace("127.0.0.1:6789", address) for each in another]):
            assert ran(tmp_path, "elsewhere.py").splitlines() == comments(text)


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


def test_the_reference_s_blocks_are_true() -> None:
    for block in programs(REFERENCE):
        names: dict[str, Any] = {}
        run(block, names)
        names["app"].close()


def test_what_a_job_and_a_hook_have_is_named() -> None:
    hooks = {name for name in vars(Middleware) if name[0] != "_"}
    for name in hooks:
        parameters = ", ".join(inspect.signature(vars(Middleware)[name]).parameters)
        assert f"| `{name}({parameters})` |" in REFERENCE
    section = REFERENCE.partition("`ctx.job` is the job")[2].partition("Everything else")[0]
    named = set(re.findall(r"`(\w+)`", section)) - {"redelivered"}
    claimed = list(Job.__struct_fields__)[: Job.__struct_fields__.index("state")]
    assert named == set(claimed) - {"more_keys"}
    options = set(re.findall(r"`options\.(\w+)`", section))
    assert options <= set(JobOptions.__struct_fields__)


def test_what_may_be_said_of_a_schedule_is_named() -> None:
    (row,) = [line for line in REFERENCE.splitlines() if "@app.every(" in line]
    assert [name for name in Repeats.__annotations__ if f"`{name}`" not in row] == []


def test_what_the_package_offers_is_named() -> None:
    names = set(penstock.__all__) - {"__version__"}
    assert {name for name in names if not re.search(rf"`[^`\n]*\b{name}\b", REFERENCE)} == set()


def test_what_the_package_offers_says_what_it_is() -> None:
    offered = {name: getattr(penstock, name) for name in penstock.__all__ if name[0] != "_"}
    # A class that says nothing of itself answers None here, and not what it inherits.
    assert {name for name, each in offered.items() if not each.__doc__} == set()


@pytest.mark.parametrize("kind", [penstock.DelayedQueue, penstock.CronService])
def test_every_call_of_a_facade_is_in_its_table_and_has_a_twin(kind: type) -> None:
    calls = {name for name in vars(kind) if f"a{name}" in vars(kind)}
    assert len(calls) > 4
    assert {name for name in calls if f"`{name}(" not in REFERENCE} == set()
