"""A store on a disk, named by the environment as it is in a shell."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.cli import Cli


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory to be in, and nothing said by whoever runs the tests."""
    for name in list(os.environ):
        if name.startswith("PENSTOCK_") and name != "PENSTOCK_LONG":
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def cli(place: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("PENSTOCK_URL", "sqlite:///jobs.db?durability=os")
    return Cli()


@pytest.fixture
def own_log() -> Iterator[None]:
    """Commands that go on have the log of their process written to a stream that ends with them."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
