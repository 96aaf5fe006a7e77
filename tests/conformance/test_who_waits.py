"""Who waits: the claims in line, as whoever asks is told of them."""

import asyncio
from typing import Any

from penstock.model.answers import WaitingClaim, WaitingClaims
from penstock.model.checks import MAX_WAITING
from penstock.model.policy import Limits, Rate
from tests.conformance.harness import Harness

LONG = 3_600_000


async def who(h: Harness, **more: Any) -> list[str]:
    """The names of those who wait, in the order in which they are told."""
    return [claim.worker for claim in (await h.store.waiting(h.name, **more)).claims]


async def begin(h: Harness, worker: str, queues: Any = "q", n: int = 1, **more: Any) -> Any:
    """A claim that waits."""
    said = {"wait_ms": LONG, **more}
    return await h.start(h.claimed(queues, n, worker=worker, **said))


async def over(*waiters: "asyncio.Task[Any]") -> None:
    for waiter in waiters:
        waiter.cancel()
    await asyncio.gather(*waiters, return_exceptions=True)


async def test_where_nobody_waits_nobody_is_told(h: Harness) -> None:
    assert await h.store.waiting(h.name) == WaitingClaims((), True)
    await h.push("q")
    await h.lease("q", worker="w")
    assert await h.claim("q", worker="w") is None
    assert await h.store.waiting(h.name) == WaitingClaims((), True)


async def test_a_waiting_claim_is_told_as_it_was_said(h: Harness) -> None:
    came = h.now
    waiter = await begin(h, "w", ["a", "b", "a"], 7)
    await h.advance(1_000)
    claim = WaitingClaim(worker="w", queues=("a", "b"), n=7, since=came)
    assert await h.store.waiting(h.name) == WaitingClaims((claim,), True)
    await over(waiter)


async def test_whoever_has_no_name_waits_all_the_same(h: Harness) -> None:
    waiter = await begin(h, "")
    assert await who(h) == [""]
    await over(waiter)


async def test_those_who_came_first_are_told_first(h: Harness) -> None:
    waiters = [await begin(h, name, queue) for name, queue in (("b", "x"), ("a", "y"), ("b", "y"))]
    assert await who(h) == ["b", "a", "b"]
    await over(*waiters)


async def test_no_more_are_told_than_were_asked_for_and_that_there_are_more(h: Harness) -> None:
    waiters = [await begin(h, name) for name in ("a", "b", "c")]
    two = await h.store.waiting(h.name, limit=2)
    assert ([claim.worker for claim in two.claims], two.complete) == (["a", "b"], False)
    for limit in (3, MAX_WAITING):
        assert (await h.store.waiting(h.name, limit=limit)).complete
        assert await who(h, limit=limit) == ["a", "b", "c"]
    await over(*waiters)


async def test_whoever_is_given_a_job_waits_no_more(h: Harness) -> None:
    first, second = await begin(h, "first"), await begin(h, "second")
    job_id = await h.push("q")
    assert await who(h) == ["second"]
    assert await h.told(first) == [job_id]
    await over(second)


async def test_whoever_has_waited_as_long_as_they_said_waits_no_more(h: Harness) -> None:
    waiter = await begin(h, "w", wait_ms=1_000)
    h.clock.advance(999)
    assert await who(h) == ["w"]
    h.clock.advance(1)
    assert await who(h) == []
    await h.advance(0)
    assert await h.told(waiter) == []


async def test_whoever_goes_away_waits_no_more(h: Harness) -> None:
    await over(await begin(h, "w"))
    await h.settle()
    assert await who(h) == []


async def test_a_job_that_has_come_due_is_given_before_anybody_is_told(h: Harness) -> None:
    job_id = await h.push("q", delay_ms=1_000)
    waiter = await begin(h, "w")
    h.clock.advance(1_000)
    assert await who(h) == []
    assert await h.told(waiter) == [job_id]


async def test_a_token_that_a_rate_has_again_is_spent_before_anybody_is_told(h: Harness) -> None:
    await h.configure("q", limits=Limits(rate=Rate(tokens=1, per_ms=1_000)))
    await h.push_alike("q", 2)
    await h.lease("q")
    waiter = await begin(h, "w")
    assert await who(h) == ["w"]
    h.clock.advance(1_000)
    assert await who(h) == []
    assert len(await h.told(waiter)) == 1


async def test_jobs_that_nobody_may_have_keep_nobody_from_waiting(h: Harness) -> None:
    await h.configure("q", paused=True)
    await h.push("q")
    waiter = await begin(h, "w")
    assert await who(h) == ["w"]
    await h.configure("q", paused=False)
    assert await who(h) == []
    assert len(await h.told(waiter)) == 1


async def test_whoever_holds_jobs_and_wants_more_waits_as_well(h: Harness) -> None:
    await h.push("q")
    lease = await h.lease("q", worker="w")
    waiter = await begin(h, "w", n=9)
    (claim,) = (await h.store.waiting(h.name)).claims
    assert (claim.worker, claim.n) == ("w", 9)
    (job,) = await h.store.get(h.name, lease.ids)
    assert job is not None
    assert job.worker == "w"
    await over(waiter)


async def test_a_jump_of_the_wall_clock_changes_nothing_of_when_they_came(h: Harness) -> None:
    came = h.now
    waiter = await begin(h, "w")
    for jump in (LONG, -2 * LONG):
        await h.jump(jump)
        (claim,) = (await h.store.waiting(h.name)).claims
        assert claim.since == came
    await over(waiter)


async def test_another_tenants_claims_are_nobodys_business(h: Harness) -> None:
    other = h.tenant("other")
    mine = await begin(h, "mine")
    theirs = [await begin(other, name) for name in ("theirs", "too")]
    assert await who(h, limit=1) == ["mine"]
    assert (await h.store.waiting(h.name, limit=1)).complete
    assert await who(other) == ["theirs", "too"]
    assert await who(h.tenant("nobody")) == []
    await over(mine, *theirs)


async def test_those_who_wait_ask_again_while_the_store_is_asked_for_them(live: Harness) -> None:
    """As workers do whose claims come to nothing: none is told twice, nor left out for long."""

    async def work(name: str) -> None:
        for _ in range(20):
            assert await live.claim("q", worker=name, wait_ms=1) is None

    names = [f"w{number}" for number in range(5)]
    workers = asyncio.gather(*map(work, names))
    seen: set[str] = set()
    while not workers.done():
        told = await who(live)
        assert len(told) == len(set(told))
        seen.update(told)
        await asyncio.sleep(0)
    await workers
    assert seen == set(names)
    assert await who(live) == []
