"""Queues as an operator sees them: which there are, what they hold, how they are configured."""

import pytest

from penstock.model.lifecycle import State
from penstock.model.policy import Bounds, Limits, QueueConfig, Rate
from tests.conformance.harness import Harness, after

HOUR = 3_600_000


async def names(h: Harness) -> list[str]:
    return [info.queue for info in await h.store.queues(h.name)]


async def test_a_new_store_has_no_queues(h: Harness) -> None:
    assert await names(h) == []


async def test_queues_that_hold_jobs_or_configuration_are_listed_by_name(h: Harness) -> None:
    for queue in ("b", "B", "a.1", "_", "10", "9"):
        await h.push(queue)
    await h.configure("configured", paused=True)
    assert await names(h) == sorted(["b", "B", "a.1", "_", "10", "9", "configured"])


async def test_a_queue_that_is_empty_and_not_configured_is_forgotten(h: Harness) -> None:
    await h.finish("q", retain_ms=1_000)
    assert await names(h) == ["q"]
    await h.advance(1_000)
    assert await names(h) == []


async def test_a_queue_with_a_kept_key_is_not_forgotten(h: Harness) -> None:
    await h.finish("q", retain_ms=0, key="k", keep_key=5_000)
    assert await names(h) == ["q"]
    await h.advance(5_000)
    assert await names(h) == []


async def test_asking_for_a_queue_does_not_make_one(h: Harness) -> None:
    await h.claim("q")
    await h.info("q")
    await h.scan("q")
    await h.store.by_key(h.name, "q", "k")
    await h.store.redrive(h.name, "q")
    await h.store.purge(h.name, "q")
    assert await names(h) == []


async def test_named_queues_are_answered_in_full_even_if_they_do_not_exist(h: Harness) -> None:
    await h.push("here")
    await h.push("other")
    infos = {info.queue: info for info in await h.store.queues(h.name, ["here", "nowhere"])}
    assert set(infos) == {"here", "nowhere"}
    assert infos["here"].counts[State.READY] == 1
    empty = infos["nowhere"]
    assert (sum(empty.counts.values()), empty.config) == (0, QueueConfig())
    assert (empty.oldest_ready_ms, empty.groups) == (None, 0)
    assert set(empty.counts) == set(State)


async def test_counters_follow_every_change_of_state(h: Harness) -> None:
    ids = await h.push_alike("q", 6, backoff=after(HOUR), ttl_ms=HOUR)
    assert await h.counts("q") == {"ready": 6}
    lease = await h.lease("q", 5)
    assert await h.counts("q") == {"active": 5, "ready": 1}
    await h.ack(lease, ids[:1])
    await h.fail(lease, ids[1:2])
    await h.fail(lease, ids[2:3], dead=True)
    await h.release(lease, ids[3:4])
    await h.cancel(ids[4])
    counts = {"cancelled": 1, "completed": 1, "dead": 1, "ready": 2, "scheduled": 1}
    assert await h.counts("q") == counts
    await h.advance(HOUR)
    # The retry is due, the ended ones are forgotten, and one was never claimed within its ttl.
    assert await h.counts("q") == {"dead": 1, "expired": 1, "ready": 2}
    await h.store.redrive(h.name, "q")
    assert await h.counts("q") == {"expired": 1, "ready": 3}


async def test_the_age_of_the_line_is_that_of_its_head(h: Harness) -> None:
    await h.push("q", delay_ms=1_000)
    assert (await h.info("q")).oldest_ready_ms is None
    await h.push("q")
    await h.advance(300)
    await h.push("q")
    await h.advance(200)
    assert (await h.info("q")).oldest_ready_ms == 500
    await h.lease("q")
    assert (await h.info("q")).oldest_ready_ms == 200
    await h.lease("q")
    assert (await h.info("q")).oldest_ready_ms is None
    await h.advance(600)
    assert (await h.info("q")).oldest_ready_ms == 100


async def test_groups_with_work_are_counted(h: Harness) -> None:
    await h.push_many("q", [{"group": "a"}, {"group": "a"}, {"group": "b"}, {}])
    later = await h.push("q", group="later", delay_ms=1_000)
    retries = await h.push("q", group="retries", backoff=after(HOUR), priority=9)
    assert (await h.info("q")).groups == 3
    await h.fail(await h.lease("q"))
    assert await h.state(retries) == State.SCHEDULED
    assert (await h.info("q")).groups == 3
    await h.advance(1_000)
    assert (await h.info("q")).groups == 4
    await h.cancel(retries, later)
    assert (await h.info("q")).groups == 2
    while (lease := await h.claim("q", 10)) is not None:
        await h.ack(lease)
    assert (await h.info("q")).groups == 0


async def test_a_configuration_is_answered_as_it_was_set(h: Harness) -> None:
    config = QueueConfig(
        paused=True,
        limits=Limits(
            rate=Rate(tokens=3, per_ms=60_000, burst=7),
            concurrency=11,
            group_rate=Rate(tokens=1),
            group_concurrency=2,
        ),
        bounds=Bounds(jobs=1_000, bytes=10**9, push_rate=Rate(tokens=5)),
        retain_ms=1,
        retain_count=2,
        retain_dead_ms=3,
    )
    await h.store.configure(h.name, "q", config)
    assert (await h.info("q")).config == config
    await h.restart()
    assert (await h.info("q")).config == config


async def test_a_configuration_is_set_as_a_whole(h: Harness) -> None:
    await h.configure("q", retain_ms=5, limits=Limits(concurrency=1))
    await h.configure("q", retain_count=7)
    assert (await h.info("q")).config == QueueConfig(retain_count=7)


async def test_the_default_configuration_removes_a_configuration(h: Harness) -> None:
    await h.configure("q", retain_ms=5)
    assert await names(h) == ["q"]
    await h.store.configure(h.name, "q", QueueConfig())
    assert await names(h) == []


async def test_a_shorter_retention_counts_for_jobs_that_have_ended_already(h: Harness) -> None:
    by_queue = await h.finish("q")
    own = await h.finish("q", retain_ms=HOUR // 2)
    await h.advance(2_000)
    await h.configure("q", retain_ms=1_000)
    await h.advance(1)
    assert await h.get(by_queue) is None
    assert await h.state(own) == State.COMPLETED


@pytest.mark.parametrize("queue", ["a" * 256, ".", "..", "-", "_", "A.b-c_9", "0"])
async def test_every_name_of_the_allowed_letters_is_a_queue(h: Harness, queue: str) -> None:
    job_id = await h.push(queue)
    lease = await h.lease(queue)
    assert (lease.queue, lease.ids) == (queue, [job_id])
    assert await names(h) == [queue]


async def test_queues_survive_a_restart(h: Harness) -> None:
    await h.push_many("q", [{}, {"delay_ms": 100}, {"group": "g"}])
    await h.finish("r")
    await h.configure("s", retain_ms=7)
    before = await h.store.queues(h.name)
    await h.restart()
    assert await h.store.queues(h.name) == before
