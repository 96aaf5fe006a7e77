"""The README's examples are run as they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import penstock

README = Path(__file__).parents[2] / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_there_is_an_example_in_memory_and_one_on_a_disk() -> None:
    assert [re.findall(r'"(\w+):///?', example)[0] for example in EXAMPLES] == ["memory", "sqlite"]


@pytest.mark.parametrize("example", EXAMPLES, ids=["memory", "sqlite"])
def test_an_example_prints_what_its_comments_say(example: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", example],
        cwd=tmp_path,  # what it leaves behind goes with it
        env={**os.environ, "PYTHONPATH": str(Path(penstock.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    said = [comment.split(":")[0] for comment in re.findall(r"print\(.*\)  # (.*)", example)]
    assert ran.stdout.splitlines() == said
