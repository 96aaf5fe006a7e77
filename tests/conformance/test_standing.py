"""`standing` and `reach`: where jobs, leases and bulks lie, for servers that have to know."""

import pytest

from penstock.model.answers import Standing
from penstock.model.errors import Invalid
from penstock.model.job import KeyClaim, Run
from penstock.model.lifecycle import State
from tests.conformance.harness import BLOCK, Harness, many_jobs


async def test_a_job_stands_under_its_lease_while_it_is_active(h: Harness) -> None:
    job_id = await h.push("q")
    assert await h.store.standing(h.name, [job_id]) == [Standing("q", State.READY)]
    lease = await h.lease("q")
    assert await h.store.standing(h.name, [job_id]) == [Standing("q", State.ACTIVE, lease.token)]
    await h.ack(lease)
    assert await h.store.standing(h.name, [job_id]) == [Standing("q", State.COMPLETED)]


async def test_standings_come_in_the_order_asked_for_and_unknown_jobs_have_none(
    h: Harness,
) -> None:
    one, two = await h.push("q"), await h.push("r")
    asked = [two, 999_999_999, one, two]
    there = Standing("r", State.READY)
    assert await h.store.standing(h.name, asked) == [there, None, Standing("q", State.READY), there]
    assert await h.store.standing(h.name, []) == []


@many_jobs
async def test_each_job_of_a_large_batch_stands_under_the_lease_that_took_it(h: Harness) -> None:
    ids = await h.push_alike("q", BLOCK + 10)
    first, second = await h.lease("q", BLOCK - 5), await h.lease("q", 10_000)
    held = {standing.lease for standing in await h.store.standing(h.name, ids) if standing}
    assert held == {first.token, second.token}
    (last,) = await h.store.standing(h.name, ids[-1:])
    assert last == Standing("q", State.ACTIVE, second.token)


async def test_a_lease_that_ran_out_is_not_named_and_the_next_one_is(h: Harness) -> None:
    job_id = await h.push("q")
    first = await h.lease("q", lease_ms=100)
    h.clock.advance(100)
    (lost,) = await h.store.standing(h.name, [job_id])
    assert lost is not None
    assert lost.lease is None
    h.clock.advance(60_000)
    second = await h.lease("q")
    assert second.token != first.token
    assert await h.store.standing(h.name, [job_id]) == [Standing("q", State.ACTIVE, second.token)]


async def test_a_lease_is_named_after_a_restart(h: Harness) -> None:
    job_id = await h.push("q")
    lease = await h.lease("q")
    await h.restart()
    (held,) = await h.store.standing(h.name, [job_id])
    assert held == Standing("q", State.ACTIVE, lease.token)
    await h.ack(lease)


async def test_no_lease_is_named_to_another_tenant(h: Harness) -> None:
    job_id = await h.push("q")
    await h.lease("q")
    assert await h.store.standing("stranger", [job_id]) == [None]


async def test_every_key_that_a_job_carries_is_shown_with_it(h: Harness) -> None:
    keys = (KeyClaim("a"), KeyClaim("b", "return", "retained"), KeyClaim("c", "return", 500))
    pushed = await h.store.push(h.name, [Run.pack("q", [b"1", b"2"], more_keys=[keys, ()])])
    one, two = await h.job(pushed.ids[0]), await h.job(pushed.ids[1])
    assert (one.key, one.more_keys) == ("a", ("b", "c"))
    assert (two.key, two.more_keys) == (None, ())
    claimed = (await h.lease("q", 2)).jobs
    assert [(job.key, job.more_keys) for job in claimed] == [("a", ("b", "c")), (None, ())]


# -- reach: the queues of leases and bulks ---------------------------------------------------------


async def test_a_lease_reaches_its_queue_while_it_holds_something(h: Harness) -> None:
    await h.push_alike("q", 2)
    await h.push("r")
    lease = await h.lease("q", 2)
    assert await h.store.reach(h.name, lease=lease.token) == {"q"}
    await h.ack(lease)
    assert await h.store.reach(h.name, lease=lease.token) == frozenset()


async def test_a_bulk_reaches_the_queues_that_were_pushed_into_until_it_ends(h: Harness) -> None:
    await h.store.open_bulk(h.name, "b")
    assert await h.store.reach(h.name, bulk="b") == frozenset()
    await h.push_many("q", [{}], bulk="b", part="1")
    await h.push_many("r", [{}], bulk="b", part="2")
    await h.push("s")
    assert await h.store.reach(h.name, bulk="b") == {"q", "r"}
    await h.restart()
    assert await h.store.reach(h.name, bulk="b") == {"q", "r"}
    await h.store.commit_bulk(h.name, "b")
    assert await h.store.reach(h.name, bulk="b") == frozenset()


async def test_what_is_unknown_or_another_tenants_reaches_nothing(h: Harness) -> None:
    await h.push("q")
    lease = await h.lease("q")
    await h.store.open_bulk(h.name, "b")
    await h.push_many("q", [{}], bulk="b")
    other = h.tenant("other")
    for tenant, token, name in [(h.name, "0" * 32, "none"), (other.name, lease.token, "b")]:
        assert await h.store.reach(tenant, lease=token) == frozenset()
        assert await h.store.reach(tenant, bulk=name) == frozenset()


@pytest.mark.parametrize(
    "named", [{}, {"lease": "a", "bulk": "b"}, {"lease": ""}, {"bulk": ""}, {"bulk": "b" * 513}]
)
async def test_either_a_lease_or_a_bulk_is_asked_about(h: Harness, named: dict[str, str]) -> None:
    with pytest.raises(Invalid):
        await h.store.reach(h.name, **named)
