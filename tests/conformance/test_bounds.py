"""Bounds on pushes: jobs, bytes and rate of a queue and of a tenant, and caps on collections."""

from typing import Any

import pytest

from penstock.model.errors import Conflict, Overloaded, RateLimited
from penstock.model.job import JobSpec, Run
from penstock.model.policy import Bounds, Rate
from penstock.model.schedule import CronSpec, Every
from tests.conformance.endings import ENDINGS, Ending, each
from tests.conformance.harness import Harness


@pytest.fixture(params=["queue", "tenant"])
def scope(request: pytest.FixtureRequest) -> str:
    """Whether the bound is one of the queue or of the tenant."""
    return str(request.param)


async def bound(h: Harness, scope: str, **bounds: Any) -> None:
    if scope == "queue":
        await h.configure("q", bounds=Bounds(**bounds))
    else:
        await h.store.configure_tenant(h.name, Bounds(**bounds))


def every(ms: int, payload: bytes, queue: str = "q") -> CronSpec:
    return CronSpec(name="c", queue=queue, schedule=Every(every_ms=ms), payload=payload)


# -- jobs and bytes --------------------------------------------------------------------------------


async def test_no_more_jobs_than_the_bound_are_let_in(h: Harness, scope: str) -> None:
    await bound(h, scope, jobs=3)
    await h.push("q")
    await h.push_alike("q", 2)
    with pytest.raises(Overloaded):
        await h.push("q")
    assert await h.counts("q") == {"ready": 3}


async def test_a_batch_beyond_the_bound_is_refused_whole(h: Harness, scope: str) -> None:
    await bound(h, scope, jobs=3)
    await h.push("q")
    with pytest.raises(Overloaded):
        await h.push_many("q", [{"key": "k"}, {"group": "g"}, {}])
    assert await h.counts("q") == {"ready": 1}
    assert await h.store.by_key(h.name, "q", "k") is None
    await h.push_many("q", [{"key": "k"}, {"group": "g"}])
    assert await h.counts("q") == {"ready": 3}


async def test_jobs_in_every_live_state_count(h: Harness, scope: str) -> None:
    await bound(h, scope, jobs=5)
    first = await h.push("q")
    await h.push("q", delay_ms=1_000)
    await h.push("q", depends_on=(first,))
    bulk = (await h.store.open_bulk(h.name)).bulk
    await h.push_many("q", [{}], bulk=bulk)
    await h.push("q")
    await h.lease("q")
    assert await h.counts("q") == {
        "active": 1, "blocked": 1, "held": 1, "ready": 1, "scheduled": 1,
    }  # fmt: skip
    with pytest.raises(Overloaded):
        await h.push("q")
    with pytest.raises(Overloaded):
        await h.push_many("q", [{}], bulk=bulk)


@each(ENDINGS)
async def test_every_end_makes_room_and_nothing_else_does(
    h: Harness, scope: str, ending: Ending
) -> None:
    await bound(h, scope, jobs=2, bytes=11)
    await h.push("q", b"1234", **ending.spec)
    await h.push("q", b"1234", delay_ms=86_400_000)
    with pytest.raises(Overloaded):
        await h.push("q", b"1234")
    await ending.leave(h, await h.lease("q"))
    if ending.after in ("ready", "scheduled"):
        with pytest.raises(Overloaded):
            await h.push("q", b"1234")
    else:
        await h.push("q", b"1234")
    if ending.after is not None:
        with pytest.raises(Overloaded):
            await h.push("q", b"1234")


async def test_no_more_bytes_than_the_bound_are_let_in(h: Harness, scope: str) -> None:
    await bound(h, scope, bytes=10)
    await h.push("q", b"12345678")
    with pytest.raises(Overloaded):
        await h.push_many("q", [{"payload": b"1"}, {"payload": b"22"}])
    await h.push_many("q", [{"payload": b"1"}, {"payload": b"2"}])
    with pytest.raises(Overloaded):
        await h.push("q", b"1")
    assert await h.counts("q") == {"ready": 3}


async def test_a_bound_of_nothing_lets_nothing_in(h: Harness, scope: str) -> None:
    await bound(h, scope, jobs=0)
    with pytest.raises(Overloaded):
        await h.push("q")
    await bound(h, scope)
    await h.push("q")


async def test_a_bound_below_what_is_there_only_stops_what_is_new(h: Harness, scope: str) -> None:
    ids = await h.push_alike("q", 4)
    await bound(h, scope, jobs=2)
    with pytest.raises(Overloaded):
        await h.push("q")
    lease = await h.lease("q", 3)
    await h.release(lease)
    assert await h.claimed("q", 10) == ids


async def test_jobs_that_are_ignored_or_updated_do_not_count(h: Harness, scope: str) -> None:
    await bound(h, scope, jobs=2)
    first, second = (await h.push_many("q", [{"key": "a"}, {"key": "b"}])).ids
    pushed = await h.push_many(
        "q", [{"key": "a"}, {"key": "b", "payload": b"2", "on_conflict": "replace"}]
    )
    assert pushed.jobs == [(first, "ignored"), (second, "updated")]
    with pytest.raises(Overloaded):
        await h.push_many("q", [{"key": "a"}, {"key": "c"}])


async def test_an_edit_may_not_grow_a_payload_beyond_the_bound(h: Harness, scope: str) -> None:
    await bound(h, scope, bytes=10)
    job_id = await h.push("q", b"12345")
    await h.push("q", b"123")
    with pytest.raises(Overloaded):
        await h.store.edit(h.name, job_id, payload=b"12345678", priority=3)
    job = await h.job(job_id)
    assert (job.payload, job.priority) == (b"12345", 0)
    await h.store.edit(h.name, job_id, payload=b"1234567")
    with pytest.raises(Overloaded):
        await h.push("q", b"1")
    await h.store.edit(h.name, job_id, payload=b"1")
    await h.push("q", b"123456")


@pytest.mark.parametrize("active", [False, True], ids=["waiting", "active"])
async def test_a_replace_may_not_grow_the_payloads_beyond_the_bound(
    h: Harness, scope: str, active: bool
) -> None:
    await bound(h, scope, bytes=10)
    keyed: dict[str, Any] = {"key": "k", "on_conflict": "replace"}
    job_id = await h.push("q", b"12345", **keyed)
    await h.push("q", b"123", delay_ms=60_000)
    lease = await h.lease("q") if active else None
    with pytest.raises(Overloaded):
        await h.push("q", b"12345678", **keyed)
    assert (await h.push_many("q", [{"payload": b"1234567", **keyed}])).jobs == [
        (job_id, "updated")
    ]
    with pytest.raises(Overloaded):
        await h.push("q", b"1")
    assert (await h.push_many("q", [{"payload": b"12", **keyed}, {"payload": b"12345"}])).jobs[
        0
    ] == (job_id, "updated")
    with pytest.raises(Overloaded):
        await h.push("q", b"1")
    if lease is not None:
        await h.ack(lease)
    with pytest.raises(Overloaded):
        await h.push("q", b"1")
    await h.cancel(job_id)
    await h.push("q", b"12")
    with pytest.raises(Overloaded):
        await h.push("q", b"1")


async def test_replaces_within_one_push_count_with_what_the_last_one_says(
    h: Harness, scope: str
) -> None:
    await bound(h, scope, bytes=6)
    keyed: dict[str, Any] = {"key": "k", "on_conflict": "replace"}
    jobs = [{"payload": b"12345678", **keyed}, {"payload": b"123456", **keyed}]
    assert [what for _, what in (await h.push_many("q", jobs)).jobs] == ["created", "updated"]
    with pytest.raises(Overloaded):
        await h.push_many("q", [{"payload": b"1", **keyed}, {"payload": b"1234567", **keyed}])


async def test_jobs_that_are_dead_at_once_are_let_in_like_others_and_then_do_not_count(
    h: Harness, scope: str
) -> None:
    failed = await h.push("d")
    await h.cancel(failed)
    await bound(h, scope, jobs=2)
    doomed = {"depends_on": (failed,)}
    with pytest.raises(Overloaded):
        await h.push_many("q", [doomed, doomed, doomed])
    await h.push_many("q", [doomed, doomed])
    await h.push_many("q", [{}, {}])
    assert await h.counts("q") == {"dead": 2, "ready": 2}
    with pytest.raises(Overloaded):
        await h.push_many("q", [doomed])


async def test_the_old_instants_of_a_changed_cron_count_against_no_bound(
    h: Harness, scope: str
) -> None:
    await bound(h, scope, jobs=4, bytes=16)
    await h.store.put_cron(h.name, every(60_000, b"1234"))
    changed = await h.store.put_cron(h.name, every(90_000, b"4321"))
    assert len(changed.pending) == 4
    with pytest.raises(Overloaded):
        await h.store.put_cron(h.name, every(90_000, b"12345"))
    assert (await h.store.crons(h.name))[0].config_hash == changed.config_hash
    await h.advance(180_000)  # some came due; nobody has started them
    await h.store.put_cron(h.name, every(60_000, b"1234"))
    assert (await h.counts("q"))["scheduled"] == 4


async def test_the_old_instants_of_a_cron_that_changes_its_queue_leave_the_other_one(
    h: Harness,
) -> None:
    await bound(h, "tenant", jobs=5)
    await h.configure("r", bounds=Bounds(jobs=4, bytes=8))
    await h.store.put_cron(h.name, every(60_000, b"1"))
    await h.push("r", b"12345678")
    with pytest.raises(Overloaded):
        await h.store.put_cron(h.name, every(60_000, b"1", queue="r"))
    assert await h.counts("q") == {"scheduled": 4}
    await h.ack(await h.lease("r"))
    await h.store.put_cron(h.name, every(60_000, b"12", queue="r"))
    assert (await h.counts("r"))["scheduled"] == 4


async def test_the_bound_of_a_queue_is_its_own(h: Harness) -> None:
    await bound(h, "queue", jobs=1)
    await h.push("q")
    await h.push_alike("r", 5)
    with pytest.raises(Overloaded):
        await h.push("q")


async def test_the_bound_of_a_tenant_is_over_all_its_queues_and_nobody_elses(h: Harness) -> None:
    await bound(h, "tenant", jobs=3)
    await h.push("q")
    await h.push_alike("r", 2)
    with pytest.raises(Overloaded):
        await h.push("s")
    other = h.tenant("other")
    await other.push_alike("q", 5)
    await h.ack(await h.lease("q"))
    await h.push("s")


async def test_one_push_over_two_queues_is_refused_whole_for_one_of_them(h: Harness) -> None:
    await bound(h, "queue", jobs=1)
    runs = [Run.pack("r", [b"1"] * 5), Run.pack("q", [b"1"] * 2)]
    with pytest.raises(Overloaded):
        await h.store.push(h.name, runs)
    assert (await h.counts("q"), await h.counts("r")) == ({}, {})


async def test_bounds_survive_a_restart(h: Harness, scope: str) -> None:
    await bound(h, scope, jobs=2, push_rate=Rate(tokens=3, per_ms=60_000))
    await h.push_alike("q", 2)
    await h.restart()
    with pytest.raises(Overloaded):
        await h.push("q")
    await h.ack(await h.lease("q", 2))
    await h.push("q")
    with pytest.raises(RateLimited):
        await h.push("q")


# -- push rate -------------------------------------------------------------------------------------


async def test_jobs_pushed_faster_than_the_rate_are_refused(h: Harness, scope: str) -> None:
    await bound(h, scope, push_rate=Rate(tokens=2, per_ms=1_000))
    await h.push("q")
    await h.push("q")
    with pytest.raises(RateLimited):
        await h.push("q")
    await h.advance(499)
    with pytest.raises(RateLimited):
        await h.push("q")
    await h.advance(1)
    await h.push("q")
    assert await h.counts("q") == {"ready": 3}


async def test_a_batch_costs_one_token_a_job_and_is_refused_whole(h: Harness, scope: str) -> None:
    await bound(h, scope, push_rate=Rate(tokens=5))
    await h.push_alike("q", 3)
    with pytest.raises(RateLimited):
        await h.push_many("q", [{"key": "k"}, {}, {}])
    assert await h.store.by_key(h.name, "q", "k") is None
    await h.push_alike("q", 2)
    with pytest.raises(RateLimited):
        await h.push("q")
    assert await h.counts("q") == {"ready": 5}


async def test_a_refused_push_costs_no_token(h: Harness, scope: str) -> None:
    await bound(h, scope, push_rate=Rate(tokens=2), jobs=10)
    await h.push("q", key="k")
    for _ in range(3):
        with pytest.raises(Conflict):
            await h.push("q", key="k", on_conflict="reject")
    await h.push_many("q", [{"key": "k"}])  # ignored: costs nothing either
    await h.push("q")
    with pytest.raises(RateLimited):
        await h.push("q")


async def test_the_push_rate_runs_on_time_that_passed_not_on_the_wall_clock(
    h: Harness, scope: str
) -> None:
    await bound(h, scope, push_rate=Rate(tokens=1))
    await h.push("q")
    await h.jump(3_600_000)
    with pytest.raises(RateLimited):
        await h.push("q")


# -- caps on collections ---------------------------------------------------------------------------


async def test_there_are_no_more_queues_than_the_cap(h: Harness) -> None:
    await h.reopen(queues=2)
    await h.push("a")
    await h.configure("b", paused=True)
    with pytest.raises(Overloaded):
        await h.push("c")
    with pytest.raises(Overloaded):
        await h.tenant("other").push("a")
    assert [info.queue for info in await h.store.queues(h.name)] == ["a", "b"]
    await h.push("a")
    await h.store.purge(h.name, "a")
    await h.push("c")


async def test_there_are_no_more_keys_that_outlive_their_jobs_than_the_cap(h: Harness) -> None:
    await h.reopen(kept_keys=2)
    first = await h.push("q", key="a", keep_key=5_000)
    await h.push("q", key="b", keep_key="retained", retain_ms=1_000)
    for keep_key in (5_000, "retained"):
        with pytest.raises(Overloaded):
            await h.push_many("q", [{}, {"key": "c", "keep_key": keep_key}])
    assert await h.counts("q") == {"ready": 2}
    assert (await h.push_many("q", [{"key": "a", "keep_key": 5_000}])).ids == [first]
    await h.push_many("q", [{"key": "live"}, {"key": "started", "keep_key": "started"}])
    await h.advance(5_000)
    await h.push("q", key="c", keep_key=5_000)
    await h.cancel(first + 1)
    await h.advance(1_000)
    await h.push("q", key="d", keep_key=5_000)
    with pytest.raises(Overloaded):
        await h.push("q", key="e", keep_key=5_000)


async def test_there_are_no_more_producers_than_the_cap(h: Harness) -> None:
    await h.reopen(producers=2)
    for name in ("one", "two"):
        await h.push_many("q", [{}], producer=name, sequence=1)
    with pytest.raises(Overloaded):
        await h.push_many("q", [{}], producer="three", sequence=1)
    assert await h.counts("q") == {"ready": 2}
    await h.push_many("q", [{}], producer="two", sequence=2)
    await h.advance(86_400_000)
    await h.push_many("q", [{}], producer="three", sequence=1)


async def test_there_are_no_more_bulks_than_the_cap(h: Harness) -> None:
    await h.reopen(bulks=2)
    await h.store.open_bulk(h.name, "one")
    await h.store.open_bulk(h.name, "two")
    with pytest.raises(Overloaded):
        await h.store.open_bulk(h.name, "three")
    assert (await h.store.open_bulk(h.name, "two")).state == "open"


async def test_there_are_no_more_crons_than_the_cap(h: Harness) -> None:
    await h.reopen(crons=1)
    spec = CronSpec(name="one", queue="q", schedule=Every(every_ms=60_000))
    await h.store.put_cron(h.name, spec)
    with pytest.raises(Overloaded):
        await h.store.put_cron(
            h.name, CronSpec(name="two", queue="q", schedule=Every(every_ms=60_000))
        )
    await h.store.put_cron(h.name, spec)
    assert [info.spec.name for info in await h.store.crons(h.name)] == ["one"]
    await h.store.drop_cron(h.name, "one")


async def test_there_are_no_more_waiting_claims_than_the_cap(h: Harness) -> None:
    await h.reopen(waiters=2)
    waiting = [await h.start(h.lease("q", wait_ms=60_000)) for _ in range(2)]
    with pytest.raises(Overloaded):
        await h.claim("q", wait_ms=60_000)
    assert await h.claim("q") is None
    ids = [await h.push("q"), await h.push("q")]
    assert [(await h.told(task)).ids for task in waiting] == [[ids[0]], [ids[1]]]


async def test_there_are_no_more_watchers_than_the_cap(h: Harness) -> None:
    await h.reopen(subscribers=1)
    async with h.watch() as watcher:
        with pytest.raises(Overloaded):
            async for _ in h.store.watch(h.name):
                raise AssertionError("a watcher too many was served")
        await h.push("q")
        assert [event.kind for event in await watcher.events()] == ["pushed"]


async def test_a_batch_into_a_new_queue_beyond_the_cap_changes_nothing(h: Harness) -> None:
    await h.reopen(queues=1)
    await h.push("a", key="k")
    runs = [Run.of("a", [JobSpec(key="new")]), Run.of("b", [JobSpec()])]
    with pytest.raises(Overloaded):
        await h.store.push(h.name, runs)
    assert await h.store.by_key(h.name, "a", "new") is None
    assert await h.counts("a") == {"ready": 1}
