"""Executors and drivers that are killed, and copies that run a race: each row once, or none.

Each of these starts a Spark of its own. The small ones of every kind of fault are in `test_write` and
`test_stream`, where tasks fail and micro-batches are repeated.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.model.errors import Unavailable
from penstock.model.store import Store
from penstock.spark.plainly import plainly
from tests.spark.depth import watched
from tests.spark.log import seal
from tests.spark.running import children, program, said
from tests.spark.served import Served, served

pytestmark = pytest.mark.long

CLUSTER = "local-cluster[2,1,1024]"


@pytest.fixture
def server() -> Iterator[Served]:
    with served() as one:
        yield one


def test_an_executor_that_is_killed_half_way(server: Served) -> None:
    rows = 400_000
    with program("write", CLUSTER, server.url, "q", str(rows)) as process:
        assert said(process, "started")
        server.wait_for("q", "pushed", 20_000)
        executors = children(process.pid, "CoarseGrainedExecutorBackend")
        assert len(executors) == 2
        os.kill(executors[0], signal.SIGKILL)
        assert said(process, "done")
    assert server.counts("q") == {"ready": rows}
    assert server.times("q", "id", rows) == {1}


def test_a_driver_that_is_killed_half_way_leaves_nothing_to_be_seen(server: Served) -> None:
    with program("write", "local[2]", server.url, "q", "400000") as process:
        assert said(process, "started")
        server.wait_for("q", "pushed", 20_000)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    async def claimed(store: Store) -> bool:
        return await store.claim("default", ["q"]) is not None

    assert not server.ask(claimed)
    assert set(server.counts("q")) == {"held"}


def test_copies_that_race_count_once(server: Served) -> None:
    """Speculation starts a second copy of whatever takes longer than the median."""
    rows = 200_000
    settings = [
        "spark.speculation=true",
        "spark.speculation.interval=50ms",
        "spark.speculation.multiplier=1.01",
        "spark.speculation.quantile=0.1",
        "spark.speculation.minTaskRuntime=50ms",
    ]
    with program("write", CLUSTER, server.url, "q", str(rows), *settings) as process:
        assert said(process, "done")
    assert server.counts("q") == {"ready": rows}
    assert server.times("q", "id", rows) == {1}


@pytest.mark.parametrize("kills", [1, 3])
def test_a_stream_whose_driver_is_killed_goes_on_where_it_was(
    server: Served, events: Path, tmp_path: Path, kills: int
) -> None:
    for first in range(1, 601, 20):
        seal(events, first, 20)
    words = ("stream", "local[2]", server.url, "q", str(events), str(tmp_path / "point"))
    for kill in range(kills):
        with program(*words) as process:
            assert said(process, "started")
            server.wait_for("q", "committed", 100 * (kill + 1))
            os.killpg(process.pid, signal.SIGKILL)
    with program(*words) as process:
        assert said(process, "done")
    assert sorted(one["position"] for one in server.payloads("q")) == list(range(1, 601))  # type: ignore[index]


# -- millions --------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "sqlite"])
def large(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Served, int]]:
    """A server, and how many rows are many for it."""
    sqlite = request.param == "sqlite"
    with served(url=f"sqlite:///{tmp_path}/jobs.db" if sqlite else "memory://") as one:
        yield one, 1_000_000 if sqlite else 5_000_000


def test_millions_of_rows_are_there_once_and_at_one_instant(large: tuple[Served, int]) -> None:
    """An executor is killed in the middle; whoever looks sees none of them, or all."""
    server, rows = large
    with (
        watched(server, "q") as depth,
        program("write", CLUSTER, server.url, "q", str(rows)) as process,
    ):
        assert said(process, "started")
        server.wait_for("q", "pushed", rows // 4)
        os.kill(children(process.pid, "CoarseGrainedExecutorBackend")[0], signal.SIGKILL)
        assert said(process, "done")
    assert depth.seen == {0, rows}
    assert depth.most_held >= rows // 4, "nobody looked while it was written"
    assert server.counts("q") == {"ready": rows}
    assert server.times("q", "id", rows) == {1}


def test_of_millions_of_rows_none_is_there_if_one_fails(
    large: tuple[Served, int], spark: SparkSession
) -> None:
    server, rows = large
    last = f"IF(id = {rows - 1}, raise_error('no more'), id) AS id"
    frame = spark.range(0, rows, 1, 4).selectExpr(last)
    with watched(server, "q") as depth, pytest.raises(Unavailable), plainly():
        frame.write.format("penstock").options(url=server.url, queue="q").mode("append").save()
    assert depth.seen == {0}
    assert depth.most_held >= rows // 4, "nobody looked while it was written"
    assert server.counts("q") == {}
