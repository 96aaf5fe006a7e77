"""Jobs in and out of Spark: rows/s beside Arrow sinks and sources that do nothing, and Parquet.

Everything in one session and one run, in turn, round by round; what a ratio compares was measured
in the same round. Spark, its Python workers and the server share the machine, so the figures are
of wall-clock time: that is what somebody waits for.

    python -m benchmarks.spark [--rows N] [--rounds N] [--store memory://]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

from benchmarks._measure import RESULTS
from penstock.spark.session import start

ROWS = 5_000_000
READ_ROWS = 500_000
ROUNDS = 3
TARGET = 0.5


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


def seconds(work: Callable[..., None], *said: Any) -> float:
    began = time.perf_counter()
    work(*said)
    return time.perf_counter() - began


def writes(spark: SparkSession, url: str, rows: int, rounds: int, directory: Path) -> list[Any]:
    found = []
    for form, frame in frames(spark, rows).items():
        _nothing(frame.limit(10_000))  # workers are up
        samples = []
        for turn in range(rounds):
            queue = f"{form.replace(' ', '-')}.{turn}"
            idle = seconds(_nothing, frame)
            ours = seconds(_jobs, frame, url, queue)
            file = seconds(_parquet, frame, directory / queue)
            samples.append((rows / idle, rows / ours, rows / file))
            emptied(url, queue, rows)
        found.append(_line(f"write {form}", samples))
    return found


def _nothing(frame: DataFrame) -> None:
    frame.write.format("nothing").mode("append").save()


def _jobs(frame: DataFrame, url: str, queue: str) -> None:
    frame.write.format("penstock").options(url=url, queue=queue).mode("append").save()


def _parquet(frame: DataFrame, place: Path) -> None:
    frame.write.mode("overwrite").parquet(str(place))


def _read(frame: DataFrame) -> None:
    """Every row comes as far as Spark, and no further."""
    frame.write.format("noop").mode("overwrite").save()


def emptied(url: str, queue: str, rows: int) -> None:
    """All are there, once; and the next round begins with an empty server."""
    from penstock.spark.connection import Connection
    from penstock.spark.where import Where

    with Connection(Where.of(url, "", "")) as store:
        assert store.ask(lambda open_store, tenant: open_store.purge(tenant, queue)) == rows


def reads(spark: SparkSession, url: str, rows: int, rounds: int, directory: Path) -> list[Any]:
    frame = frames(spark, rows)["JSON text"]
    _jobs(frame, url, "read")
    _parquet(frame, directory / "read")
    jobs = spark.read.format("penstock").options(url=url, queue="read")
    kinds = (
        spark.read.format("nothing").option("rows", rows).load(),
        jobs.schema("id bigint, payload string, state string").load(),
        spark.read.parquet(str(directory / "read")),
    )
    samples = [tuple(rows / seconds(_read, kind) for kind in kinds) for _ in range(rounds)]
    return [_line("read jobs", samples)]


def _line(what: str, samples: list[Any]) -> dict[str, Any]:
    idle, ours, file = (median(column) for column in zip(*samples, strict=True))
    ratio = median(sample[1] / sample[0] for sample in samples)
    line = {"what": what, "nothing": idle, "penstock": ours, "parquet": file, "ratio": ratio}
    print(_row(line), flush=True)
    return line | {"samples": samples}


def _row(line: dict[str, Any]) -> str:
    rates = " | ".join(f"{line[name]:,.0f}" for name in ("nothing", "penstock", "parquet"))
    return f"| {line['what']} | {rates} | {line['ratio']:.0%} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--read-rows", type=int, default=READ_ROWS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--store", default="memory://", help="memory://, sqlite or rocksdb")
    said = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    spark = start()
    spark.dataSource.register(Nothing)
    head = "| rows/s | nothing (Arrow) | penstock | Parquet | of nothing |\n|---|---|---|---|---|"
    print(head)
    with tempfile.TemporaryDirectory() as made, served(said.store, Path(made)) as url:
        lines = writes(spark, url, said.rows, said.rounds, Path(made))
        lines += reads(spark, url, said.read_rows, said.rounds, Path(made))
    spark.stop()
    store = said.store.partition(":")[0]
    report = {"rows": said.rows, "rounds": said.rounds, "store": store, "lines": lines}
    (RESULTS / f"spark-{store}.json").write_text(json.dumps(report, indent=1) + "\n")
    text = f"# Spark\n\n{said.rows:,} rows, medians of {said.rounds} rounds, store: {store}.\n\n"
    text += "\n".join([head, *map(_row, lines)]) + "\n"
    (RESULTS / f"spark-{store}.md").write_text(text)
    written = [line for line in lines if line["what"].startswith("write")]
    best = "; ".join(f"{line['what']}: {line['ratio']:.0%}" for line in written)
    print(f"at least {TARGET:.0%} of the sink that does nothing is wanted; {best}")


if __name__ == "__main__":
    main()
