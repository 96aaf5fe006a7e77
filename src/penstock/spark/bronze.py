"""bronze.events: every event line once, typed; and the lines that are none, with the reason.

Pure functions from DataFrame to DataFrame; `pipeline.py` reads and writes.
"""

from collections.abc import Sequence
from typing import Any, Final, get_args

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from penstock.events.segment import GAP, VERSION, Line, Range
from penstock.model.event import EventKind
from penstock.spark.instants import day_of, long

KINDS: Final = (*get_args(EventKind), GAP)

# What identifies an event: a store that was killed tells its last events again.
IDENTITY: Final = ("store", "position", "index")

# Spark's types for the fields of a line; its own names say the rest.
_TYPES: Final[dict[Any, t.DataType]] = {
    int: t.LongType(),
    str: t.StringType(),
    bool: t.BooleanType(),
    Sequence[Range]: t.ArrayType(t.ArrayType(t.LongType())),
}
_SMALL: Final = {"v", "index", "attempt", "priority"}
_FIELDS: Final = msgspec.structs.fields(Line)

LINE: Final = t.StructType(
    [
        *(
            t.StructField(each.name, t.IntegerType() if each.name in _SMALL else _TYPES[each.type])
            for each in _FIELDS
        ),
        t.StructField("_corrupt", t.StringType()),
    ]
)

# What a line leaves out where it says nothing; its ids are the one thing that is no literal.
_DEFAULTS: Final = {"index": 0} | {
    each.name: each.default
    for each in _FIELDS
    if each.default is not msgspec.NODEFAULT and each.name != "ids"
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
    ids = f.aggregate("ids", long(0), lambda sum_, run: sum_ + f.coalesce(run[1], f.lit(-1)))
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


def found(rows: DataFrame) -> DataFrame:
    """One row about `parsed`: its `lines`, the `days` of the good ones, the `files` of the others."""
    good = f.col("bad").isNull()
    return rows.agg(
        f.count("*").alias("lines"),
        f.collect_set(f.when(good, day_of("at"))).alias("days"),
        f.collect_set(f.when(~good, f.col("file"))).alias("files"),
    )


def unknown(new: DataFrame, known: DataFrame) -> DataFrame:
    """The events that are not among the known ones."""
    return new.join(known.select(*IDENTITY), list(IDENTITY), "left_anti")
