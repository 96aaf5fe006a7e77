"""Whatever is said at the door passes or is refused by name: no other error ever comes out."""

import inspect
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model import checks
from penstock.model.errors import PenstockError
from penstock.model.job import JobError, JobOptions, LogLine, Run
from penstock.model.lifecycle import State
from penstock.model.policy import Backoff, Bounds, Limits, QueueConfig, Rate
from penstock.model.schedule import Cron, CronSpec, Daily, Every


class Word(StrEnum):
    KEY = "key"


numbers: list[Any] = [True, 0, 1, -1, 60, 10**4_000, 1.0, float("nan")]
texts: list[Any] = ["", "a", "a\ud800", "UTC", "* * * * *", b"", b"1", Word.KEY, State.READY]
atoms = st.sampled_from([*numbers, *texts, None, (), object(), int])
junk = st.recursive(
    atoms,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.sampled_from(["a", 1, None]), inner, max_size=2)
    ),
    max_leaves=5,
)


def of_junk(kind: type[msgspec.Struct], **good: Any) -> st.SearchStrategy[Any]:
    """Structs of the kind with one or two wrong fields, and sometimes something else instead."""
    fields = st.dictionaries(st.sampled_from(kind.__struct_fields__), junk, max_size=2)
    return fields.map(lambda said: kind(**{**good, **said})) | junk


columns = [
    "option_of",
    "delay_ms",
    "run_at",
    "keys",
    "more_keys",
    "groups",
    "headers",
    "depends_on",
]
runs = st.fixed_dictionaries(
    {"queue": st.just("q") | junk, "data": st.just(b"11") | junk, "ends": st.just([1, 2]) | junk},
    optional={
        "options": st.tuples(of_junk(JobOptions) | of_junk(Backoff)) | junk,
        **{column: junk | st.lists(junk, min_size=2, max_size=2) for column in columns},
    },
)


@given(runs)
def test_whatever_a_run_says(fields: dict[str, Any]) -> None:
    run = Run(**fields)
    try:
        checks.check_push("default", [run])
    except PenstockError as error:
        assert error.field
    else:  # what passes can be compared, hashed and encoded
        hash(run.options)
        msgspec.msgpack.encode(run)


good_run = Run.pack("q", [b"1"])
schedules = (
    of_junk(Cron, expression="* * * * *")
    | of_junk(Daily, at=("02:00",))
    | of_junk(Every, every_ms=5)
)
rates = of_junk(Rate, tokens=1)

# What to pass where something better than junk can be thought of, by function and argument.
LIKELY: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "check_push": {"tenant": st.just("t"), "runs": st.just([good_run])},
    "check_claim": {"queues": st.just(["q"]) | junk},
    "check_error": {"error": of_junk(JobError)},
    "check_options": {"options": of_junk(JobOptions)},
    "check_report": {"logs": st.lists(of_junk(LogLine, at=0, message="m"), max_size=2)},
    "check_results": {"results": st.dictionaries(st.just(1) | atoms, st.just(b"1") | junk)},
    "check_rate": {"rate": rates, "field": st.just("rate")},
    "check_bounds": {"bounds": of_junk(Bounds) | rates.map(lambda rate: Bounds(push_rate=rate))},
    "check_config": {
        "config": of_junk(QueueConfig)
        | of_junk(Limits).map(lambda limits: QueueConfig(limits=limits))
        | rates.map(lambda rate: QueueConfig(limits=Limits(rate=rate, group_rate=rate)))
    },
    "check_cron": {
        "spec": of_junk(CronSpec, name="n", queue="q", schedule=Every(every_ms=5))
        | schedules.map(lambda schedule: CronSpec(name="n", queue="q", schedule=schedule))
    },
    "check_name": {"field": st.just("key"), "max_bytes": st.just(512), "empty_ok": st.just(False)},
    "check_queue": {"field": st.just("queue")},
    "check_bool": {"field": st.just("discard")},
    "check_id_list": {"empty_ok": st.booleans()},
}


@pytest.mark.parametrize("name", checks.__all__)
def test_whatever_is_said_to(name: str) -> None:
    check: Callable[..., Any] = getattr(checks, name)
    likely = LIKELY.get(name, {})

    @given(
        st.fixed_dictionaries(
            {
                argument: likely.get(argument, junk)
                for argument in inspect.signature(check).parameters
            }
        )
    )
    def passes_or_is_refused_by_name(said: dict[str, Any]) -> None:
        try:
            check(**said)
        except PenstockError as error:
            assert error.field
            assert len(str(error)) < 500

    passes_or_is_refused_by_name()
