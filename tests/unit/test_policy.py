"""Backoffs: each kind and each jitter, exact where nothing is drawn, bounded where something is."""

from collections import Counter
from random import Random

import pytest

from penstock.model.policy import MINUTE_MS, Backoff, BackoffKind, Jitter, backoff_ms, mix

SEED = 0x5EED


MIXED = [0, 17721964628816064352, 8793777405191088553]


def waits(backoff: Backoff, n: int = 6) -> list[int]:
    return [backoff_ms(backoff, failures, SEED, 1) for failures in range(1, n + 1)]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("none", [0, 0, 0, 0, 0, 0]),
        ("fixed", [100, 100, 100, 100, 100, 100]),
        ("linear", [100, 200, 300, 400, 500, 600]),
        ("exponential", [100, 200, 400, 800, 1_600, 3_200]),
        ("list", [5, 50, 500, 500, 500, 500]),
    ],
)
def test_without_jitter_each_kind_waits_exactly(kind: BackoffKind, expected: list[int]) -> None:
    backoff = Backoff(kind=kind, base_ms=100, cap_ms=10_000, jitter="none", list_ms=(5, 50, 500))
    assert waits(backoff) == expected


def test_the_first_retry_waits_one_base_and_the_next_twice_that() -> None:
    assert waits(Backoff(jitter="none"), 3) == [1_000, 2_000, 4_000]


def test_no_wait_is_longer_than_the_cap() -> None:
    for kind in ("fixed", "linear", "exponential", "list"):
        for jitter in ("none", "full", "equal"):
            backoff = Backoff(
                kind=kind, base_ms=700, cap_ms=1_000, jitter=jitter, list_ms=(10, 5_000)
            )
            assert max(waits(backoff, 200)) <= 1_000


def test_a_job_that_fails_without_end_waits_the_cap_and_not_an_endless_number() -> None:
    backoff = Backoff(jitter="none")
    assert backoff_ms(backoff, 10**9, SEED, 1) == 15 * MINUTE_MS
    assert backoff_ms(Backoff(base_ms=1, jitter="none"), 41, SEED, 1) == 15 * MINUTE_MS


@pytest.mark.parametrize(("jitter", "least"), [("full", 0), ("equal", 500)])
def test_jitter_draws_from_the_whole_of_its_range(jitter: Jitter, least: int) -> None:
    backoff = Backoff(kind="fixed", base_ms=1_000, jitter=jitter)
    drawn = [backoff_ms(backoff, 1, SEED, job_id) for job_id in range(1, 30_001)]
    assert min(drawn) == least
    assert max(drawn) == 1_000
    middle = (least + 1_000) / 2
    assert abs(sum(drawn) / len(drawn) - middle) < 10
    tenths = Counter((wait - least) * 10 // (1_001 - least) for wait in drawn)
    assert all(abs(count - 3_000) < 300 for count in tenths.values()), tenths


def test_equal_jitter_of_an_odd_wait_stays_between_half_and_whole() -> None:
    backoff = Backoff(kind="fixed", base_ms=3, jitter="equal")
    assert {backoff_ms(backoff, 1, SEED, job_id) for job_id in range(1, 200)} == {1, 2, 3}


def test_a_wait_of_nothing_stays_nothing_whatever_the_jitter() -> None:
    for jitter in ("none", "full", "equal"):
        backoff = Backoff(kind="list", list_ms=(0, 40), jitter=jitter)
        assert backoff_ms(backoff, 1, SEED, 5) == 0


def test_the_same_store_job_and_failure_wait_the_same() -> None:
    backoff = Backoff()
    assert waits(backoff) == waits(backoff)


def test_another_store_job_or_failure_waits_otherwise() -> None:
    backoff = Backoff(kind="fixed", base_ms=10**9, cap_ms=10**9)
    first = backoff_ms(backoff, 1, SEED, 1)
    assert backoff_ms(backoff, 1, SEED + 1, 1) != first
    assert backoff_ms(backoff, 1, SEED, 2) != first
    assert backoff_ms(backoff, 2, SEED, 1) != first


def test_mix_is_known_for_good() -> None:
    """A replay decides as the original did: these numbers may never change."""
    assert [mix(0, 0, 0), mix(1, 1, 1), mix(0x5EED, 123_456_789, 3)] == MIXED


def test_mix_spreads_neighbours_over_the_whole_word() -> None:
    words = [mix(7, job_id, attempt) for job_id in range(1, 4_001) for attempt in (1, 2)]
    assert len(set(words)) == len(words)
    assert all(0 <= word < 2**64 for word in words)
    for bit in range(64):
        ones = sum(word >> bit & 1 for word in words)
        assert abs(ones - len(words) / 2) < 400, bit


def test_changing_one_bit_of_any_argument_changes_half_of_the_bits() -> None:
    random = Random(1)
    changed = []
    for _ in range(500):
        arguments = [random.getrandbits(63), random.getrandbits(52), random.getrandbits(10)]
        before = mix(*arguments)
        which = random.randrange(3)
        arguments[which] ^= 1 << random.randrange((63, 52, 10)[which])
        changed.append((before ^ mix(*arguments)).bit_count())
    assert abs(sum(changed) / len(changed) - 32) < 1.5
    assert min(changed) > 8
