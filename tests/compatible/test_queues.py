"""Whole queues: pause, limits, drain, obliterate, clean, listings, figures, crons."""

from typing import Any

import pytest

from penstock.model.policy import Limits, QueueConfig, Rate
from penstock.model.schedule import CronSpec, Daily
from tests.compatible.wire import TENANT, Connection, World


async def config(c: Connection, queue: str = "q") -> QueueConfig:
    (info,) = await c.store.queues(TENANT, [queue])
    return info.config


async def test_a_paused_queue_takes_jobs_and_gives_none(w: World) -> None:
    c = w.connect()
    assert (await c.say("ISPAUSED", queue="q"))["paused"] is False
    await c.say("PAUSE", queue="q")
    job_id = await c.push()
    assert (await c.say("PULL", queue="q"))["job"] is None
    assert (await c.say("ISPAUSED", queue="q"))["paused"] is True
    await c.say("RESUME", queue="q")
    assert (await c.pull())["id"] == job_id


async def test_a_rate_limit_is_jobs_a_second(w: World) -> None:
    c = w.connect()
    await c.say("PUSHB", queue="q", jobs=[{} for _ in range(9)])
    await c.say("RATELIMIT", queue="q", limit=3)
    assert len((await c.say("PULLB", queue="q", count=9))["jobs"]) == 3
    await w.advance(1_000)
    assert len((await c.say("PULLB", queue="q", count=9))["jobs"]) == 3
    await c.say("RATELIMITCLEAR", queue="q")
    assert len((await c.say("PULLB", queue="q", count=9))["jobs"]) == 3
    assert (await config(c)) == QueueConfig()


async def test_a_concurrency_limit_holds_across_connections(w: World) -> None:
    c = w.connect()
    ids = (await c.say("PUSHB", queue="q", jobs=[{} for _ in range(4)]))["ids"]
    await c.say("SETCONCURRENCY", queue="q", limit=2)
    assert len((await c.say("PULLB", queue="q", count=9))["jobs"]) == 2
    assert (await w.connect().say("PULL", queue="q"))["job"] is None
    await c.say("ACK", id=ids[0])
    assert (await c.pull())["id"] == ids[2]
    await c.say("CLEARCONCURRENCY", queue="q")
    assert (await c.pull())["id"] == ids[3]


async def test_setting_one_thing_leaves_the_others(w: World) -> None:
    c = w.connect()
    before = QueueConfig(retain_count=5, limits=Limits(group_concurrency=3))
    await w.store.configure(TENANT, "q", before)
    await c.say("PAUSE", queue="q")
    await c.say("RATELIMIT", queue="q", limit=7)
    await c.say("SETCONCURRENCY", queue="q", limit=2)
    limits = Limits(group_concurrency=3, concurrency=2, rate=Rate(tokens=7))
    assert await config(c) == QueueConfig(retain_count=5, paused=True, limits=limits)
    await c.say("RESUME", queue="q")
    await c.say("RATELIMITCLEAR", queue="q")
    await c.say("CLEARCONCURRENCY", queue="q")
    assert await config(c) == before


@pytest.mark.parametrize("command", ["RATELIMIT", "SETCONCURRENCY"])
async def test_limits_that_are_none(w: World, command: str) -> None:
    c = w.connect()
    for limit in (0, -1, 2**40):
        await c.refused(command, "invalid", "limit", queue="q", limit=limit)
    await c.refused(command, "invalid", "queue", queue="no queue!", limit=1)


async def test_a_drain_takes_what_waits(w: World) -> None:
    c = w.connect()
    running = await c.push()
    await c.pull()
    await c.push()
    await c.push(delay=500)
    assert (await c.say("DRAIN", queue="q"))["count"] == 2
    assert (await c.say("COUNT", queue="q"))["count"] == 0
    assert await c.state(running) == "active"


async def test_what_is_obliterated_never_was(w: World) -> None:
    c = w.connect()
    running = await c.push(job_id="mine")
    await c.pull()
    await c.push()
    await c.say("RATELIMIT", queue="q", limit=1)
    await c.say("CRON", name="tick", queue="q", repeat_every=60_000)
    await c.say("CRON", name="tock", queue="r", repeat_every=60_000)
    assert (await c.say("OBLITERATE", queue="q"))["count"] == 2
    assert [queue["name"] for queue in (await c.say("LISTQUEUES"))["queues"]] == ["r"]
    assert [cron["name"] for cron in (await c.say("CRONLIST"))["crons"]] == ["tock"]
    await c.refused("ACK", "not_found", id=running)
    assert await c.push(job_id="mine") != running
    assert await config(c) == QueueConfig()


async def test_old_jobs_of_a_state_are_cleaned_away(w: World) -> None:
    c = w.connect()
    old, new = await c.push(), await c.push()
    await c.say("PULLB", queue="q", count=2)
    await c.say("ACK", id=old)
    await w.advance(100)
    await c.say("ACK", id=new)
    assert (await c.say("CLEAN", queue="q", grace=100, state="completed"))["count"] == 1
    assert [await c.state(old), await c.state(new)] == [None, "completed"]
    waiting = [await c.push() for _ in range(5)]
    assert (await c.say("CLEAN", queue="q", grace=0, state="waiting", limit=2))["count"] == 2
    states = [await c.state(job_id) for job_id in waiting]
    assert states == [None, None, "waiting", "waiting", "waiting"]
    dead = await c.push(priority=1, max_attempts=1)
    await c.pull()
    await c.say("FAIL", id=dead)
    delayed = await c.push(delay=900)
    assert (await c.say("CLEAN", queue="q", grace=0, state="failed"))["count"] == 1
    assert (await c.say("CLEAN", queue="q", grace=0, state="delayed"))["count"] == 1
    assert [await c.state(dead), await c.state(delayed)] == [None, None]
    assert (await c.say("CLEAN", queue="q", grace=0, state="completed"))["count"] == 1
    assert await c.state(new) is None


async def test_cleaning_takes_a_thousand_unless_it_says_otherwise(w: World) -> None:
    c = w.connect()
    await c.say("PUSHB", queue="q", jobs=[{}] * 2_500)
    assert (await c.say("CLEAN", queue="q", grace=0, state="waiting"))["count"] == 1_000
    assert (await c.say("CLEAN", queue="q", grace=0, state="waiting", limit=0))["count"] == 1_500


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"state": "active"}, "state"),
        ({"state": "nothing"}, "state"),
        ({"grace": -1}, "grace"),
        ({"limit": -1}, "limit"),
        ({"queue": "no queue!"}, "queue"),
    ],
)
async def test_cleanings_that_are_none(w: World, said: dict[str, Any], field: str) -> None:
    await w.connect().refused(
        "CLEAN", "invalid", field, **{"queue": "q", "grace": 0, "state": "failed"} | said
    )


async def test_queues_are_listed_with_their_limits(w: World) -> None:
    c = w.connect()
    await c.push("b")
    await c.push("b", delay=50)
    await c.push("b")
    await c.pull("b")
    await c.say("SETCONCURRENCY", queue="b", limit=4)
    await w.store.configure(
        TENANT, "a", QueueConfig(paused=True, limits=Limits(rate=Rate(tokens=10, per_ms=5_000)))
    )
    assert (await c.say("LISTQUEUES"))["queues"] == [
        {
            "name": "a",
            "pending": 0,
            "processing": 0,
            "dlq": 0,
            "paused": True,
            "rate_limit": 2,
            "concurrency_limit": None,
        },
        {
            "name": "b",
            "pending": 2,
            "processing": 1,
            "dlq": 0,
            "paused": False,
            "rate_limit": None,
            "concurrency_limit": 4,
        },
    ]


async def test_jobs_of_all_queues_are_counted(w: World) -> None:
    c = w.connect()
    done = await c.push("a")
    dead = await c.push("b", max_attempts=1)
    await c.pull("a")
    await c.pull("b")
    await c.say("ACK", id=done)
    await c.say("FAIL", id=dead)
    waiting = await c.push("a")
    await c.push("b", depends_on=[waiting])
    await c.push("b", delay=10)
    await c.push("c")
    await c.pull("c")
    stats = await c.say("STATS")
    names = ("queued", "processing", "delayed", "dlq", "completed")
    assert [stats[name] for name in names] == [2, 1, 1, 1, 1]


async def test_what_the_server_has_counted_is_told(w: World) -> None:
    c = w.connect()
    await c.push()
    metrics = (await c.say("METRICS"))["metrics"]
    queues = metrics.pop("queues")
    assert metrics == {
        "total_pushed": 7,
        "total_completed": 5,
        "total_failed": 2,
        "total_timed_out": 1,
        "jobs_per_second": 2.5,
        "avg_latency_ms": 0.0,
    }
    assert [(queue["name"], queue["pending"]) for queue in queues] == [("q", 1)]


# -- crons -----------------------------------------------------------------------------------------


async def test_a_cron_pushes_its_job_again_and_again(w: World) -> None:
    c = w.connect()
    await c.say("CRON", name="beat", queue="q", data={"n": 1}, repeat_every=1_000, priority=4)
    (cron,) = (await c.say("CRONLIST"))["crons"]
    next_run = (w.clock.now // 1_000 + 1) * 1_000
    assert cron == {
        "name": "beat",
        "queue": "q",
        "data": {"n": 1},
        "schedule": None,
        "repeat_every": 1_000,
        "priority": 4,
        "next_run": next_run,
        "executions": 0,
        "limit": None,
    }
    for _ in range(2):
        await w.advance((w.clock.now // 1_000 + 1) * 1_000 - w.clock.now)
        job = await c.pull()
        assert (job["data"], job["priority"], job["max_attempts"]) == ({"n": 1}, 4, 3)
    (cron,) = (await c.say("CRONLIST"))["crons"]
    assert (cron["executions"], cron["next_run"]) == (2, next_run + 2_000)


async def test_a_cron_may_follow_an_expression(w: World) -> None:
    c = w.connect()
    await c.say("CRON", name="nightly", queue="q", data=None, schedule="0 2 * * *", limit=3)
    await c.say("CRON", name="seconds", queue="q", data=None, schedule="*/10 * * * * *")
    nightly, seconds = (await c.say("CRONLIST"))["crons"]
    assert (nightly["schedule"], nightly["repeat_every"], nightly["limit"]) == (
        "0 2 * * *",
        None,
        3,
    )
    assert nightly["next_run"] % 86_400_000 == 7_200_000
    assert seconds["next_run"] % 10_000 == 0


async def test_a_cron_is_replaced_and_deleted_by_its_name(w: World) -> None:
    c = w.connect()
    await c.say("CRON", name="n", queue="q", data=1, repeat_every=1_000)
    await c.say("CRON", name="n", queue="r", data=2, repeat_every=5_000)
    (cron,) = (await c.say("CRONLIST"))["crons"]
    assert (cron["queue"], cron["data"], cron["repeat_every"]) == ("r", 2, 5_000)
    await c.say("CRONDELETE", name="n")
    assert (await c.say("CRONLIST"))["crons"] == []
    assert (await c.say("STATS"))["delayed"] == 0
    await c.refused("CRONDELETE", "not_found", "name", name="n")


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({}, "schedule"),
        ({"schedule": "0 2 * * *", "repeat_every": 5}, "schedule"),
        ({"schedule": "every day"}, "schedule"),
        ({"repeat_every": 0}, "repeat_every"),
        ({"repeat_every": 1_000, "limit": 0}, "limit"),
        ({"repeat_every": 1_000, "name": ""}, "name"),
        ({"repeat_every": 1_000, "priority": 2**35}, "priority"),
    ],
)
async def test_crons_that_are_none(w: World, said: dict[str, Any], field: str) -> None:
    c = w.connect()
    await c.refused("CRON", "invalid", field, **{"name": "n", "queue": "q"} | said)
    assert (await c.say("CRONLIST"))["crons"] == []


async def test_a_cron_that_this_wire_cannot_say_is_shown_all_the_same(w: World) -> None:
    c = w.connect()
    daily = CronSpec(name="d", queue="q", schedule=Daily(at=("02:00", "14:00")), payload=b"[1]")
    await w.store.put_cron(TENANT, daily)
    (cron,) = (await c.say("CRONLIST"))["crons"]
    assert (cron["schedule"], cron["repeat_every"]) == ("daily 02:00, 14:00", None)
    assert cron["data"] == [1]
