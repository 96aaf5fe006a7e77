"""`clean`: jobs of one state that are old enough are forgotten, ahead of their retention."""

import pytest

from penstock.model.errors import Invalid
from penstock.model.lifecycle import State
from penstock.model.policy import QueueConfig
from tests.conformance.harness import AT_ONCE, BLOCK, BOOM, Harness, many_jobs


async def ids_of(h: Harness, queue: str = "q") -> list[int]:
    return [job.id for job in await h.scan(queue)]


async def test_waiting_jobs_of_one_state_go_and_the_others_stay(h: Harness) -> None:
    ready = await h.push("q")
    delayed = await h.push("q", delay_ms=5_000)
    blocked = await h.push("q", depends_on=(ready,))
    elsewhere = await h.push("r")
    assert await h.store.clean(h.name, "q", State.SCHEDULED) == 1
    assert await ids_of(h) == [ready, blocked]
    assert await h.store.clean(h.name, "q", State.BLOCKED) == 1
    assert await ids_of(h) == [ready]
    assert await h.store.clean(h.name, "q", State.READY) == 1
    assert await ids_of(h) == []
    assert await ids_of(h, "r") == [elsewhere]
    assert await h.store.standing(h.name, [delayed]) == [None]


async def test_only_what_is_old_enough_goes_the_oldest_first(h: Harness) -> None:
    ids = []
    for _ in range(5):
        ids.append(await h.push("q"))
        h.clock.advance(10)
    assert await h.store.clean(h.name, "q", State.READY, older_ms=30, limit=2) == 2
    assert await ids_of(h) == ids[2:]
    assert await h.store.clean(h.name, "q", State.READY, older_ms=30) == 1
    assert await ids_of(h) == ids[3:]


async def test_completed_jobs_are_forgotten_by_their_end_whatever_their_retention(
    h: Harness,
) -> None:
    kept = await h.push("q", retain_ms=3_600_000)
    plain = [await h.push("q") for _ in range(3)]
    lease = await h.lease("q", 10)
    for job_id in (plain[2], kept, plain[0], plain[1]):
        await h.ack(lease, [job_id])
        h.clock.advance(10)
    assert await h.store.clean(h.name, "q", State.COMPLETED, older_ms=30) == 2
    assert await ids_of(h) == [plain[0], plain[1]]
    assert await h.store.clean(h.name, "q", State.COMPLETED, limit=1) == 1
    assert await ids_of(h) == [plain[1]]


async def test_what_was_cleaned_counts_no_longer_among_those_kept(h: Harness) -> None:
    await h.store.configure(h.name, "q", QueueConfig(retain_count=4))
    ids = await h.push_alike("q", 9)
    lease = await h.lease("q", 9)
    await h.ack(lease, ids[:4])
    assert await h.store.clean(h.name, "q", State.COMPLETED, limit=3) == 3
    await h.ack(lease, ids[4:7])
    assert await ids_of(h) == [*ids[3:7], *ids[7:]]
    await h.ack(lease, ids[7:])
    assert await ids_of(h) == ids[5:]


@many_jobs
async def test_a_range_that_ended_together_is_cut_where_the_limit_says(h: Harness) -> None:
    ids = await h.push_alike("q", BLOCK + 50)
    lease = await h.lease("q", 10_000)
    await h.fail(lease, [ids[7]], dead=True)
    await h.ack(lease)
    assert await h.store.clean(h.name, "q", State.COMPLETED, limit=BLOCK) == BLOCK
    assert await ids_of(h) == [ids[7], *ids[BLOCK + 1 :]]
    assert await h.store.clean(h.name, "q", State.DEAD) == 1
    assert await h.store.clean(h.name, "q", State.COMPLETED) == 49
    assert await ids_of(h) == []


async def test_dead_and_cancelled_jobs_are_cleaned_too(h: Harness) -> None:
    dead = await h.push("q", max_attempts=1, backoff=AT_ONCE)
    await h.fail(await h.lease("q"), error=BOOM)
    cancelled = await h.push("q")
    await h.store.cancel(h.name, [cancelled])
    assert await h.store.clean(h.name, "q", State.CANCELLED) == 1
    assert await ids_of(h) == [dead]
    assert await h.store.clean(h.name, "q", State.DEAD) == 1
    assert await h.store.clean(h.name, "q", State.DEAD) == 0


async def test_a_dependant_of_a_waiting_job_that_is_cleaned_away_fails(h: Harness) -> None:
    first = await h.push("q")
    second = await h.push("r", depends_on=(first,))
    await h.store.clean(h.name, "q", State.READY)
    assert (await h.job(second)).state == State.DEAD


async def test_active_and_held_jobs_are_not_to_be_cleaned_away(h: Harness) -> None:
    await h.push("q")
    for state in (State.ACTIVE, State.HELD, "ready", None):
        with pytest.raises(Invalid) as caught:
            await h.store.clean(h.name, "q", state)  # type: ignore[arg-type]
        assert caught.value.field == "state"
    for wrong in ({"older_ms": -1}, {"limit": 0}):
        with pytest.raises(Invalid) as caught:
            await h.store.clean(h.name, "q", State.READY, **wrong)
        assert caught.value.field == next(iter(wrong))
    assert len(await ids_of(h)) == 1


async def test_another_tenants_jobs_are_not_cleaned_away(h: Harness) -> None:
    await h.push("q")
    assert await h.store.clean("stranger", "q", State.READY) == 0
    assert len(await ids_of(h)) == 1


async def test_a_cleaning_is_remembered(h: Harness) -> None:
    ids = await h.push_alike("q", 4)
    await h.ack(await h.lease("q", 2))
    await h.store.clean(h.name, "q", State.COMPLETED, limit=1)
    await h.store.clean(h.name, "q", State.READY, limit=1)
    await h.restart()
    assert await ids_of(h) == [ids[1], ids[3]]
