"""The tutorial does what it says, from its first line to its last."""

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.served import ROOT, Served, served

PAGE = ROOT / "docs" / "tutorial-spark.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_tutorial(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("penstock.spark.session.start", lambda: spark)
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    before = [block for block in blocks if '"view", "events"' not in block]
    after = [block for block in blocks if '"view", "events"' in block]
    assert (len(before), len(after)) == (5, 2)
    world: dict[str, Any] = {"__name__": "tutorial"}
    words = ("--events", str(tmp_path / "events"))
    url = f"sqlite:///{tmp_path}/jobs.db"
    with served(*words, url=url) as server:
        for block in before:
            run(block, world, server, tmp_path)
        assert server.counts("emails") == {"completed": 10_000}
    # What a server writes down can be read a few seconds later, or when it has ended.
    with served(*words, url=url) as server:
        world["url"] = server.url
        for block in after:
            run(block, world, server, tmp_path)
        assert {one["worker"] for one in server.payloads("reports")} == {"tutorial"}  # type: ignore[index]
    shown = capfd.readouterr().out
    assert re.search(r"emails\|\s*10000\|\s*0\|\s*0\|", shown), "the queues"
    assert re.search(r"emails\|\s*completed\|\s*10000\|", shown), "the events"


def run(block: str, world: dict[str, Any], server: Served, directory: Path) -> None:
    """A block, with the addresses of this test."""
    told = block.replace("penstock://127.0.0.1:6789", server.url)
    told = told.replace('load("events")', f'load("{directory / "events"}")')
    told = told.replace('="checkpoint"', f'="{directory / "checkpoint"}"')
    exec(compile(told, str(PAGE), "exec"), world)
