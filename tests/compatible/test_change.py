"""CANCEL, DISCARD, UPDATEJOB, CHANGEPRIORITY, PROMOTE, MOVETODELAYED, and the dead letters."""

from typing import Any

import pytest

from penstock.model.lifecycle import DeadReason
from tests.compatible.wire import Connection, World


async def test_a_cancelled_job_is_gone_whether_it_waited_or_ran(w: World) -> None:
    c = w.connect()
    running, waiting = await c.push(), await c.push()
    await c.pull()
    await c.say("CANCEL", id=waiting)
    await c.say("CANCEL", id=running)
    assert [await c.state(running), await c.state(waiting)] == [None, None]
    await c.refused("ACK", "lease_lost", id=running)
    await c.refused("CANCEL", "conflict", "id", id=waiting)


async def test_a_discarded_job_lies_among_the_dead_letters(w: World) -> None:
    c = w.connect()
    job_id = await c.push()
    await c.say("DISCARD", id=job_id)
    assert await c.state(job_id) == "failed"
    (dead,) = (await c.say("DLQ", queue="q"))["jobs"]
    assert (dead["id"], dead["error"]) == (job_id, "discarded")
    assert (await c.known(job_id)).dead_reason == DeadReason.DISCARDED
    await c.refused("DISCARD", "conflict", "id", id=job_id)


@pytest.mark.parametrize("command", ["UPDATEJOB", "UPDATE"])
async def test_a_job_is_given_other_data(w: World, command: str) -> None:
    c = w.connect()
    job_id = await c.push(data=1)
    other = w.connect(encoding="msgpack" if w.encoding == "json" else "json")
    await other.say(command, id=job_id, data={"new": True})
    assert (await c.known(job_id)).options.codec == other.encoding
    assert (await c.pull())["data"] == {"new": True}
    await c.refused(command, "conflict", id=job_id, data=2)


async def test_a_job_is_given_another_priority(w: World) -> None:
    c = w.connect()
    first, second = await c.push(), await c.push()
    await c.say("CHANGEPRIORITY", id=second, priority=3)
    job = await c.pull()
    assert (job["id"], job["priority"]) == (second, 3)
    assert (await c.pull())["id"] == first
    await c.refused("CHANGEPRIORITY", "conflict", id=first, priority=1)
    await c.refused("CHANGEPRIORITY", "invalid", "priority", id=await c.push(), priority=2**33)


async def test_a_delayed_job_is_promoted(w: World) -> None:
    c = w.connect()
    job_id = await c.push(delay=60_000)
    await c.say("PROMOTE", id=job_id)
    assert (await c.pull())["id"] == job_id


async def test_a_waiting_job_is_put_off(w: World) -> None:
    c = w.connect()
    job_id = await c.push()
    await c.say("MOVETODELAYED", id=job_id, delay=500)
    assert await c.state(job_id) == "delayed"
    await w.advance(500)
    assert (await c.pull())["attempts"] == 0
    await c.refused("MOVETODELAYED", "invalid", "delay", id=await c.push(), delay=-1)


async def test_a_running_job_is_put_off_for_exactly_that_long(w: World) -> None:
    c = w.connect()
    job_id = await c.push(max_attempts=2)
    await c.pull()
    await c.say("MOVETODELAYED", id=job_id, delay=500)
    job = (await c.say("GETJOB", id=job_id))["job"]
    assert (job["run_at"], await c.state(job_id)) == (w.clock.now + 500, "delayed")
    await w.advance(500)
    assert (await c.pull())["attempts"] == 1
    await c.refused("MOVETODELAYED", "conflict", "id", id=job_id, delay=500)
    assert await c.state(job_id) == "active"


@pytest.mark.parametrize(
    ("command", "more"),
    [
        ("CANCEL", {}),
        ("DISCARD", {}),
        ("UPDATEJOB", {"data": 1}),
        ("CHANGEPRIORITY", {"priority": 1}),
        ("PROMOTE", {}),
        ("MOVETODELAYED", {"delay": 1}),
    ],
)
async def test_a_job_that_is_not_there_cannot_be_changed(
    w: World, command: str, more: dict[str, Any]
) -> None:
    c = w.connect()
    for job_id in (1, 0, 2**60):
        await c.refused(command, "not_found", "id", id=job_id, **more)


# -- dead letters ----------------------------------------------------------------------------------


async def die(c: Connection, queue: str = "q", **said: Any) -> int:
    job_id = await c.push(queue, max_attempts=1, **said)
    assert (await c.pull(queue))["id"] == job_id
    await c.say("FAIL", id=job_id, error="broken")
    return job_id


async def test_dead_letters_are_listed_with_what_broke_them(w: World) -> None:
    c = w.connect()
    ids = [await die(c) for _ in range(3)]
    await die(c, "other")
    jobs = (await c.say("DLQ", queue="q"))["jobs"]
    assert [job["id"] for job in jobs] == ids
    assert {job["error"] for job in jobs} == {"broken"}
    assert {job["state"] for job in jobs} == {"failed"}
    assert len((await c.say("DLQ", queue="q", count=2))["jobs"]) == 2
    await c.refused("DLQ", "invalid", "count", queue="q", count=0)
    await c.refused("DLQ", "invalid", "count", queue="q", count=1_001)


async def test_dead_letters_run_again(w: World) -> None:
    c = w.connect()
    ids = [await die(c) for _ in range(3)]
    assert (await c.say("RETRYDLQ", queue="q", id=ids[1]))["count"] == 1
    job = await c.pull()
    assert (job["id"], job["attempts"]) == (ids[1], 0)
    assert (await c.say("RETRYDLQ", queue="q"))["count"] == 2
    assert (await c.say("RETRYDLQ", queue="q"))["count"] == 0
    await c.refused("RETRYDLQ", "not_found", "id", queue="q", id=ids[0])
    await c.refused("RETRYDLQ", "not_found", "id", queue="q", id=12345)


async def test_a_dead_letter_is_one_of_its_own_queue_alone(w: World) -> None:
    c = w.connect()
    job_id = await die(c)
    await c.refused("RETRYDLQ", "not_found", "id", queue="other", id=job_id)
    assert (await c.say("PURGEDLQ", queue="other"))["count"] == 0
    assert await c.state(job_id) == "failed"


async def test_a_dead_letter_whose_key_is_taken_stays(w: World) -> None:
    c = w.connect()
    job_id = await die(c, unique_key="k")
    await c.push(unique_key="k")
    await c.refused("RETRYDLQ", "conflict", "id", queue="q", id=job_id)
    assert (await c.say("RETRYDLQ", queue="q"))["count"] == 0
    assert await c.state(job_id) == "failed"


async def test_dead_letters_are_purged(w: World) -> None:
    c = w.connect()
    ids = [await die(c) for _ in range(2)]
    assert (await c.say("PURGEDLQ", queue="q"))["count"] == 2
    assert [await c.state(job_id) for job_id in ids] == [None, None]
