"""Errors that differ only in what varies from job to job share a fingerprint."""

import re
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.fingerprint import fingerprint, masked
from penstock.model.job import JobError


@pytest.mark.parametrize(
    ("message", "mask"),
    [
        ("", ""),
        ("connection refused", "connection refused"),
        ("user 17 not found", "user <number> not found"),
        ("took 1.5e-3 s, not 1,234.50", "took <number> s, not <number>"),
        ("at 10:20:30 after -5 of 3-4", "at <number> after <number> of <number>-<number>"),
        ("x[-1] and f(2)-1", "x[<number>] and f(<number>)-<number>"),
        ("KeyError: 'user-17'", "KeyError: <quoted>"),
        ('no "such thing" as `this`', "no <quoted> as <quoted>"),
        ("can't open bob's file 'a b'", "can't open bob's file <quoted>"),
        ("l'été d'or", "l'été d'or"),
        ("an open 'quote", "an open 'quote"),
        ("key='a', other=\"b's\"", "key=<quoted>, other=<quoted>"),
        ("<Job object at 0x7f3A2b10>", "<Job object at <number>>"),
        ("commit a1b2c3d and 1234567", "commit <number> and <number>"),
        ("facade deadbeef effaced", "facade deadbeef effaced"),
        ("123e4567-E89b-12d3-a456-426614174000 is gone", "<uuid> is gone"),
        ("/tmp/run42/part-00017.csv", "/tmp/run<number>/part-<number>.csv"),
        ("user17 on db-3.eu1", "user<number> on db-<number>.eu<number>"),
    ],
)
def test_what_varies_is_masked(message: str, mask: str) -> None:
    assert masked(message) == mask


@given(st.integers(), st.integers())
def test_messages_with_other_numbers_share_a_fingerprint(one: int, other: int) -> None:
    marks = {fingerprint(JobError(message=f"user {n} not found")) for n in (one, other)}
    assert len(marks) == 1


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_messages_with_fractions_share_a_fingerprint_with_whole_ones(number: float) -> None:
    assert masked(f"took {number} s") == "took <number> s"


@given(st.uuids(), st.uuids())
def test_messages_with_other_uuids_share_a_fingerprint(one: UUID, other: UUID) -> None:
    assert masked(f"no order {one}!") == masked(f"no order {other}!") == "no order <uuid>!"


@given(st.integers(0, 2**64), st.integers(0, 2**64))
def test_messages_with_other_addresses_share_a_fingerprint(one: int, other: int) -> None:
    assert masked(f"<object at {one:#x}>") == masked(f"<object at {other:#x}>")


@given(st.text(st.characters(exclude_characters="'\n")))
def test_messages_that_quote_other_texts_share_a_fingerprint(quoted: str) -> None:
    assert masked(f"no such table: '{quoted}' (here)") == "no such table: <quoted> (here)"


def test_other_words_and_other_classes_have_other_fingerprints() -> None:
    errors = [
        JobError(kind="KeyError", message="user 17 not found"),
        JobError(kind="KeyError", message="user 17 found"),
        JobError(kind="ValueError", message="user 17 not found"),
        JobError(kind="KeyErroruser", message=" 17 not found"),
        JobError(),
    ]
    assert len({fingerprint(error) for error in errors}) == len(errors)


def test_only_class_and_message_count() -> None:
    said = JobError(kind="E", message="m")
    seen = JobError(kind="E", message="m", trace="t", at=5, worker="w", attempt=3)
    assert fingerprint(said) == fingerprint(seen)


def test_the_fingerprint_of_an_error_does_not_change_between_releases() -> None:
    assert fingerprint(JobError(kind="KeyError", message="user 17 not found")) == "e259b4be7eae6372"


@given(st.text(st.characters(codec=None) | st.sampled_from("'\"`0x1a-.:,e\\ \udc80")))
def test_any_message_has_a_fingerprint(message: str) -> None:
    assert re.fullmatch("[0-9a-f]{16}", fingerprint(JobError(message=message)))
    assert not re.search("[0-9]", masked(message))
