"""Who may: grants, queues out of sight, other tenants."""

from typing import Any

import pytest

from penstock.protocol.access import Principal
from penstock.protocol.compatible import COMPATIBLE
from tests.compatible.wire import TENANT, World, may, words

COMMANDS: list[str] = [str(command.__struct_config__.tag) for command in COMPATIBLE]

# What each command says; `id` stands for a job of `q` that is being worked on.
SAID: dict[str, dict[str, Any]] = {
    "AUTH": {"token": "nothing"},
    "PUSH": {"queue": "q"},
    "PUSHB": {"queue": "q", "jobs": [{}]},
    "PULL": {"queue": "q"},
    "PULLB": {"queue": "q", "count": 2},
    "ACKB": {"ids": ["id"]},
    "PROGRESS": {"id": "id", "progress": 1},
    "LOG": {"id": "id", "message": "m"},
    "PARTIAL": {"id": "id", "data": 1},
    "GETJOBBYCUSTOMID": {"job_id": "mine"},
    "GETJOBSBATCH": {"ids": ["id"]},
    "CHANGEPRIORITY": {"id": "id", "priority": 1},
    "MOVETODELAYED": {"id": "id", "delay": 1},
    "FLOW": {"queue": "q", "children": [{"queue": "q"}]},
    "GETCHILDREN": {"parent_id": "id"},
    "CLEAN": {"queue": "q", "grace": 0, "state": "waiting"},
    "RATELIMIT": {"queue": "q", "limit": 1},
    "SETCONCURRENCY": {"queue": "q", "limit": 1},
    "CRON": {"name": "cron", "queue": "q", "repeat_every": 1_000},
    "CRONDELETE": {"name": "cron"},
}
BY_ID = words("""
ACK FAIL HEARTBEAT GETJOB GETSTATE GETRESULT WAITJOB CANCEL GETPROGRESS UPDATEJOB UPDATE PROMOTE
DISCARD GETLOGS
""")
WITHOUT = words("LISTQUEUES CRONLIST METRICS STATS")


def said(command: str, job_id: int) -> dict[str, Any]:
    fields: dict[str, Any] = {"queue": "q"}
    if command in BY_ID:
        fields = {"id": "id"}
    elif command in WITHOUT:
        fields = {}
    stands_for = {"id": job_id, ("id",): [job_id]}
    return {
        name: stands_for.get(tuple(value) if name == "ids" else value, value)
        if name in ("id", "ids", "parent_id")
        else value
        for name, value in SAID.get(command, fields).items()
    }


async def settle_in(w: World) -> int:
    """A world in which somebody has work: a job that runs, one that waits, a cron."""
    c = w.connect()
    job_id = await c.push(job_id="mine")
    await c.pull()
    await c.push()
    await c.say("CRON", name="cron", queue="q", repeat_every=60_000)
    return job_id


async def everything(w: World) -> Any:
    queues = await w.store.queues(TENANT)
    jobs = [await w.store.find(TENANT, info.queue) for info in queues]
    return queues, jobs, await w.store.crons(TENANT)


@pytest.mark.parametrize("command", COMMANDS)
async def test_somebody_without_grants_is_refused_everything_but_to_say_who_they_are(
    w: World, command: str
) -> None:
    job_id = await settle_in(w)
    before = await everything(w)
    c = w.connect(Principal("nobody", TENANT, ()))
    if command == "AUTH":
        await c.say("AUTH", token="everything")
        await c.push()
        return
    await c.refused(command, "forbidden", **said(command, job_id))
    assert await everything(w) == before


@pytest.mark.parametrize("command", COMMANDS)
async def test_somebody_of_another_tenant_sees_and_touches_nothing(w: World, command: str) -> None:
    job_id = await settle_in(w)
    before = await everything(w)
    c = w.connect(Principal("stranger", "acme"))
    answer = await c.ask(command, **said(command, job_id))
    if command not in ("PUSH", "PUSHB", "FLOW"):
        for told in ("job", "state", "result"):
            assert answer.get(told) is None
        for told in ("jobs", "queues", "crons", "ids", "children"):
            assert not answer.get(told)
        for told in ("count", "queued", "processing", "delayed", "total"):
            assert not answer.get(told)
    if command in BY_ID and not command.startswith("GET"):
        assert answer["code"] == "not_found"
    assert await everything(w) == before


@pytest.mark.parametrize("command", COMMANDS)
async def test_a_queue_out_of_sight_does_not_exist_or_is_forbidden(w: World, command: str) -> None:
    if command == "AUTH":
        return
    job_id = await settle_in(w)
    before = await everything(w)
    c = w.connect(may("push:other-*", "claim:other-*", "admin:other-*"))
    fields = said(command, job_id)
    answer = await c.ask(command, **fields)
    if "queue" in fields or command == "METRICS":  # which are counted over every queue
        assert answer["code"] == "forbidden"
    elif not answer["ok"]:
        assert answer["code"] == "not_found"
        field = "parent_id" if command == "GETCHILDREN" else "name" if "name" in fields else "id"
        unknown = await c.ask(command, **fields | {field: "none" if field == "name" else 999_999})
        assert answer["error"].replace(str(job_id), "N").replace("cron'", "N'") == unknown[
            "error"
        ].replace("999999", "N").replace("none'", "N'")
    else:
        for told in ("job", "state", "result"):
            assert answer.get(told) is None
        for told in ("jobs", "queues", "crons", "ids"):
            assert not answer.get(told)
        assert not answer.get("queued")
    assert await everything(w) == before


PRODUCERS = words("PUSH PUSHB FLOW")
WORKERS = words("PULL PULLB ACK ACKB FAIL HEARTBEAT PROGRESS LOG PARTIAL MOVETODELAYED")
LOOKERS = words("""
GETJOB GETSTATE GETRESULT GETJOBBYCUSTOMID GETJOBSBATCH GETJOBS GETJOBCOUNTS COUNT WAITJOB
GETPROGRESS GETLOGS GETCHILDREN ISPAUSED LISTQUEUES DLQ CRONLIST SUBSCRIBE UNSUBSCRIBE METRICS
STATS
""")


async def test_what_is_counted_over_every_queue_is_for_whoever_sees_them_all(w: World) -> None:
    await w.connect(may("push")).say("METRICS")
    await w.connect(may("push:q", "claim:q", "admin:q")).refused("METRICS", "forbidden")


@pytest.mark.parametrize("scope", ["push", "claim", "admin"])
@pytest.mark.parametrize("command", COMMANDS)
async def test_each_scope_allows_what_is_its_own_and_a_look(
    w: World, command: str, scope: str
) -> None:
    if command == "AUTH":
        return
    job_id = await settle_in(w)
    own = "push" if command in PRODUCERS else "claim" if command in WORKERS else "admin"
    own = "" if command == "METRICS" else own
    c = w.connect(may(f"{scope}:q"))
    fields = said(command, job_id)
    if command == "WAITJOB":
        fields["timeout"] = 0
    answer = await c.ask(command, **fields)
    allowed = (command in LOOKERS and command != "METRICS") or own == scope
    assert (answer.get("code") != "forbidden") is allowed, answer


async def test_tokens_say_who_speaks(w: World) -> None:
    c = w.connect(Principal("nobody", TENANT, ()))
    error = await c.refused("AUTH", "unauthenticated", token="wrong")
    assert error == "these credentials are not accepted"
    await c.refused("PUSH", "forbidden", queue="q")
    await c.say("AUTH", token="acme")
    await c.push()
    assert (await w.connect().say("COUNT", queue="q"))["count"] == 0
    assert [info.queue for info in await w.store.queues("acme")] == ["q"]


async def test_a_flow_needs_every_queue_of_it(w: World) -> None:
    c = w.connect(may("push:a"))
    flow = {"queue": "a", "children": [{"queue": "a"}, {"queue": "b"}]}
    await c.refused("FLOW", "forbidden", "queue", **flow)
    assert await w.store.queues(TENANT) == []


async def test_acks_of_a_batch_need_every_queue_of_it(w: World) -> None:
    c = w.connect()
    ids = [await c.push("a"), await c.push("b"), await c.push("c")]
    for queue in "abc":
        await c.pull(queue)
    some = w.connect(may("claim:a", "push:b"))
    await some.refused("ACKB", "forbidden", ids=ids[:2])
    assert (await some.say("ACKB", ids=[ids[0], ids[2]]))["ids"] == [ids[0]]
    assert [await c.state(job_id) for job_id in ids] == ["completed", "active", "active"]


async def test_children_out_of_sight_are_counted_and_not_shown(w: World) -> None:
    c = w.connect()
    children = [{"queue": "a", "data": 1}, {"queue": "b", "data": 2}]
    flow = await c.say("FLOW", queue="a", children=children)
    some = w.connect(may("push:a"))
    told = await some.say("GETCHILDREN", parent_id=flow["parent_id"])
    assert [child["queue"] for child in told["children"]] == ["a"]
    assert told["total"] == 2
    assert told["completed"] == 1  # as one that is forgotten: nothing is told of how it fares


async def test_a_cron_of_another_queue_is_not_replaced_or_deleted(w: World) -> None:
    c = w.connect()
    await c.say("CRON", name="n", queue="theirs", repeat_every=1_000)
    some = w.connect(may("admin:mine"))
    await some.refused("CRON", "forbidden", name="n", queue="mine", repeat_every=1_000)
    await some.refused("CRONDELETE", "not_found", name="n")
    seeing = w.connect(may("admin:mine", "push:theirs"))
    await seeing.refused("CRONDELETE", "forbidden", name="n")
    assert len((await c.say("CRONLIST"))["crons"]) == 1
    assert (await some.say("CRONLIST"))["crons"] == []


async def test_no_answer_has_a_lease_in_it(w: World) -> None:
    c = w.connect()
    job_id = await settle_in(w)
    (standing,) = await w.store.standing(TENANT, [job_id])
    assert standing is not None
    assert standing.lease is not None
    looks = [command for command in COMMANDS if command in LOOKERS and command != "WAITJOB"]
    for command in looks:
        answer = await c.ask(command, **said(command, job_id))
        assert standing.lease not in repr(answer)
