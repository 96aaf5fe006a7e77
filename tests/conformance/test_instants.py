"""Instants that a caller made up: one config's come as another's leave, both or neither."""

from collections.abc import Sequence
from typing import Any

import pytest

from penstock.model.answers import PushedInstead
from penstock.model.errors import Invalid, NotFound, Overloaded, RateLimited
from penstock.model.job import JobOptions, Run
from penstock.model.lifecycle import State
from penstock.model.policy import Bounds, Rate
from penstock.model.schedule import CronSpec, Every, instant_key
from tests.conformance.harness import BOOM, Harness

MINUTE = 60_000
DAY = 86_400_000
ONE, TWO = "1" * 16, "2" * 16


def run_of(h: Harness, minutes: Sequence[int], payload: bytes = b"1", **more: Any) -> Run:
    """A job for each of these minutes from now."""
    said: dict[str, Any] = {
        "queue": "q",
        "data": payload * len(minutes),
        "ends": [len(payload) * (n + 1) for n in range(len(minutes))],
        "run_at": [h.now + minute * MINUTE for minute in minutes],
    }
    return Run(**(said | more))


async def put(
    h: Harness, config: str, *minutes: int, name: str = "c", refresh: bool = False, **more: Any
) -> PushedInstead:
    run = run_of(h, minutes, **more)
    return await h.store.put_instants(h.name, name, config, run, refresh=refresh)


async def waiting(h: Harness, queue: str = "q") -> list[tuple[str | None, bytes]]:
    jobs = [job for job in await h.scan(queue) if job.state in (State.SCHEDULED, State.READY)]
    return sorted((job.key, job.payload) for job in jobs)


def keyed(h: Harness, config: str, *minutes: int, name: str = "c", payload: bytes = b"1") -> Any:
    return [(instant_key(name, config, h.now + each * MINUTE), payload) for each in minutes]


async def taken(h: Harness) -> list[bytes]:
    lease = await h.claim("q", 100)
    if lease is None:
        return []
    await h.ack(lease)
    return [job.payload for job in lease.jobs]


# -- putting ---------------------------------------------------------------------------------------


async def test_each_instant_is_a_job_under_its_key(h: Harness) -> None:
    options = JobOptions(priority=3, tags=("cron",))
    done = await put(h, ONE, 1, 2, options=(options,))
    assert (done.created, done.removed) == (2, 0)
    assert [outcome for _, outcome in done.jobs] == ["created", "created"]
    assert await waiting(h) == keyed(h, ONE, 1, 2)
    (first, _) = await h.scan("q")
    assert (first.run_at, first.options) == (h.now + MINUTE, options)
    assert await h.store.by_key(h.name, "q", keyed(h, ONE, 1)[0][0]) == first.id
    assert await h.store.crons(h.name) == []


async def test_an_instant_fires_once_however_often_it_is_put(h: Harness) -> None:
    await put(h, ONE, 1, payload=b"1")
    again = await put(h, ONE, 1, 2, payload=b"2")
    assert [outcome for _, outcome in again.jobs] == ["ignored", "created"]
    assert again.removed == 0
    await h.advance(2 * MINUTE)
    assert await taken(h) == [b"1", b"2"]
    assert (await put(h, ONE, -1, 0)).created == 0
    await h.advance(DAY - 1)
    run = run_of(h, (), data=b"1", ends=[1], run_at=[h.now - DAY + 1])
    assert (await h.store.put_instants(h.name, "c", ONE, run)).created == 0  # its key is kept


async def test_other_configs_leave_as_the_new_one_comes(h: Harness) -> None:
    await put(h, ONE, 1, 2, payload=b"1")
    done = await put(h, TWO, 1, 3, payload=b"2")
    assert (done.created, done.removed) == (2, 2)
    assert await waiting(h) == keyed(h, TWO, 1, 3, payload=b"2")
    assert await h.counts("q") == {"scheduled": 2}
    assert await h.store.by_key(h.name, "q", keyed(h, ONE, 1)[0][0]) is None


async def test_only_the_instants_of_that_name_in_that_queue_leave(h: Harness) -> None:
    other = h.tenant("other")
    names = ("c", "c_", "c%", "c/", "d", "C", "c/" + ONE)
    for name in names:
        await put(h, ONE, 1, name=name)
    await put(h, ONE, 1, queue="r")
    await put(other, ONE, 1)
    for key in (f"c/{ONE}", f"c/{ONE}/1/2", f"c/{ONE}/x", "c/", "c", f"x/c/{ONE}/1"):
        await h.push("q", key=key)
    await h.store.put_cron(
        h.name, CronSpec(name="c", queue="q", schedule=Every(every_ms=MINUTE), payload=b"3")
    )
    before = dict(await waiting(h))
    assert (await put(h, TWO, name="c")).removed == 1
    left = dict(await waiting(h))
    assert before.keys() - left.keys() == {keyed(h, ONE, 1)[0][0]}
    assert len(await waiting(h, "r")) == len(await waiting(other)) == 1
    assert len((await h.store.crons(h.name))[0].pending) == 4
    for name in names[1:]:
        assert await h.store.drop_instants(h.name, "q", name) == 1


async def test_a_config_that_comes_back_brings_its_instants_back(h: Harness) -> None:
    await put(h, ONE, 1, 5)
    await h.advance(MINUTE)
    assert await taken(h) == [b"1"]
    await put(h, TWO, 4, payload=b"2")
    back = await put(h, ONE, 0, 4)  # the same two
    assert [outcome for _, outcome in back.jobs] == ["ignored", "created"]
    assert back.removed == 1
    await h.advance(10 * MINUTE)
    assert await taken(h) == [b"1"]


async def test_what_somebody_was_given_stays(h: Harness) -> None:
    await put(h, ONE, 0, 0, data=b"123", ends=[1, 2, 3], run_at=[h.now, h.now - 1, h.now - 2])
    held = await h.lease("q")
    failed = await h.lease("q")
    await h.store.fail(h.name, failed.token, error=BOOM, retry_in_ms=MINUTE)
    assert (await put(h, TWO)).removed == 1  # the one that came due, and that nobody took
    assert await h.counts("q") == {"active": 1, "scheduled": 1}
    await h.ack(held)
    released = await h.store.put_instants(h.name, "c", ONE, run_of(h, [0]))
    assert released.created == 0  # its key is kept


async def redriven(h: Harness, *, discarded: bool = False) -> int:
    """One of the first config that died and was brought back, behind a second that was delivered."""
    (job_id,) = (await put(h, ONE, 0)).ids
    if discarded:
        await h.cancel(job_id, discard=True)
    else:
        await h.fail(await h.lease("q"), dead=True)
    await put(h, TWO, 0, payload=b"2")
    assert await taken(h) == [b"2"]
    assert (await h.store.redrive(h.name, "q")).ids == (job_id,)
    return job_id


@pytest.mark.parametrize("discarded", [False, True])
async def test_what_was_redriven_stays(h: Harness, discarded: bool) -> None:
    job_id = await redriven(h, discarded=discarded)
    before = await h.job(job_id)
    assert (await put(h, TWO, 1)).removed == 0
    assert await h.store.drop_instants(h.name, "q", "c", ONE) == 0
    await h.restart()
    assert (await put(h, ONE)).removed == 1  # what the second config has put
    assert await h.job(job_id) == before
    assert await h.claimed("q", 9) == [job_id]


@pytest.mark.parametrize("discarded", [False, True])
async def test_what_was_redriven_ends_no_later_config(h: Harness, discarded: bool) -> None:
    await redriven(h, discarded=discarded)
    assert (await put(h, TWO, 1, refresh=True)).created == 1
    assert (await put(h, TWO, 2, refresh=True)).created == 1


async def test_a_run_without_jobs_only_removes(h: Harness) -> None:
    await put(h, ONE, 1, 2)
    assert await put(h, ONE) == PushedInstead((), 0)
    assert await put(h, TWO) == PushedInstead((), 2)
    assert await waiting(h) == []
    assert await put(h, TWO, queue="unknown") == PushedInstead((), 0)


async def test_instants_that_leave_are_told_as_cancelled(h: Harness) -> None:
    await put(h, ONE, 1)
    (old,) = [job.id for job in await h.scan("q")]
    async with h.watch() as watcher:
        await put(h, TWO, 1)
        told = await watcher.events()
    (new,) = [job.id for job in await h.scan("q")]
    assert sorted((event.kind, *event.ids) for event in told) == [
        ("cancelled", old),
        ("pushed", new),
    ]
    assert {event.at for event in told} == {h.now}


async def test_they_survive_a_restart(h: Harness) -> None:
    await put(h, ONE, 1, 2)
    await put(h, TWO, 1)
    await h.restart()
    assert await waiting(h) == keyed(h, TWO, 1)
    assert (await put(h, ONE, 1, 2)).removed == 1
    await h.restart()
    assert await waiting(h) == keyed(h, ONE, 1, 2)


# -- both or neither -------------------------------------------------------------------------------


async def refuse(h: Harness, bounds: Bounds, scope: str) -> None:
    if scope == "tenant":
        await h.store.configure_tenant(h.name, bounds)
    else:
        await h.configure("q", bounds=bounds)


@pytest.mark.parametrize("scope", ["queue", "tenant"])
async def test_what_leaves_counts_against_no_bound(h: Harness, scope: str) -> None:
    await refuse(h, Bounds(jobs=2, bytes=4), scope)
    await put(h, ONE, 1, 2, payload=b"11")
    assert (await put(h, TWO, 1, 3, payload=b"22")).removed == 2
    assert await waiting(h) == keyed(h, TWO, 1, 3, payload=b"22")


@pytest.mark.parametrize("scope", ["queue", "tenant"])
@pytest.mark.parametrize(
    ("bounds", "error"),
    [
        (Bounds(jobs=2), Overloaded),
        (Bounds(bytes=4), Overloaded),
        (Bounds(push_rate=Rate(tokens=4, per_ms=DAY)), RateLimited),
    ],
    ids=["jobs", "bytes", "push_rate"],
)
async def test_if_what_comes_is_refused_nothing_leaves(
    h: Harness, bounds: Bounds, error: type[Exception], scope: str
) -> None:
    await refuse(h, bounds, scope)
    await put(h, ONE, 1, 2)
    before = await h.scan("q")
    with pytest.raises(error):
        await put(h, TWO, 1, 2, 3, payload=b"22")
    assert await h.scan("q") == before
    await h.restart()
    assert await h.scan("q") == before
    assert (await put(h, ONE, 1, 2)).created == 0


async def test_if_one_of_them_is_wrong_nothing_leaves(h: Harness) -> None:
    await put(h, ONE, 1, 2)
    before = await h.scan("q")
    with pytest.raises(Invalid, match="payload"):
        await put(h, TWO, 1, 2, data=b"1{")
    with pytest.raises(Invalid, match="ttl_ms"):
        await put(h, TWO, 1, 2, options=(JobOptions(ttl_ms=1),))
    assert await h.scan("q") == before


# -- refreshing ------------------------------------------------------------------------------------


async def test_a_refresh_adds_what_is_missing(h: Harness) -> None:
    assert (await put(h, ONE, 1, refresh=True)).created == 1
    assert (await put(h, ONE, 1, 2, refresh=True)).created == 1
    assert await waiting(h) == keyed(h, ONE, 1, 2)


async def test_a_refresh_after_another_config_changes_nothing(h: Harness) -> None:
    await put(h, ONE, 1, 2)
    await put(h, TWO, 1)
    before = await h.scan("q")
    with pytest.raises(NotFound, match="another config was put after this one"):
        await put(h, ONE, 1, 2, 3, refresh=True)
    with pytest.raises(NotFound):
        await put(h, ONE, refresh=True)
    assert await h.scan("q") == before
    assert (await put(h, TWO, 1, 2, refresh=True)).created == 1


async def test_a_refresh_goes_on_once_the_other_config_is_gone(h: Harness) -> None:
    await put(h, ONE, 1)
    await put(h, TWO, 1)
    assert await h.store.drop_instants(h.name, "q", "c", TWO) == 1
    assert (await put(h, ONE, 1, refresh=True)).created == 1


# -- dropping --------------------------------------------------------------------------------------


async def test_dropping_removes_one_config_or_all(h: Harness) -> None:
    await put(h, ONE, 0, 1, 2)
    await put(h, ONE, 1, name="d")
    assert await h.store.drop_instants(h.name, "q", "c", TWO) == 0
    held = await h.lease("q")
    assert await h.store.drop_instants(h.name, "q", "c", ONE) == 2
    assert await h.store.drop_instants(h.name, "q", "d") == 1
    assert await h.store.drop_instants(h.name, "q", "c") == 0
    assert await h.store.drop_instants(h.name, "nowhere", "c") == 0
    assert await h.counts("q") == {"active": 1}
    await h.ack(held)
    assert (await put(h, ONE, 1, 2)).created == 2


async def test_a_cron_is_not_dropped_as_instants_nor_instants_with_a_cron(h: Harness) -> None:
    spec = CronSpec(name="c", queue="q", schedule=Every(every_ms=MINUTE))
    await h.store.put_cron(h.name, spec)
    await put(h, ONE, 1)
    assert await h.store.drop_instants(h.name, "q", "c") == 1
    await put(h, ONE, 1)
    assert await h.store.drop_cron(h.name, "c") is True
    assert await waiting(h) == keyed(h, ONE, 1)


# -- what cannot be said ---------------------------------------------------------------------------

WRONG: dict[str, tuple[str, dict[str, Any]]] = {
    "a key": ("keys", {"keys": ["k"]}),
    "several keys": ("more_keys", {"more_keys": [()]}),
    "a delay": ("delay_ms", {"delay_ms": 1, "run_at": None}),
    "a dependency": ("depends_on", {"depends_on": [(1,)]}),
    "no instant": ("run_at", {"run_at": None}),
    "one instant for all": ("run_at", {"run_at": 1}),
    "an instant that is none": ("run_at", {"run_at": [None]}),
}


@pytest.mark.parametrize("what", WRONG)
async def test_instants_have_an_instant_and_no_key(h: Harness, what: str) -> None:
    field, said = WRONG[what]
    for refresh in (False, True):
        with pytest.raises(Invalid) as caught:
            await put(h, ONE, 1, refresh=refresh, **said)
        assert caught.value.field == field
    assert await h.scan("q") == []


async def test_a_config_is_sixteen_hexadecimal_digits(h: Harness) -> None:
    wrong: Any
    for wrong in ("", "1" * 15, "1" * 17, "G" * 16, "A" * 16, b"1" * 16, 1, None):
        with pytest.raises(Invalid, match="config_hash"):
            await put(h, wrong, 1)
    for wrong in ("", "%", 1):
        with pytest.raises(Invalid, match="config_hash"):
            await h.store.drop_instants(h.name, "q", "c", wrong)
