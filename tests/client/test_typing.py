"""Signatures survive: what mypy and pyright say about good and bad calls."""

import os
import subprocess
import sys
from pathlib import Path
from shutil import copyfile

import msgspec
import pytest

import penstock

HERE = Path(__file__).parent / "typing"
ROOT = HERE.parents[2]
SOURCE = Path(penstock.__file__).parents[1]
BAD = {
    ("bad.py", number)
    for number, line in enumerate((HERE / "bad.py").read_text(encoding="utf-8").splitlines(), 1)
    if "# wrong" in line
}

Place = tuple[str, int]


def said(tmp_path: Path, *command: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(SOURCE), "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert ran.returncode in (0, 1), ran.stdout + ran.stderr  # 1: it found errors
    return ran.stdout


def by_mypy(tmp_path: Path) -> set[Place]:
    text = said(
        tmp_path,
        *("mypy", "--config-file", str(ROOT / "pyproject.toml"), "--no-error-summary"),
        *("--cache-dir", str(tmp_path), "--output", "json"),
        *(str(HERE / "good.py"), str(HERE / "bad.py")),
    )
    found = [msgspec.json.decode(line) for line in text.splitlines()]
    return {
        (Path(each["file"]).name, each["line"]) for each in found if each["severity"] == "error"
    }


def by_pyright(tmp_path: Path) -> set[Place]:
    """The one from PyPI brings its own copy along, and nothing is fetched."""
    settings = {
        "include": ["."],
        "extraPaths": [str(SOURCE)],
        "pythonVersion": "3.11",
        "typeCheckingMode": "standard",
    }
    for name in ("good.py", "bad.py"):
        copyfile(HERE / name, tmp_path / name)
    (tmp_path / "pyrightconfig.json").write_bytes(msgspec.json.encode(settings))
    text = said(
        tmp_path, "pyright", "--outputjson", "--pythonpath", sys.executable, "--project", "."
    )
    found = msgspec.json.decode(text)["generalDiagnostics"]
    return {
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1)
        for each in found
        if each["severity"] == "error"
    }


@pytest.mark.parametrize("checker", [by_mypy, by_pyright])
def test_a_checker_reports_every_mistake_and_nothing_else(checker: object, tmp_path: Path) -> None:
    assert callable(checker)
    assert checker(tmp_path) == BAD
    assert len(BAD) > 40
