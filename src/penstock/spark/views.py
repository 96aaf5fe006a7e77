"""The views as DataFrames: which columns there are, and how a part of them becomes Arrow.

Whoever reads may name fewer columns, in any order, by `.schema(…)`: only those are made. Instants are
timestamps, or milliseconds since the epoch where they are asked for as a bigint.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.model.errors import Invalid
from penstock.spark.options import View, unknown

# By column: its type, as Spark writes it.
Columns = dict[str, str]

JOBS: Final[Columns] = {
    "id": "bigint",
    "queue": "string",
    "state": "string",
    "task": "string",
    "payload": "string",
    "codec": "string",
    "priority": "int",
    "attempt": "int",
    "max_attempts": "int",
    "created_at": "timestamp",
    "run_at": "timestamp",
    "started_at": "timestamp",
    "finished_at": "timestamp",
    "key": "string",
    "group": "string",
    "tags": "array<string>",
    "headers": "map<string,string>",
    "depends_on": "array<bigint>",
    "worker": "string",
    "progress": "int",
    "progress_message": "string",
    "dead_reason": "string",
    "error_kind": "string",
    "error_message": "string",
    "result": "string",
    "result_codec": "string",
}
QUEUES: Final[Columns] = {
    "queue": "string",
    "paused": "boolean",
    "held": "bigint",
    "blocked": "bigint",
    "scheduled": "bigint",
    "ready": "bigint",
    "active": "bigint",
    "completed": "bigint",
    "dead": "bigint",
    "cancelled": "bigint",
    "expired": "bigint",
    "oldest_ready_ms": "bigint",
    "groups": "bigint",
    "config": "string",
}
EVENTS: Final[Columns] = {
    "store": "string",
    "position": "bigint",
    "index": "int",
    "kind": "string",
    "tenant": "string",
    "queue": "string",
    "at": "timestamp",
    "count": "bigint",
    "ids": "array<struct<first:bigint,count:bigint>>",
    "attempt": "int",
    "pushed_at": "timestamp",
    "ready_at": "timestamp",
    "claimed_at": "timestamp",
    "run_at": "timestamp",
    "worker": "string",
    "task": "string",
    "priority": "int",
    "bytes": "bigint",
    "reason": "string",
    "error_kind": "string",
    "error_message": "string",
    "cause": "string",
    "held": "boolean",
    "data": "string",
}
VIEWS: Final[dict[View, Columns]] = {
    "jobs": JOBS,
    "dead": JOBS,
    "queues": QUEUES,
    "events": EVENTS,
}

_INSTANT: Final = pa.timestamp("ms", tz="UTC")


def schema_of(view: View) -> str:
    return ", ".join(f"`{name}` {kind}" for name, kind in VIEWS[view].items())


def arrow_schema(schema: StructType, view: View) -> Any:
    """The columns that were asked for, as Arrow has them. Raises Invalid for one that is unknown."""
    for field in schema.fields:
        if field.name not in VIEWS[view]:
            raise unknown("column", field.name, list(VIEWS[view]))
    return to_arrow_schema(schema, timezone="UTC")


def as_asked(column: Any, field: Any) -> Any:
    """A column as its reader wants it. Instants come as integers: milliseconds."""
    kind = field.type
    try:
        if pa.types.is_timestamp(kind) and pa.types.is_integer(column.type):
            column = column.cast(_INSTANT)
        return column if column.type == kind else column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise Invalid(
            f"is of type {column.type} and cannot be read as {kind}", field.name
        ) from None


def batch_of(rows: Sequence[Any], schema: Any, cells: dict[str, Callable[[Any, bool], Any]]) -> Any:
    """Rows as a batch: a function by column says what each has; it is told if bytes are wanted."""
    arrays = []
    for field in schema:
        cell, raw = cells[field.name], pa.types.is_binary(field.type)
        values = [cell(row, raw) for row in rows]
        if pa.types.is_timestamp(field.type):
            arrays.append(as_asked(pa.array(values, pa.int64()), field))
            continue
        try:
            arrays.append(pa.array(values, field.type))
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            raise Invalid(f"cannot be read as {field.type}", field.name) from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
