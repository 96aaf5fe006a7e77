"""Counters: a job is in exactly one state, and the counts of a queue always equal a scan."""

import random
from collections import Counter
from contextlib import suppress

from penstock.model.errors import Conflict, LeaseLost, NotFound
from penstock.model.job import JobSpec, Lease
from penstock.model.lifecycle import State
from penstock.model.policy import HOUR_MS
from tests.conformance.harness import AT_ONCE, BLOCK, Harness, after, many_jobs


async def test_a_queue_that_nobody_knows_counts_nothing(h: Harness) -> None:
    info = await h.info("never-heard-of")
    assert info.counts == dict.fromkeys(State, 0)
    assert info.oldest_ready_ms is None


async def test_every_state_is_counted(h: Harness) -> None:
    await h.store.open_bulk(h.name, "b")
    await h.push_many("q", [{}] * 9, bulk="b")
    ids = await h.push_alike("q", 10)
    await h.push_alike("q", 8, delay_ms=HOUR_MS)
    await h.push_many("q", [{"depends_on": (ids[9],)}] * 7)
    await h.push_alike("q", 6, ttl_ms=5)
    lease = await h.lease("q", 5)
    await h.ack(lease, ids[:1])
    await h.fail(lease, ids[1:3], dead=True)
    await h.cancel(*ids[5:8])
    h.clock.advance(5)
    assert await h.counts("q") == {
        "held": 9,
        "blocked": 7,
        "scheduled": 8,
        "ready": 2,
        "active": 2,
        "completed": 1,
        "dead": 2,
        "cancelled": 3,
        "expired": 6,
    }


async def test_a_job_is_found_once_and_in_one_state(h: Harness) -> None:
    ids = await h.push_alike("q", BLOCK + 200)
    lease = await h.lease("q", 3_000)
    await h.ack(lease, ids[10:20])
    await h.release(lease, ids[100:200])
    await h.fail(lease, ids[50:60])
    jobs = await h.scan("q")
    assert [job.id for job in jobs] == ids
    found: list[int] = []
    for state in State:
        cursor: int | None = 0
        while cursor is not None:
            page = await h.store.find(h.name, "q", state=state, cursor=cursor, limit=1_000)
            assert {job.state for job in page.jobs} <= {state}
            found += [job.id for job in page.jobs]
            cursor = page.cursor
    assert sorted(found) == ids


@many_jobs
async def test_counts_follow_a_batch_through_its_life(h: Harness) -> None:
    count = 2 * BLOCK
    ids = await h.push_alike("q", count, delay_ms=10, backoff=after(10), max_attempts=2)
    assert await h.counts("q") == {"scheduled": count}
    await h.advance(10)
    assert await h.counts("q") == {"ready": count}
    lease = await h.lease("q", 10_000, lease_ms=100)
    assert await h.counts("q") == {"active": count}
    await h.fail(lease, ids[::2])
    assert await h.counts("q") == {"active": count // 2, "scheduled": count // 2}
    h.clock.advance(100)
    assert await h.counts("q") == {"ready": count // 2, "scheduled": count // 2}
    h.clock.advance(10)
    lease = await h.lease("q", 10_000)
    await h.ack(lease, ids[: count // 2])
    assert await h.counts("q") == {"active": count // 2, "completed": count // 2}
    await h.fail(lease)
    assert await h.counts("q") == {"dead": count // 2, "completed": count // 2}
    h.clock.advance(HOUR_MS)
    assert await h.counts("q") == {"dead": count // 2}


async def test_each_queue_and_each_tenant_counts_its_own(h: Harness) -> None:
    acme = h.tenant("acme")
    await h.push_alike("q", 3)
    await h.push_alike("p", 2)
    await acme.push_alike("q", 5)
    await acme.lease("q", 4)
    assert await h.counts("q") == {"ready": 3}
    assert await h.counts("p") == {"ready": 2}
    assert await acme.counts("q") == {"ready": 1, "active": 4}


async def test_queues_are_listed_by_name(h: Harness) -> None:
    for queue in ("b", "a.z", "a", "B"):
        await h.push(queue)
    listed = [info.queue for info in await h.store.queues(h.name)]
    assert listed == sorted(["b", "a.z", "a", "B"])
    named = await h.store.queues(h.name, ["b", "nobody"])
    assert [(info.queue, info.counts[State.READY]) for info in named] == [("b", 1), ("nobody", 0)]


async def test_the_oldest_ready_job_tells_how_long_the_line_waits(h: Harness) -> None:
    await h.push("q")
    h.clock.advance(300)
    await h.push("q")
    assert (await h.info("q")).oldest_ready_ms == 300
    await h.lease("q")
    h.clock.advance(50)
    assert (await h.info("q")).oldest_ready_ms == 50
    await h.lease("q")
    assert (await h.info("q")).oldest_ready_ms is None


async def test_the_oldest_ready_job_shows_even_behind_a_higher_priority(h: Harness) -> None:
    await h.push("q")
    h.clock.advance(300)
    await h.push("q", priority=1)
    h.clock.advance(50)
    assert (await h.info("q")).oldest_ready_ms == 350


@many_jobs
async def test_counts_equal_a_scan_after_a_purge_and_a_drain(h: Harness) -> None:
    ids = await h.push_alike("q", BLOCK + 100)
    lease = await h.lease("q", 1_000)
    await h.ack(lease, ids[:300])
    assert await h.store.drain(h.name, "q") == len(ids) - 1_000
    assert await h.counts("q") == {"active": 700, "completed": 300}
    await h.check_counters()
    assert await h.store.purge(h.name, "q") == 1_000
    assert await h.counts("q") == {}


async def test_counts_equal_a_scan_after_any_history(h: Harness) -> None:
    for seed in range(2):
        await play(h, random.Random(seed), f"s{seed}-")


async def play(h: Harness, draw: random.Random, prefix: str) -> None:
    queues = [prefix + name for name in "abc"]
    leases: list[Lease] = []
    ids: list[int] = []
    for step in range(200):
        h.clock.advance(draw.choice((0, 1, 30)))
        queue = draw.choice(queues)
        act = draw.randrange(10)
        if act <= 2:
            specs = [
                JobSpec(
                    priority=draw.choice((0, 0, 1)),
                    delay_ms=draw.choice((None, None, 40)),
                    ttl_ms=draw.choice((None, None, 200)),
                    backoff=draw.choice((AT_ONCE, after(50))),
                    timeout_ms=draw.choice((None, 120)),
                    max_attempts=draw.choice((1, 2)),
                    retain_ms=draw.choice((None, None, 0, 100)),
                    lifo=draw.random() < 0.1,
                )
                for _ in range(draw.choice((1, 3, 25)))
            ]
            ids += (await h.push_many(queue, specs)).ids
        elif act <= 4:
            lease = await h.claim(queue, draw.choice((1, 4, 40)), lease_ms=draw.choice((80, 900)))
            leases += [lease] if lease else []
        elif act == 5 and ids:
            await h.cancel(*draw.sample(ids, min(len(ids), 3)))
        elif act == 6 and ids:
            with suppress(Conflict, NotFound):
                await h.store.edit(
                    h.name, draw.choice(ids), priority=draw.choice((None, 2)), delay_ms=20
                )
        elif act == 7 and step % 3 == 0:
            await h.store.redrive(h.name, queue, limit=4)
        elif leases:
            lease = draw.choice(leases)
            named = draw.choice((None, draw.sample(lease.ids, min(len(lease), 2))))
            call = draw.choice((h.ack, h.ack, h.fail, h.release))
            try:
                await call(lease, named)
            except LeaseLost:
                leases.remove(lease)
        if step % 20 == 0:
            for name in queues:
                scanned = Counter(job.state.value for job in await h.scan(name))
                assert await h.counts(name) == dict(scanned)
