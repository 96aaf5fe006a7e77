"""SUBSCRIBE and UNSUBSCRIBE: lines about what happens to jobs."""

from typing import Any

import pytest

from penstock.model.job import Run
from penstock.protocol import compatible_events
from penstock.stores.embedded import EmbeddedStore
from tests.compatible.wire import TENANT, Connection, World, words


def told(c: Connection) -> list[tuple[str, int]]:
    return [(line["event_type"], line["job_id"]) for line in c.lines]


async def test_a_job_is_followed_from_its_push_to_its_end(w: World) -> None:
    c, worker = w.connect(), w.connect()
    await c.say("SUBSCRIBE", queue="q")
    job_id = await worker.push(backoff=10)
    await worker.pull()
    await worker.say("PROGRESS", id=job_id, progress=30, message="so far")
    await worker.say("LOG", id=job_id, message="hello")
    await worker.say("PARTIAL", id=job_id, data={"part": [1]}, index=4)
    await worker.say("FAIL", id=job_id, error="broken")
    await w.advance(10)
    await worker.pull()
    await worker.say("ACK", id=job_id)
    await w.settle()
    names = words("pushed active progress log partial retrying active completed")
    assert told(c) == [(name, job_id) for name in names]
    assert {line["queue"] for line in c.lines} == {"q"}
    assert not any("ok" in line for line in c.lines)
    progress, log, partial, retrying = c.lines[2:6]
    assert (progress["progress"], progress["message"]) == (30, "so far")
    assert log["message"] == "hello"
    assert (partial["data"], partial["index"]) == ({"part": [1]}, 4)
    assert retrying["error"] == "broken"
    assert c.lines[-1] == {
        "event_type": "completed",
        "queue": "q",
        "job_id": job_id,
        "timestamp": w.clock.now,
    }


async def test_only_what_was_asked_for_is_told(w: World) -> None:
    c, worker = w.connect(), w.connect()
    await c.say("SUBSCRIBE", queue="q", events=["completed", "failed"])
    done, dead = await worker.push(), await worker.push(max_attempts=1)
    await worker.push("other")
    await worker.say("PULLB", queue="q", count=2)
    await worker.say("ACK", id=done)
    await worker.say("FAIL", id=dead, error="broken")
    await w.settle()
    assert told(c) == [("completed", done), ("failed", dead)]
    assert c.lines[1]["error"] == "broken"


async def test_each_job_of_a_batch_has_a_line(w: World) -> None:
    c = w.connect()
    await c.say("SUBSCRIBE", queue="q", events=["pushed"])
    ids = (await c.say("PUSHB", queue="q", jobs=[{}] * 600))["ids"]
    await w.settle()
    assert told(c) == [("pushed", job_id) for job_id in ids]


async def test_cancelled_expired_and_discarded_jobs_are_told_of(w: World) -> None:
    c, worker = w.connect(), w.connect()
    await c.say("SUBSCRIBE", queue="q", events=["cancelled", "expired", "failed"])
    cancelled, expired, discarded = (
        await worker.push(),
        await worker.push(ttl=5),
        await worker.push(),
    )
    await worker.say("CANCEL", id=cancelled)
    await worker.say("DISCARD", id=discarded)
    await w.advance(5)
    assert told(c) == [("cancelled", cancelled), ("failed", discarded), ("expired", expired)]
    assert c.lines[1]["error"] == "discarded"


async def test_a_bulk_is_told_of_when_it_is_committed(w: World) -> None:
    c = w.connect()
    await c.say("SUBSCRIBE", queue="q", events=["pushed"])
    bulk = await w.store.open_bulk(TENANT)
    pushed = await w.store.push(TENANT, [Run.pack("q", [b"1"])], bulk=bulk.bulk)
    await w.settle()
    assert c.lines == []
    await w.store.commit_bulk(TENANT, bulk.bulk)
    await w.settle()
    assert told(c) == [("pushed", pushed.ids[0])]


async def test_a_second_subscription_replaces_the_first(w: World) -> None:
    c = w.connect()
    await c.say("SUBSCRIBE", queue="q")
    await c.say("SUBSCRIBE", queue="q", events=["active"])
    await c.say("SUBSCRIBE", queue="r", events=["pushed"])
    one, two = await c.push(), await c.push("r")
    await c.pull()
    await w.settle()
    assert sorted(told(c)) == [("active", one), ("pushed", two)]


async def test_nothing_is_told_to_who_has_unsubscribed(w: World) -> None:
    c = w.connect()
    await c.say("SUBSCRIBE", queue="q")
    await c.push()
    await w.settle()
    assert (await c.say("UNSUBSCRIBE", queue="q"))["was_subscribed"] is True
    assert (await c.say("UNSUBSCRIBE", queue="q"))["was_subscribed"] is False
    await c.push()
    await w.settle()
    assert len(c.lines) == 1


async def test_a_subscription_that_ends_before_it_began_leaves_nothing_behind(w: World) -> None:
    c = w.connect()
    await c.say("SUBSCRIBE", queue="q")
    await c.say("UNSUBSCRIBE", queue="q")
    await w.settle()
    assert isinstance(w.store, EmbeddedStore)
    assert not w.store.engine.telling.watchers


async def test_what_happens_right_after_the_answer_is_told(w: World) -> None:
    c = w.connect()
    await c.say("SUBSCRIBE", queue="q", events=["pushed"])
    pushed = await w.store.push(TENANT, [Run.pack("q", [b"1"])])  # without a turn in between
    await w.settle()
    assert told(c) == [("pushed", pushed.ids[0])]


async def test_a_partial_that_is_no_json_is_told_as_text(w: World) -> None:
    c = w.connect()
    job_id = await c.push()
    lease = await w.store.claim(TENANT, ["q"])
    assert lease is not None
    await c.say("SUBSCRIBE", queue="q", events=["partial"])
    for partial in (b"half a senten", b"[1]"):
        await w.store.report(TENANT, lease.token, job_id, partial=partial)
    await w.settle()
    assert [line["data"] for line in c.lines] == ["half a senten", "[1]"]


async def test_who_falls_too_far_behind_is_told_so_and_no_more(w: World) -> None:
    c = w.connect()
    await c.say("SUBSCRIBE", queue="q", events=["pushed"])
    for _ in range(10_001):  # nobody else has a turn meanwhile
        await w.store.push(TENANT, [Run.pack("q", [b"1"])])
    await w.settle()
    (end,) = c.lines
    assert (end["event_type"], end["queue"], end["code"]) == ("unsubscribed", "q", "overloaded")


@pytest.mark.parametrize(
    ("said", "field"), [({"events": ["born"]}, "events"), ({"queue": "no queue!"}, "queue")]
)
async def test_subscriptions_that_are_none(w: World, said: dict[str, Any], field: str) -> None:
    c = w.connect()
    await c.refused("SUBSCRIBE", "invalid", field, **{"queue": "q"} | said)
    assert c.tasks == {}


def test_every_kind_of_event_has_one_name() -> None:
    kinds = [kind for kinds in compatible_events.EVENTS.values() for kind in kinds]
    assert len(kinds) == len(set(kinds))
