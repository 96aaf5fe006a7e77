"""PULL, PULLB, ACK, ACKB, FAIL, HEARTBEAT, PROGRESS, LOG, PARTIAL: by id, from any connection."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from penstock.model.errors import Unavailable
from penstock.model.job import Lease
from penstock.model.lifecycle import State
from penstock.model.store import Store
from penstock.open import open_store
from penstock.protocol.access import ANYBODY
from penstock.stores.clock import ManualClock
from tests.compatible.wire import TENANT, Connection, World, words

FIELDS = words("""
id queue data priority created_at run_at started_at last_heartbeat attempts max_attempts backoff
ttl timeout stall_timeout unique_key custom_id depends_on parent_id children_ids group_id progress
progress_msg tags lifo remove_on_complete remove_on_fail keep_completed_age keep_completed_count
completed_at
""")


async def test_a_pulled_job_has_every_field_of_the_job_object(w: World) -> None:
    c = w.connect()
    w.clock.advance(5)
    pushed_at = w.clock.now
    said: dict[str, Any] = {
        "priority": 3,
        "ttl": 9_000,
        "timeout": 8_000,
        "max_attempts": 7,
        "backoff": 60,
        "stall_timeout": 2_000,
        "unique_key": "u",
        "job_id": "c",
        "group_id": "g",
        "tags": ["t"],
        "keep_completed_age": 77,
        "remove_on_fail": True,
    }
    job_id = await c.push(data={"x": 1}, **said)
    w.clock.advance(5)
    job = await c.pull()
    assert list(job) == FIELDS
    assert job == {
        **{name: said[name] for name in said if name != "job_id"},
        "id": job_id,
        "queue": "q",
        "data": {"x": 1},
        "created_at": pushed_at,
        "run_at": pushed_at,
        "started_at": pushed_at + 5,
        "last_heartbeat": pushed_at + 5,
        "attempts": 0,
        "custom_id": "c",
        "depends_on": [],
        "parent_id": None,
        "children_ids": [],
        "progress": 0,
        "progress_msg": None,
        "lifo": False,
        "remove_on_complete": False,
        "keep_completed_count": 0,
        "completed_at": 0,
    }


async def test_a_plain_job_is_pulled_with_the_defaults_of_the_wire(w: World) -> None:
    c = w.connect()
    await c.push()
    job = await c.pull()
    assert list(job) == FIELDS
    assert (job["max_attempts"], job["backoff"], job["stall_timeout"]) == (3, 1_000, 30_000)
    assert (job["ttl"], job["timeout"], job["keep_completed_age"]) == (0, 0, 0)
    assert (job["unique_key"], job["custom_id"], job["group_id"]) == (None, None, None)


async def test_pulling_what_is_not_there_gives_nothing_at_once(w: World) -> None:
    c = w.connect()
    assert (await c.say("PULL", queue="q"))["job"] is None
    assert (await c.say("PULLB", queue="q", count=5))["jobs"] == []


async def test_a_pull_waits_as_long_as_it_says(w: World) -> None:
    c = w.connect()
    waiting = asyncio.ensure_future(c.say("PULL", queue="q", timeout=100))
    await w.settle()
    job_id = await w.connect().push()
    assert (await waiting)["job"]["id"] == job_id
    waiting = asyncio.ensure_future(c.say("PULL", queue="q", timeout=100))
    await w.settle()
    await w.advance(100)
    assert (await waiting)["job"] is None


async def test_a_batch_waits_for_the_first_job_alone(w: World) -> None:
    c = w.connect()
    waiting = asyncio.ensure_future(c.say("PULLB", queue="q", count=10, timeout=1_000))
    await w.settle()
    ids = (await w.connect().say("PUSHB", queue="q", jobs=[{"data": n} for n in range(3)]))["ids"]
    assert [job["id"] for job in (await waiting)["jobs"]] == ids


async def test_a_batch_takes_no_more_than_it_says(w: World) -> None:
    c = w.connect()
    ids = (await c.say("PUSHB", queue="q", jobs=[{"data": n} for n in range(700)]))["ids"]
    first = (await c.say("PULLB", queue="q", count=600))["jobs"]
    rest = (await c.say("PULLB", queue="q", count=600))["jobs"]
    assert [job["id"] for job in (*first, *rest)] == ids
    assert len(first) == 600


@pytest.mark.parametrize(
    ("count", "code"), [(0, "invalid"), (-1, "invalid"), (10_001, "batch_too_large")]
)
async def test_a_batch_of_no_size(w: World, count: int, code: str) -> None:
    await w.connect().refused("PULLB", code, "count", queue="q", count=count)


async def test_waits_that_are_none(w: World) -> None:
    c = w.connect()
    await c.refused("PULL", "invalid", "timeout", queue="q", timeout=-1)
    await c.refused("PULLB", "invalid", "timeout", queue="q", count=1, timeout=10**9)


async def test_each_job_of_a_batch_has_a_lease_of_its_own_length(w: World) -> None:
    c = w.connect()
    jobs = [{"stall_timeout": 1_000}, {"stall_timeout": 2_000}, {}]
    short, longer, usual = (await c.say("PUSHB", queue="q", jobs=jobs))["ids"]
    await c.say("PULLB", queue="q", count=3)
    standings = await w.store.standing(TENANT, [short, longer, usual])
    assert len({standing.lease for standing in standings if standing}) == 3
    await w.advance(1_000)
    states = [await c.state(job_id) for job_id in (short, longer, usual)]
    assert states == ["delayed", "active", "active"]
    await w.advance(1_000)
    assert [await c.state(job_id) for job_id in (longer, usual)] == ["delayed", "active"]


async def test_a_heartbeat_keeps_one_job(w: World) -> None:
    c = w.connect()
    kept, lost = (await c.say("PUSHB", queue="q", jobs=[{}, {}]))["ids"]
    await c.say("PULLB", queue="q", count=2)
    await w.advance(20_000)
    beaten_at = w.clock.now
    await c.say("HEARTBEAT", id=kept)
    assert (await c.say("GETJOB", id=kept))["job"]["last_heartbeat"] == beaten_at
    await w.advance(10_000)
    assert [await c.state(kept), await c.state(lost)] == ["active", "delayed"]
    await w.advance(19_999)
    assert await c.state(kept) == "active"
    await w.advance(1)
    assert await c.state(kept) == "delayed"
    await c.refused("HEARTBEAT", "lease_lost", "id", id=kept)


async def test_a_job_is_pulled_on_one_connection_and_acked_on_another(w: World) -> None:
    pulling, acking = w.connect(encoding="json"), w.connect(encoding="msgpack")
    job_id = await pulling.push()
    await pulling.pull()
    await acking.say("ACK", id=job_id, result={"sum": 3})
    assert (await pulling.say("GETRESULT", id=job_id))["result"] == {"sum": 3}
    await pulling.refused("ACK", "lease_lost", "id", id=job_id)
    await pulling.refused("FAIL", "lease_lost", "id", id=job_id)


async def test_a_result_that_is_too_large_is_refused_and_the_job_is_still_held(w: World) -> None:
    c = w.connect()
    job_id = await c.push()
    await c.pull()
    await c.refused("ACK", "payload_too_large", "result", id=job_id, result="x" * 10_485_761)
    await c.say("ACK", id=job_id, result=None)
    assert (await c.say("GETRESULT", id=job_id))["result"] is None


async def test_a_job_is_acked_by_id_after_the_server_was_started_again(tmp_path: Path) -> None:
    url, clock = f"sqlite:///{tmp_path}/jobs.db", ManualClock()
    store = await open_store(url, clock=clock, share=False)
    before = Connection(store, "json", ANYBODY)
    ids = (await before.say("PUSHB", queue="q", jobs=[{"data": n} for n in range(6)]))["ids"]
    pulled = (await before.say("PULLB", queue="q", count=6))["jobs"]
    assert [job["id"] for job in pulled] == ids
    await store.close()

    store = await open_store(url, clock=clock, share=False)
    try:
        after = Connection(store, "msgpack", ANYBODY)
        await after.say("ACK", id=ids[0], result=1)
        await after.say("FAIL", id=ids[1], error="late")
        await after.say("HEARTBEAT", id=ids[2])
        await after.say("PROGRESS", id=ids[2], progress=10)
        assert (await after.say("ACKB", ids=ids))["ids"] == ids[2:]
        states = [await after.state(job_id) for job_id in ids]
        assert states == ["completed", "delayed", *["completed"] * 4]
    finally:
        await store.close()


async def test_a_late_ack_ends_the_attempt_of_whoever_took_over(w: World) -> None:
    """The known limit of a wire without tokens."""
    c = w.connect()
    job_id = await c.push(stall_timeout=1_000)
    await c.pull()
    await w.advance(10_000)
    assert (await w.connect().pull())["attempts"] == 1
    await c.say("ACK", id=job_id)
    assert await c.state(job_id) == "completed"


async def test_acks_in_a_batch_answer_those_that_were_held(w: World) -> None:
    c = w.connect()
    ids = (await c.say("PUSHB", queue="q", jobs=[{} for _ in range(5)]))["ids"]
    await c.say("PULLB", queue="q", count=4)
    await c.say("ACK", id=ids[1])
    answer = await c.say("ACKB", ids=[*reversed(ids), ids[0], 987_654, 0])
    assert answer["ids"] == [ids[3], ids[2], ids[0]]
    assert answer["count"] == 3
    assert await c.state(ids[4]) == "waiting"
    assert (await c.say("ACKB", ids=ids))["count"] == 0
    assert (await c.say("ACKB", ids=[]))["count"] == 0


async def test_jobs_claimed_together_over_the_native_wire_are_acked_one_by_one(w: World) -> None:
    c = w.connect()
    ids = (await c.say("PUSHB", queue="q", jobs=[{} for _ in range(4)]))["ids"]
    lease = await w.store.claim(TENANT, ["q"], 4)
    assert lease is not None
    await c.say("ACK", id=ids[2])
    assert (await c.say("ACKB", ids=ids[:2]))["ids"] == ids[:2]
    assert list((await w.store.ack(TENANT, lease.token)).acked) == [ids[3]]


async def test_a_large_batch_is_pulled_and_acked(w: World) -> None:
    c = w.connect()
    ids = (await c.say("PUSHB", queue="q", jobs=[{"data": 1}] * 1_000))["ids"]
    assert len((await c.say("PULLB", queue="q", count=1_000))["jobs"]) == 1_000
    answer = await c.say("ACKB", ids=ids)
    assert (answer["count"], answer["ids"]) == (1_000, ids)


async def test_a_failed_job_is_retried_and_then_dead(w: World) -> None:
    c = w.connect()
    job_id = await c.push(max_attempts=2, backoff=10)
    await c.pull()
    await c.say("FAIL", id=job_id, error="first")
    assert await c.state(job_id) == "delayed"
    await w.advance(10)
    assert (await c.pull())["attempts"] == 1
    await c.say("FAIL", id=job_id)
    job = (await c.say("GETJOB", id=job_id))["job"]
    assert (job["attempts"], job["error"]) == (2, "Error")
    assert await c.state(job_id) == "failed"


async def test_progress_and_logs_are_kept(w: World) -> None:
    c = w.connect()
    job_id = await c.push()
    nothing = (await c.say("GETPROGRESS", id=job_id))["progress"]
    assert nothing == {"id": job_id, "progress": 0, "message": None}
    await c.pull()
    await c.say("PROGRESS", id=job_id, progress=40, message="half")
    assert (await c.say("GETPROGRESS", id=job_id))["progress"] == {
        "id": job_id,
        "progress": 40,
        "message": "half",
    }
    job = (await c.say("GETJOB", id=job_id))["job"]
    assert (job["progress"], job["progress_msg"]) == (40, "half")
    await c.say("LOG", id=job_id, message="one")
    w.clock.advance(3)
    await c.say("LOG", id=job_id, message="two", level="error")
    now = w.clock.now
    assert (await c.say("GETLOGS", id=job_id))["logs"] == [
        {"timestamp": now - 3, "message": "one", "level": "info"},
        {"timestamp": now, "message": "two", "level": "error"},
    ]
    await c.refused("PROGRESS", "invalid", "progress", id=job_id, progress=101)
    await c.refused("LOG", "invalid", "level", id=job_id, message="m", level="l" * 100)
    await c.say("PARTIAL", id=job_id, data=[1], index=0)


@pytest.mark.parametrize(
    ("command", "more"),
    [
        ("ACK", {}),
        ("FAIL", {}),
        ("HEARTBEAT", {}),
        ("PROGRESS", {"progress": 1}),
        ("LOG", {"message": "m"}),
        ("PARTIAL", {"data": 1}),
    ],
)
async def test_only_a_job_that_is_held_can_be_spoken_for(
    w: World, command: str, more: dict[str, Any]
) -> None:
    c = w.connect()
    job_id = await c.push()
    await c.refused(command, "lease_lost", "id", id=job_id, **more)
    for unknown in (job_id + 1, 0, -1, 2**60):
        await c.refused(command, "not_found", "id", id=unknown, **more)


# -- callers that are gone -------------------------------------------------------------------------


async def test_a_pull_whose_caller_is_gone_takes_nothing(w: World) -> None:
    c = w.connect()
    waiting = asyncio.ensure_future(c.say("PULLB", queue="q", count=5, timeout=1_000))
    await w.settle()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    job_id = await c.push()
    assert (await c.pull())["id"] == job_id


class SlowStore:
    """A real store whose claims, from the second on, wait until they are let go on."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.go_on = asyncio.Event()
        self.claims = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def claim(self, *args: Any, **options: Any) -> Lease | None:
        self.claims += 1
        first = self.claims == 1
        lease = await self.store.claim(*args, **options)
        if not first and lease is not None:
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                await self.store.release(TENANT, lease.token)
                raise
        return lease


async def test_the_claims_of_a_batch_wait_together(w: World) -> None:
    slow = SlowStore(w.store)
    c = Connection(slow, w.encoding, ANYBODY)  # type: ignore[arg-type]
    ids = (await c.say("PUSHB", queue="q", jobs=[{} for _ in range(4)]))["ids"]
    waiting = asyncio.ensure_future(c.say("PULLB", queue="q", count=9))
    await w.settle()
    assert slow.claims == 5  # four jobs, and one claim that found none
    slow.go_on.set()
    assert [job["id"] for job in (await waiting)["jobs"]] == ids


async def test_a_batch_whose_caller_is_gone_is_given_back(w: World) -> None:
    slow = SlowStore(w.store)
    c = Connection(slow, w.encoding, ANYBODY)  # type: ignore[arg-type]
    ids = (await c.say("PUSHB", queue="q", jobs=[{} for _ in range(4)]))["ids"]
    waiting = asyncio.ensure_future(c.say("PULLB", queue="q", count=9))
    await w.settle()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
    jobs = await w.store.get(TENANT, ids)
    assert [(job.state, job.attempt) for job in jobs if job] == [(State.READY, 0)] * 4


async def test_a_large_batch_whose_caller_is_gone_half_way_is_given_back(w: World) -> None:
    slow = SlowStore(w.store)
    c = Connection(slow, w.encoding, ANYBODY)  # type: ignore[arg-type]
    ids = (await c.say("PUSHB", queue="q", jobs=[{} for _ in range(600)]))["ids"]
    waiting = asyncio.ensure_future(c.say("PULLB", queue="q", count=600))
    await asyncio.sleep(0)
    assert 1 < slow.claims < 600
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
    assert {job.state for job in await w.store.get(TENANT, ids) if job} == {State.READY}


async def test_a_request_keeps_to_who_asked_though_the_connection_changes_hands(w: World) -> None:
    c = w.connect()
    waiting = asyncio.ensure_future(c.say("PULL", queue="q", timeout=1_000))
    await w.settle()
    await c.say("AUTH", token="acme")
    job_id = await w.connect().push()
    await c.push()
    assert (await waiting)["job"]["id"] == job_id


async def test_a_store_that_ends_in_the_middle_of_a_batch_refuses(w: World) -> None:
    c = w.connect()
    await c.push()
    await w.store.close()
    with pytest.raises(Unavailable):
        await c.decode({"cmd": "PULLB", "queue": "q", "count": 3}).call(c)
