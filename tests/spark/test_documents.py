"""Arrow columns as JSON, against an encoder that goes row by row."""

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import Invalid
from penstock.spark.documents import check_form, documents

texts = st.text(st.characters(codec="utf-8"), max_size=8)
VALUES: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "whole": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "float": (pa.float64(), st.floats(allow_nan=False, allow_infinity=False)),
    "flag": (pa.bool_(), st.booleans()),
    "text": (pa.string(), texts),
    "wide": (pa.large_string(), texts),
    "list": (pa.list_(pa.string()), st.lists(st.none() | texts, max_size=3)),
    "map": (
        pa.map_(pa.string(), pa.int32()),
        st.dictionaries(texts, st.none() | st.integers(0, 9), max_size=3),
    ),
    "struct": (
        pa.struct([("a", pa.int16()), ("b", pa.list_(pa.list_(pa.bool_())))]),
        st.fixed_dictionaries(
            {
                "a": st.none() | st.integers(-9, 9),
                "b": st.none() | st.lists(st.none() | st.lists(st.booleans())),
            }
        ),
    ),
}
rows = st.lists(
    st.fixed_dictionaries({name: st.none() | values for name, (_, values) in VALUES.items()}),
    max_size=6,
)


@given(rows, st.integers(0, 3), st.integers(0, 6))
def test_rows_say_in_json_what_they_say_in_arrow(
    rows: list[dict[str, Any]], first: int, count: int
) -> None:
    """Any part of a batch, too: Spark may hand over slices."""
    columns = [
        pa.array([_arrow(name, row[name]) for row in rows], kind).slice(first, count)
        for name, (kind, _) in VALUES.items()
    ]
    written = documents(list(VALUES), columns).to_pylist()
    assert [json.loads(text) for text in written] == rows[first : first + count]


def _arrow(name: str, value: Any) -> Any:
    return list(value.items()) if name == "map" and value is not None else value


def test_numbers_and_instants_as_others_read_them() -> None:
    instant = dt.datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=dt.UTC)
    columns = {
        "one": pa.array([1.0]),
        "large": pa.array([1e300]),
        "price": pa.array([Decimal("1.50")], pa.decimal128(6, 2)),
        "day": pa.array([dt.date(2026, 1, 2)]),
        "berlin": pa.array([instant], pa.timestamp("us", tz="Europe/Berlin")),
        "nowhere": pa.array([instant.replace(tzinfo=None)], pa.timestamp("us")),
        'odd "name"': pa.array([None], pa.null()),
    }
    (text,) = documents(list(columns), list(columns.values())).to_pylist()
    assert text == (
        '{"one":1.0,"large":1e+300,"price":1.50,"day":"2026-01-02",'
        '"berlin":"2026-01-02T03:04:05.678000Z","nowhere":"2026-01-02T03:04:05.678000",'
        '"odd \\"name\\"":null}'
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_json_has_no_word_for_is_refused(value: float) -> None:
    with pytest.raises(Invalid, match="x: has NaN or an infinity"):
        documents(["x"], [pa.array([1.0, None, value])])


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.list_(pa.binary()),
        pa.struct([("a", pa.binary())]),
        pa.month_day_nano_interval(),
    ],
)
def test_a_type_without_a_form_is_refused_before_there_are_rows(kind: Any) -> None:
    with pytest.raises(Invalid, match="has no JSON form"):
        check_form("x", kind)
