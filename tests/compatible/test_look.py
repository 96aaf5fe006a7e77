"""The commands that look at jobs."""

import asyncio
from typing import Any

import pytest

from penstock.model.job import JobSpec
from penstock.protocol.compatible import COMPATIBLE
from tests.compatible.wire import TENANT, Connection, World


async def in_every_state(c: Connection) -> dict[str, int]:
    """One job of `q` in each state that this wire knows."""
    found = {
        "completed": await c.push(),
        "failed": await c.push(max_attempts=1),
        "active": await c.push(),
    }
    await c.say("PULLB", queue="q", count=3)
    await c.say("ACK", id=found["completed"], result={"ok": 1})
    await c.say("FAIL", id=found["failed"], error="broken")
    found["waiting"] = await c.push()
    found["delayed"] = await c.push(delay=1_000)
    found["waiting-children"] = await c.push(depends_on=[found["waiting"]])
    return found


async def test_a_job_is_shown_with_its_state(w: World) -> None:
    c = w.connect()
    found = await in_every_state(c)
    for state, job_id in found.items():
        answer = await c.say("GETJOB", id=job_id)
        assert (answer["job"]["id"], answer["state"]) == (job_id, state)
        assert await c.state(job_id) == state
        assert ("result" in answer["job"]) is (state == "completed")
        assert ("error" in answer["job"]) is (state == "failed")
    done = (await c.say("GETJOB", id=found["completed"]))["job"]
    assert (done["result"], done["completed_at"]) == ({"ok": 1}, w.clock.now)
    assert (await c.say("GETJOB", id=found["failed"]))["job"]["error"] == "broken"


async def test_what_is_not_there_is_null(w: World) -> None:
    c = w.connect()
    cancelled = await c.push()
    await c.say("CANCEL", id=cancelled)
    for job_id in (cancelled, 4_000, 0, -5, 2**60):
        answer = await c.say("GETJOB", id=job_id)
        assert (answer["job"], answer["state"]) == (None, None)
        assert await c.state(job_id) is None
    assert (await c.say("GETRESULT", id=4_000))["result"] is None
    assert (await c.say("GETJOBBYCUSTOMID", job_id="none"))["job"] is None
    await c.refused("GETPROGRESS", "not_found", "id", id=4_000)
    await c.refused("GETLOGS", "not_found", "id", id=4_000)


async def test_a_job_that_is_held_in_a_bulk_is_not_there_yet(w: World) -> None:
    c = w.connect()
    from penstock.model.job import Run

    bulk = await w.store.open_bulk(TENANT)
    pushed = await w.store.push(TENANT, [Run.pack("q", [b"1"])], bulk=bulk.bulk)
    assert await c.state(pushed.ids[0]) is None
    assert (await c.say("GETJOBS", queue="q"))["jobs"] == []


async def test_a_result_is_there_when_its_job_has_completed(w: World) -> None:
    c = w.connect()
    found = await in_every_state(c)
    assert (await c.say("GETRESULT", id=found["completed"]))["result"] == {"ok": 1}
    failed = await c.say("GETRESULT", id=found["failed"])
    assert (failed["result"], failed["error"]) == (None, "broken")
    running = await c.say("GETRESULT", id=found["active"])
    assert running["result"] is None
    assert "error" not in running


async def test_jobs_are_found_by_their_custom_id_in_any_queue(w: World) -> None:
    c = w.connect()
    first = await c.push("a", job_id="x")
    second = await c.push("b", job_id="x")
    assert (await c.say("GETJOBBYCUSTOMID", job_id="x"))["job"]["id"] == second
    assert (await c.say("GETJOBBYCUSTOMID", job_id="x", queue="a"))["job"]["id"] == first
    await c.refused("GETJOBBYCUSTOMID", "invalid", "job_id")


async def test_jobs_are_listed_by_their_ids(w: World) -> None:
    c = w.connect()
    found = await in_every_state(c)
    ids = [found["failed"], 9_999, found["waiting"]]
    jobs = (await c.say("GETJOBSBATCH", ids=ids))["jobs"]
    listed = [(job["id"], job["state"]) for job in jobs]
    assert listed == [(found["failed"], "failed"), (found["waiting"], "waiting")]
    assert (await c.say("GETJOBSBATCH", ids=[]))["jobs"] == []


async def test_jobs_are_listed_by_queue_and_state(w: World) -> None:
    c = w.connect()
    found = await in_every_state(c)
    for state, job_id in found.items():
        answer = await c.say("GETJOBS", queue="q", state=state)
        assert [(job["id"], job["state"]) for job in answer["jobs"]] == [(job_id, state)]
        assert answer["total"] == 1
    everything = await c.say("GETJOBS", queue="q")
    assert [job["id"] for job in everything["jobs"]] == sorted(found.values())
    assert everything["total"] == 6
    await c.refused("GETJOBS", "invalid", "state", queue="q", state="asleep")


async def test_a_listing_goes_page_by_page(w: World) -> None:
    c = w.connect()
    ids = (await c.say("PUSHB", queue="q", jobs=[{} for _ in range(25)]))["ids"]
    await c.say("CANCEL", id=ids[3])
    left = [job_id for job_id in ids if job_id != ids[3]]
    for state in (None, "waiting"):
        pages = [
            await c.say("GETJOBS", queue="q", state=state, limit=10, offset=offset)
            for offset in (0, 10, 20, 30)
        ]
        assert [job["id"] for page in pages for job in page["jobs"]] == left
        assert {page["total"] for page in pages} == {24}
    await c.refused("GETJOBS", "invalid", "limit", queue="q", limit=0)
    await c.refused("GETJOBS", "invalid", "limit", queue="q", limit=1_001)
    await c.refused("GETJOBS", "invalid", "offset", queue="q", offset=-1)
    await c.refused("GETJOBS", "invalid", "offset", queue="q", offset=10_001)


async def test_a_listing_goes_through_all_queues_if_none_is_named(w: World) -> None:
    c = w.connect()
    ids = [await c.push(queue) for queue in ("b", "a", "c", "a")]
    answer = await c.say("GETJOBS")
    assert [job["id"] for job in answer["jobs"]] == [ids[1], ids[3], ids[0], ids[2]]
    rest = await c.say("GETJOBS", state="waiting", offset=2, limit=1)
    assert [job["id"] for job in rest["jobs"]] == [ids[0]]
    assert rest["total"] == 4


async def test_jobs_are_counted_by_state(w: World) -> None:
    c = w.connect()
    await in_every_state(c)
    counts = await c.say("GETJOBCOUNTS", queue="q")
    names = ("waiting", "active", "delayed", "completed", "failed")
    assert [counts[name] for name in names] == [1, 1, 1, 1, 1]
    assert (await c.say("COUNT", queue="q"))["count"] == 3
    assert (await c.say("COUNT", queue="never"))["count"] == 0


async def test_waiting_for_a_job_gives_its_result_or_its_error(w: World) -> None:
    c, worker = w.connect(), w.connect()
    done, failed, cancelled = [await c.push(max_attempts=1) for _ in range(3)]
    await worker.say("PULLB", queue="q", count=3)
    waits = [
        asyncio.ensure_future(c.say("WAITJOB", id=job_id)) for job_id in (done, failed, cancelled)
    ]
    await w.settle()
    await worker.say("ACK", id=done, result=[1, 2])
    await worker.say("FAIL", id=failed, error="broken")
    await worker.say("CANCEL", id=cancelled)
    answers = await asyncio.gather(*waits)
    assert answers[0]["result"] == [1, 2]
    assert "error" not in answers[0]
    assert [answer.get("error") for answer in answers[1:]] == ["broken", "cancelled"]
    assert "result" not in answers[1]
    assert (await c.say("WAITJOB", id=done, timeout=0))["result"] == [1, 2]


async def test_waiting_ends_when_its_time_is_over(w: World) -> None:
    c = w.connect()
    job_id = await c.push()
    for timeout, ms in ((50, 50), (None, 30_000)):
        waiting = asyncio.ensure_future(c.ask("WAITJOB", id=job_id, timeout=timeout))
        await w.settle()
        await w.advance(ms - 1)
        assert not waiting.done()
        await w.advance(1)
        assert (await waiting)["code"] == "deadline"
    await c.refused("WAITJOB", "not_found", "id", id=4_000)
    await c.refused("WAITJOB", "invalid", "timeout", id=job_id, timeout=-1)


async def test_a_result_that_is_forgotten_at_once_still_reaches_who_waits(w: World) -> None:
    c, worker = w.connect(), w.connect()
    job_id = await c.push(remove_on_complete=True)
    await worker.pull()
    waiting = asyncio.ensure_future(c.say("WAITJOB", id=job_id))
    await w.settle()
    await worker.say("ACK", id=job_id, result=7)
    assert (await waiting)["result"] == 7


async def test_jobs_pushed_over_the_native_wire_are_shown_too(w: World) -> None:
    c = w.connect()
    spec = JobSpec(payload=b"\xff\x00", codec="bytes", key="k", lease_ms=5_000)
    pushed = await w.store.push_jobs(TENANT, "q", [spec])
    job = (await c.say("GETJOB", id=pushed.ids[0]))["job"]
    assert job["data"] == ("/wA=" if w.encoding == "json" else b"\xff\x00")
    assert (job["unique_key"], job["custom_id"]) == (None, None)
    assert (job["stall_timeout"], job["backoff"]) == (5_000, 1_000)


@pytest.mark.parametrize("command", [c.__struct_config__.tag for c in COMPATIBLE])
async def test_looking_changes_nothing(w: World, command: str) -> None:
    """Every command that begins with GET, and those that list."""
    looks = ("DLQ", "COUNT", "ISPAUSED", "LISTQUEUES", "CRONLIST", "METRICS", "STATS")
    if not command.startswith("GET") and command not in looks:
        return
    c = w.connect()
    found = await in_every_state(c)
    said: dict[str, Any] = {
        "queue": "q",
        "id": found["active"],
        "ids": list(found.values()),
        "parent_id": found["waiting-children"],
        "job_id": "x",
    }
    before = await w.store.queues(TENANT)
    jobs = await w.store.get(TENANT, list(found.values()))
    await c.say(command, **said)
    assert await w.store.queues(TENANT) == before
    assert await w.store.get(TENANT, list(found.values())) == jobs
