"""Events: what happened to which jobs, in compact ranges, in order."""

import asyncio
import random
from collections import defaultdict

import pytest

from penstock.model.errors import LeaseLost, Overloaded
from penstock.model.event import Event
from penstock.model.job import JobError, JobSpec, LogLine
from tests.conformance.harness import AT_ONCE, BLOCK, PATIENCE_S, Harness, after, many_jobs


async def test_the_life_of_a_batch_of_alike_jobs_is_three_events(h: Harness) -> None:
    async with h.watch() as watcher:
        ids = await h.push_alike("q", 1_000, task="t", priority=4)
        pushed_at = h.now
        h.clock.advance(20)
        lease = await h.lease("q", 1_000, worker="w1")
        claimed_at = h.now
        h.clock.advance(300)
        await h.ack(lease)
        pushed, claimed, completed = await watcher.events()
    assert [event.kind for event in (pushed, claimed, completed)] == [
        "pushed",
        "claimed",
        "completed",
    ]
    for event in (pushed, claimed, completed):
        assert (event.tenant, event.queue, list(event.ids)) == ("default", "q", ids)
        assert (event.task, event.priority) == ("t", 4)
    assert (pushed.at, claimed.at, completed.at) == (pushed_at, claimed_at, h.now)
    assert pushed.bytes == sum(len(b"%d" % n) for n in range(1_000))
    assert (claimed.attempt, claimed.worker) == (1, "w1")
    assert (claimed.pushed_at, claimed.ready_at) == (pushed_at, pushed_at)
    assert (completed.attempt, completed.worker) == (1, "w1")
    assert (completed.pushed_at, completed.ready_at) == (pushed_at, pushed_at)
    assert completed.claimed_at == claimed_at


@many_jobs
async def test_a_batch_of_alike_jobs_over_several_blocks_is_told_in_few_words(h: Harness) -> None:
    async with h.watch() as watcher:
        ids = await h.push_alike("q", 2 * BLOCK)
        h.clock.advance(1)
        lease = await h.lease("q", 10_000)
        h.clock.advance(1)
        await h.ack(lease)
        events = await watcher.events()
    by_kind: dict[str, list[int]] = defaultdict(list)
    for event in events:
        by_kind[event.kind] += event.ids
    assert {kind: sorted(told) for kind, told in by_kind.items()} == {
        "pushed": ids,
        "claimed": ids,
        "completed": ids,
    }
    assert len(events) <= 9
    assert sum(len(event.ids.runs) for event in events) <= 12


async def test_an_event_is_split_where_jobs_differ(h: Harness) -> None:
    specs = [JobSpec(priority=n % 3, task="ab"[n % 2]) for n in range(600)]
    async with h.watch(kinds=["pushed", "claimed"]) as watcher:
        ids = (await h.push_many("q", specs)).ids
        pushed = await watcher.take()
        await h.lease("q", 600)
        claimed = await watcher.take()
    expected = {(n % 3, "ab"[n % 2]): ids[n::6] for n in range(6)}
    for events in (pushed, claimed):
        told: dict[tuple[int, str], list[int]] = defaultdict(list)
        for event in events:
            told[event.priority, event.task] += event.ids
        assert {same: sorted(of) for same, of in told.items()} == expected


async def test_jobs_pushed_at_different_instants_are_told_with_their_own_times(
    h: Harness,
) -> None:
    times = {}
    for _ in range(4):
        for job_id in await h.push_alike("q", 50):
            times[job_id] = h.now
        h.clock.advance(7)
    async with h.watch() as watcher:
        lease = await h.lease("q", 200)
        h.clock.advance(7)
        await h.ack(lease)
        events = await watcher.events()
    for kind in ("claimed", "completed"):
        told = {i: event.pushed_at for event in events if event.kind == kind for i in event.ids}
        assert told == times


async def test_positions_ascend(h: Harness) -> None:
    async with h.watch() as watcher:
        for _ in range(5):
            await h.push_many("q", [{"priority": n % 3} for n in range(9)])
            lease = await h.lease("q", 9)
            await h.fail(lease, lease.ids[:3])
            await h.ack(lease)
            await h.advance(500)
        events = await watcher.events()
    places = [(event.position, event.index) for event in events]
    assert places == sorted(set(places))
    assert len({event.position for event in events}) >= 20


async def test_a_delayed_push_says_when_it_is_due(h: Harness) -> None:
    async with h.watch() as watcher:
        await h.push("q", delay_ms=500)
        await h.push("q", run_at=h.now + 900)
        events = await watcher.events()
    assert [event.run_at for event in events] == [h.now + 500, h.now + 900]


async def test_a_failed_attempt_is_told_with_its_error_and_its_next_instant(h: Harness) -> None:
    job_id = await h.push("q", backoff=after(250))
    lease = await h.lease("q", worker="w1")
    claimed_at = h.now
    h.clock.advance(10)
    async with h.watch() as watcher:
        await h.fail(lease, error=JobError(kind="Broken", message="a pipe"))
        (event,) = await watcher.events()
    assert (event.kind, list(event.ids), event.at) == ("retried", [job_id], h.now)
    assert (event.run_at, event.attempt, event.worker) == (h.now + 250, 1, "w1")
    assert (event.error_kind, event.error_message) == ("Broken", "a pipe")
    assert event.claimed_at == claimed_at


async def test_a_death_is_told_with_its_reason(h: Harness) -> None:
    ids = await h.push_alike("q", 3, max_attempts=1)
    child = await h.push("children", depends_on=(ids[0],))
    lease = await h.lease("q", 2)
    async with h.watch(kinds=["dead"]) as watcher:
        await h.fail(lease, ids[:1])
        await h.fail(lease, ids[1:2], dead=True)
        await h.cancel(ids[2], discard=True)
        events = await watcher.events()
    assert {i: event.reason for event in events for i in event.ids} == {
        ids[0]: "max_attempts",
        child: "dependency_failed",
        ids[1]: "rejected",
        ids[2]: "discarded",
    }


async def test_what_happened_by_itself_is_told_with_its_own_instant(h: Harness) -> None:
    timed = await h.push("t", timeout_ms=100, max_attempts=1)
    await h.lease("t")
    leased = await h.push("q")
    await h.lease("q", lease_ms=200)
    fleeting = await h.push("q", ttl_ms=300)
    begin = h.now
    async with h.watch() as watcher:
        await h.advance(777)
        events = await watcher.events()
    assert [(e.kind, list(e.ids), e.at - begin, e.error_kind) for e in events] == [
        ("dead", [timed], 100, "timeout"),
        ("retried", [leased], 200, "lease_expired"),
        ("expired", [fleeting], 300, ""),
    ]


async def test_an_event_tells_whether_a_worker_or_the_store_ended_the_attempt(h: Harness) -> None:
    ids = await h.push_alike("q", 3, backoff=AT_ONCE)
    timed = await h.push("t", timeout_ms=100, max_attempts=1)
    await h.lease("t", lease_ms=900)
    lease = await h.lease("q", 3, lease_ms=200)
    async with h.watch(queues=["q", "t"], kinds=["retried", "dead"]) as watcher:
        await h.fail(lease, ids[:1], error=JobError(kind="timeout"))
        await h.fail(lease, ids[1:2], error=JobError(kind="lease_expired"), dead=True)
        await h.advance(333)
        events = await watcher.events()
    assert [(e.kind, list(e.ids), e.cause) for e in events] == [
        ("retried", ids[:1], ""),
        ("dead", ids[1:2], ""),
        ("dead", [timed], "timeout"),
        ("retried", ids[2:], "lease_expired"),
    ]


async def test_jobs_committed_at_different_instants_are_told_with_their_own(h: Harness) -> None:
    for bulk in ("a", "b"):
        await h.store.open_bulk(h.name, bulk)
    ids = [(await h.push_many("q", [{}] * 2, bulk=bulk)).ids for bulk in ("a", "b")]
    instants = []
    for bulk in ("a", "b"):
        h.clock.advance(10)
        await h.store.commit_bulk(h.name, bulk)
        instants.append(h.now)
    async with h.watch(kinds=["claimed"]) as watcher:
        await h.lease("q", 4)
        events = await watcher.events()
    assert {i: e.pushed_at for e in events for i in e.ids} == {
        **dict.fromkeys(ids[0], instants[0]),
        **dict.fromkeys(ids[1], instants[1]),
    }


async def test_keys_and_groups_do_not_split_an_event(h: Harness) -> None:
    async with h.watch() as watcher:
        specs = [{"key": f"k{n}", "group": f"g{n % 2}"} for n in range(6)]
        ids = (await h.push_many("q", specs)).ids
        assert await watcher.told() == [("pushed", ids)]
        await h.push_many("q", [{"key": "k0"}, {"key": "k7"}])
        assert await watcher.told() == [("pushed", [ids[-1] + 1])]


async def test_a_push_is_told_with_its_bytes_however_it_is_mixed(h: Harness) -> None:
    payloads = [b"%d" % 10**n for n in range(12)]
    await h.push_many("q", [{"payload": b"1"}])  # lies before them, in another chunk or the same
    async with h.watch() as watcher:
        await h.push_many("q", [{"payload": payload} for payload in payloads])
        (alike,) = await watcher.take()
        await h.push_many(
            "q", [{"payload": payload, "priority": n % 3} for n, payload in enumerate(payloads)]
        )
        mixed = await watcher.take()
        await h.push_many("q", [{"payload": p, "key": p.decode()} for p in payloads])
        (keyed,) = await watcher.take()
    whole = sum(map(len, payloads))
    assert (alike.bytes, keyed.bytes) == (whole, whole)
    by_priority: dict[int, int] = defaultdict(int)
    for event in mixed:
        by_priority[event.priority] += event.bytes
    assert by_priority == {n: sum(map(len, payloads[n::3])) for n in range(3)}


async def test_release_extend_cancel_edit_and_redrive_are_told(h: Harness) -> None:
    ids = await h.push_alike("q", 4)
    lease = await h.lease("q", 3)
    async with h.watch() as watcher:
        await h.release(lease, ids[:1])
        assert await watcher.told() == [("released", ids[:1])]
        await h.extend(lease)
        ((kind, _),) = await watcher.told()
        assert kind == "extended"
        await h.cancel(ids[1])
        assert await watcher.told() == [("cancelled", ids[1:2])]
        await h.store.edit(h.name, ids[3], delay_ms=70)
        (edited,) = await watcher.take()
        assert (edited.kind, list(edited.ids), edited.run_at) == ("edited", ids[3:], h.now + 70)
        await h.fail(lease, dead=True)
        await watcher.take()
        await h.store.redrive(h.name, "q")
        assert await watcher.told() == [("redriven", ids[2:3])]


async def test_bulks_and_replacements_are_told(h: Harness) -> None:
    async with h.watch() as watcher:
        await h.store.open_bulk(h.name, "b")
        ids = (await h.push_many("q", [{}] * 3, bulk="b")).ids
        (pushed,) = await watcher.take()
        assert (pushed.kind, list(pushed.ids), pushed.held) == ("pushed", ids, True)
        await h.store.commit_bulk(h.name, "b")
        assert await watcher.told() == [("committed", ids)]
        keyed = await h.push("q", key="k")
        assert await watcher.told() == [("pushed", [keyed])]
        await h.push("q", b"1", key="k", on_conflict="replace")
        assert await watcher.told() == [("replaced", [keyed])]
        await h.push("q", b"2", key="k")
        assert await watcher.told() == []


async def test_what_operators_do_to_a_queue_is_told(h: Harness) -> None:
    await h.push_alike("q", 3)
    async with h.watch() as watcher:
        await h.configure("q", paused=True)
        assert [kind for kind, _ in await watcher.told()] == ["configured"]
        await h.store.drain(h.name, "q")
        assert "drained" in [kind for kind, _ in await watcher.told()]
        await h.push_alike("q", 3)
        await watcher.take()
        await h.store.purge(h.name, "q")
        assert "purged" in [kind for kind, _ in await watcher.told()]


async def test_reports_are_told_with_what_was_said(h: Harness) -> None:
    job_id = await h.push("q")
    lease = await h.lease("q")
    async with h.watch() as watcher:
        await h.report(lease, job_id, progress=30, message="a third")
        await h.report(lease, job_id, logs=[LogLine(1, "hello there")])
        progress, log = await watcher.events()
    assert (progress.kind, list(progress.ids)) == ("progress", [job_id])
    assert "30" in progress.data
    assert "a third" in progress.data
    assert (log.kind, list(log.ids)) == ("log", [job_id])
    assert "hello there" in log.data


async def test_a_call_that_was_refused_is_not_told(h: Harness) -> None:
    await h.push("q")
    lease = await h.lease("q")
    await h.ack(lease)
    async with h.watch() as watcher:
        for call in (h.ack, h.fail, h.release, h.extend):
            with pytest.raises(LeaseLost):
                await call(lease)
        assert await h.claim("q") is None
        assert await watcher.told() == []


async def test_a_watcher_sees_what_happens_from_now_on(h: Harness) -> None:
    await h.push("q")
    async with h.watch() as watcher:
        assert await watcher.told() == []
        job_id = await h.push("q")
        assert await watcher.told() == [("pushed", [job_id])]


async def test_a_watcher_misses_nothing_before_it_first_looks(h: Harness) -> None:
    events = h.store.watch(h.name)
    job_id = await h.push("q")
    async with asyncio.timeout(PATIENCE_S):
        event = await anext(events)
    assert (event.kind, list(event.ids)) == ("pushed", [job_id])
    await events.aclose()  # type: ignore[attr-defined]


async def test_a_watcher_may_ask_for_some_queues_and_some_kinds(h: Harness) -> None:
    async with (
        h.watch(queues=["a", "c"]) as of_queues,
        h.watch(kinds=["claimed"]) as of_kinds,
        h.watch(queues=["b"], kinds=["pushed", "completed"]) as of_both,
    ):
        in_a, in_b = await h.finish("a"), await h.finish("b")
        assert await of_queues.told() == [
            ("pushed", [in_a]),
            ("claimed", [in_a]),
            ("completed", [in_a]),
        ]
        assert await of_kinds.told() == [("claimed", [in_a]), ("claimed", [in_b])]
        assert await of_both.told() == [("pushed", [in_b]), ("completed", [in_b])]


async def test_two_watchers_see_the_same(h: Harness) -> None:
    async with h.watch() as one, h.watch() as two:
        await h.finish("q")
        assert await one.events() == await two.events()
        assert len(await one.events()) == 3


async def test_a_watcher_sees_its_own_tenant_only(h: Harness) -> None:
    acme = h.tenant("acme")
    async with h.watch() as ours, acme.watch() as theirs:
        await acme.finish("q")
        assert await ours.told() == []
        events = await theirs.events()
    assert {event.tenant for event in events} == {"acme"}


@many_jobs
async def test_a_watcher_that_falls_far_behind_is_ended_and_told_so(h: Harness) -> None:
    events = h.store.watch(h.name)
    for _ in range(60):
        await h.push_many("q", [{"priority": priority} for priority in range(300)])
        await h.store.purge(h.name, "q")
    seen = 0
    with pytest.raises(Overloaded):
        async for _ in events:
            seen += 1
    assert seen < 60 * 300


async def test_a_watcher_that_left_is_no_burden(h: Harness) -> None:
    async with h.watch() as watcher:
        await h.push("q")
        seen = await watcher.events()
    await h.push_alike("q", 100)
    assert await watcher.events() == seen


def follow(events: list[Event]) -> dict[int, str]:
    """The state of every job as the events alone tell it."""
    after_kind = {
        "pushed": "waiting",
        "claimed": "active",
        "released": "waiting",
        "retried": "waiting",
        "redriven": "waiting",
        "completed": "completed",
        "dead": "dead",
        "cancelled": "cancelled",
        "expired": "expired",
    }
    states: dict[int, str] = {}
    before = {
        "claimed": {"waiting"},
        "released": {"active"},
        "retried": {"active"},
        "completed": {"active"},
        "redriven": {"dead"},
        "expired": {"waiting"},
    }
    for event in events:
        if event.kind not in after_kind:
            continue
        for job_id in event.ids:
            if event.kind in before:
                assert states[job_id] in before[event.kind], (event.kind, states[job_id])
            states[job_id] = after_kind[event.kind]
    return states


async def test_events_alone_tell_the_state_of_every_job(h: Harness) -> None:
    draw = random.Random(4)
    leases = []
    ids: list[int] = []
    async with h.watch() as watcher:
        for _ in range(150):
            h.clock.advance(draw.choice((0, 1, 40)))
            act = draw.randrange(8)
            if act <= 1:
                specs = [
                    JobSpec(
                        priority=draw.randrange(2),
                        ttl_ms=draw.choice((None, None, 150)),
                        backoff=draw.choice((AT_ONCE, after(60))),
                        max_attempts=2,
                    )
                    for _ in range(draw.choice((1, 1, 20)))
                ]
                ids += (await h.push_many("q", specs)).ids
            elif act <= 3:
                lease = await h.claim("q", draw.choice((1, 5, 30)), lease_ms=draw.choice((90, 900)))
                leases += [lease] if lease else []
            elif act == 4 and ids:
                await h.cancel(draw.choice(ids))
            elif act == 5:
                await h.store.redrive(h.name, "q", limit=3)
            elif leases:
                lease = draw.choice(leases)
                call = draw.choice((h.ack, h.ack, h.fail, h.release))
                try:
                    await call(lease, draw.choice((None, draw.sample(lease.ids, 1))))
                except LeaseLost:
                    leases.remove(lease)
        await h.store.tick()
        told = follow(await watcher.events())
    merged = {"ready": "waiting", "scheduled": "waiting"}
    jobs = await h.store.get(h.name, ids)
    known = {job.id: merged.get(job.state.value, job.state.value) for job in jobs if job}
    assert told == known
    assert set(known.values()) >= {"waiting", "active", "completed", "dead", "cancelled"}
