"""Jobs in and out of Spark, beside Arrow sinks and sources that do nothing, and beside Parquet.

Spark, its Python workers and the server share the machine, so the figures are of wall time: that is
what somebody waits for.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

from benchmarks._measure import Figure, interleave
from penstock.spark.connection import Connection
from penstock.spark.where import Where

NOTHING: Final = "nothing"
OURS: Final = "penstock"
PARQUET: Final = "Parquet"
SUBJECTS: Final = (NOTHING, OURS, PARQUET)
READ: Final = "read jobs"

Take = Callable[[], Sequence[float]]


class Nothing(DataSource):
    """The least that an Arrow sink or source can do: the yardstick."""

    @classmethod
    def name(cls) -> str:
        return "nothing"

    def schema(self) -> str:
        return "id bigint, payload string, state string"

    def writer(self, schema: Any, overwrite: bool) -> Any:
        return _NothingWritten()

    def reader(self, schema: Any) -> Any:
        return _NothingRead(int(self.options["rows"]))


class _NothingWritten(DataSourceArrowWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing was kept."""


class _NothingRead(DataSourceReader):
    def __init__(self, rows: int) -> None:
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self._rows // 8)] * 8

    def read(self, partition: InputPartition) -> Iterator[Any]:
        import pyarrow as pa

        page = pa.record_batch(
            {
                "id": pa.array(range(1_000), pa.int64()),
                "payload": ['{"user":1234567,"template":"welcome","lang":"en"}'] * 1_000,
                "state": ["ready"] * 1_000,
            }
        )
        for _ in range(partition.value // 1_000):
            yield page


@contextmanager
def served(store: str, directory: Path) -> Iterator[str]:
    url = store if store == "memory://" else f"{store}:///{directory}/jobs"
    command = [sys.executable, "-m", "penstock.cli.main", "serve", "--url", url, "--json"]
    process = subprocess.Popen(
        [*command, "--port", "0", "--no-http", "--shutdown-s", "0", "--log-level", "error"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert process.stdout is not None
        yield f"penstock://{json.loads(process.stdout.readline())['tcp']}"
    finally:
        process.terminate()
        process.wait()


def frames(spark: SparkSession, rows: int) -> dict[str, DataFrame]:
    """The same jobs in three forms."""
    text = """concat('{"user":', id, ',"template":"welcome","lang":"en"}')"""
    numbers = spark.range(rows)
    return {
        "JSON text": numbers.selectExpr(f"{text} AS payload"),
        "columns as JSON": numbers.selectExpr(
            "id AS user", "'welcome' AS template", "'en' AS lang"
        ),
        "bytes": numbers.selectExpr(f"CAST({text} AS BINARY) AS payload"),
    }


def measure(
    spark: SparkSession, url: str, rows: int, read_rows: int, rounds: int, directory: Path
) -> list[Figure]:
    """Rows a second of every form, by each subject in turn."""
    spark.dataSource.register(Nothing)
    found = []
    for form, frame in frames(spark, rows).items():
        _nothing(frame.limit(10_000))  # workers are up
        taken = interleave(_writes(frame, url, rows, directory / "written"), rounds)
        found += _figures(f"write {form}", rows, taken)
    reading = _reads(spark, url, read_rows, directory / "read")
    return found + _figures(READ, read_rows, interleave(reading, rounds))


def _figures(case: str, rows: int, taken: dict[str, list[tuple[float, ...]]]) -> list[Figure]:
    return [
        Figure(
            f"{case} · {subject}",
            "jobs/s",
            tuple(rate for (rate,) in samples),
            {"case": case, "subject": subject, "rows": rows},
        )
        for subject, samples in taken.items()
    ]


def _writes(frame: DataFrame, url: str, rows: int, file: Path) -> dict[str, Take]:
    numbers = count()

    def jobs() -> Sequence[float]:
        queue = f"written.{next(numbers)}"
        taken = _rate(rows, lambda: _jobs(frame, url, queue))
        _empty(url, queue, rows)
        return taken

    return {
        NOTHING: lambda: _rate(rows, lambda: _nothing(frame)),
        OURS: jobs,
        PARQUET: lambda: _rate(rows, lambda: _parquet(frame, file)),
    }


def _reads(spark: SparkSession, url: str, rows: int, file: Path) -> dict[str, Take]:
    frame = frames(spark, rows)["JSON text"]
    _jobs(frame, url, "read")
    _parquet(frame, file)
    jobs = spark.read.format("penstock").options(url=url, queue="read")
    kinds = {
        NOTHING: spark.read.format("nothing").option("rows", rows).load(),
        OURS: jobs.schema("id bigint, payload string, state string").load(),
        PARQUET: spark.read.parquet(str(file)),
    }
    return {
        name: lambda kind=kind: _rate(rows, lambda: _read(kind))  # type: ignore[misc]
        for name, kind in kinds.items()
    }


def _rate(rows: int, work: Callable[[], None]) -> Sequence[float]:
    began = time.perf_counter()
    work()
    return (rows / (time.perf_counter() - began),)


def _nothing(frame: DataFrame) -> None:
    frame.write.format("nothing").mode("append").save()


def _jobs(frame: DataFrame, url: str, queue: str) -> None:
    frame.write.format("penstock").options(url=url, queue=queue).mode("append").save()


def _parquet(frame: DataFrame, place: Path) -> None:
    frame.write.mode("overwrite").parquet(str(place))


def _read(frame: DataFrame) -> None:
    """Every row comes as far as Spark, and no further."""
    frame.write.format("noop").mode("overwrite").save()


def _empty(url: str, queue: str, rows: int) -> None:
    """All are there, once; and the next round begins with an empty server."""
    with Connection(Where.of(url, "", "")) as store:
        assert store.ask(lambda open_store, tenant: open_store.purge(tenant, queue)) == rows
