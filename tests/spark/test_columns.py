"""Arrow batches as runs: what is alike is said once."""

from typing import Any

import pyarrow as pa
import pytest

from penstock.model.checks_push import check_runs
from penstock.model.errors import Invalid
from penstock.model.job import MAX_BATCH, Run
from penstock.spark.columns import PUSH_BYTES, JobColumns
from penstock.spark.options import WriteOptions


def runs(batch: Any, **said: Any) -> list[Run]:
    columns = JobColumns.of(batch.schema, WriteOptions(queue="q", **said))
    made = list(columns.runs(batch))
    for run in made:
        check_runs([run])
    return made


def test_a_column_that_is_the_same_throughout_costs_nothing_per_row() -> None:
    batch = pa.record_batch(
        {
            "payload": ["1"] * 5,
            "priority": [7] * 5,
            "tags": [["a"]] * 5,
            "delay_ms": [100] * 5,
            "task": [None] * 5,
        },
        schema=pa.schema(
            [
                ("payload", pa.string()),
                ("priority", pa.int32()),
                ("tags", pa.list_(pa.string())),
                ("delay_ms", pa.int64()),
                ("task", pa.string()),
            ]
        ),
    )
    (run,) = runs(batch)
    (options,) = run.options
    assert (options.priority, options.tags, options.task) == (7, ("a",), "")
    assert (run.option_of, run.delay_ms) == (None, 100)


def test_options_that_differ_are_held_once_each() -> None:
    batch = pa.record_batch({"payload": ["1"] * 6, "priority": [1, 2, 1, None, 2, 1]})
    (run,) = runs(batch)
    assert run.option_of is not None
    said = [run.options[which].priority for which in run.option_of]
    assert said == [1, 2, 1, 0, 2, 1]
    assert len(run.options) == 3


def test_more_option_sets_than_a_byte_counts() -> None:
    batch = pa.record_batch({"payload": ["1"] * 600, "priority": list(range(600))})
    (run,) = runs(batch)
    assert run.option_of is not None
    assert [run.options[which].priority for which in run.option_of] == list(range(600))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_the_buffers_of_a_slice_are_cut_where_it_is(kind: Any) -> None:
    texts = ["0", "11", "", "333", "44"]
    batch = pa.record_batch([pa.array(texts).cast(pa.binary()).cast(kind)], names=["payload"])
    (run,) = (
        runs(batch.slice(1, 3), codec="bytes" if "binary" in str(kind) else "json")
        if ("binary" in str(kind))
        else list_of(batch)
    )
    assert list(run.payloads()) == [b"11", b"", b"333"]


def list_of(batch: Any) -> list[Run]:
    """Without the store's checks, which know that nothing is no JSON."""
    columns = JobColumns.of(batch.schema, WriteOptions(queue="q"))
    return list(columns.runs(batch.slice(1, 3)))


def test_a_batch_is_pushed_in_goes_of_bounded_length_and_size() -> None:
    batch = pa.record_batch({"n": list(range(2 * MAX_BATCH + 1))})
    assert [len(run) for run in runs(batch)] == [MAX_BATCH, MAX_BATCH, 1]
    large = pa.record_batch({"payload": [b"x" * (PUSH_BYTES // 2)] * 5 + [b"y" * (9 << 20), b"z"]})
    made = runs(large)
    assert [len(run) for run in made] == [2, 2, 1, 1, 1]
    assert b"".join(run.data for run in made) == b"".join(large.column("payload").to_pylist())


def test_two_columns_of_one_name_are_refused() -> None:
    schema = pa.schema([("a", pa.int64()), ("a", pa.int64())])
    with pytest.raises(Invalid, match="a: stands for more than one column"):
        JobColumns.of(schema, WriteOptions(queue="q"))
