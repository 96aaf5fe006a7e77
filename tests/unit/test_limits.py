"""The meter of a rate: exact in integers, never more than the burst and the rate allow."""

from random import Random

import pytest

from penstock.kernel.limits import Meter
from penstock.model.policy import Rate

RATES = (
    Rate(tokens=3, per_ms=1_000),
    Rate(tokens=3, per_ms=1_000, burst=1),
    Rate(tokens=1, per_ms=7),
    Rate(tokens=7, per_ms=1_000, burst=2),
    Rate(tokens=1_000, per_ms=1),
    Rate(tokens=13, per_ms=60_000, burst=40),
    Rate(tokens=1, per_ms=86_400_000),
)


@pytest.mark.parametrize("rate", RATES, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_no_window_lets_more_pass_than_the_burst_and_the_rate(rate: Rate, seed: int) -> None:
    random = Random(seed)
    meter = Meter(rate)
    burst = rate.burst or rate.tokens
    elapsed = random.randint(0, 10**6)
    passed: list[tuple[int, int]] = []  # instant, how many
    for _ in range(300):
        elapsed += random.choice((0, 1, rate.per_ms // 3, rate.per_ms, 3 * rate.per_ms))
        room = meter.room(elapsed)
        assert 0 <= room <= burst
        if room:
            n = random.randint(1, room)
            meter.take(elapsed, n)
            passed.append((elapsed, n))
    for begin in range(len(passed)):
        total = 0
        for instant, n in passed[begin : begin + 60]:
            total += n
            window = instant - passed[begin][0]
            assert total <= burst + window * rate.tokens // rate.per_ms


@pytest.mark.parametrize("rate", [r for r in RATES if (r.burst or r.tokens) > 1], ids=str)
def test_a_meter_used_as_soon_as_it_may_reaches_the_rate_exactly(rate: Rate) -> None:
    """Nothing is lost to rounding, however many jobs pass one by one."""
    meter = Meter(rate)
    elapsed = start = 5_000
    burst = rate.burst or rate.tokens
    for passed in range(1, 3_001):
        elapsed = meter.next_at(elapsed)
        meter.take(elapsed, 1)
        allowed = burst + (elapsed - start) * rate.tokens // rate.per_ms
        assert passed + meter.room(elapsed) == allowed


def test_three_per_second_are_let_pass_at_exactly_these_instants() -> None:
    meter = Meter(Rate(tokens=3, per_ms=1_000, burst=1))
    instants = []
    elapsed = 0
    for _ in range(7):
        elapsed = meter.next_at(elapsed)
        instants.append(elapsed)
        meter.take(elapsed, 1)
    # Never before a third of a second is over, and a clock of milliseconds shows that at the 334th.
    assert instants == [0, 334, 668, 1_002, 1_336, 1_670, 2_004]


def test_three_at_once_then_one_each_third_of_a_second() -> None:
    meter = Meter(Rate(tokens=3, per_ms=1_000))
    assert meter.room(0) == 3
    meter.take(0, 3)
    assert meter.room(333) == 0
    assert meter.next_at(0) == 334
    assert meter.room(334) == 1
    assert meter.room(666) == 1
    assert meter.room(667) == 2
    assert meter.room(999) == 2
    assert meter.room(1_000) == 3


@pytest.mark.parametrize("rate", RATES, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_next_at_is_the_first_instant_with_room(rate: Rate, seed: int) -> None:
    random = Random(seed)
    meter = Meter(rate)
    elapsed = random.randint(0, 10**6)
    for _ in range(200):
        first = meter.next_at(elapsed)
        assert first >= elapsed
        assert meter.room(first) >= 1
        if first > elapsed:
            assert meter.room(elapsed) == 0
            assert meter.room(first - 1) == 0
        elapsed = first + random.choice((0, 0, 0, 1, rate.per_ms // 2))
        room = meter.room(elapsed)
        if room:
            meter.take(elapsed, random.randint(1, room))


@pytest.mark.parametrize("rate", RATES, ids=str)
def test_an_idle_meter_is_as_good_as_a_new_one(rate: Rate) -> None:
    meter = Meter(rate)
    assert meter.idle(0)
    elapsed = 123_456
    meter.take(elapsed, meter.room(elapsed))
    quiet = meter.idle_at()
    assert quiet > elapsed
    assert not meter.idle(quiet - 1)
    assert meter.idle(quiet)
    new = Meter(rate)
    for later in (quiet, quiet + 1, quiet + rate.per_ms):
        assert meter.room(later) == new.room(later) == (rate.burst or rate.tokens)
        assert meter.next_at(later) == later


def test_a_meter_goes_on_from_what_it_remembers() -> None:
    rate = Rate(tokens=2, per_ms=100)
    meter = Meter(rate)
    meter.take(1_000, 2)
    again = Meter(rate, meter.arrival)
    for elapsed in range(1_000, 1_200):
        assert again.room(elapsed) == meter.room(elapsed)
