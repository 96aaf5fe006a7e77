"""A standalone master with two workers, of what pip installs: everything that the page on clusters says.

Docs: docs/explanation/scale.md.
"""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.spark.lake import Lake
from tests.spark.cluster import Cluster, standalone
from tests.spark.compare import compare
from tests.spark.histories import happen
from tests.spark.log import seal
from tests.spark.running import program, said
from tests.spark.served import PATIENCE_S, Served

pytestmark = pytest.mark.long

ROWS = 400_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with standalone(tmp_path_factory.mktemp("cluster")) as one:
        yield one


def test_rows_become_jobs_and_are_read_again(cluster: Cluster, server: Served, queue: str) -> None:
    with program("write", cluster.master, server.url, queue, str(ROWS)) as process:
        assert said(process, "done")
    with program("read", cluster.master, server.url, queue) as process:
        assert said(process, f"{ROWS} {ROWS} 0 {ROWS - 1}")
        assert said(process, "done")


def test_what_the_cluster_s_owner_says_counts(cluster: Cluster, tmp_path: Path) -> None:
    name = "spark.sql.shuffle.partitions"
    with program("setting", cluster.master, name) as process:
        assert said(process, "2")  # as many as there are cores
    (tmp_path / "spark-defaults.conf").write_text(f"{name} 3\n")
    with program("setting", cluster.master, name, SPARK_CONF_DIR=str(tmp_path)) as process:
        assert said(process, "3")


def test_a_stream_becomes_jobs(
    cluster: Cluster, server: Served, queue: str, events: Path, tmp_path: Path
) -> None:
    for first in range(1, 201, 20):
        seal(events, first, 20)
    words = (cluster.master, server.url, queue, str(events), str(tmp_path / "point"))
    for _ in range(2):  # the second time there is nothing to do
        with program("stream", *words) as process:
            assert said(process, "done")
    found = sorted(one["position"] for one in server.payloads(queue))  # type: ignore[index]
    assert found == list(range(1, 201))


def test_events_become_tables(
    cluster: Cluster, spark: SparkSession, events: Path, tmp_path: Path
) -> None:
    asyncio.run(happen(3, events))
    words = ("--events", str(events), "--lake", str(tmp_path / "lake"), "--master", cluster.master)
    with program("pipeline", "run", *words, module="penstock.cli.main") as process:
        assert process.wait(PATIENCE_S) == 0
    compare(Lake(spark, str(tmp_path / "lake")).open(), events)


def test_a_worker_that_is_killed_half_way(server: Served, queue: str, tmp_path: Path) -> None:
    """Its executor ends with it; what that had in hand is done by the other one."""
    with (
        standalone(tmp_path) as cluster,
        program("write", cluster.master, server.url, queue, str(ROWS)) as process,
    ):
        assert said(process, "started")
        server.wait_for(queue, "pushed", 20_000)
        os.kill(cluster.workers[0], signal.SIGKILL)
        assert said(process, "done")
    assert server.counts(queue) == {"ready": ROWS}
    assert server.times(queue, "id", ROWS) == {1}
