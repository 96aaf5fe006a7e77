"""An Arrow batch → runs of jobs.

Columns with the name of something that may be said about a job say it, row by row; `payload` is the
payload, and where there is none, all the other columns together are. What is the same in a whole
batch is said once, and a payload column is not looked into: the buffers of an Arrow string array
are the very `data` and `ends` of a run.

What the rows say is judged by the store's own checks; here only the types are, once, before any task
begins.
"""

from array import array
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from penstock.model.errors import Invalid
from penstock.model.job import MAX_BATCH, JobOptions, Run
from penstock.spark.documents import check_form, documents, json_of
from penstock.spark.options import WriteOptions, backoff_of

PAYLOAD: Final = "payload"
PUSH_BYTES: Final = 8 << 20  # of payloads in one push: well within what a server takes in a frame

_INTEGER: Final = "a whole number"
_TEXT: Final = "a string"
_FLAG: Final = "a boolean"
_INSTANT: Final = "a timestamp, or milliseconds since the epoch as a whole number"
_TEXTS: Final = "an array of strings"
_IDS: Final = "an array of whole numbers"
_MAP: Final = "a map of strings to strings"

# What jobs of one option set share …
SHARED: Final = {
    "task": _TEXT,
    "priority": _INTEGER,
    "max_attempts": _INTEGER,
    "lease_ms": _INTEGER,
    "timeout_ms": _INTEGER,
    "ttl_ms": _INTEGER,
    "on_conflict": _TEXT,
    "keep_key": _TEXT,
    "on_dependency_failure": _TEXT,
    "lifo": _FLAG,
    "tags": _TEXTS,
    "retain_ms": _INTEGER,
    "retain_dead_ms": _INTEGER,
}
# … and what each says for itself, by the name of the run's list.
OWN: Final = {
    "delay_ms": ("delay_ms", _INTEGER),
    "run_at": ("run_at", _INSTANT),
    "key": ("keys", _TEXT),
    "group": ("groups", _TEXT),
    "headers": ("headers", _MAP),
    "depends_on": ("depends_on", _IDS),
}


class JobColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Which column says what. Made once, sent to every task."""

    queue: str
    options: JobOptions  # where no column says otherwise
    payload: tuple[str, ...]  # one column, or those that make an object
    whole: bool  # whether the payload is one column, as it is
    shared: tuple[str, ...]
    own: tuple[str, ...]

    @classmethod
    def of(cls, schema: Any, options: WriteOptions) -> "JobColumns":
        """By the Arrow schema of the frame. Raises Invalid for one that cannot be written."""
        names: list[str] = schema.names
        for name in names:
            if names.count(name) > 1:
                raise Invalid("stands for more than one column; rename one of them", name)
        rest = [name for name in names if name not in SHARED and name not in OWN]
        whole = PAYLOAD in names
        if whole and len(rest) > 1:
            others = ", ".join(name for name in rest if name != PAYLOAD)
            raise Invalid(
                f"is the payload, so {others} would be left out: put them into it, as"
                " struct(…) does, or drop them",
                PAYLOAD,
            )
        if not rest:
            raise Invalid(
                f"there is no such column and no other that could be it; there are"
                f" {', '.join(names) or 'none'}",
                PAYLOAD,
            )
        for name, wanted in SHARED.items() | {(name, own[1]) for name, own in OWN.items()}:
            if name in names and not _is(wanted, schema.field(name).type):
                kind = schema.field(name).type
                raise Invalid(f"is a column of type {kind}; it has to be {wanted}", name)
        codec = options.codec
        if whole:
            codec = _payload_codec(schema.field(PAYLOAD).type, codec)
        elif codec not in (None, "json"):
            raise Invalid(f"{codec} needs a column `payload` of type binary", "codec")
        for name in rest:
            if not (whole and _is_bytes(schema.field(name).type)):
                check_form(name, schema.field(name).type)
        said: dict[str, Any] = {
            name: value for name in SHARED if (value := getattr(options, name, None)) is not None
        }
        return cls(
            queue=options.queue,
            options=JobOptions(codec=codec or "json", backoff=backoff_of(options), **said),
            payload=tuple(rest),
            whole=whole,
            shared=tuple(name for name in names if name in SHARED),
            own=tuple(name for name in names if name in OWN),
        )

    def runs(self, batch: Any) -> Iterator[Run]:
        """The jobs of a batch in order, in runs of which each is a push."""
        for first in range(0, batch.num_rows, MAX_BATCH):
            yield from self._runs(batch.slice(first, MAX_BATCH))

    def _runs(self, rows: Any) -> Iterator[Run]:
        data, ends = packed(self._payloads(rows))
        begin = 0
        while begin < len(ends):
            size = int(ends[begin - 1]) if begin else 0
            end = max(begin + 1, int(np.searchsorted(ends, size + PUSH_BYTES, "right")))
            piece = rows.slice(begin, end - begin)
            options, option_of = self._options(piece)
            cut = ends[begin:end] - size if size else ends[begin:end]
            yield Run(
                queue=self.queue,
                data=data[size : int(ends[end - 1])],
                ends=array("I", cut.astype(np.uint32).tobytes()),
                options=options,
                option_of=option_of,
                **{OWN[name][0]: _own(name, piece.column(name)) for name in self.own},
            )
            begin = end

    def _payloads(self, rows: Any) -> Any:
        if not self.whole:
            return documents(self.payload, [rows.column(name) for name in self.payload])
        column = rows.column(PAYLOAD)
        if not (_is_text(column.type) or _is_bytes(column.type)):
            return json_of(PAYLOAD, column)
        if column.null_count:
            nothing = "null" if self.options.codec == "json" else b""
            column = pc.fill_null(column, pa.scalar(nothing).cast(column.type))
        return column

    def _options(self, rows: Any) -> tuple[tuple[JobOptions, ...], Sequence[int] | None]:
        """The option sets of these rows, and which of them each has."""
        options, varied = self.options, []
        for name in self.shared:
            column = rows.column(name)
            if is_constant(column):
                options = _saying(options, {name: _value(name, column[0].as_py())})
            else:
                varied.append((name, *_encoded(name, column)))
        if not varied:
            return (options,), None
        # The rows' values as one number each: equal numbers, equal options.
        sizes = [len(values) for _, values, _ in varied]
        codes = reduce(lambda sum_, each: sum_ * len(each[1]) + each[2], varied, np.int64(0))
        used, option_of = np.unique(codes, return_inverse=True)
        places = np.unravel_index(used, sizes)
        table = tuple(
            _saying(
                options, {name: values[at[k]] for (name, values, _), at in _each(varied, places)}
            )
            for k in range(len(used))
        )
        if len(table) <= 256:
            return table, option_of.astype(np.uint8).tobytes()
        return table, option_of.tolist()


def _each(varied: list[Any], places: Any) -> Iterator[Any]:
    return zip(varied, places, strict=True)


def packed(column: Any) -> tuple[bytes, Any]:
    """The payloads of a string or binary column end to end, and where each ends."""
    wide = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    _, offsets, data = column.buffers()
    places = np.frombuffer(offsets, np.int64 if wide else np.int32)
    places = places[column.offset : column.offset + len(column) + 1]
    begin, end = int(places[0]), int(places[-1])
    content = b"" if data is None else data.slice(begin, end - begin).to_pybytes()
    return content, places[1:] - begin if begin else places[1:]


def is_constant(column: Any) -> bool:
    """Whether all values are the same: a column is constant if it equals itself, moved by one."""
    return len(column) == 1 or bool(column.slice(1).equals(column.slice(0, len(column) - 1)))


def _encoded(name: str, column: Any) -> tuple[list[Any], Any]:
    """The distinct values, and which of them each row has."""
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        table: dict[Any, int] = {}
        rows = [table.setdefault(_value(name, row), len(table)) for row in column.to_pylist()]
        return list(table), np.array(rows, np.int64)
    found = column.dictionary_encode(null_encoding="encode")
    values = [_value(name, value) for value in found.dictionary.to_pylist()]
    return values, found.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def _saying(options: JobOptions, said: dict[str, Any]) -> JobOptions:
    """Null says nothing."""
    return replace(options, **{name: value for name, value in said.items() if value is not None})


def _value(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name == "tags":
        return tuple(value)
    if name == "keep_key" and value.isdigit():
        return int(value)  # a duration
    return value


def _own(name: str, column: Any) -> Any:
    if name == "run_at" and pa.types.is_timestamp(column.type):
        column = pc.floor_temporal(column, unit="millisecond")
        column = column.cast(pa.timestamp("ms", tz=column.type.tz)).cast(pa.int64())
    if column.null_count == len(column):
        return None
    if name in ("delay_ms", "run_at") and is_constant(column):
        return column[0].as_py()
    rows = column.to_pylist()
    if name == "headers":
        return [None if row is None else dict(row) for row in rows]
    if name == "depends_on":
        return [() if row is None else tuple(row) for row in rows]
    return rows


# -- types ---------------------------------------------------------------------------------------


def _is(wanted: str, kind: Any) -> bool:
    types = pa.types
    if wanted is _INTEGER:
        return bool(types.is_integer(kind))
    if wanted is _TEXT:
        return _is_text(kind)
    if wanted is _FLAG:
        return bool(types.is_boolean(kind))
    if wanted is _INSTANT:
        return bool(types.is_integer(kind) or (types.is_timestamp(kind) and kind.tz is not None))
    if wanted is _MAP:
        return bool(types.is_map(kind) and _is_text(kind.key_type) and _is_text(kind.item_type))
    if not types.is_list(kind):
        return False
    return _is(_TEXT if wanted is _TEXTS else _INTEGER, kind.value_type)


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: Any) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _payload_codec(kind: Any, said: Any) -> Any:
    if _is_bytes(kind):
        return said or "bytes"
    if said in (None, "json"):
        return "json"
    raise Invalid(f"{said} needs a column `payload` of type binary, not {kind}", "codec")
