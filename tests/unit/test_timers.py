"""Agenda, Wheel and Late against plain sorted lists, with instants near, equal and a century ahead."""

from heapq import heapify, heappop, heappush
from random import Random

import pytest

from penstock.kernel.kernel import Kernel
from penstock.kernel.lanes import Late
from penstock.kernel.leases import LeaseRecord
from penstock.kernel.queue import Queue, Tenant
from penstock.kernel.timers import FOREVER, Agenda, Wheel
from penstock.model.policy import MAX_DURATION_MS

START = 1_700_000_000_000
DISTANCES = (0, 1, 2, 255, 256, 1_023, 1_024, 1_025, 65_535, 65_536, 100_000, 4_194_304, 10**9)


def instant_after(random: Random, now: int) -> int:
    """Mostly on the edges of buckets, sometimes a century ahead, sometimes past."""
    roll = random.random()
    if roll < 0.4:
        return now + random.choice(DISTANCES)
    if roll < 0.5:
        return now + MAX_DURATION_MS - random.randint(0, 3)
    if roll < 0.55:
        return now - random.randint(0, 5_000)
    return now + random.randint(0, 1 << random.randint(1, 36))


# -- Agenda --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_an_agenda_gives_its_entries_in_the_order_of_instant_and_id(seed: int) -> None:
    random = Random(seed)
    agenda = Agenda()
    plain: list[tuple[int, int, int]] = []
    now = START
    next_id = 1
    for _ in range(1_500):
        if random.random() < 0.6:
            instant = instant_after(random, now)
            span = random.choice((1, 1, 1, 7, 4_096))
            agenda.add(instant, next_id, span, now)
            heappush(plain, (instant, next_id, span))
            next_id += span
        else:
            now += random.choice((0, 1, 500, 1_024, 70_000, 10**7))
            for _ in range(random.randint(0, 30)):
                head = agenda.head(now)
                if plain and plain[0][0] <= now:
                    assert head == plain[0][0]
                    assert agenda.pop() == heappop(plain)
                else:
                    assert head == FOREVER
                    break
        assert len(agenda) == len(plain)
        if plain:
            assert agenda.due <= plain[0][0], "due is a lower bound"
    while plain:
        assert agenda.head(FOREVER - 1) == plain[0][0]
        assert agenda.pop() == heappop(plain)
    assert agenda.head(FOREVER - 1) == FOREVER
    assert len(agenda) == 0


def test_an_agenda_with_nothing_in_it_is_never_due() -> None:
    agenda = Agenda()
    assert agenda.due == FOREVER
    assert agenda.head(START) == FOREVER
    assert not len(agenda)


def test_an_agenda_that_gave_all_it_had_is_never_due() -> None:
    agenda = Agenda()
    agenda.add(START + 5, 1, 1, START)
    assert agenda.head(START + 4) == FOREVER
    assert agenda.head(START + 5) == START + 5
    agenda.pop()
    assert agenda.head(START + 9) == FOREVER
    assert agenda.due == FOREVER


def test_an_agenda_never_gives_an_instant_early() -> None:
    agenda = Agenda()
    for ahead in (1, 1_023, 1_024, 65_536, MAX_DURATION_MS):
        agenda.add(START + ahead, ahead, 1, START)
    for ahead in (1, 1_023, 1_024, 65_536, MAX_DURATION_MS):
        assert agenda.head(START + ahead - 1) == FOREVER
        assert agenda.due <= START + ahead
        assert agenda.head(START + ahead) == START + ahead
        assert agenda.pop() == (START + ahead, ahead, 1)


def test_equal_instants_come_by_id_however_they_were_put_down() -> None:
    agenda = Agenda()
    ids = list(range(1, 400))
    Random(3).shuffle(ids)
    for number, job_id in enumerate(ids):
        # Filed from near and from far, so that they lie in buckets of every width.
        agenda.add(START, job_id, 1, START - (1 << (number % 38)))
    got = []
    while agenda.head(START) == START:
        got.append(agenda.pop()[1])
    assert got == sorted(ids)


def test_the_largest_ids_survive_the_packing() -> None:
    agenda = Agenda()
    top = 2**53 - 1
    agenda.add(START + 1_023, top, 1, START)
    agenda.add(START + 10**9, top - 1, 3, START)
    assert agenda.head(START + 1_023) == START + 1_023
    assert agenda.pop() == (START + 1_023, top, 1)
    assert agenda.head(START + 10**9) == START + 10**9
    assert agenda.pop() == (START + 10**9, top - 1, 3)


def test_two_entries_of_one_job_at_one_instant_are_both_given() -> None:
    agenda = Agenda()
    agenda.add(START + 50, 7, 4, START)
    agenda.add(START + 50, 7, 1, START)
    assert agenda.head(START + 50) == START + 50
    spans = [agenda.pop()[2], agenda.pop()[2]]
    assert sorted(spans) == [1, 4]
    assert agenda.head(START + 50) == FOREVER


# -- Wheel ---------------------------------------------------------------------------------------


def lease(token: str, expires: int, first: int) -> LeaseRecord:
    queue = Queue(Kernel(1), Tenant("t"), "q")
    return LeaseRecord(token, queue, [], 1, "", 50, 0, 0, expires, first, 0)


@pytest.mark.parametrize("seed", range(12))
def test_a_wheel_gives_leases_by_instant_and_first_id_without_those_struck_out(seed: int) -> None:
    random = Random(seed)
    wheel = Wheel()
    live: dict[str, LeaseRecord] = {}
    plain: list[tuple[int, int, str]] = []
    now = 1_000_000
    for serial in range(1, 1_200):
        roll = random.random()
        if roll < 0.5:
            expires = now + random.choice((50, 255, 256, 257, 30_000, 86_400_000))
            record = lease(f"t{serial:05}", expires, random.randint(1, 50))
            wheel.add(record)
            live[record.token] = record
            heappush(plain, (expires, record.first, record.token))
        elif roll < 0.7 and live:
            record = live.pop(random.choice(sorted(live)))
            wheel.strike(record)
            plain.remove((record.expires, record.first, record.token))
            heapify(plain)
        elif roll < 0.8 and live:
            record = live[random.choice(sorted(live))]
            plain.remove((record.expires, record.first, record.token))
            wheel.strike(record)
            record.expires = now + random.choice((50, 300, 60_000))
            wheel.add(record)
            plain.append((record.expires, record.first, record.token))
            heapify(plain)
        else:
            now += random.choice((0, 1, 100, 256, 5_000))
            while (instant := wheel.head(now)) != FOREVER:
                record = wheel.pop()
                if live.get(record.token) is not record or record.expires != instant:
                    continue  # struck out too late to be forgotten: whoever pops it finds out
                assert (instant, record.first, record.token) == heappop(plain)
                del live[record.token]
            assert not plain or plain[0][0] > now
        if plain:
            assert wheel.due <= plain[0][0], "due is a lower bound"


def test_a_lease_struck_out_in_time_leaves_nothing_behind() -> None:
    wheel = Wheel()
    record = lease("t", 10_000, 1)
    wheel.add(record)
    wheel.strike(record)
    assert wheel.head(20_000) == FOREVER
    assert wheel.due == FOREVER


def test_a_lease_put_down_for_a_bucket_that_time_has_reached_is_given_in_order() -> None:
    wheel = Wheel()
    wheel.add(lease("a", 1_024 + 100, 1))
    assert wheel.head(1_024 + 50) == FOREVER
    wheel.add(lease("b", 1_024 + 60, 2))
    assert wheel.due <= 1_024 + 60
    assert wheel.head(1_024 + 60) == 1_024 + 60
    assert wheel.pop().token == "b"
    assert wheel.head(1_024 + 99) == FOREVER
    assert wheel.head(1_024 + 100) == 1_024 + 100
    assert wheel.pop().token == "a"


# -- Late ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_late_jobs_come_out_as_they_went_in(seed: int) -> None:
    random = Random(seed)
    late = Late()
    plain: list[tuple[int, int]] = []  # (ready, id), one per job
    ready, job_id = START, 1
    for _ in range(6_000):
        if random.random() < 0.45:
            ready += random.choice((0, 0, 1, 40))
            span = random.choice((1, 1, 2, 30))
            assert late.append(ready, job_id, span)
            plain += [(ready, job_id + n) for n in range(span)]
            job_id += span
        elif plain:
            at, first, span = late.head()
            assert (at, first) == plain[0]
            n = random.randint(1, span)
            late.drop(n)
            del plain[:n]
        assert bool(late) == bool(plain)


def test_what_would_break_the_order_is_refused() -> None:
    late = Late()
    assert late.append(START, 10, 5)
    assert not late.append(START - 1, 20, 1)
    assert not late.append(START, 9, 1)
    assert late.append(START, 15, 1)
    late.drop(5)
    late.drop(1)
    assert not late
    assert late.append(START - 100, 1, 1), "an empty one begins anew"
