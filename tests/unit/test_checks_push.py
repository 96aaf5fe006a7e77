"""The door of a push: every rule of what a producer may say, and callers that ignore every type."""

from array import array
from collections.abc import Callable, Sequence
from enum import IntEnum, StrEnum
from itertools import accumulate
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.model.checks import Door, check_push, check_specs
from penstock.model.checks_values import show
from penstock.model.errors import BatchTooLarge, Invalid, PayloadTooLarge
from penstock.model.job import MAX_ID, MAX_PAYLOAD, JobOptions, JobSpec, KeyClaim, Run
from penstock.model.policy import DAY_MS, MAX_DURATION_MS, Backoff
from penstock.model.schedule import MAX_INSTANT_MS

HUGE = 10**5_000  # too long to be printed


class Word(StrEnum):
    JSON = "json"
    KEY = "key"


class Number(IntEnum):
    ONE = 1


NOT_INTEGERS: list[Any] = [True, 1.0, float("nan"), float("inf"), "1", b"1", [1], {}, Number.ONE]
NOT_TEXTS: list[Any] = [1, True, 1.0, b"a", ["a"], ("a",), {}, object, Word.KEY]
OUTSIDE_32_BITS: list[Any] = [2**31, -(2**31) - 1, HUGE, -HUGE]
OUTSIDE_DURATIONS: list[Any] = [-1, MAX_DURATION_MS + 1, HUGE, -HUGE]
LONG = "é" * 257  # 514 bytes
LONE = "a\ud800"


def said(value: object) -> str:
    return f"{type(value).__name__} {show(value)[:30]}"


def push(*runs: Any, **more: Any) -> None:
    check_push("default", list(runs), **more)


def run(count: int = 1, **columns: Any) -> Run:
    return Run.pack("q", [b"1"] * count, **columns)


def with_options(**options: Any) -> Run:
    return run(options=JobOptions(**options))


def refuses(field: str, call: Callable[..., Any], *args: Any, **named: Any) -> Invalid:
    with pytest.raises(Invalid) as caught:
        call(*args, **named)
    assert caught.value.field == field, str(caught.value)
    assert len(str(caught.value)) < 400
    return caught.value


# -- options -----------------------------------------------------------------------------------------

DURATIONS = [1, MAX_DURATION_MS, None]
NOT_DURATIONS = [*NOT_INTEGERS, *OUTSIDE_DURATIONS]

# field: (what passes, what is refused)
OPTIONS: dict[str, tuple[list[Any], list[Any]]] = {
    "codec": (["json", "msgpack", "bytes"], ["", "JSON", "yaml", None, Word.JSON, *NOT_TEXTS]),
    "task": (["", "send", "é" * 256], [LONG, LONE, None, *NOT_TEXTS]),
    "priority": ([0, 2**31 - 1, -(2**31)], [*OUTSIDE_32_BITS, None, *NOT_INTEGERS]),
    "max_attempts": ([0, 1, 2**31 - 1], [-1, 2**31, HUGE, None, *NOT_INTEGERS]),
    "backoff": ([Backoff(), Backoff(kind="none")], [None, {}, "fixed", 1, {"kind": "fixed"}]),
    "lease_ms": ([50, DAY_MS, None], [0, 49, DAY_MS + 1, HUGE, *NOT_INTEGERS]),
    "timeout_ms": (DURATIONS, [0, *NOT_DURATIONS]),
    "ttl_ms": (DURATIONS, [0, *NOT_DURATIONS]),
    "on_conflict": (["return", "match", "replace", "reject"], ["", "Return", None, *NOT_TEXTS]),
    "keep_key": (
        ["live", "started", "retained", 1, MAX_DURATION_MS],
        ["", "dead", "24h", 0, -1, MAX_DURATION_MS + 1, HUGE, None, True, 1.0, [], Number.ONE],
    ),
    "on_dependency_failure": (["fail", "ignore"], ["", "retry", None, *NOT_TEXTS]),
    "lifo": ([True, False], [0, 1, None, "yes", "", [], 1.0]),
    "tags": (
        [(), ("a",), ("é" * 64,), tuple("abcdefghijklmnop"), ("a", "a")],
        [None, "a", ["a"], ("",), ("a" * 65,), (LONE,), (1,), (None,), (Word.KEY,), ("a",) * 17],
    ),
    "retain_ms": ([0, *DURATIONS], NOT_DURATIONS),
    "retain_dead_ms": ([0, *DURATIONS], NOT_DURATIONS),
}

BACKOFFS: dict[str, tuple[list[Any], list[Any]]] = {
    "kind": (["none", "fixed", "linear", "exponential"], ["", "list", "expo", None, *NOT_TEXTS]),
    "base_ms": ([0, 1, MAX_DURATION_MS], [*NOT_DURATIONS, None]),
    "cap_ms": ([0, 1, MAX_DURATION_MS], [*NOT_DURATIONS, None]),
    "jitter": (["none", "full", "equal"], ["", "half", None, *NOT_TEXTS]),
    "list_ms": (
        [(), (0,), (1, 2, MAX_DURATION_MS), (1,) * 100],
        [None, 1, [1], "1", (-1,), (1.0,), (True,), (None,), (HUGE,), (1,) * 101],
    ),
}


def cases(table: dict[str, tuple[list[Any], list[Any]]], kind: int) -> list[Any]:
    return [
        pytest.param(field, value, id=f"{field}={said(value)}-{place}")
        for field, values in table.items()
        for place, value in enumerate(values[kind])
    ]


def test_every_option_has_its_cases() -> None:
    assert set(OPTIONS) == set(JobOptions.__struct_fields__)
    assert set(BACKOFFS) == set(Backoff.__struct_fields__)


@pytest.mark.parametrize(("field", "value"), cases(OPTIONS, 0))
def test_an_option_in_its_range_passes(field: str, value: Any) -> None:
    push(msgspec.structs.replace(run(), options=(JobOptions(**{field: value}),), data=b"1"))


@pytest.mark.parametrize(("field", "value"), cases(OPTIONS, 1))
def test_an_option_out_of_its_range_is_refused_by_name(field: str, value: Any) -> None:
    refuses(field, push, with_options(**{field: value}))


@pytest.mark.parametrize(("field", "value"), cases(BACKOFFS, 0))
def test_a_backoff_in_its_range_passes(field: str, value: Any) -> None:
    push(with_options(backoff=Backoff(**{field: value})))


@pytest.mark.parametrize(("field", "value"), cases(BACKOFFS, 1))
def test_a_backoff_out_of_its_range_is_refused_by_name(field: str, value: Any) -> None:
    blamed = "list_ms" if (field, value) == ("kind", "list") else field
    refuses(f"backoff.{blamed}", push, with_options(backoff=Backoff(**{field: value})))


def test_a_list_of_waits_needs_at_least_one() -> None:
    push(with_options(backoff=Backoff(kind="list", list_ms=(5,))))
    refuses("backoff.list_ms", push, with_options(backoff=Backoff(kind="list")))


def test_what_equals_a_good_option_but_is_of_another_type_is_refused_after_it_too() -> None:
    push(with_options(priority=1, tags=("a",)))
    refuses("priority", push, with_options(priority=True))
    refuses("priority", push, with_options(priority=1.0))
    refuses("tags", push, with_options(tags=["a"]))


def test_a_lifo_job_with_a_group_is_refused() -> None:
    lifo, plain = JobOptions(lifo=True), JobOptions()
    push(run(2, options=lifo, groups=[None, None]))
    refuses("lifo", push, run(2, options=lifo, groups=[None, "g"]))
    mixed = msgspec.structs.replace(run(2), options=(plain, lifo), option_of=[0, 1])
    push(msgspec.structs.replace(mixed, groups=["g", None]))
    refuses("lifo", push, msgspec.structs.replace(mixed, groups=[None, "g"]))


# -- runs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tenant", ["default", "a", "0", "A_-9", "a" * 63])
def test_a_tenant_by_the_rule_passes(tenant: str) -> None:
    check_push(tenant, [run()])


@pytest.mark.parametrize(
    "tenant", ["", "_a", "-a", "a.b", "a b", "é", "a\n", "a" * 64, "a/b", None, *NOT_TEXTS]
)
def test_any_other_tenant_is_refused(tenant: Any) -> None:
    refuses("tenant", check_push, tenant, [run()])


@pytest.mark.parametrize("queue", ["q", "_", ".", "-", "a.b-c_D9", "a" * 256])
def test_a_queue_by_the_rule_passes(queue: str) -> None:
    push(Run.pack(queue, [b"1"]))


@pytest.mark.parametrize(
    "queue", ["", "a b", "é", "٣", "q\n", "q\0", "a" * 257, "a/b", "*", None, *NOT_TEXTS]
)
def test_any_other_queue_is_refused(queue: Any) -> None:
    refuses("queue", push, Run.pack(queue, [b"1"]))


@pytest.mark.parametrize("runs", [None, "runs", b"r", 1, run(), {}, iter([run()]), [None], [{}]])
def test_what_is_no_list_of_runs_is_refused(runs: Any) -> None:
    refuses("runs", check_push, "default", runs)


def test_a_push_has_at_least_one_job_and_no_empty_run() -> None:
    refuses("runs", push)
    refuses("runs", push, Run.of("q", []))
    refuses("runs", push, run(), Run.of("q", []))


def test_ten_thousand_jobs_in_all_pass_and_one_more_is_too_large() -> None:
    push(run(10_000))
    push(run(4_000), Run.pack("p", [b"1"] * 6_000))
    for runs in ([run(10_001)], [run(9_999), run(2)]):
        with pytest.raises(BatchTooLarge) as caught:
            push(*runs)
        assert caught.value.field == "runs"


def test_ten_mebibytes_pass_and_one_byte_more_is_too_large() -> None:
    full = b"x" * MAX_PAYLOAD
    options = JobOptions(codec="bytes")
    push(Run.pack("q", [full, b"", full], options))
    for payloads in ([full + b"x"], [b"", full + b"x", b""], [b"x", full, full + b"x"]):
        with pytest.raises(PayloadTooLarge) as caught:
            push(Run.pack("q", payloads, options))
        assert caught.value.field == "payload"


def cut(data: Any, ends: Any) -> Run:
    return Run(queue="q", data=data, ends=ends, options=(JobOptions(codec="bytes"),))


@pytest.mark.parametrize("data", [None, "1", bytearray(b"1"), memoryview(b"1"), 1, [b"1"]])
def test_a_payload_that_is_not_bytes_is_refused(data: Any) -> None:
    refuses("payload", push, cut(data, [1]))


@pytest.mark.parametrize(
    "ends",
    [
        None,
        1,
        "1",
        b"\x01",
        {1},
        range(1, 2),
        iter([1]),
        [True],
        [1.0],
        ["1"],
        [None, 1],
        [HUGE],
        [2],
        [-1],
        [1, 0],
        [2, 1],
        [-1, 1],
        [0, 2, 1],
        array("d", [1.0]),
        array("u", "\x01"),
        array("i", [-1, 1]),
        array("q", [-1, 1]),
        array("Q", [2**63, 1]),
        array("I", [2, 1]),
        array("I", [2**32 - 1, 1]),
        array("I", [0, 2**31, 1]),
    ],
    ids=said,
)
def test_ends_that_do_not_cut_the_data_are_refused(ends: Any) -> None:
    refuses("ends", push, cut(b"1", ends))


def kinds(ends: list[int]) -> list[Sequence[int]]:
    return [ends, tuple(ends), *(array(code, ends) for code in "iIlLqQ")]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20))
def test_payloads_of_any_sizes_pass_however_their_ends_are_held(sizes: list[int]) -> None:
    for ends in kinds(list(accumulate(sizes))):
        push(cut(b"x" * sum(sizes), ends))


@given(st.lists(st.integers(0, 2**31 - 1) | st.integers(0, 5), min_size=2, max_size=20))
@example([5, 4, 5])
@example([0, 2**31 - 1, 0, 3])
def test_ends_pass_only_if_they_ascend(ends: list[int]) -> None:
    ends = [*ends, 6]
    for each in kinds(ends):
        if ends == sorted(ends):
            push(cut(b"x" * 6, each))
        else:
            refuses("ends", push, cut(b"x" * 6, each))


@pytest.mark.parametrize("high", [2**31, 2**31 + 5, 2**32 - 1])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_end_of_32_bits_never_passes_for_one_that_ascends(high: int, place: int) -> None:
    ends = array("I", [3, 3, 3, 6])
    ends[place] = high
    refuses("ends", push, cut(b"x" * 6, ends))


@pytest.mark.parametrize("place", [0, 1, 5_000, 9_997, 9_998])
def test_one_pair_of_ends_in_the_wrong_order_is_found_among_ten_thousand(place: int) -> None:
    ends = array("I", range(1, 10_001))
    push(cut(b"x" * 10_000, ends))
    ends[place] += 2
    refuses("ends", push, cut(b"x" * 10_000, ends))


@pytest.mark.parametrize("options", [None, (), [JobOptions()], (None,), ({},), (JobOptions(),) * 3])
def test_options_are_a_tuple_of_at_most_one_set_per_job(options: Any) -> None:
    refuses("options", push, msgspec.structs.replace(run(2), options=options))


@pytest.mark.parametrize(
    "option_of", [[0, 1], (1, 1), b"\1\0", array("B", [1, 0]), array("q", [0, 0])]
)
def test_each_job_may_point_to_one_of_the_options(option_of: Any) -> None:
    two = (JobOptions(), JobOptions(priority=1))
    push(msgspec.structs.replace(run(2), options=two, option_of=option_of))


@pytest.mark.parametrize(
    "option_of",
    [
        1,
        "01",
        [0],
        [0, 1, 0],
        [0, 2],
        [0, -1],
        [0, True],
        [0, 1.0],
        [0, None],
        b"\0\2",
        [0, HUGE],
        array("b", [0, -1]),
        array("f", [0, 1]),
        {0: 0, 1: 1},
        [0, "1"],
    ],
    ids=said,
)
def test_a_pointer_to_no_options_is_refused(option_of: Any) -> None:
    two = (JobOptions(), JobOptions(priority=1))
    refuses("option_of", push, msgspec.structs.replace(run(2), options=two, option_of=option_of))


# -- contents ----------------------------------------------------------------------------------------


def test_json_payloads_are_looked_into_and_others_are_not() -> None:
    push(Run.pack("q", [b'{"a": 1}', b"[]"]))
    error = refuses("payload", push, Run.pack("q", [b"1", b"{"]))
    assert "job 2" in error.message
    for codec in ("bytes", "msgpack"):
        push(Run.pack("q", [b"\xc1", b"{", b""], JobOptions(codec=codec)))


def test_each_payload_is_looked_into_by_its_own_codec() -> None:
    both = (JobOptions(), JobOptions(codec="bytes"))
    mixed = msgspec.structs.replace(Run.pack("q", [b"{", b"1"]), options=both)
    push(msgspec.structs.replace(mixed, option_of=[1, 0]))
    refuses("payload", push, msgspec.structs.replace(mixed, option_of=[0, 1]))


# -- what each job says for itself -------------------------------------------------------------------


@pytest.mark.parametrize("field", ["delay_ms", "run_at"])
def test_times_are_given_for_all_or_for_each(field: str) -> None:
    high = MAX_DURATION_MS if field == "delay_ms" else MAX_INSTANT_MS
    for times in (0, high, [0, high], (None, 5), [None, None], array("q", [1, 2])):
        push(run(2, **{field: times}))


@pytest.mark.parametrize("field", ["delay_ms", "run_at"])
@pytest.mark.parametrize(
    "times",
    [
        *NOT_INTEGERS,
        -1,
        HUGE,
        -HUGE,
        MAX_INSTANT_MS + 1,
        [1],
        [1, 2, 3],
        [0, -1],
        [0, HUGE],
        [None, 1.0],
        [True, None],
        ["1", 1],
        [None, float("nan")],
        array("f", [1, 2]),
    ],
    ids=said,
)
def test_other_times_are_refused(field: str, times: Any) -> None:
    refuses(field, push, run(2, **{field: times}))


def test_a_job_has_a_delay_or_an_instant_but_not_both() -> None:
    refuses("run_at", push, run(2, delay_ms=1, run_at=1))
    refuses("run_at", push, run(2, delay_ms=[None, 1], run_at=1))
    refuses("run_at", push, run(2, delay_ms=0, run_at=[None, 0]))
    push(run(2, delay_ms=[None, 1], run_at=[1, None]))


def test_a_ttl_has_to_outlast_the_delay() -> None:
    ttl = JobOptions(ttl_ms=100)
    push(run(2, options=ttl, delay_ms=99))
    push(run(2, options=ttl, delay_ms=[None, 99]))
    push(run(2, options=ttl, run_at=1_000))
    refuses("ttl_ms", push, run(2, options=ttl, delay_ms=100))
    refuses("ttl_ms", push, run(2, options=ttl, delay_ms=[0, 100]))
    both = msgspec.structs.replace(run(2), options=(JobOptions(), ttl), option_of=[1, 0])
    push(msgspec.structs.replace(both, delay_ms=[99, 100]))
    refuses("ttl_ms", push, msgspec.structs.replace(both, delay_ms=[100, 99]))


@pytest.mark.parametrize("field", ["key", "group"])
def test_keys_and_groups_are_names_or_none(field: str) -> None:
    for names in (["a", "b"], ["a", None], (None, None), ["é" * 256, "a" * 512], ["a/b %_\0", " "]):
        push(run(2, **{f"{field}s": names}))
    for wrong in ("ab", b"ab", {"a": 1, "b": 2}, ["a"], ["a", "b", "c"]):
        refuses(field, push, run(2, **{f"{field}s": wrong}))
    for name in ("", "a" * 513, LONG, LONE, *NOT_TEXTS):
        refuses(field, push, run(2, **{f"{field}s": ["a", name]}))
        refuses(field, push, run(2, **{f"{field}s": [None, name]}))


def test_a_job_may_carry_several_keys() -> None:
    claims = tuple(KeyClaim(f"k{place}", "reject", "retained") for place in range(8))
    push(run(2, more_keys=[claims, ()]))
    push(run(2, keys=["a", None], more_keys=[(KeyClaim("b"),), (KeyClaim("a", keep_key=5),)]))


@pytest.mark.parametrize(
    ("field", "claims"),
    [
        ("more_keys", None),
        ("more_keys", [KeyClaim("b")]),
        ("more_keys", ("b",)),
        ("more_keys", tuple(KeyClaim(str(place)) for place in range(9))),
        ("key", (KeyClaim(""),)),
        ("key", (KeyClaim(LONE),)),
        ("key", (KeyClaim(1),)),  # type: ignore[arg-type]
        ("key", (KeyClaim("b"), KeyClaim("b"))),
        ("key", (KeyClaim("a"),)),
        ("on_conflict", (KeyClaim("b", "no"),)),  # type: ignore[arg-type]
        ("keep_key", (KeyClaim("b", keep_key=0),)),
    ],
    ids=repr,
)
def test_several_keys_follow_the_rules_of_one(field: str, claims: Any) -> None:
    refuses(field, push, run(1, keys=["a"], more_keys=[claims]))


def test_headers_are_small_maps_of_texts() -> None:
    headers: Any
    wrong: Any
    each: Any
    fits = {"k" * 1_000: "é" * 1_548}
    for headers in (
        [{}, None],
        [{"a": "b"}, {"": ""}],
        (fits, {"é": "ü"}),
        [{"a": "b" * 4_095}, {}],
    ):
        push(run(2, headers=headers))
    for wrong in ({}, "ab", [{}], [{}, {}, {}]):
        refuses("headers", push, run(2, headers=wrong))
    for each in (
        [],
        "a",
        {"a": 1},
        {1: "a"},
        {"a": None},
        {"a": LONE},
        {Word.KEY: "a"},
        (("a", "b"),),
    ):
        refuses("headers", push, run(2, headers=[{"a": "b"}, each]))
    for large in ({**fits, "": "x"}, {"a": "b" * 4_096}, {str(n): "x" * 100 for n in range(100)}):
        refuses("headers", push, run(2, headers=[{"a": "b"}, large]))


def test_dependencies_are_ids_or_places_in_the_push() -> None:
    for each in ((), (1,), (MAX_ID, 1), (-1,), (-3, -1, 7, 7), tuple(range(1, 1_001))):
        push(run(3, depends_on=[(), each, ()]))
    push(run(1), run(1, depends_on=[(-1,)]))
    push(run(1, depends_on=[(-2,)]), run(1))


@pytest.mark.parametrize(
    "each",
    [
        None,
        [1],
        "1",
        1,
        (0,),
        (-4,),
        (-2,),
        (MAX_ID + 1,),
        (HUGE,),
        (-HUGE,),
        (True,),
        (1.0,),
        ("1",),
        (None,),
        (float("nan"),),
        tuple(range(1, 1_002)),
    ],
    ids=said,
)
def test_other_dependencies_are_refused(each: Any) -> None:
    refuses("depends_on", push, run(3, depends_on=[(), each, ()]))


def test_a_job_of_a_later_run_cannot_wait_for_itself() -> None:
    push(run(2), run(2, depends_on=[(-4,), ()]))
    refuses("depends_on", push, run(2), run(2, depends_on=[(-3,), ()]))
    refuses("depends_on", push, run(2), run(2, depends_on=[(-5,), ()]))


# -- the call ----------------------------------------------------------------------------------------


def test_producer_and_sequence_go_together() -> None:
    push(run(), producer="p", sequence=0)
    push(run(), producer="p", sequence=2**53 - 1)
    refuses("sequence", push, run(), producer="p")
    refuses("producer", push, run(), sequence=1)
    for producer in ("", LONG, LONE, *NOT_TEXTS):
        refuses("producer", push, run(), producer=producer, sequence=1)
    for sequence in (-1, 2**53, HUGE, *NOT_INTEGERS):
        refuses("sequence", push, run(), producer="p", sequence=sequence)


def test_bulk_and_part_are_names() -> None:
    push(run(), bulk="b")
    push(run(), bulk="b", part="p")
    refuses("part", push, run(), part="p")
    for name in ("", LONG, LONE, *NOT_TEXTS):
        refuses("bulk", push, run(), bulk=name)
        if name != "":
            refuses("part", push, run(), bulk="b", part=name)
    refuses("part", push, run(), bulk="b", part=None)


def test_durability_of_one_push_is_fsync_or_os() -> None:
    for word in (None, "fsync", "os"):
        push(run(), durability=word)
    wrong: Any
    for wrong in ("memory", "", "FSYNC", 1, True, []):
        refuses("durability", push, run(), durability=wrong)


# -- jobs said one by one ----------------------------------------------------------------------------


def test_jobs_said_one_by_one_are_made_a_list_that_can_be_packed() -> None:
    specs = [JobSpec(payload=b"1", tags=("a",)), JobSpec()]
    assert check_specs(iter(specs)) == specs
    for jobs in (None, 1, JobSpec(), [None], "ab", [b"1"]):
        refuses("jobs", check_specs, jobs)
    refuses("payload", check_specs, [JobSpec(payload="1")])  # type: ignore[arg-type]
    refuses("tags", check_specs, [JobSpec(tags=["a"])])  # type: ignore[arg-type]
    refuses("task", check_specs, [JobSpec(task=["a"])])  # type: ignore[arg-type]
    refuses("backoff.list_ms", check_specs, [JobSpec(backoff=Backoff(list_ms=[1]))])  # type: ignore[arg-type]
    assert len(check_specs([JobSpec()] * 10_000)) == 10_000
    with pytest.raises(BatchTooLarge):
        check_specs(JobSpec() for _ in iter(int, 1))


# -- one job after the other -----------------------------------------------------------------------

ONE_SET = (JobOptions(task="mail"),)
LIKE_THE_LAST: dict[str, Any] = {
    "tenant": "default",
    "queue": "q",
    "payload": b'{"a":1}',
    "options": ONE_SET,
    "producer": "p",
    "sequence": 2,
    "content": bytes(16),
}


class Again(StrEnum):
    TENANT = "default"
    QUEUE = "q"
    PRODUCER = "p"


def door() -> Door:
    """One through which a push has come."""
    made = Door()
    right = Run(queue="q", data=b"1", ends=array("I", [1]), options=ONE_SET)
    made.check_push("default", [right], "p", 1, None, "", None, bytes(16))
    return made


def test_a_job_that_is_pushed_like_the_last_is_known_at_the_door() -> None:
    assert door().knows(**LIKE_THE_LAST)
    assert not Door().knows(**LIKE_THE_LAST)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tenant", "other"),
        ("tenant", Again.TENANT),  # equal, and yet no text that a log could hold
        ("queue", "other"),
        ("queue", Again.QUEUE),
        ("producer", Again.PRODUCER),
        ("options", (JobOptions(task="mail"),)),  # equal, and yet nobody has looked at it
        ("producer", "other"),
        ("producer", None),
        ("sequence", None),
        ("sequence", -1),
        ("sequence", MAX_ID + 1),
        ("sequence", True),
        ("content", None),
        ("content", bytes(15)),
        ("content", "0123456789abcdef"),
        ("payload", "1"),
        ("payload", bytearray(b"1")),
        ("payload", b"1" * (MAX_PAYLOAD + 1)),
    ],
    ids=lambda value: said(value)[:40],
)
def test_what_differs_from_the_last_push_is_looked_at_closely(field: str, value: Any) -> None:
    assert not door().knows(**LIKE_THE_LAST | {field: value})


def test_the_payload_of_a_job_that_is_known_is_looked_at() -> None:
    refuses("payload", door().knows, **LIKE_THE_LAST | {"payload": b'{"a":1,"a":2}'})


def test_what_was_refused_makes_nothing_known() -> None:
    made = door()
    wrong = (JobOptions(priority=2**31),)
    run_of_it = Run(queue="q", data=b"1", ends=array("I", [1]), options=wrong)
    refuses("priority", made.check_push, "default", [run_of_it], "p", 2, None, "", None, bytes(16))
    assert not made.knows(**LIKE_THE_LAST | {"options": wrong})
    assert made.knows(**LIKE_THE_LAST)
