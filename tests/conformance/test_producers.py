"""Idempotent producers: a repeated push gives the first answer and adds nothing."""

from typing import Any

import pytest

from penstock.model.answers import Pushed
from penstock.model.errors import Conflict, Invalid
from penstock.model.job import JobSpec, Run
from penstock.model.policy import Bounds, Rate
from tests.conformance.harness import Harness

DAY = 86_400_000


async def produce(
    h: Harness, sequence: int, payload: bytes = b"1", *, producer: str = "p", **more: Any
) -> Pushed:
    job = {"payload": payload}
    return await h.push_many("q", [job], producer=producer, sequence=sequence, **more)


async def test_a_repeat_gives_the_first_answer_and_adds_nothing(h: Harness) -> None:
    jobs: list[dict[str, Any]] = [{"key": "k"}, {}, {"key": "k", "payload": b"2"}, {"group": "g"}]
    first = await h.push_many("q", jobs, producer="p", sequence=7)
    await h.advance(1_000)
    again = await h.push_many("q", jobs, producer="p", sequence=7)
    assert again.jobs == first.jobs
    assert await h.counts("q") == {"ready": 3}


async def test_a_repeat_gives_the_first_answer_even_when_all_has_changed_since(h: Harness) -> None:
    first = await h.push_many("q", [{"key": "k", "retain_ms": 0}], producer="p", sequence=0)
    await h.ack(await h.lease("q"))
    assert await h.get(first.ids[0]) is None
    other = await h.push("q", key="k")
    again = await h.push_many("q", [{"key": "k", "retain_ms": 0}], producer="p", sequence=0)
    assert again.jobs == first.jobs == [(first.ids[0], "created")]
    assert await h.claimed("q", 5) == [other]


async def test_a_repeat_passes_by_every_bound(h: Harness) -> None:
    await h.configure("q", bounds=Bounds(jobs=1, push_rate=Rate(tokens=1, per_ms=DAY)))
    first = await produce(h, 1)
    assert (await produce(h, 1)).jobs == first.jobs


@pytest.mark.parametrize(
    "other",
    [
        {"payload": b"2"},
        {"priority": 1},
        {"delay_ms": 5},
        {"key": "k"},
        {"group": "g"},
        {"headers": {"a": "b"}},
        {"tags": ("t",)},
    ],
    ids=str,
)
async def test_the_same_sequence_with_other_content_is_invalid(
    h: Harness, other: dict[str, Any]
) -> None:
    await h.push_many("q", [{"payload": b"1"}], producer="p", sequence=1)
    with pytest.raises(Invalid) as caught:
        await h.push_many("q", [{"payload": b"1"} | other], producer="p", sequence=1)
    assert caught.value.field.endswith("sequence")
    assert await h.counts("q") == {"ready": 1}


async def test_other_queues_and_other_numbers_of_jobs_are_other_content(h: Harness) -> None:
    await produce(h, 1)
    for runs in (
        [Run.of("r", [JobSpec(payload=b"1")])],
        [Run.of("q", [JobSpec(payload=b"1"), JobSpec(payload=b"1")])],
        [Run.of("q", [JobSpec(payload=b"1")]), Run.of("q", [JobSpec(payload=b"1")])],
    ):
        with pytest.raises(Invalid):
            await h.store.push(h.name, runs, producer="p", sequence=1)
    assert await h.counts("q") == {"ready": 1}
    assert await h.counts("r") == {}


async def test_payloads_that_are_cut_elsewhere_are_other_content(h: Harness) -> None:
    await h.push_many("q", [{"payload": b"12"}, {"payload": b"3"}], producer="p", sequence=1)
    with pytest.raises(Invalid):
        await h.push_many("q", [{"payload": b"1"}, {"payload": b"23"}], producer="p", sequence=1)


async def test_what_stands_for_the_content_is_compared_in_its_place(h: Harness) -> None:
    first = await produce(h, 1, content=b"sixteen bytes: A")
    assert (await produce(h, 1, content=b"sixteen bytes: A")).jobs == first.jobs
    for other in (b"sixteen bytes: B", None):
        with pytest.raises(Invalid) as caught:
            await produce(h, 1, content=other)
        assert caught.value.field.endswith("sequence")
    assert await h.counts("q") == {"ready": 1}


async def test_what_stands_for_the_content_is_remembered_with_keys_and_bulks(h: Harness) -> None:
    stands = b"sixteen bytes: A"
    jobs: list[dict[str, Any]] = [{"key": "k"}, {"group": "g"}]
    first = await h.push_many("q", jobs, producer="p", sequence=1, content=stands)
    again = await h.push_many("q", jobs, producer="p", sequence=1, content=stands)
    assert again.jobs == first.jobs
    bulk = (await h.store.open_bulk(h.name)).bulk
    held = await produce(h, 2, content=stands, bulk=bulk)
    assert (await produce(h, 2, content=stands, bulk=bulk)).jobs == held.jobs
    assert await h.counts("q") == {"ready": 2, "held": 1}


async def test_sequences_may_have_gaps_and_come_out_of_order(h: Harness) -> None:
    answers = {sequence: await produce(h, sequence) for sequence in (5, 0, 2**53 - 1, 3)}
    assert len({pushed.ids[0] for pushed in answers.values()}) == 4
    for sequence, pushed in answers.items():
        assert (await produce(h, sequence)).jobs == pushed.jobs
    assert await h.counts("q") == {"ready": 4}


async def test_each_producer_has_its_own_sequences(h: Harness) -> None:
    first = await produce(h, 1, b"1")
    second = await produce(h, 1, b"2", producer="other")
    third = await produce(h.tenant("other"), 1, b"3")
    assert len({first.ids[0], second.ids[0], third.ids[0]}) == 3


async def test_a_refused_push_is_not_remembered(h: Harness) -> None:
    job_id = await h.push("q", key="k")
    jobs = [{"key": "k", "on_conflict": "reject"}]
    with pytest.raises(Conflict):
        await h.push_many("q", jobs, producer="p", sequence=1)
    await h.cancel(job_id)
    assert (await h.push_many("q", jobs, producer="p", sequence=1)).jobs[0][1] == "created"
    await h.push_many("q", [{}], producer="p", sequence=2)


async def test_the_last_1024_answers_are_remembered(h: Harness) -> None:
    async def keyed(sequence: int, payload: bytes = b"1") -> tuple[int, str]:
        job = {"key": "k", "payload": payload}
        return (await h.push_many("q", [job], producer="p", sequence=sequence)).jobs[0]

    known, outcome = await keyed(1)
    assert outcome == "created"
    assert {await keyed(sequence) for sequence in range(2, 1_025)} == {(known, "ignored")}
    assert await keyed(1) == (known, "created")
    await keyed(5_000)
    with pytest.raises(Conflict):
        await keyed(1)
    with pytest.raises(Conflict):
        await keyed(0, b'"other"')
    with pytest.raises(Invalid):
        await keyed(2, b'"other"')
    assert await keyed(2) == (known, "ignored")


async def test_the_lowest_sequences_are_dropped_first_whenever_they_came(h: Harness) -> None:
    await h.reopen(answers_per_producer=3)
    for sequence in (30, 10, 20):
        await produce(h, sequence)
    await produce(h, 15)
    for refused in (10, 5, 9):
        with pytest.raises(Conflict):
            await produce(h, refused)
    for known in (15, 20, 30):
        await produce(h, known)
    assert await h.counts("q") == {"ready": 4}
    await produce(h, 12)
    with pytest.raises(Conflict):
        await produce(h, 12)


async def test_a_producer_is_forgotten_a_day_after_its_last_push(h: Harness) -> None:
    first = await produce(h, 1)
    await h.advance(DAY - 1)
    assert (await produce(h, 1)).jobs == first.jobs
    await h.advance(DAY - 1)  # the repeat renewed it
    assert (await produce(h, 1)).jobs == first.jobs
    await h.advance(DAY)
    assert (await produce(h, 1, b'"other"')).jobs != first.jobs


async def test_producers_survive_a_restart(h: Harness) -> None:
    await h.reopen(answers_per_producer=2)
    answers = {sequence: await produce(h, sequence) for sequence in (1, 2, 3)}
    await h.restart()
    assert (await produce(h, 2)).jobs == answers[2].jobs
    assert (await produce(h, 3)).jobs == answers[3].jobs
    with pytest.raises(Invalid):
        await produce(h, 3, b'"other"')
    with pytest.raises(Conflict):
        await produce(h, 1)


async def test_a_repeat_into_a_bulk_adds_nothing(h: Harness) -> None:
    await h.store.open_bulk(h.name, "b")
    first = await produce(h, 1, bulk="b", part="a")
    again = await produce(h, 1, bulk="b", part="a")
    assert again.jobs == first.jobs
    assert (await h.store.commit_bulk(h.name, "b")).jobs == 1
    assert (await produce(h, 1, bulk="b", part="a")).jobs == first.jobs
    assert await h.counts("q") == {"ready": 1}


async def test_the_same_sequence_for_another_bulk_or_part_is_invalid(h: Harness) -> None:
    await h.store.open_bulk(h.name, "b")
    await produce(h, 1, bulk="b", part="a")
    with pytest.raises(Invalid):
        await produce(h, 1, bulk="b", part="x")
    with pytest.raises(Invalid):
        await produce(h, 1)
    assert await h.counts("q") == {"held": 1}
