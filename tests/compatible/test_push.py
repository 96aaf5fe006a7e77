"""PUSH, PUSHB, FLOW, GETCHILDREN: every field has its effect."""

from typing import Any

import pytest

from penstock.model.job import JobOptions
from penstock.model.lifecycle import State
from penstock.model.policy import Backoff, QueueConfig
from tests.compatible.wire import TENANT, Connection, World


async def test_a_plain_push_means_what_the_wire_says(w: World) -> None:
    c = w.connect()
    job = await c.known(await c.push(data={"user": 1, "tags": ["a", None, 1.5]}))
    assert job.options == JobOptions(
        codec=w.encoding,
        max_attempts=3,
        backoff=Backoff(kind="exponential", base_ms=1_000, cap_ms=1_024_000, jitter="none"),
    )
    assert (job.state, job.priority, job.key, job.group) == (State.READY, 0, None, None)
    assert (await c.pull())["data"] == {"user": 1, "tags": ["a", None, 1.5]}


async def test_data_is_kept_as_it_was_written(w: World) -> None:
    c = w.connect()
    job = await c.known(await c.push(data=[1, 2]))
    assert job.payload == (b"[1,2]" if w.encoding == "json" else b"\x92\x01\x02")


async def test_data_that_is_not_given_is_null(w: World) -> None:
    c = w.connect()
    await c.say("PUSH", queue="q")
    await c.say("PUSHB", queue="q", jobs=[{}, {"priority": 0}, {"data": 5}])
    pulled = (await c.say("PULLB", queue="q", count=4))["jobs"]
    assert [job["data"] for job in pulled] == [None, None, None, 5]


@pytest.mark.parametrize(
    ("said", "means"),
    [
        ({"priority": 9}, {"priority": 9}),
        ({"ttl": 5_000}, {"ttl_ms": 5_000}),
        ({"ttl": 0}, {"ttl_ms": None}),
        ({"timeout": 700}, {"timeout_ms": 700}),
        ({"timeout": 0}, {"timeout_ms": None}),
        ({"max_attempts": 0}, {"max_attempts": 0}),
        ({"max_attempts": 8}, {"max_attempts": 8}),
        ({"backoff": 50}, {"backoff": Backoff(base_ms=50, cap_ms=51_200, jitter="none")}),
        ({"backoff": 0}, {"backoff": Backoff(base_ms=0, cap_ms=0, jitter="none")}),
        ({"tags": ["a", "b"]}, {"tags": ("a", "b")}),
        ({"lifo": True}, {"lifo": True}),
        ({"remove_on_complete": True}, {"retain_ms": 0}),
        ({"remove_on_fail": True}, {"retain_dead_ms": 0}),
        ({"stall_timeout": 2_000}, {"lease_ms": 2_000}),
        ({"stall_timeout": 30_000}, {"lease_ms": None}),
        ({"keep_completed_age": 60_000}, {"retain_ms": 60_000}),
        ({"keepCompletedAge": 60_000}, {"retain_ms": 60_000}),
        ({"keep_completed_count": 5}, {"retain_ms": None}),
        ({"keepCompletedCount": 5}, {"retain_ms": None}),
        ({"remove_on_complete": True, "keep_completed_age": 9}, {"retain_ms": 0}),
    ],
)
async def test_an_option_is_said_in_our_words(
    w: World, said: dict[str, Any], means: dict[str, Any]
) -> None:
    c = w.connect()
    single = await c.known(await c.push(**said))
    batch = (await c.say("PUSHB", queue="q", jobs=[{"data": 1}, {"data": 2, **said}]))["ids"]
    for job in (single, await c.known(batch[1])):
        assert {name: getattr(job.options, name) for name in means} == means
    assert (await c.known(batch[0])).options == (await c.known(await c.push())).options


async def test_a_delayed_job_waits(w: World) -> None:
    c = w.connect()
    job_id = await c.push(delay=100)
    assert await c.state(job_id) == "delayed"
    await w.advance(99)
    assert (await c.say("PULL", queue="q"))["job"] is None
    await w.advance(1)
    assert (await c.pull())["id"] == job_id


async def test_a_job_runs_after_those_that_it_depends_on(w: World) -> None:
    c = w.connect()
    first = await c.push()
    second = await c.push("r", depends_on=[first])
    assert await c.state(second) == "waiting-children"
    await c.say("ACK", id=(await c.pull())["id"])
    assert (await c.pull("r"))["depends_on"] == [first]


async def test_jobs_of_a_group_run_one_at_a_time(w: World) -> None:
    c = w.connect()
    first, second = await c.push(group_id="g"), await c.push(group_id="g")
    assert (await c.pull())["group_id"] == "g"
    assert (await c.say("PULL", queue="q"))["job"] is None
    await c.say("ACK", id=first)
    assert (await c.pull())["id"] == second


async def test_lifo_and_priority_order_a_queue(w: World) -> None:
    c = w.connect()
    plain = await c.push()
    last_in = await c.push(lifo=True)
    urgent = await c.push(priority=5)
    pulled = (await c.say("PULLB", queue="q", count=3))["jobs"]
    assert [job["id"] for job in pulled] == [urgent, last_in, plain]
    assert [job["priority"] for job in pulled] == [5, 0, 0]
    assert [job["lifo"] for job in pulled] == [False, True, False]


async def test_a_job_that_is_not_pulled_within_its_ttl_is_gone(w: World) -> None:
    c = w.connect()
    job_id = await c.push(ttl=50)
    await w.advance(50)
    assert await c.state(job_id) is None
    assert (await c.say("PULL", queue="q"))["job"] is None


async def test_an_attempt_that_runs_too_long_fails(w: World) -> None:
    c = w.connect()
    job_id = await c.push(timeout=200, max_attempts=1)
    await c.pull()
    await w.advance(200)
    assert await c.state(job_id) == "failed"


async def test_retries_wait_twice_as_long_each_time_up_to_a_thousand_times(w: World) -> None:
    c = w.connect()
    job_id = await c.push(backoff=10, max_attempts=0)
    waits = []
    for _ in range(13):
        await c.pull()
        await c.say("FAIL", id=job_id, error="no")
        waits.append((await c.known(job_id)).run_at - w.clock.now)
        await w.advance(waits[-1])
    assert waits == [10 * 2**n for n in range(11)] + [10_240, 10_240]


async def test_what_is_to_be_removed_is_forgotten_at_its_end(w: World) -> None:
    c = w.connect()
    done = await c.push(remove_on_complete=True)
    dead = await c.push(remove_on_fail=True, max_attempts=1)
    await c.say("PULLB", queue="q", count=2)
    await c.say("ACK", id=done)
    await c.say("FAIL", id=dead)
    assert [await c.state(done), await c.state(dead)] == [None, None]
    assert (await c.say("DLQ", queue="q"))["jobs"] == []


async def test_an_age_is_kept_to_and_a_count_is_its_queues(w: World) -> None:
    """A job with an age of its own is not counted; one that names a count is, by the queue's."""
    c = w.connect()
    await w.store.configure(TENANT, "q", QueueConfig(retain_count=1))
    aged = await c.push(keep_completed_age=7_200_000)
    counted = [await c.push(keep_completed_count=5) for _ in range(2)]
    await c.say("PULLB", queue="q", count=3)
    await c.say("ACKB", ids=[aged, *counted])
    assert [await c.state(job) for job in (aged, *counted)] == ["completed", None, "completed"]
    await w.advance(3_600_000)
    assert [await c.state(job) for job in (aged, counted[1])] == ["completed", None]
    await w.advance(3_600_000)
    assert await c.state(aged) is None


# -- keys ------------------------------------------------------------------------------------------


async def test_a_unique_key_refuses_a_second_job_until_the_first_has_ended(w: World) -> None:
    c = w.connect()
    first = await c.push(unique_key="k")
    await c.refused("PUSH", "conflict", queue="q", data=2, unique_key="k")
    await c.push("r", unique_key="k")
    await c.say("ACK", id=(await c.pull())["id"])
    assert await c.push(unique_key="k") > first


async def test_a_debounce_answers_the_first_job_for_its_time_alone(w: World) -> None:
    c = w.connect()
    first = await c.push(debounce_id="d")
    await w.advance(4_999)
    assert await c.push(debounce_id="d") == first
    await c.say("ACK", id=(await c.pull())["id"])
    assert await c.push(debounce_id="d") == first
    await w.advance(1)
    second = await c.push(debounce_id="d", debounce_ttl=100)
    assert second > first
    await w.advance(100)
    assert await c.push(debounce_id="d") > second
    assert await c.push(debounce_id="e", debounce_ttl=0) != await c.push(
        debounce_id="e", debounce_ttl=0
    )


@pytest.mark.parametrize("name", ["job_id", "jobId", "customId"])
async def test_a_custom_id_answers_its_job_while_that_is_known(w: World, name: str) -> None:
    c = w.connect()
    first = await c.push(**{name: "mine"})
    assert await c.push(**{name: "mine"}) == first
    job = await c.pull()
    assert job["custom_id"] == "mine"
    await c.say("ACK", id=first)
    assert (await c.say("PUSHB", queue="q", jobs=[{name: "mine"}]))["ids"] == [first]
    found = await c.say("GETJOBBYCUSTOMID", **{name: "mine"})
    assert (found["job"]["id"], found["state"]) == (first, "completed")
    await w.advance(3_600_000)
    assert await c.push(**{name: "mine"}) > first


async def test_one_push_may_carry_several_keys(w: World) -> None:
    c = w.connect()
    keys = {"unique_key": "u", "debounce_id": "d", "job_id": "c"}
    job_id = await c.push(**keys)
    assert await c.push(**keys) == job_id  # said again: answered, not refused
    assert await c.push(debounce_id="d") == await c.push(job_id="c") == job_id
    await c.refused("PUSH", "conflict", queue="q", unique_key="u")
    job = (await c.say("GETJOB", id=job_id))["job"]
    assert (job["unique_key"], job["custom_id"]) == ("u", "c")
    pulled = await c.pull()
    assert (pulled["unique_key"], pulled["custom_id"]) == ("u", "c")


async def test_all_keys_are_checked_before_any_is_taken(w: World) -> None:
    c = w.connect()
    await c.push(unique_key="taken")
    await c.refused(
        "PUSH", "conflict", queue="q", unique_key="taken", job_id="mine", debounce_id="d"
    )
    assert (await c.say("GETJOBBYCUSTOMID", job_id="mine"))["job"] is None
    other = await c.push(job_id="mine")
    assert await c.push(debounce_id="d") != other


async def test_the_three_kinds_of_keys_do_not_meet(w: World) -> None:
    c = w.connect()
    ids = {await c.push(unique_key="x"), await c.push(debounce_id="x"), await c.push(job_id="x")}
    assert len(ids) == 3


# -- batches ---------------------------------------------------------------------------------------


async def test_a_batch_answers_ids_in_its_order(w: World) -> None:
    c = w.connect()
    ids = (await c.say("PUSHB", queue="q", jobs=[{"data": n} for n in range(300)]))["ids"]
    assert ids == list(range(ids[0], ids[0] + 300))
    jobs = (await c.say("PULLB", queue="q", count=300))["jobs"]
    assert [(job["id"], job["data"]) for job in jobs] == list(zip(ids, range(300), strict=True))


async def test_jobs_of_one_batch_may_all_differ(w: World) -> None:
    c = w.connect()
    said: list[dict[str, Any]] = [
        {"data": 0, "priority": 1},
        {"data": 1, "job_id": "a", "tags": ["t"]},
        {"data": 2, "delay": 50},
        {"data": 3, "group_id": "g", "unique_key": "u"},
        {"data": 4, "priority": 1},
        {"data": 5, "job_id": "a"},
    ]
    ids = (await c.say("PUSHB", queue="q", jobs=said))["ids"]
    assert ids[5] == ids[1]
    jobs = (await c.say("GETJOBSBATCH", ids=ids[:5]))["jobs"]
    assert [job["data"] for job in jobs] == [0, 1, 2, 3, 4]
    assert [job["priority"] for job in jobs] == [1, 0, 0, 0, 1]
    assert [job["state"] for job in jobs] == ["waiting", "waiting", "delayed", "waiting", "waiting"]
    assert [job["custom_id"] for job in jobs] == [None, "a", None, None, None]
    assert [job["group_id"] for job in jobs] == [None, None, None, "g", None]
    assert [job["tags"] for job in jobs] == [[], ["t"], [], [], []]


async def test_a_batch_is_pushed_as_a_whole_or_not_at_all(w: World) -> None:
    c = w.connect()
    jobs: list[dict[str, Any]] = [{"data": 1}, {"data": 2, "max_attempts": -1}]
    await c.refused("PUSHB", "invalid", "max_attempts", queue="q", jobs=jobs)
    taken = [{"unique_key": "k"}, {"unique_key": "k"}]
    await c.refused("PUSHB", "conflict", queue="q", jobs=taken)
    assert (await c.say("COUNT", queue="q"))["count"] == 0


async def test_batches_that_are_none(w: World) -> None:
    c = w.connect()
    assert (await c.say("PUSHB", queue="q", jobs=[]))["ids"] == []
    await c.refused("PUSHB", "batch_too_large", "jobs", queue="q", jobs=[{}] * 10_001)
    await c.refused("PUSHB", "invalid", "jobs", queue="q", jobs=[{"priority": "high"}])
    await c.refused("PUSHB", "invalid", "jobs", queue="q", jobs={"data": 1})
    assert (await c.say("COUNT", queue="q"))["count"] == 0


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"queue": "no queue!"}, "queue"),
        ({"delay": -1}, "delay"),
        ({"ttl": 5, "delay": 10}, "ttl"),
        ({"stall_timeout": 1}, "stall_timeout"),
        ({"timeout": -5}, "timeout"),
        ({"backoff": -1}, "backoff"),
        ({"keep_completed_age": -1}, "keep_completed_age"),
        ({"debounce_id": "d", "debounce_ttl": -1}, "debounce_ttl"),
        ({"group_id": "g" * 600}, "group_id"),
        ({"lifo": True, "group_id": "g"}, "lifo"),
        ({"tags": ["t"] * 20}, "tags"),
        ({"depends_on": [2**60]}, "depends_on"),
        ({"priority": 2**40}, "priority"),
    ],
)
async def test_a_wrong_value_is_refused_by_the_name_that_this_wire_has_for_it(
    w: World, said: dict[str, Any], field: str
) -> None:
    c = w.connect()
    await c.refused("PUSH", "invalid", field, **{"queue": "q"} | said)
    assert (await c.say("STATS"))["queued"] == 0


async def test_json_is_looked_at_before_it_is_kept(w: World) -> None:
    if w.encoding == "json":
        c = w.connect()
        request = c.decode({"cmd": "PUSH", "queue": "q", "data": {"a": 1}})
        request.data = type(request.data)(b'{"a":1,"a":2}')  # type: ignore[attr-defined]
        with pytest.raises(Exception, match="twice") as caught:
            await request.call(c)
        assert caught.value.field == "data"  # type: ignore[attr-defined]


# -- flows -----------------------------------------------------------------------------------------


async def push_flow(c: Connection) -> dict[str, Any]:
    children = [
        {"queue": "a", "data": 1},
        {"queue": "b", "data": 2, "priority": 4},
        {"queue": "a", "data": 3, "delay": 50},
    ]
    return await c.say("FLOW", queue="parents", data="p", priority=2, children=children)


async def test_a_parent_runs_when_its_children_have_completed(w: World) -> None:
    c = w.connect()
    flow = await push_flow(c)
    parent, children = flow["parent_id"], flow["children_ids"]
    assert [(await c.known(child)).queue for child in children] == ["a", "b", "a"]
    assert [(await c.known(child)).priority for child in children] == [0, 4, 0]
    assert [await c.state(child) for child in children] == ["waiting", "waiting", "delayed"]
    assert await c.state(parent) == "waiting-children"
    await c.say("ACK", id=(await c.pull("a"))["id"])
    await c.say("ACK", id=(await c.pull("b"))["id"])
    told = await c.say("GETCHILDREN", parent_id=parent)
    assert (told["completed"], told["total"]) == (2, 3)
    assert [child["id"] for child in told["children"]] == children
    assert [child["state"] for child in told["children"]] == ["completed", "completed", "delayed"]
    assert {child["parent_id"] for child in told["children"]} == {parent}
    await w.advance(50)
    await c.say("ACK", id=(await c.pull("a"))["id"])
    job = await c.pull("parents")
    assert (job["id"], job["data"], job["priority"]) == (parent, "p", 2)
    assert job["children_ids"] == job["depends_on"]
    assert sorted(job["children_ids"]) == sorted(children)


async def test_a_parent_fails_with_its_child(w: World) -> None:
    c = w.connect()
    child = {"queue": "a", "data": 1, "max_attempts": 1}
    flow = await c.say("FLOW", queue="parents", data="p", children=[child])
    await c.say("FAIL", id=(await c.pull("a"))["id"], error="broken")
    assert await c.state(flow["parent_id"]) == "failed"


async def test_a_flow_is_pushed_as_a_whole_or_not_at_all(w: World) -> None:
    c = w.connect()
    children = [{"queue": "a", "data": 1}, {"queue": "no queue!", "data": 2}]
    await c.refused("FLOW", "invalid", queue="p", data=1, children=children)
    assert (await c.say("LISTQUEUES"))["queues"] == []


async def test_a_flow_without_children_is_a_job(w: World) -> None:
    c = w.connect()
    flow = await c.say("FLOW", queue="q", data=1)
    assert flow["children_ids"] == []
    assert (await c.pull())["id"] == flow["parent_id"]
    told = await c.say("GETCHILDREN", parent_id=flow["parent_id"])
    assert (told["children"], told["completed"], told["total"]) == ([], 0, 0)
    await c.refused("GETCHILDREN", "not_found", "parent_id", parent_id=12345)
