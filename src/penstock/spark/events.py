"""Event lines → Arrow, a stretch of a segment at a time, and the batch view `events`.

Arrow parses JSON lines itself, many times faster than anything that sees one line at a time; only
where it stumbles does somebody look for the line that is to blame.
"""

import io
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.events.segment import VERSION, Line, Range, decode
from penstock.model.errors import Invalid
from penstock.spark.options import EventsOptions
from penstock.spark.segments import Stretch, content, cut, segments
from penstock.spark.views import arrow_schema, as_asked

TIMES: Final = ("at", "pushed_at", "ready_at", "claimed_at", "run_at")
_IDS: Final = pa.list_(pa.list_(pa.int64()))
_TYPES: Final[dict[Any, Any]] = {
    int: pa.int64(),
    str: pa.string(),
    bool: pa.bool_(),
    Sequence[Range]: _IDS,
}
_FIELDS: Final = msgspec.structs.fields(Line)

ALWAYS: Final = tuple(each.name for each in _FIELDS if each.required)
# As the lines have them; what is 0, "" or false is left out there.
LINE: Final = pa.schema([(each.name, _TYPES[each.type]) for each in _FIELDS])


class Lines(InputPartition):
    def __init__(self, stretches: list[Stretch]) -> None:
        self.stretches = stretches


class EventsReader(DataSourceReader):
    """The view `events`: every line of every sealed segment, as it lies there."""

    def __init__(self, options: EventsOptions, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema, "events")

    def partitions(self) -> list[Lines]:
        options = self._options
        stretches = [
            stretch
            for segment in segments(options.path)
            for stretch in cut(segment.path, 0, segment.size, options.split_bytes)
        ]
        return together(stretches, options.split_bytes)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Lines)
        for stretch in partition.stretches:
            yield from batches(stretch, self._schema)


def together(stretches: list[Stretch], size: int) -> list[Lines]:
    """Small segments share a task."""
    shared: list[Lines] = []
    room = 0
    for stretch in stretches:
        length = stretch.end - stretch.begin
        if not shared or length > room:
            shared.append(Lines([]))
            room = size
        shared[-1].stretches.append(stretch)
        room -= length
    return shared or [Lines([])]


def batches(stretch: Stretch, schema: Any) -> Iterator[Any]:
    """The events of a stretch. Raises Invalid for a line that is none, with file, place and reason."""
    lines = content(stretch)
    if not lines:
        return
    try:
        table = pj.read_json(
            io.BytesIO(lines),
            read_options=pj.ReadOptions(use_threads=False, block_size=max(len(lines), 1 << 20)),
            parse_options=pj.ParseOptions(explicit_schema=LINE, unexpected_field_behavior="ignore"),
        )
    except pa.ArrowInvalid as error:
        raise _blamed(stretch, lines, str(error)) from None
    if (
        any(table[name].null_count for name in ALWAYS)
        or pc.any(pc.not_equal(table["v"], VERSION)).as_py()
    ):
        raise _blamed(stretch, lines, "something is missing")
    for piece in table.combine_chunks().to_batches():
        if not _counts_are_right(piece):
            raise _blamed(stretch, lines, "counts and ids differ")
        columns = [as_asked(_column(piece, field.name), field) for field in schema]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(piece: Any, name: str) -> Any:
    column = piece.column(piece.schema.get_field_index(name))
    if name == "ids":
        return _ranges(column)
    if name in TIMES:
        return column  # null: does not apply
    nothing = {pa.string(): "", pa.bool_(): False}.get(column.type, 0)
    return pc.fill_null(column, nothing)


def _ranges(column: Any) -> Any:
    """[[first, count], …] as structs."""
    offsets, numbers = _numbers(column)
    ranges = pa.StructArray.from_arrays(
        [pa.array(numbers[0::2], pa.int64()), pa.array(numbers[1::2], pa.int64())],
        names=["first", "count"],
    )
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), ranges)


def _numbers(column: Any) -> tuple[Any, Any]:
    """Where the ranges of each event begin, and those of all as numbers: first, count, first …"""
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    numbers = column.flatten().flatten().to_numpy(zero_copy_only=False)
    return np.concatenate(([0], np.cumsum(lengths))), numbers


def _counts_are_right(piece: Any) -> bool:
    """Whether every event is about as many jobs as its ranges are."""
    ids = piece.column("ids")
    offsets, numbers = _numbers(ids)
    if len(numbers) != 2 * offsets[-1]:
        return False
    sums = np.concatenate(([0], np.cumsum(numbers[1::2])))
    said = pc.fill_null(piece.column("count"), 0).to_numpy(zero_copy_only=False)
    return bool(np.array_equal(said, sums[offsets[1:]] - sums[offsets[:-1]]))


def _blamed(stretch: Stretch, lines: bytes, otherwise: str) -> Invalid:
    """Look for the line that is wrong, to name it."""
    place = stretch.begin
    for line in lines.splitlines(keepends=True):
        try:
            decode(line)
        except ValueError as error:
            return Invalid(f"{stretch.path} has no event at byte {place}: {error}", "events")
        place += len(line)
    return Invalid(f"{stretch.path} cannot be read as events: {otherwise}", "events")
