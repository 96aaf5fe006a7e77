"""One session for every test of a process: starting one costs more than most tests."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.spark.session import start
from tests.spark.served import ROOT, Served, served


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Tasks are tried up to three times, so that failing is something that they may do."""
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    session = start(
        master="local[2,3]",
        config={
            "spark.local.dir": str(tmp_path_factory.mktemp("spark")),
            "spark.python.worker.faulthandler.enabled": "false",
        },
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def server() -> Iterator[Served]:
    with served() as one:
        yield one


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """A queue of this test's own."""
    return f"{request.node.name}"[:200].replace("[", ".").replace("]", "").replace(" ", "")


@pytest.fixture
def events(tmp_path: Path) -> Path:
    return tmp_path / "events"


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Spark's own threads live as long as its session does; ours are in other processes."""
    yield
