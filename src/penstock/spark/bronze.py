"""bronze.events: every event line once, typed; and the lines that are none, with the reason.

Pure functions from DataFrame to DataFrame; `pipeline.py` reads and writes.
"""

from typing import Final, get_args

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from penstock.events.segment import GAP, VERSION
from penstock.model.event import EventKind

KINDS: Final = (*get_args(EventKind), GAP)

# What identifies an event: a store that was killed tells its last events again.
IDENTITY: Final = ("store", "position", "index")

_TEXTS: Final = ("worker", "task", "reason", "error_kind", "error_message", "cause", "data")
_TIMES: Final = ("pushed_at", "ready_at", "claimed_at", "run_at")

LINE: Final = t.StructType(
    [
        t.StructField("v", t.IntegerType()),
        t.StructField("store", t.StringType()),
        t.StructField("position", t.LongType()),
        t.StructField("index", t.IntegerType()),
        t.StructField("kind", t.StringType()),
        t.StructField("tenant", t.StringType()),
        t.StructField("queue", t.StringType()),
        t.StructField("at", t.LongType()),
        t.StructField("count", t.LongType()),
        t.StructField("ids", t.ArrayType(t.ArrayType(t.LongType()))),
        t.StructField("attempt", t.IntegerType()),
        *(t.StructField(name, t.LongType()) for name in _TIMES),
        t.StructField("priority", t.IntegerType()),
        t.StructField("bytes", t.LongType()),
        t.StructField("held", t.BooleanType()),
        *(t.StructField(name, t.StringType()) for name in _TEXTS),
        t.StructField("_corrupt", t.StringType()),
    ]
)

# What a line leaves out where it says nothing.
_DEFAULTS: Final[dict[str, Column | int | str | bool]] = {
    "index": 0,
    "count": 0,
    "attempt": 0,
    **dict.fromkeys(_TIMES, 0),
    "priority": 0,
    "bytes": 0,
    "held": False,
    **dict.fromkeys(_TEXTS, ""),
}


def parsed(lines: DataFrame) -> DataFrame:
    """Lines (`value`, `file`) with their fields as columns, and `bad`: why it is no event, or null."""
    read = f.from_json(
        "value", LINE, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_corrupt"}
    )
    rows = lines.select("value", "file", read.alias("line")).select("value", "file", "line.*")
    return rows.withColumn("bad", _reason())


def _reason() -> Column:
    """The first thing that is wrong with a line."""
    ids = f.aggregate(
        "ids", f.lit(0).cast("long"), lambda sum_, run: sum_ + f.coalesce(run[1], f.lit(-1))
    )
    ranges = f.forall("ids", lambda run: (f.size(run) == 2) & (run[0] > 0) & (run[1] > 0))
    needed = ("store", "position", "kind", "tenant", "queue", "at")
    missing = f.concat_ws(", ", *(f.when(f.col(name).isNull(), f.lit(name)) for name in needed))
    return (
        f.when(f.col("_corrupt").isNotNull() | f.col("v").isNull(), "not an event line")
        .when(f.col("v") != VERSION, f.concat(f.lit("of version "), f.col("v").cast("string")))
        .when(missing != "", f.concat(f.lit("without "), missing))
        .when(~f.col("kind").isin(*KINDS), f.concat(f.lit("of the unknown kind "), f.col("kind")))
        .when(f.col("at") <= 0, "without a time")
        .when(f.col("ids").isNotNull() & ~ranges, "with ids that are no ranges")
        .when(
            f.col("ids").isNotNull() & (ids != f.coalesce("count", f.lit(0))),
            "with another count than its ids have",
        )
    )


def events(rows: DataFrame) -> DataFrame:
    """The good ones of `parsed`, each once, with what they leave out filled in, and their day."""
    good = rows.where(f.col("bad").isNull()).drop("value", "file", "bad", "v", "_corrupt")
    filled = good.withColumns(
        {name: f.coalesce(name, f.lit(value)) for name, value in _DEFAULTS.items()}
        | {"ids": f.coalesce("ids", f.array().cast("array<array<bigint>>"))}
    )
    return filled.dropDuplicates(list(IDENTITY)).withColumn("day", day_of("at"))


def bad_lines(rows: DataFrame) -> DataFrame:
    return rows.where(f.col("bad").isNotNull()).select("file", "bad", "value")


def unknown(new: DataFrame, known: DataFrame) -> DataFrame:
    """The events that are not among the known ones."""
    return new.join(known.select(*IDENTITY), list(IDENTITY), "left_anti")


def day_of(instant: str) -> Column:
    """The day of an instant in ms, UTC."""
    return f.to_date(f.timestamp_millis(instant))
