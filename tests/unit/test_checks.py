"""The door of every call but push: what passes, and which field a refusal blames."""

from collections.abc import Callable, Iterator
from enum import IntEnum, StrEnum
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.model import checks
from penstock.model.checks_values import show
from penstock.model.errors import BatchTooLarge, Invalid, PayloadTooLarge
from penstock.model.job import MAX_ID, MAX_PAYLOAD, Ids, JobError, JobOptions, LogLine
from penstock.model.lifecycle import State
from penstock.model.policy import DAY_MS, MAX_DURATION_MS, Bounds, Limits, QueueConfig, Rate
from penstock.model.schedule import MAX_INSTANT_MS, Cron, CronSpec, Daily, Every

HUGE = 10**5_000  # too long to be printed


class Word(StrEnum):
    KEY = "key"


class Number(IntEnum):
    ONE = 1


NOT_INTEGERS: list[Any] = [True, 1.0, float("nan"), float("inf"), "1", b"1", [1], {}, Number.ONE]
NOT_TEXTS: list[Any] = [1, True, 1.0, b"a", ["a"], ("a",), {}, object, Word.KEY]
NOT_BYTES: list[Any] = ["1", bytearray(b"1"), memoryview(b"1"), 1, True, [b"1"], {}]
LONG = "é" * 257  # 514 bytes
LONE = "a\ud800"
NOT_NAMES: list[Any] = ["", LONG, LONE, None, *NOT_TEXTS]
LARGE = b"x" * (MAX_PAYLOAD + 1)


def refuses(field: str, call: Callable[..., Any], *args: Any, **named: Any) -> None:
    with pytest.raises(Invalid) as caught:
        call(*args, **named)
    assert caught.value.field == field, str(caught.value)
    assert len(str(caught.value)) < 400


def is_too_large(
    kind: type[Exception], field: str, call: Callable[..., Any], *args: Any, **named: Any
) -> None:
    with pytest.raises(kind) as caught:
        call(*args, **named)
    assert getattr(caught.value, "field", None) == field


# -- claims, leases and ids --------------------------------------------------------------------------


def claim(**said: Any) -> None:
    fine = {"queues": ["q"], "n": 1, "lease_ms": None, "worker": "", "wait_ms": 0}
    checks.check_claim(**{**fine, **said})


def test_a_claim_in_its_ranges_passes() -> None:
    for queues in (["q"], ("q", "p", "q"), ["q"] * 1_000):
        claim(queues=queues)
    claim(n=10_000, lease_ms=50, worker="é" * 256, wait_ms=DAY_MS)
    claim(lease_ms=DAY_MS)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("queues", [None, "q", b"q", [], (), {"q"}, {"q": 1}, iter(["q"]), ["q"] * 1_001]),
        ("queues", [["q", ""], ["a b"], [None], [Word.KEY], [1]]),
        ("n", [0, -1, -HUGE, None, *NOT_INTEGERS]),
        ("lease_ms", [0, 49, DAY_MS + 1, HUGE, -HUGE, *NOT_INTEGERS]),
        ("worker", [LONG, LONE, None, *NOT_TEXTS]),
        ("wait_ms", [-1, DAY_MS + 1, HUGE, None, *NOT_INTEGERS]),
    ],
)
def test_a_claim_out_of_its_ranges_is_refused(field: str, wrong: list[Any]) -> None:
    for value in wrong:
        refuses(field, claim, **{field: value})


def test_a_claim_for_more_than_ten_thousand_jobs_is_too_large() -> None:
    is_too_large(BatchTooLarge, "n", claim, n=10_001)
    is_too_large(BatchTooLarge, "n", claim, n=HUGE)


def test_a_lease_is_named_by_its_token_whatever_its_form() -> None:
    checks.check_lease("no lease ever had this")
    for token in NOT_NAMES:
        refuses("lease", checks.check_lease, token)


def test_a_job_is_named_by_its_id() -> None:
    checks.check_job_id(1)
    checks.check_job_id(MAX_ID)
    for job_id in (0, -1, MAX_ID + 1, HUGE, None, *NOT_INTEGERS):
        refuses("job_id", checks.check_job_id, job_id)


@given(st.lists(st.integers(1, MAX_ID) | st.integers(1, 5), min_size=1))
def test_ids_are_kept_in_order_and_once(ids: list[int]) -> None:
    once = checks.check_ids(ids)
    assert set(once) == set(ids)
    assert once == sorted(set(ids), key=ids.index)
    assert checks.check_id_list(ids) == ids


def test_ids_may_come_in_any_row() -> None:
    rows: list[Any] = [(3, 4), range(3, 5), {3: "a", 4: "b"}, iter([3, 4]), Ids.of([3, 4])]
    for ids in rows:
        assert checks.check_ids(ids) == [3, 4]


def test_other_ids_are_refused() -> None:
    for ids in (None, 1, "12", b"\x01", bytearray(b"\x01"), memoryview(b"\x01"), object(), [], ()):
        refuses("ids", checks.check_ids, ids)
    for job_id in (0, -1, MAX_ID + 1, HUGE, None, *NOT_INTEGERS):
        refuses("ids", checks.check_ids, [1, job_id])
    assert checks.check_id_list([], empty_ok=True) == []


def test_more_than_ten_thousand_ids_are_too_large_even_without_end() -> None:
    def without_end() -> Iterator[int]:
        while True:
            yield 1

    assert len(checks.check_ids(range(1, 10_001))) == 10_000
    is_too_large(BatchTooLarge, "ids", checks.check_ids, range(1, 10_002))
    is_too_large(BatchTooLarge, "ids", checks.check_ids, without_end())


# -- ends of attempts --------------------------------------------------------------------------------


def test_results_are_bytes_by_job() -> None:
    assert checks.check_results(None, "json") == {}
    assert checks.check_results({}, "json") == {}
    assert checks.check_results({1: b"1", 2: b"[]"}, "json") == {1: b"1", 2: b"[]"}
    assert checks.check_results({1: b"", 2: b"\xff"}, "bytes") == {1: b"", 2: b"\xff"}
    for results in (1, "a", [b"1"], [(1, b"1")], {1: b"{"}, {1: b"1", 2: b""}, {0: b"1"}):
        refuses("results", checks.check_results, results, "json")
    for job_id in (-1, MAX_ID + 1, HUGE, None, "1", True, 1.0):
        refuses("results", checks.check_results, {job_id: b"1"}, "json")
    for value in (None, *NOT_BYTES):
        refuses("results", checks.check_results, {1: value}, "bytes")
    codec: Any
    for codec in ("yaml", None, 1, []):
        refuses("codec", checks.check_results, None, codec)
    checks.check_results({1: LARGE[1:]}, "bytes")
    is_too_large(PayloadTooLarge, "results", checks.check_results, {1: LARGE}, "bytes")
    many = dict.fromkeys(range(1, 10_001), b"1")
    assert checks.check_results(many, "json") == many
    many[10_001] = b"1"
    is_too_large(BatchTooLarge, "results", checks.check_results, many, "json")


def test_an_error_keeps_what_its_worker_said_and_nothing_else() -> None:
    said = JobError(kind="KeyError", message="é", trace="line", at=5, worker="w", attempt=9)
    assert checks.check_error(said) == JobError(kind="KeyError", message="é", trace="line")


@given(st.text(st.characters(codec=None) | st.sampled_from("a\udc80é\U0001f600")))
@example("é" * 20_000)
@example("a" + "é" * 20_000)
@example("\U0001f600" * 20_000)
@example("x" * 20_000)
@example("\udc80" * 20_000)
def test_long_texts_of_an_error_are_cut_between_characters(text: str) -> None:
    kept = checks.check_error(JobError(message=text, trace=text))
    spelled_out = text.encode("utf-8", "backslashreplace").decode()
    for cut, size in ((kept.message, 4 * 1024), (kept.trace, 16 * 1024)):
        assert spelled_out.startswith(cut)
        assert len(cut.encode()) <= size
        if cut != spelled_out:
            assert len(cut.encode()) > size - 4


def test_what_is_no_error_is_refused() -> None:
    error: Any
    for error in (None, "failed", {}, ValueError("x")):
        refuses("error", checks.check_error, error)
    for kind in NOT_NAMES:
        refuses("error.kind", checks.check_error, JobError(kind=kind))
    for text in (None, *NOT_TEXTS):
        refuses("error.message", checks.check_error, JobError(message=text))
        refuses("error.trace", checks.check_error, JobError(trace=text))


def test_a_failure_may_say_when_to_retry() -> None:
    for retry_in_ms in (None, 0, MAX_DURATION_MS):
        checks.check_fail(retry_in_ms, False)
    checks.check_fail(None, True)
    for wrong in (-1, MAX_DURATION_MS + 1, HUGE, *NOT_INTEGERS):
        refuses("retry_in_ms", checks.check_fail, wrong, False)
    for dead in (None, 0, 1, "yes"):
        refuses("dead", checks.check_fail, None, dead)


def report(**said: Any) -> None:
    checks.check_report(**{"progress": None, "message": None, "logs": (), "partial": None, **said})


def test_a_report_in_its_ranges_passes() -> None:
    report()
    report(progress=0, message="", logs=[LogLine(0, "")], partial=b"")
    report(progress=100, message="é" * 2_048, logs=(LogLine(MAX_INSTANT_MS, "x", "warn"),) * 1_000)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("progress", [-1, 101, HUGE, *NOT_INTEGERS]),
        ("message", ["é" * 2_049, LONE, *NOT_TEXTS]),
        ("logs", [None, "line", LogLine(0, "x"), ["line"], [{}], [None]]),
        ("partial", NOT_BYTES),
    ],
)
def test_a_report_out_of_its_ranges_is_refused(field: str, wrong: list[Any]) -> None:
    for value in wrong:
        refuses(field, report, **{field: value})


def test_a_log_line_out_of_its_ranges_is_refused() -> None:
    for at in (-1, MAX_INSTANT_MS + 1, None, *NOT_INTEGERS):
        refuses("logs.at", report, logs=[LogLine(at, "x")])
    for message in (LONE, "x" * (16 * 1024 + 1), None, *NOT_TEXTS):
        refuses("logs.message", report, logs=[LogLine(0, message)])
    for level in ("", LONE, "x" * 65, None, *NOT_TEXTS):
        refuses("logs.level", report, logs=[LogLine(0, "x", level)])
    is_too_large(BatchTooLarge, "logs", report, logs=[LogLine(0, "x")] * 1_001)
    is_too_large(PayloadTooLarge, "partial", report, partial=LARGE)


# -- looking and changing ----------------------------------------------------------------------------


def find(**said: Any) -> None:
    fine = {"state": None, "task": None, "tag": None, "cursor": 0, "limit": 100, "newest": False}
    checks.check_find(**{**fine, **said})


def test_a_search_in_its_ranges_passes() -> None:
    for state in State:
        find(state=state)
    find(task="", tag="é" * 64, cursor=MAX_ID, limit=1_000)
    find(task="send", tag="a", limit=1, newest=True)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("state", ["ready", "", 1, True, [State.READY], Word.KEY]),
        ("task", [LONG, LONE, *NOT_TEXTS]),
        ("tag", ["", "a" * 65, LONE, *NOT_TEXTS]),
        ("cursor", [-1, MAX_ID + 1, HUGE, None, *NOT_INTEGERS]),
        ("limit", [0, -1, 1_001, HUGE, None, *NOT_INTEGERS]),
        ("newest", [0, 1, None, "yes"]),
    ],
)
def test_a_search_out_of_its_ranges_is_refused(field: str, wrong: list[Any]) -> None:
    for value in wrong:
        refuses(field, find, **{field: value})


def edit(**said: Any) -> None:
    nothing = dict.fromkeys(("priority", "run_at", "delay_ms", "payload", "codec"))
    checks.check_edit(**{**nothing, **said})


def test_an_edit_in_its_ranges_passes() -> None:
    edit(priority=-(2**31), run_at=0)
    edit(priority=2**31 - 1, delay_ms=MAX_DURATION_MS)
    edit(run_at=MAX_INSTANT_MS)
    edit(delay_ms=0)
    edit(payload=b"{")  # of the job's own codec, which is known further in
    edit(payload=b"{", codec="bytes")
    edit(payload=b"{}", codec="json")


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("priority", [2**31, -(2**31) - 1, HUGE, *NOT_INTEGERS]),
        ("run_at", [-1, MAX_INSTANT_MS + 1, HUGE, *NOT_INTEGERS]),
        ("delay_ms", [-1, MAX_DURATION_MS + 1, HUGE, *NOT_INTEGERS]),
        ("payload", NOT_BYTES),
        ("codec", ["json", "yaml", "", *NOT_TEXTS]),
    ],
)
def test_an_edit_out_of_its_ranges_is_refused(field: str, wrong: list[Any]) -> None:
    for value in wrong:
        refuses(field, edit, **{field: value})


def test_an_edit_changes_something_and_has_one_time() -> None:
    refuses("priority", edit)
    refuses("run_at", edit, run_at=1, delay_ms=1)
    refuses("payload", edit, payload=b"{", codec="json")
    is_too_large(PayloadTooLarge, "payload", edit, payload=LARGE)


def test_a_redrive_may_be_limited_to_some_and_to_one_fingerprint() -> None:
    checks.check_redrive(None, None)
    checks.check_redrive(1, "0123456789abcdef")
    checks.check_redrive(MAX_ID, None)
    for limit in (0, -1, MAX_ID + 1, HUGE, *NOT_INTEGERS):
        refuses("limit", checks.check_redrive, limit, None)
    for mark in ("", "0123456789ABCDEF", "0123456789abcde", "0123456789abcdef\n", *NOT_TEXTS):
        refuses("fingerprint", checks.check_redrive, None, mark)


# -- queues and tenants ------------------------------------------------------------------------------


def test_a_configuration_in_its_ranges_passes() -> None:
    rate = Rate(tokens=1, per_ms=MAX_DURATION_MS, burst=2**31 - 1)
    checks.check_config(QueueConfig())
    checks.check_config(
        QueueConfig(
            paused=True,
            limits=Limits(rate=rate, concurrency=1, group_rate=rate, group_concurrency=2**31 - 1),
            bounds=Bounds(jobs=0, bytes=MAX_ID, push_rate=rate),
            retain_ms=0,
            retain_count=0,
            retain_dead_ms=MAX_DURATION_MS,
        )
    )
    checks.check_config(QueueConfig(retain_ms=MAX_DURATION_MS, retain_dead_ms=0))
    checks.check_bounds(Bounds(bytes=0, push_rate=Rate(tokens=2**31 - 1, per_ms=1, burst=0)))


AMOUNTS: list[Any] = [0, -1, 2**31, HUGE, *NOT_INTEGERS]
PERIODS: list[Any] = [-1, MAX_DURATION_MS + 1, HUGE, None, *NOT_INTEGERS]


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("paused", [0, 1, None, "yes"]),
        ("limits", [None, {}, 1, Rate(tokens=1)]),
        ("bounds", [None, {}, 1, Limits()]),
        ("retain_ms", PERIODS),
        ("retain_count", [-1, 2**31, HUGE, None, *NOT_INTEGERS]),
        ("retain_dead_ms", PERIODS),
    ],
)
def test_a_configuration_out_of_its_ranges_is_refused(field: str, wrong: list[Any]) -> None:
    for value in wrong:
        refuses(field, checks.check_config, QueueConfig(**{field: value}))


def test_what_is_no_configuration_is_refused() -> None:
    config: Any
    for config in (None, {}, 1, "paused", Bounds()):
        refuses("config", checks.check_config, config)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("rate", [{}, 1, Bounds()]),
        ("group_rate", [{}, 1, Bounds()]),
        ("concurrency", AMOUNTS),
        ("group_concurrency", [None, *AMOUNTS]),
    ],
)
def test_limits_out_of_their_ranges_are_refused(field: str, wrong: list[Any]) -> None:
    for value in wrong:
        config = QueueConfig(limits=Limits(**{field: value}))
        refuses(f"limits.{field}", checks.check_config, config)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("tokens", [None, *AMOUNTS]),
        ("per_ms", [0, *PERIODS]),
        ("burst", [-1, 2**31, HUGE, None, *NOT_INTEGERS]),
    ],
)
def test_rates_out_of_their_ranges_are_refused_wherever_they_stand(
    field: str, wrong: list[Any]
) -> None:
    for value in wrong:
        rate = Rate(**{"tokens": 1, field: value})
        refuses(f"rate.{field}", checks.check_rate, rate)
        config = QueueConfig(limits=Limits(group_rate=rate))
        refuses(f"limits.group_rate.{field}", checks.check_config, config)
        refuses(f"bounds.push_rate.{field}", checks.check_bounds, Bounds(push_rate=rate))


def test_bounds_out_of_their_ranges_are_refused() -> None:
    for value in (-1, MAX_ID + 1, HUGE, *NOT_INTEGERS):
        refuses("bounds.jobs", checks.check_bounds, Bounds(jobs=value))
        refuses("bounds.bytes", checks.check_bounds, Bounds(bytes=value))
    refuses("bounds", checks.check_bounds, None)


# -- bulks and crons ---------------------------------------------------------------------------------


def test_a_bulk_has_a_name_or_none_and_a_deadline_within_a_week() -> None:
    checks.check_bulk(None, 1_000)
    checks.check_bulk("é" * 256, 7 * DAY_MS)
    for name in ("", LONG, LONE, *NOT_TEXTS):
        refuses("name", checks.check_bulk, name, 1_000)
    for deadline_ms in (0, 999, 7 * DAY_MS + 1, HUGE, None, *NOT_INTEGERS):
        refuses("deadline_ms", checks.check_bulk, None, deadline_ms)


def test_parts_are_listed_names_of_which_one_may_be_empty() -> None:
    for parts in (None, [], [""], ("a", "b", "a"), ["a"] * 10_000):
        checks.check_parts(parts)
    for wrong in ("ab", b"ab", 1, {"a"}, iter(["a"]), [LONG], [LONE], [None], [1]):
        refuses("parts", checks.check_parts, wrong)
    is_too_large(BatchTooLarge, "parts", checks.check_parts, ["a"] * 10_001)


def cron(**said: Any) -> None:
    checks.check_cron(
        CronSpec(**{"name": "n", "queue": "q", "schedule": Every(every_ms=5), **said})
    )


def test_a_cron_in_its_ranges_passes() -> None:
    cron()
    cron(schedule=Cron(expression="*/5 2 * * MON", tz="Europe/Berlin"), limit=1, overlap="skip")
    cron(schedule=Every(every_ms=1))
    cron(schedule=Daily(at=("02:00",) * 1_440))
    cron(schedule=Daily(at=("02:00", "02:00:30")), missed="all", name="é_%/" * 20)
    cron(payload=b"\xff", codec="bytes", options=JobOptions(codec="bytes", priority=5))


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("name", ["a" * 201, *NOT_NAMES]),
        ("queue", ["", "a b", None, *NOT_TEXTS]),
        ("schedule", [None, {}, "* * * * *", 5]),
        ("payload", [b"{", b"", None, *NOT_BYTES]),
        ("codec", ["yaml", None, *NOT_TEXTS]),
        ("options", [None, {}, "json"]),
        ("overlap", ["", "deny", None, *NOT_TEXTS]),
        ("missed", ["", "first", None, *NOT_TEXTS]),
        ("limit", [0, -1, HUGE, *NOT_INTEGERS]),
    ],
)
def test_a_cron_out_of_its_ranges_is_refused(field: str, wrong: list[Any]) -> None:
    for value in wrong:
        refuses(field, cron, **{field: value})


def test_a_schedule_out_of_its_ranges_is_refused() -> None:
    for every_ms in (0, -1, MAX_DURATION_MS + 1, HUGE, None, *NOT_INTEGERS):
        refuses("every_ms", cron, schedule=Every(every_ms=every_ms))
    for expression in ("", "* * * *", "61 * * * *", "* " * 600, LONE, None, *NOT_TEXTS):
        refuses("expression", cron, schedule=Cron(expression=expression))
    for tz in ("Mars/Base", "../etc", *NOT_NAMES):
        refuses("tz", cron, schedule=Cron(expression="* * * * *", tz=tz))
        refuses("tz", cron, schedule=Daily(at=("02:00",), tz=tz))
    for at in (None, (), ["02:00"], "02:00", (2,), ("24:00",), (HUGE,), ("02:00",) * 1_441):
        refuses("at", cron, schedule=Daily(at=at))  # type: ignore[arg-type]


def test_the_job_of_a_cron_is_checked_like_any_other() -> None:
    refuses("priority", cron, options=JobOptions(priority=2**31))
    is_too_large(PayloadTooLarge, "payload", cron, payload=LARGE, codec="bytes")


# -- messages ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "None"),
        (True, "True"),
        (float("nan"), "nan"),
        (-5, "-5"),
        (2**128 - 1, str(2**128 - 1)),
        (2**128, "an integer of 129 bits"),
        ("a'b", '"a\'b"'),
        (LONE, "'a\\ud800'"),
        ("x" * 60, "'" + "x" * 60 + "'"),
        ("x" * 61, "'" + "x" * 60 + "'…"),
        (b"x" * 61, "b'" + "x" * 60 + "'…"),
        ([HUGE], "a list"),
        (Word.KEY, "a Word"),
        (type("T" * 99, (), {})(), "a " + "T" * 60),
    ],
)
def test_a_message_shows_any_value_briefly(value: object, shown: str) -> None:
    assert show(value) == shown
