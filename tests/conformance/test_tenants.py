"""Two tenants × every operation: what another tenant owns does not exist, and cannot be touched."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from penstock.model.errors import LeaseLost, NotFound, PenstockError
from penstock.model.job import JobError, LogLine
from penstock.model.lifecycle import State
from penstock.model.policy import Bounds, Limits, QueueConfig, Rate
from penstock.model.schedule import CronSpec, Every
from tests.conformance.harness import Harness, after

HOUR = 3_600_000
CRON = CronSpec(name="cron", queue="crons", schedule=Every(every_ms=60_000))


@dataclass
class Estate:
    """Everything that one tenant can own."""

    h: Harness
    ids: list[int]
    active: int
    ready: int
    delayed: int
    dead: int
    done: int
    lease: str

    async def snapshot(self) -> list[Any]:
        """All that its owner can see of it."""
        h = self.h
        store, name = h.store, h.name
        return [
            await store.get(name, self.ids),
            await store.queues(name),
            [await store.by_key(name, "q", key) for key in ("k", "kept")],
            await store.crons(name),
            await store.open_bulk(name, "bulk"),
            await store.open_bulk(name, "finished"),
            await store.result(name, self.done),
            await store.logs(name, self.active),
            [await store.explain(name, job_id) for job_id in self.ids],
        ]


async def settle_down(h: Harness) -> Estate:
    await h.configure("q", limits=Limits(concurrency=10), retain_ms=HOUR)
    done = await h.finish("q", key="kept", keep_key=HOUR)
    dead = await h.push("q", priority=1)
    await h.fail(await h.lease("q"), dead=True)
    active = await h.push("q", group="g", key="k")
    lease = await h.lease("q", worker="w")
    await h.report(lease, active, progress=5, logs=[LogLine(0, "mine")])
    ready = await h.push("q", group="g")
    delayed = await h.push("q", delay_ms=HOUR)
    blocked = await h.push("q", depends_on=(active,))
    retries = await h.push("q", priority=9, backoff=after(HOUR))
    await h.fail(await h.lease("q"))
    await h.store.open_bulk(h.name, "bulk")
    held = (await h.push_many("q", [{}], bulk="bulk", part="p")).ids
    await h.store.open_bulk(h.name, "finished")
    await h.store.commit_bulk(h.name, "finished")
    await h.push_many("produced", [{}], producer="p", sequence=1)
    await h.store.put_cron(h.name, CRON)
    ids = [done, dead, active, ready, delayed, blocked, retries, *held]
    return Estate(h, ids, active, ready, delayed, dead, done, lease.token)


Touch = Callable[[Harness, Estate], Awaitable[object]]


async def refused(call: Awaitable[object], error: type[PenstockError]) -> None:
    with pytest.raises(error):
        await call


async def touch_get(b: Harness, a: Estate) -> None:
    assert await b.store.get(b.name, a.ids) == [None] * len(a.ids)


async def touch_find(b: Harness, a: Estate) -> None:
    for queue in ("q", "produced", "crons"):
        assert await b.scan(queue) == []


async def touch_by_key(b: Harness, a: Estate) -> None:
    for key in ("k", "kept"):
        assert await b.store.by_key(b.name, "q", key) is None


async def touch_queues(b: Harness, a: Estate) -> None:
    assert await b.store.queues(b.name) == []
    (info,) = await b.store.queues(b.name, ["q"])
    assert (info.config, sum(info.counts.values()), info.groups) == (QueueConfig(), 0, 0)


async def touch_single_jobs(b: Harness, a: Estate) -> None:
    for job_id in a.ids:
        await refused(b.result(job_id), NotFound)
        await refused(b.result(job_id, wait_ms=1_000), NotFound)
        await refused(b.store.logs(b.name, job_id), NotFound)
        await refused(b.store.explain(b.name, job_id), NotFound)
        await refused(b.store.edit(b.name, job_id, priority=3), NotFound)
        await refused(b.store.edit(b.name, job_id, delay_ms=0), NotFound)


async def touch_claim(b: Harness, a: Estate) -> None:
    assert await b.claim(["q", "produced", "crons"], 100) is None


async def touch_lease(b: Harness, a: Estate) -> None:
    error = JobError(kind="Theirs")
    await refused(b.ack(a.lease), LeaseLost)
    await refused(b.ack(a.lease, [a.active], results={a.active: b"1"}), LeaseLost)
    await refused(b.fail(a.lease, error=error), LeaseLost)
    await refused(b.fail(a.lease, [a.active], error=error, dead=True), LeaseLost)
    await refused(b.release(a.lease), LeaseLost)
    await refused(b.extend(a.lease, 50), LeaseLost)
    await refused(b.report(a.lease, a.active, progress=99), LeaseLost)


async def touch_own_lease_with_their_ids(b: Harness, a: Estate) -> None:
    mine = await b.push("q")
    lease = await b.lease("q")
    answer = await b.ack(lease, [a.active, mine, a.ready])
    assert (list(answer.acked), set(answer.lost)) == ([mine], {a.active, a.ready})


async def touch_cancel(b: Harness, a: Estate) -> None:
    assert await b.store.standing(b.name, list(a.ids)) == [None] * len(a.ids)
    for discard in (False, True):
        answer = await b.cancel(*a.ids, discard=discard)
        assert (len(answer.acked), sorted(answer.lost)) == (0, sorted(a.ids))


async def touch_dead(b: Harness, a: Estate) -> None:
    for ids in (None, [a.dead]):
        answer = await b.store.redrive(b.name, "q", ids=ids)
        assert (answer.ids, answer.conflicts) == ((), ())
        assert await b.store.purge_dead(b.name, "q", ids=ids) == 0


async def touch_whole_queues(b: Harness, a: Estate) -> None:
    for queue in ("q", "produced", "crons"):
        assert await b.store.drain(b.name, queue) == 0
        for state in (each for each in State if each not in (State.ACTIVE, State.HELD)):
            assert await b.store.clean(b.name, queue, state) == 0
        assert await b.store.purge(b.name, queue) == 0


async def touch_configuration(b: Harness, a: Estate) -> None:
    await b.configure("q", paused=True, limits=Limits(concurrency=1, rate=Rate(tokens=1)))
    await b.store.configure_tenant(b.name, Bounds(jobs=0))


async def touch_keys(b: Harness, a: Estate) -> None:
    jobs = (
        await b.push_many(
            "q",
            [
                {"key": "k", "on_conflict": "reject"},
                {"key": "kept", "on_conflict": "reject", "payload": b"2"},
            ],
        )
    ).jobs
    assert [outcome for _, outcome in jobs] == ["created", "created"]
    await b.push("q", b"3", key="k", on_conflict="replace")


async def touch_groups(b: Harness, a: Estate) -> None:
    mine = await b.push("q", group="g")
    assert await b.claimed("q") == [mine]


async def touch_dependencies(b: Harness, a: Estate) -> None:
    pushed = await b.push_many("q", [{"depends_on": tuple(a.ids)}])
    assert await b.counts("q") == {"ready": 1}
    await b.cancel(*pushed.ids)


async def touch_bulks(b: Harness, a: Estate) -> None:
    for name in ("bulk", "finished"):
        await refused(b.push_many("q", [{}], bulk=name), NotFound)
        await refused(b.store.commit_bulk(b.name, name), NotFound)
        await refused(b.store.abort_bulk(b.name, name), NotFound)
        assert (await b.store.open_bulk(b.name, name)).state == "open"
        await b.push_many("q", [{}], bulk=name, part="mine")
    assert (await b.store.commit_bulk(b.name, "bulk")).jobs == 1
    assert (await b.store.abort_bulk(b.name, "finished")).state == "aborted"


async def touch_producers(b: Harness, a: Estate) -> None:
    pushed = await b.push_many("q", [{"payload": b"9"}], producer="p", sequence=1)
    assert [outcome for _, outcome in pushed.jobs] == ["created"]
    assert pushed.ids[0] not in a.ids


async def touch_crons(b: Harness, a: Estate) -> None:
    assert await b.store.crons(b.name) == []
    assert await b.store.drop_cron(b.name, "cron") is False
    other = CronSpec(name="cron", queue="crons", schedule=Every(every_ms=30_000), payload=b"2")
    await b.store.put_cron(b.name, other)
    assert await b.store.drop_cron(b.name, "cron") is True


TOUCHES: list[Touch] = [
    touch_get,
    touch_find,
    touch_by_key,
    touch_queues,
    touch_single_jobs,
    touch_claim,
    touch_lease,
    touch_own_lease_with_their_ids,
    touch_cancel,
    touch_dead,
    touch_whole_queues,
    touch_configuration,
    touch_keys,
    touch_groups,
    touch_dependencies,
    touch_bulks,
    touch_producers,
    touch_crons,
]


@pytest.mark.parametrize("touch", TOUCHES, ids=lambda touch: touch.__name__[6:])
async def test_nothing_of_another_tenant_is_seen_or_touched(h: Harness, touch: Touch) -> None:
    estate = await settle_down(h)
    before = await estate.snapshot()
    await touch(h.tenant("other"), estate)
    assert await estate.snapshot() == before


async def test_the_owner_can_still_work_after_all_of_it(h: Harness) -> None:
    estate = await settle_down(h)
    for number, touch in enumerate(TOUCHES):
        await touch(h.tenant(f"other-{number}"), estate)
    assert list((await h.ack(estate.lease)).acked) == [estate.active]
    assert estate.ready in await h.claimed("q", 10)
    assert (await h.store.commit_bulk(h.name, "bulk")).jobs == 1


async def test_two_tenants_with_the_same_names_live_side_by_side(h: Harness) -> None:
    first = await settle_down(h)
    second = await settle_down(h.tenant("other"))
    assert not set(first.ids) & set(second.ids)
    assert first.lease != second.lease
    before = await second.snapshot()
    await h.store.purge(h.name, "q")
    await h.store.drop_cron(h.name, "cron")
    assert await second.snapshot() == before


async def test_a_claim_that_waits_is_not_served_from_another_tenant(h: Harness) -> None:
    other = h.tenant("other")
    waiting = await h.start(other.lease("q", wait_ms=60_000))
    await h.push_alike("q", 3)
    await h.settle()
    assert not waiting.done()
    mine = await other.push("q")
    assert (await h.told(waiting)).ids == [mine]


async def test_a_watcher_sees_its_own_tenant_only(h: Harness) -> None:
    other = h.tenant("other")
    async with other.watch() as watcher:
        await h.push("q")
        await h.ack(await h.lease("q"))
        mine = await other.push("q")
        seen = await watcher.events()
    assert {event.tenant for event in seen} == {"other"}
    assert [job_id for event in seen for job_id in event.ids] == [mine]


async def test_limits_and_bounds_of_one_tenant_do_not_bind_another(h: Harness) -> None:
    await h.configure("q", limits=Limits(concurrency=1))
    await h.store.configure_tenant(h.name, Bounds(jobs=2))
    await h.push_alike("q", 2)
    await h.lease("q")
    other = h.tenant("other")
    ids = await other.push_alike("q", 5)
    assert await other.claimed("q", 5) == ids


async def test_tenants_survive_a_restart_apart(h: Harness) -> None:
    first = await settle_down(h)
    second = await settle_down(h.tenant("other"))
    before = [await first.snapshot(), await second.snapshot()]
    await h.restart()
    assert [await first.snapshot(), await second.snapshot()] == before


@pytest.mark.parametrize("name", ["a", "9", "A-b_c", "a" * 63])
async def test_every_name_of_the_allowed_form_is_a_tenant(h: Harness, name: str) -> None:
    tenant = h.tenant(name)
    job_id = await tenant.push("q")
    assert await tenant.claimed("q") == [job_id]
