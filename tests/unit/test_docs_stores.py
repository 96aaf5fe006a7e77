"""The pages about stores on a disk: their tables are those of the code, their commands run."""

import ast
import asyncio
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw
import pytest

import penstock
from penstock.model.job import JobSpec, Run
from penstock.open import JOURNALS, open_store
from penstock.stores.journal.rocksdb import FAMILIES
from penstock.stores.journal.settings import Settings
from tools.docs import ROOT

HOW_TO = (ROOT / "docs" / "how-to" / "durable-stores.md").read_text(encoding="utf-8")
JOURNAL = (ROOT / "docs" / "explanation" / "journal.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def section(page: str, heading: str) -> str:
    found = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert found is not None, heading
    return found[1]


def rows(text: str) -> list[list[str]]:
    """The cells of a table, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def fill(url: str) -> dict[str, object]:
    """Make a store with a few jobs; answers what its health says."""

    async def filling() -> dict[str, object]:
        store = await open_store(url)
        await store.push_jobs("default", "emails", [JobSpec(payload=b"1", key="k"), JobSpec()])
        assert await store.claim("default", ["emails"]) is not None
        detail = (await store.health()).detail
        await store.close()
        return detail

    return asyncio.run(filling())


def test_the_table_of_settings_is_that_of_the_code() -> None:
    told = {
        name.strip("`"): default.strip("`")
        for name, default, _ in rows(section(HOW_TO, "Settings"))
    }
    fields = zip(Settings.__struct_fields__, Settings.__struct_defaults__, strict=True)
    assert told == {name: str(default) or "none" for name, default in fields}


def test_every_setting_has_a_meaning() -> None:
    assert all(meaning for _, _, meaning in rows(section(HOW_TO, "Settings")))


def test_the_table_of_health_is_that_of_the_code(tmp_path: Path) -> None:
    told = [name for fields, _ in rows(section(HOW_TO, "Health")) for name in fields.split(", ")]
    for scheme in JOURNALS:
        assert [name.strip("`") for name in told] == list(fill(f"{scheme}:///{tmp_path}/{scheme}"))


@pytest.mark.parametrize("page", [HOW_TO, README], ids=["how-to", "README"])
def test_the_commands_about_stores_run_as_they_stand(page: str, tmp_path: Path) -> None:
    fill(f"sqlite:///{tmp_path}/jobs.db")
    (commands,) = [block for block in blocks(page, "sh") if "penstock doctor" in block]
    said = run(commands, tmp_path)
    assert said.count("nothing is wrong") + said.count('"problems": []') >= 2
    assert ": sound\n" in said
    assert {path.name for path in tmp_path.glob("*.db")} == {"jobs.db", "restored.db"}


def run(commands: str, directory: Path) -> str:
    """What the commands of a page print, each of which has to succeed."""
    bin_directory, source = Path(sys.executable).parent, Path(penstock.__file__).parents[1]
    ran = subprocess.run(
        ["sh", "-e", "-c", commands],
        cwd=directory,
        env={
            **os.environ,
            "PATH": f"{bin_directory}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(source),
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize("code", blocks(HOW_TO, "python"))
def test_the_lines_of_python_run_as_they_stand(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = compile(code, "the page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

    async def play() -> None:
        first = await open_store("sqlite:///first.db")
        names: dict[str, Any] = {"open_store": open_store, "store": first}
        names["run"] = Run.pack("q", [b"1"])
        running = eval(whole, names)
        if inspect.isawaitable(running):
            await running
        for store in {id(each): each for each in (first, names["store"])}.values():
            await store.close()

    asyncio.run(play())


def test_the_table_of_tables_is_that_of_the_code(tmp_path: Path) -> None:
    told = [name.strip("`") for name, _, _ in rows(section(JOURNAL, "What lies where"))]
    assert told == list(FAMILIES)
    fill(f"sqlite:///{tmp_path}/jobs.db")
    file = apsw.Connection(str(tmp_path / "jobs.db"))
    there = file.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    file.close()
    assert {name for (name,) in there} == set(told)


def test_the_queries_about_the_tables_run_as_they_stand(tmp_path: Path) -> None:
    fill(f"sqlite:///{tmp_path}/jobs.db?checkpoint_records=1")
    file = apsw.Connection(str(tmp_path / "jobs.db"))
    (queries,) = blocks(JOURNAL, "sql")
    statements = [query for query in queries.split(";") if query.strip()]
    assert len(statements) > 2
    for statement in statements:
        assert file.execute(statement).fetchall(), statement
    file.close()
