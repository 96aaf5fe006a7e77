"""The project keeps its promises to someone who has just cloned it."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import penstock
from tools.docs import broken_links, pages

ROOT = Path(__file__).resolve().parents[2]
LOCK = (ROOT / "requirements" / "dev.lock").read_text(encoding="utf-8")
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def penstock_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = Path(sys.executable).with_name("penstock")
    return subprocess.run([command, *arguments], capture_output=True, text=True, check=False)


def pinned() -> dict[str, str]:
    """Each requirement of the lock, by name, with its continuation lines."""
    lines = re.sub(r"^\s*#.*\n", "", LOCK, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    return {line.partition("==")[0]: line for line in lines if line}


def test_the_readme_begins_with_the_two_commands() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    first_block = re.search(r"```\w*\n(.*?)```", readme, flags=re.DOTALL)
    assert first_block is not None
    assert first_block[1].split("\n") == ["make demo", "make test", ""]
    assert readme[: first_block.start()].split() == ["#", "Penstock"]


def test_the_lock_names_no_host_and_no_path() -> None:
    assert not re.search(r"https?:", LOCK)
    assert "://" not in LOCK
    assert not re.search(r"^\s*-(?!-hash)", LOCK, flags=re.MULTILINE), "an option such as -i or -f"


def test_every_requirement_of_the_lock_is_pinned_with_hashes() -> None:
    assert len(pinned()) > 10
    for name, line in pinned().items():
        assert re.match(r"[a-z0-9-]+==\S+\s", line), line
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", line), name


@pytest.mark.parametrize("extra", ["core", "cli", "dev", "rocksdb", "server"])
def test_the_lock_covers_what_pyproject_asks_for(extra: str) -> None:
    project = PROJECT["project"]
    asked = project["dependencies"] if extra == "core" else project["optional-dependencies"][extra]
    names = {re.split(r"[\[<>=!~; ]", requirement)[0] for requirement in asked}
    assert names <= pinned().keys()


def test_every_extra_of_the_architecture_exists_and_all_holds_the_others() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    assert {"server", "rocksdb", "spark", "redis", "postgres", "all"} <= extras.keys()
    (everything,) = extras["all"]
    assert set(everything.removeprefix("penstock[").removesuffix("]").split(",")) == (
        extras.keys() - {"all", "dev"}
    )


def test_ci_runs_the_tests_that_make_runs() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text(encoding="utf-8").splitlines()[-1] == "make test"


def test_make_help_lists_every_target_a_user_needs() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = {line.split()[1] for line in shown.stdout.splitlines() if line.startswith("  make ")}
    needed = {"setup", "demo", "serve", "test", "check", "test-long", "bench", "docs", "clean"}
    assert needed | {"help"} <= listed


def test_the_command_prints_its_version() -> None:
    answer = penstock_command("--version")
    assert (answer.returncode, answer.stdout) == (0, f"penstock {penstock.__version__}\n")


def test_all_logic_without_io_is_under_the_import_contract() -> None:
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    (contract,) = [c for c in contracts if c["name"].startswith("Logic without I/O")]
    there = {
        f"penstock.{name}"
        for name in ("kernel", "protocol")
        if (ROOT / "src" / "penstock" / name / "__init__.py").exists()
    }
    assert there <= set(contract["source_modules"])


def test_every_relative_link_of_the_documentation_leads_somewhere() -> None:
    assert {page: list(broken_links(page)) for page in pages(ROOT) if any(broken_links(page))} == {}
