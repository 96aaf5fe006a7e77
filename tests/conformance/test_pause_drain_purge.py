"""Pause, drain and purge: what each of them stops, ends and forgets, and what it leaves alone."""

from typing import Any

import pytest

from penstock.model.errors import LeaseLost, NotFound, PenstockError
from penstock.model.job import JobSpec
from penstock.model.lifecycle import DeadReason, State
from penstock.model.policy import Limits, QueueConfig
from tests.conformance.blocks import push_assorted
from tests.conformance.harness import BLOCK, Harness, after

HOUR = 3_600_000


# -- pause -----------------------------------------------------------------------------------------


async def test_pause_stops_claims_and_not_pushes(h: Harness) -> None:
    before = await h.push("q")
    await h.configure("q", paused=True)
    after_ = (await h.push_many("q", [{}, {"group": "g"}, {"key": "k"}])).ids
    assert await h.claim("q", 10) is None
    assert await h.counts("q") == {"ready": 4}
    await h.configure("q")
    assert set(await h.claimed("q", 10)) == {before, *after_}


async def test_work_that_runs_goes_on_while_paused(h: Harness) -> None:
    ids = await h.push_alike("q", 4, backoff=after(100))
    lease = await h.lease("q", 4)
    await h.configure("q", paused=True)
    await h.report(lease, ids[0], progress=10)
    await h.extend(lease)
    await h.ack(lease, ids[:1])
    await h.fail(lease, ids[1:2])
    await h.release(lease, ids[2:3])
    await h.advance(60_000)
    assert [await h.state(job_id) for job_id in ids] == [
        State.COMPLETED, State.READY, State.READY, State.READY,
    ]  # fmt: skip
    assert await h.claim("q", 10) is None


async def test_delays_and_ttls_go_on_while_paused(h: Harness) -> None:
    await h.configure("q", paused=True)
    delayed = await h.push("q", delay_ms=100)
    expires = await h.push("q", ttl_ms=200)
    await h.advance(300)
    assert await h.state(delayed) == State.READY
    assert await h.state(expires) == State.EXPIRED


async def test_a_paused_queue_is_passed_over_for_the_next_in_the_list(h: Harness) -> None:
    await h.configure("q", paused=True)
    await h.push("q")
    other = await h.push("r")
    lease = await h.lease(["q", "r"], 5)
    assert (lease.queue, lease.ids) == ("r", [other])


async def test_a_claim_that_waits_is_served_when_the_pause_ends(h: Harness) -> None:
    await h.configure("q", paused=True)
    waiting = await h.start(h.lease("q", 5, wait_ms=60_000))
    ids = await h.push_alike("q", 2)
    await h.settle()
    assert not waiting.done()
    await h.configure("q")
    assert (await h.told(waiting)).ids == ids


async def test_a_pause_survives_a_restart(h: Harness) -> None:
    await h.configure("q", paused=True)
    await h.push("q")
    await h.restart()
    assert await h.claim("q") is None
    assert (await h.info("q")).config.paused


# -- drain -----------------------------------------------------------------------------------------


async def test_drain_cancels_and_forgets_what_is_ready_scheduled_or_blocked(h: Harness) -> None:
    done = await h.finish("q")
    dead = await h.push("q")
    await h.fail(await h.lease("q"), dead=True)
    active = await h.push("q")
    lease = await h.lease("q")
    backoff = await h.push("q", backoff=after(HOUR))
    await h.fail(await h.lease("q"))
    bulk = (await h.store.open_bulk(h.name)).bulk
    held = (await h.push_many("q", [{}], bulk=bulk)).ids[0]
    drained = [
        backoff,
        await h.push("q"),
        await h.push("q", delay_ms=HOUR),
        await h.push("q", depends_on=(active,)),
        await h.push("q", group="g", retain_ms=HOUR),
    ]
    other = await h.push("r")
    assert await h.store.drain(h.name, "q") == 5
    assert await h.states(drained) == {"forgotten": 5}
    assert await h.counts("q") == {"active": 1, "completed": 1, "dead": 1, "held": 1}
    assert [await h.state(job_id) for job_id in (done, dead, active, held, other)] == [
        State.COMPLETED, State.DEAD, State.ACTIVE, State.HELD, State.READY,
    ]  # fmt: skip
    await h.ack(lease)
    await h.advance(HOUR - 1)
    assert await h.claim("q", 10) is None


async def test_drained_jobs_fail_their_dependants(h: Harness) -> None:
    first, second = (await h.push_many("q", [{}, {}])).ids
    fails = await h.push("r", depends_on=(first,))
    follows = await h.push("s", depends_on=(fails,))
    ignores = await h.push("r", depends_on=(second,), on_dependency_failure="ignore")
    assert await h.store.drain(h.name, "q") == 2
    for job_id in (fails, follows):
        job = await h.job(job_id)
        assert (job.state, job.dead_reason) == (State.DEAD, DeadReason.DEPENDENCY_FAILED)
    assert await h.state(ignores) == State.READY


async def test_drain_takes_a_chain_inside_the_queue_as_a_whole(h: Harness) -> None:
    specs = [JobSpec(depends_on=() if n == 0 else (-n,)) for n in range(50)]
    ids = (await h.push_many("q", specs)).ids
    assert await h.store.drain(h.name, "q") == 50
    assert await h.states(ids) == {"forgotten": 50}
    assert await h.counts("q") == {}


async def test_drain_frees_live_keys_and_wakes_those_who_wait_for_a_result(h: Harness) -> None:
    job_id = await h.push("q", key="k")
    waiting = await h.start(h.result(job_id, wait_ms=60_000))
    await h.store.drain(h.name, "q")
    assert await h.store.by_key(h.name, "q", "k") is None
    try:
        ended = await h.told(waiting)
    except NotFound:
        pass
    else:
        assert ended.state == State.CANCELLED
    with pytest.raises(NotFound):
        await h.result(job_id)


async def test_drain_leaves_configuration_and_slots_as_they_are(h: Harness) -> None:
    config = QueueConfig(limits=Limits(concurrency=2))
    await h.store.configure(h.name, "q", config)
    await h.push_alike("q", 5)
    lease = await h.lease("q", 1)
    assert await h.store.drain(h.name, "q") == 4
    assert (await h.info("q")).config == config
    fresh = await h.push_alike("q", 5)
    assert await h.claimed("q", 5) == fresh[:1]
    await h.ack(lease)
    assert await h.claimed("q", 5) == fresh[1:2]


async def test_a_drain_over_several_blocks_leaves_the_active_ones(h: Harness) -> None:
    ids = await push_assorted(h, "q", BLOCK + 200, delay_ms=500)
    some = (await h.push_many("q", [{"key": "k"}, {"group": "g"}, {}])).ids
    active = await h.claimed("q", 2)
    assert await h.store.drain(h.name, "q") == BLOCK + 201
    await h.advance(1_000)
    assert await h.states([*ids[::512], *some]) == {"forgotten": 10, "active": 2}
    assert await h.counts("q") == {"active": len(active)}


async def test_draining_nothing_is_no_error(h: Harness) -> None:
    assert await h.store.drain(h.name, "nowhere") == 0
    assert await h.store.queues(h.name) == []


# -- purge -----------------------------------------------------------------------------------------


async def test_purge_forgets_everything_of_the_queue(h: Harness) -> None:
    ids = [await h.finish("q")]
    ids.append(await h.push("q"))
    await h.fail(await h.lease("q"), dead=True)
    ids.append(await h.push("q"))
    lease = await h.lease("q")
    ids.append(await h.push("q", delay_ms=HOUR))
    ids.append(await h.push("q", depends_on=(ids[2],)))
    ids.append(await h.push("q", group="g", key="k"))
    bulk = (await h.store.open_bulk(h.name)).bulk
    ids += (await h.push_many("q", [{}], bulk=bulk)).ids
    other = await h.push("r")
    assert await h.store.purge(h.name, "q") == 7
    assert await h.states(ids) == {"forgotten": 7}
    assert await h.counts("q") == {}
    assert await h.scan("q") == []
    assert await h.store.by_key(h.name, "q", "k") is None
    assert await h.state(other) == State.READY
    for call in (h.ack(lease), h.fail(lease), h.release(lease)):
        with pytest.raises(LeaseLost):
            await call
    assert await h.push("q") > max(ids)


async def test_purge_keeps_the_configuration(h: Harness) -> None:
    config = QueueConfig(limits=Limits(concurrency=1), retain_ms=5)
    await h.store.configure(h.name, "q", config)
    await h.push_alike("q", 3)
    await h.lease("q")
    await h.store.purge(h.name, "q")
    assert (await h.info("q")).config == config
    again = await h.push_alike("q", 3)
    assert await h.claimed("q", 3) == again[:1]


async def test_a_purged_queue_without_configuration_is_forgotten(h: Harness) -> None:
    await h.push("q")
    await h.store.purge(h.name, "q")
    assert await h.store.queues(h.name) == []


async def test_purged_jobs_fail_their_dependants_in_other_queues(h: Harness) -> None:
    ready, active, done = (await h.push_many("q", [{}, {"priority": 1}, {"priority": 2}])).ids
    await h.ack(await h.lease("q"))
    await h.lease("q")
    on_ready = await h.push("r", depends_on=(ready,))
    on_active = await h.push("r", depends_on=(active,))
    on_done = await h.push("r", depends_on=(done,))
    ignores = await h.push("r", depends_on=(active,), on_dependency_failure="ignore")
    await h.store.purge(h.name, "q")
    for job_id in (on_ready, on_active):
        job = await h.job(job_id)
        assert (job.state, job.dead_reason) == (State.DEAD, DeadReason.DEPENDENCY_FAILED)
    assert await h.state(on_done) == State.READY
    assert await h.state(ignores) == State.READY


async def test_purge_wakes_those_who_wait_for_a_result(h: Harness) -> None:
    job_id = await h.push("q")
    waiting = await h.start(h.result(job_id, wait_ms=60_000))
    await h.store.purge(h.name, "q")
    with pytest.raises(PenstockError) as caught:
        await h.told(waiting)
    assert caught.value.code == "not_found"


async def test_the_heartbeat_of_a_purged_lease_learns_of_the_loss(h: Harness) -> None:
    ids = await h.push_alike("q", 2)
    lease = await h.lease("q", 2)
    await h.store.purge(h.name, "q")
    try:
        lost = list((await h.extend(lease)).lost)
    except LeaseLost:
        return
    assert sorted(lost) == ids


async def test_purge_leaves_open_bulks_to_publish_what_is_left_of_them(h: Harness) -> None:
    bulk = (await h.store.open_bulk(h.name)).bulk
    gone = (await h.push_many("q", [{}], bulk=bulk)).ids[0]
    stays = (await h.push_many("r", [{}], bulk=bulk)).ids[0]
    await h.store.purge(h.name, "q")
    await h.store.commit_bulk(h.name, bulk)
    assert await h.get(gone) is None
    assert await h.claimed("r") == [stays]


async def test_a_purge_over_several_blocks_leaves_nothing(h: Harness) -> None:
    ids = await push_assorted(h, "q", BLOCK + 50, delay_ms=10)
    ids += (await h.push_many("q", [{"key": f"k{n}", "group": "g"} for n in range(20)])).ids
    await h.claimed("q", 5)
    assert await h.store.purge(h.name, "q") == BLOCK + 70
    await h.advance(1_000)
    assert await h.claim("q") is None
    assert await h.counts("q") == {}
    fresh = (await h.push_many("q", [{"key": f"k{n}", "group": "g"} for n in range(3)])).jobs
    assert [outcome for _, outcome in fresh] == ["created"] * 3
    assert fresh[0][0] > ids[-1]


async def test_purge_of_a_graph_whose_parts_have_ended_and_run(h: Harness) -> None:
    await h.configure("q", retain_count=2)
    specs: list[dict[str, Any]] = [
        {},
        {"depends_on": (-1,)},
        {"group": "g"},
        {"key": "a", "depends_on": (-2,)},
        {"key": "b", "group": "g"},
        {"depends_on": (-1, -5)},
    ]
    ids = (await h.push_many("q", specs)).ids
    outside = await h.push("r", depends_on=(ids[5], ids[0]))
    await h.ack(await h.lease("q"))
    await h.cancel(ids[2], ids[4])
    await h.store.purge(h.name, "q")
    assert await h.states(ids) == {"forgotten": 6}
    assert await h.state(outside) == State.DEAD
