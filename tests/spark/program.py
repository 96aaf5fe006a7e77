"""What the fault tests run in a process of its own, because it is going to be killed, or lame.

    python -m tests.spark.program write MASTER URL QUEUE ROWS [SETTING=VALUE …]
    python -m tests.spark.program read MASTER URL QUEUE
    python -m tests.spark.program setting MASTER NAME
    python -m tests.spark.program stream MASTER URL QUEUE EVENTS CHECKPOINT
    python -m tests.spark.program pipeline EVENTS LAKE WHEN TABLE

Prints `started` when the session is there, and `done` at the end. The last is `penstock pipeline run`
whose driver is killed before, amid or after the writing of a table, Java and all.
"""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from penstock.spark.session import start

# A partition of a write takes at least so long, so that there is a middle to be killed in.
PAUSE_S = 3.0
PARTITIONS = 4
BATCH = 10_000  # rows that Spark hands over at a time


def write(master: str, url: str, queue: str, rows: str, *settings: str) -> None:
    spark = session(master, settings)
    pause_s = PAUSE_S * BATCH * PARTITIONS / int(rows)

    def slowly(batches: Any) -> Any:
        import time

        for batch in batches:
            time.sleep(pause_s)  # the work that the test interrupts
            yield batch

    frame = spark.range(0, int(rows), 1, PARTITIONS).mapInArrow(slowly, "id bigint")
    frame.write.format("penstock").options(url=url, queue=queue).mode("append").save()
    print("done", flush=True)


def read(master: str, url: str, queue: str, *settings: str) -> None:
    spark = session(master, settings)
    jobs = spark.read.format("penstock").options(url=url, queue=queue, partitions="4").load()
    ids = jobs.selectExpr("CAST(get_json_object(payload, '$.id') AS BIGINT) AS id")
    found = ids.selectExpr("count(*)", "count(DISTINCT id)", "min(id)", "max(id)").first()
    print(*(found or ()), flush=True)
    print("done", flush=True)


def setting(master: str, name: str) -> None:
    print(session(master, ()).conf.get(name), flush=True)


def stream(master: str, url: str, queue: str, events: str, checkpoint: str, *more: str) -> None:
    spark = session(master, more)
    reader = spark.readStream.format("penstock").options(view="events", max_bytes_per_batch=4_000)
    query = (
        reader.schema("position bigint")
        .load(events)
        .writeStream.format("penstock")
        .options(url=url, queue=queue, checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    print("done", flush=True)


def session(master: str, settings: tuple[str, ...]) -> Any:
    config = dict(setting.split("=", 1) for setting in settings)
    spark = start(master=master, config={"spark.executor.memory": "512m", **config})
    print("started", flush=True)
    return spark


def pipeline(events: str, place: str, when: str, which: str) -> None:
    from penstock.cli.main import main
    from penstock.spark.lake import Lake

    whole = Lake.overwrite

    def overwrite(self: Lake, table: str, rows: Any, by: Sequence[str] = ("day",)) -> None:
        fatal = table == which
        if fatal and when == "before":
            die()
        if fatal and when == "amid":
            take_away(self, table, rows, by)
            die()
        whole(self, table, rows, by)
        if fatal and when == "after":
            die()

    Lake.overwrite = overwrite  # type: ignore[method-assign]
    sys.argv[1:] = ["pipeline", "run", "--events", events, "--lake", place]
    main()


def take_away(lake: Any, table: str, rows: Any, by: Sequence[str]) -> None:
    """The worst that Spark's commit can leave: every old partition deleted, no new one in place."""
    for row in rows.select(*by).distinct().collect():
        lake.forget(table, "/".join(f"{name}={row[name]}" for name in by))


def die() -> None:
    os.killpg(0, signal.SIGKILL)


PARTS: dict[str, Callable[..., None]] = {
    each.__name__: each for each in (write, read, setting, stream, pipeline)
}

if __name__ == "__main__":
    PARTS[sys.argv[1]](*sys.argv[2:])
