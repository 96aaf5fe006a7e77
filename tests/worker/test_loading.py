"""MODULE:APP: what is wrong with it is a sentence, with the reader's own lines and a hint."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.model.errors import Invalid
from penstock.worker.loading import load_app

SOURCE = Path(penstock.__file__).parents[1]

GOOD = """
from penstock import Penstock

app = Penstock("memory://")
other = Penstock("memory://")
LIMIT = 5

@app.task
def quick(): ...
"""
# By module: what it has in it, and the lines that are said of it.
BROKEN = {
    "unnamed": (
        "import os\n\nwelcome\n",
        ["NameError: name 'welcome' is not defined", "unnamed.py:3"],
    ),
    "needy": (
        "import no_such_library\n",
        ["ModuleNotFoundError: No module named 'no_such_library'", "needy.py:1"],
    ),
    "odd": (
        "from penstock import Penstock\nx = [\n",
        ["SyntaxError: '[' was never closed", "odd.py:2"],
    ),
    "deep": (
        "import json\n\n\ndef read():\n    return json.loads('{')\n\n\nread()\n",
        [
            "JSONDecodeError: Expecting property name enclosed in double quotes: "
            "line 1 column 2 (char 1)",
            "deep.py:8",
            "deep.py:5 in read",
        ],
    ),
    "wrong": (
        "from penstock import Penstock\n\napp = Penstock('memory://', timeout='soon')\n",
        ["timeout: 'soon' is not a duration", "wrong.py:3"],
    ),
    "leaves": ("import sys\n\nsys.exit(3)\n", ["SystemExit: 3", "leaves.py:3"]),
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "depot.py").write_text(GOOD)
    for name, (text, _) in BROKEN.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("depot", *BROKEN):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("module", BROKEN)
def test_a_module_that_cannot_be_imported_is_told_by_its_own_lines(
    place: Path, module: str
) -> None:
    with pytest.raises(Invalid) as raised:
        load_app(f"{module}:app")
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__
    said = raised.value.message.split("\n")
    assert said[0].startswith(f"the module {module!r} cannot be imported: ")
    first, *frames = BROKEN[module][1]
    assert first in said[0]
    assert said[1:] == [f"  {each}" for each in frames]


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("depot:ap", "has no 'ap'; did you mean depot:app?"),
        ("depot:zzz", "has no 'zzz'; its apps are app, other"),
        ("depot:LIMIT", "is a int, not a Penstock app; its apps are app, other"),
        ("depto:app", "there is no module 'depto' in .*; did you mean depot:app?"),
        ("depot.py:app", "; did you mean depot:app?"),
        ("./depot.py:app", "; did you mean depot:app?"),
        ("json:app", "has no 'app'; no Penstock app is in it"),
    ],
)
def test_a_typing_error_gets_a_hint(place: Path, where: str, says: str) -> None:
    with pytest.raises(Invalid, match=says.replace("?", r"\?")):
        load_app(where)


@pytest.mark.parametrize("flags", [(), ("--processes", "2"), ("--pool", "process")])
def test_the_command_tells_no_trace_and_ends_with_2(place: Path, flags: tuple[str, ...]) -> None:
    argv = [sys.executable, "-m", "penstock", "worker", "unnamed:app", *flags]
    ended = subprocess.run(
        argv,
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr == (
        "the module 'unnamed' cannot be imported: NameError: name 'welcome' is not defined\n"
        "  unnamed.py:3\n"
    )


def test_the_whole_trace_is_there_for_whoever_asks(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("DEBUG", "penstock.worker"), pytest.raises(Invalid):
        load_app("deep:app")
    (record,) = caplog.records
    assert record.exc_info is not None
