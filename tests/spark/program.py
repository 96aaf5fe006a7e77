"""What the fault tests run in a process of its own, because it is going to be killed, or lame.

    python -m tests.spark.program write MASTER URL QUEUE ROWS
    python -m tests.spark.program stream MASTER URL QUEUE EVENTS CHECKPOINT

Prints `started` when the session is there, and `done` at the end.
"""

import sys
from typing import Any

from penstock.spark.session import start

# A partition of a write takes at least so long, so that there is a middle to be killed in.
PAUSE_S = 0.3


def write(master: str, url: str, queue: str, rows: str, *settings: str) -> None:
    spark = session(master, settings)

    def slowly(batches: Any) -> Any:
        import time

        for batch in batches:
            time.sleep(PAUSE_S)  # the work that the test interrupts
            yield batch

    frame = spark.range(0, int(rows), 1, 4).mapInArrow(slowly, "id bigint")
    frame.write.format("penstock").options(url=url, queue=queue).mode("append").save()
    print("done", flush=True)


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


if __name__ == "__main__":
    (write if sys.argv[1] == "write" else stream)(*sys.argv[2:])
