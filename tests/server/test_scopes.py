"""What somebody reaches who has no grants, or grants over some queues, of a tenant that has more.

What lies in other queues does not exist, over every command, route and transport: whoever names it
is answered as on a server where it never was. What cannot be so is listed in `BELONGS_TO_TENANT`,
and in ADR 0022.
"""

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock import CronMessage, CronService, DelayedQueue
from penstock.client.crons import hash_of as cron_hash
from penstock.model.errors import Forbidden
from penstock.model.job import JobSpec
from penstock.model.lifecycle import State
from penstock.model.schedule import CronSpec, Every
from penstock.open import open_store
from penstock.protocol.native import NATIVE
from penstock.protocol.native_own import OWNING
from penstock.protocol.table import name_of
from penstock.server.routes import ROUTES as SERVED
from penstock.server.tcp import COMMANDS as SPOKEN
from tests.server.client import events_of
from tests.server.estate import Estate, Names, inventory, long_ago, one_waits, settle_in, unknown
from tests.server.matrix import COMMANDS, ROUTES, Asked, Fields
from tests.server.whole import (
    STREAMS,
    WAYS,
    CommandWire,
    Way,
    Whole,
    everything,
    secret,
    serving,
    token,
)

MINE = "emails-1"
TOKENS = (
    everything("all", "ada"),
    token("nothing", tenant="ada"),
    token("nobody-of-all"),  # of every tenant, and without grants
    token("mails", "push:emails-*", "claim:emails-*", "admin:emails-*", tenant="ada"),
    *(token(scope, scope, tenant="ada") for scope in ("push", "claim", "admin")),
    token("reader", "push", "claim:emails-*", "admin", tenant="ada"),
)
NAMES = [name_of(command) for command in SPOKEN]
FOR_EVERYBODY = ("HELLO", "AUTH", "PING")  # say who one is, and whether anybody is there
GUARDED = [route for route in SERVED if route.scope is not None and route.name != "run_command"]


def named(route: Any) -> str:
    return f"{route.method} {route.path}"


async def hidden(up: Whole) -> dict[str, Any]:
    """All that there is, but for what lies in the queues that some may reach."""
    found = await inventory(up.store, "ada")
    found["jobs"].pop(MINE, None)
    for looked in ("by id", "standing", "logs", "results", "explained", "keys"):
        del found[looked]  # they are in the order of all ids
    found["queues"] = [info for info in found["queues"] if info["queue"] != MINE]
    return found


# -- nobody ---------------------------------------------------------------------------------------


async def test_whoever_has_no_grants_is_forbidden_every_command() -> None:
    async with serving(*TOKENS) as up:
        theirs = await settle_in(up.store, "ada")
        before = await inventory(up.store, "ada")
        for way in WAYS:
            wire = await up.wire(way, "nothing")
            for command in NAMES:
                if command in FOR_EVERYBODY:
                    continue
                for row in COMMANDS[command](theirs):
                    answer = await wire.ask(command, **row)
                    assert answer.get("code") == "forbidden", (command, way, answer)
            assert (await wire.ask("HELLO"))["ok"]
            assert (await wire.ask("PING"))["ok"]
        assert await inventory(up.store, "ada") == before


@pytest.mark.parametrize("who", ["nothing", "nobody-of-all"])
async def test_whoever_has_no_grants_is_forbidden_every_route(who: str) -> None:
    async with serving(*TOKENS) as up:
        theirs = await settle_in(up.store, "ada")
        before = await inventory(up.store, "ada")
        client = await up.client(who)
        for route in GUARDED:
            for row in ROUTES[route.name](theirs):
                answer = await client.request(route.method, row.path(route), row.body)
                assert (answer.status, answer.json["code"]) == (403, "forbidden"), route
        assert await inventory(up.store, "ada") == before


# -- somebody, in some queues ---------------------------------------------------------------------

Answers = list[tuple[Fields, Any]]
Said = Callable[[Whole, Estate], Awaitable[Answers]]


async def compare(said: Said) -> list[tuple[Fields, Any, Any]]:
    """What was said, and what was answered: with others' queues in the tenant, and without."""
    told = []
    for there in (True, False):
        async with serving(*TOKENS) as up:
            long_ago(up.store)
            theirs = await settle_in(up.store, "ada" if there else "zoe")
            if not there:
                theirs = unknown(theirs)
            await up.store.push_jobs("ada", MINE, [JobSpec(), JobSpec()])
            names = Names(theirs.ids, await _ids(up))
            async with one_waits(up.store, "ada" if there else "zoe"):
                before = await hidden(up) if there else None
                answers = await said(up, theirs)
                for row, answer in answers:
                    assert "secret" not in str(answer), row
                assert not there or await hidden(up) == before
            told.append([(row, names.renamed(answer)) for row, answer in answers])
    return [(row, answer, without) for (row, answer), (_, without) in zip(*told, strict=True)]


async def _ids(up: Whole) -> list[int]:
    return [job.id for job in (await up.store.find("ada", MINE)).jobs]


def in_mine(value: Any) -> Any:
    """The same about a queue that is reached."""
    if isinstance(value, msgspec.Struct):
        value = msgspec.to_builtins(value)
    if isinstance(value, dict):
        return {key: in_mine(each) for key, each in value.items()}
    if isinstance(value, list):
        return [in_mine(each) for each in value]
    return MINE if value in ("q", "other", "crons") else value


# Names that a tenant has once. Who may not see what is behind one is told so, or what they may know.
BELONGS_TO_TENANT = {
    "PUTCRON",  # forbidden: the name is taken
    "CRON",
    "put_cron",
    "BULKOPEN",  # forbidden, or that it is committed
    "open_bulk",
    "BULKCOMMIT",  # how many jobs a bulk had that is over
    "BULKABORT",
    "commit_bulk",
    "abort_bulk",
}


_OWN = re.compile(r"mine-\d+-\d+")


def alike(name: str, row: Any, answer: Any, without: Any) -> bool:
    if answer == without:
        return True
    said = str(row)
    if name in ("PUSH", "PUSHRUN") and "depends_on" not in said:
        # What was refused before has taken no id.
        answer, without = (_OWN.sub("mine", str(each)) for each in (answer, without))
        return answer == without or "'producer'" in said or "'committed'" in said
    if name in BELONGS_TO_TENANT:
        return "forbidden" in str(answer) or "committed" in said or "aborted" in said
    if "depends_on" in said:  # it would wait, and tell how others' jobs fare
        return "out of reach" in str(answer)
    return "'producer'" in said or "'committed'" in said


@pytest.mark.parametrize("command", [name for name in NAMES if name not in FOR_EVERYBODY])
async def test_a_command_tells_and_touches_nothing_of_queues_out_of_reach(command: str) -> None:
    async def said(up: Whole, theirs: Estate) -> Answers:
        answers: Answers = []
        for way in WAYS:
            wire = await up.wire(way, "mails")
            for row in COMMANDS[command](theirs):
                answers += [(each, await wire.ask(command, **each)) for each in (row, in_mine(row))]
        return answers

    for row, answer, without in await compare(said):
        assert alike(command, row, answer, without), row
        if row != in_mine(row):
            assert answer["code"] == "forbidden", row


@pytest.mark.parametrize("route", GUARDED, ids=named)
async def test_a_route_tells_and_touches_nothing_of_queues_out_of_reach(route: Any) -> None:
    async def said(up: Whole, theirs: Estate) -> Answers:
        answers: Answers = []
        for row in ROUTES[route.name](theirs):
            ours = Asked(in_mine(row.body), row.query.replace("=q", f"={MINE}"), **row.params)
            ours.params |= {"queue": MINE} if "queue" in row.params else {}
            for each in (row, ours):
                client = await up.client("mails")
                await client.ask(route.method, each.path(route), each.body)
                status, head = await client.head_of_answer()
                body = ""
                if "content-length" in head:
                    size = int(head["content-length"])
                    body = (await client.reader.readexactly(size)).decode()
                answers.append(({"body": each.body, **each.params}, [status, body]))
        return answers

    for row, answer, without in await compare(said):
        assert alike(route.name, row, answer, without), row
        if row != in_mine(row):
            assert answer[0] == 403, row


# -- scopes of native commands --------------------------------------------------------------------

SCOPES: dict[str, str] = {
    **dict.fromkeys(("PUSHRUN", "BULKOPEN", "BULKCOMMIT", "BULKABORT"), "push"),
    **dict.fromkeys(("CLAIM", "COMPLETE", "FAILED", "RELEASE", "EXTEND", "REPORT"), "claim"),
    **dict.fromkeys(("CANCELJOBS", "EDIT", "REDRIVE", "PURGEDEAD", "CONFIGURE"), "admin"),
    **dict.fromkeys(("CONFIGURETENANT", "DRAINQUEUE", "CLEANQUEUE", "PURGE"), "admin"),
    **dict.fromkeys(("PUTCRON", "REFRESHCRON", "DROPCRON", "TICK"), "admin"),
    **dict.fromkeys(("PUTINSTANTS", "DROPINSTANTS"), "admin"),
    "REFRESHINSTANTS": "push",
    "STANDING": "admin and claim",
    **dict.fromkeys(("GET", "REACH", "FIND", "BYKEY", "RESULT", "LOGS", "EXPLAIN"), "any"),
    **dict.fromkeys(("WATCH", "UNWATCH", "QUEUES", "CRONS", "HEALTH", "ABANDON"), "any"),
    "WAITING": "any",
}


async def test_each_native_command_needs_its_scope() -> None:
    spoken = {name_of(command) for command in NATIVE}
    assert set(SCOPES) == spoken - set(FOR_EVERYBODY)
    for scope in ("push", "claim", "admin"):
        async with serving(*TOKENS) as up:
            theirs = await settle_in(up.store, "ada")
            wire = await up.greeted("frames", scope)
            for command, needed in SCOPES.items():
                for row in COMMANDS[command](theirs):
                    answer = await wire.ask(command, **row)
                    allowed = needed in ("any", scope)
                    assert (answer.get("code") != "forbidden") is allowed, (command, scope)


@pytest.mark.parametrize("way", WAYS)
async def test_what_the_owner_of_a_path_does_for_its_own_is_nobody_s_to_ask_for_here(
    way: Way, tmp_path: Path
) -> None:
    async with serving(everything("root")) as up:
        wire = await up.wire(way, "root")
        for command in OWNING:
            name = name_of(command)
            answer = await wire.ask(name, directory=str(tmp_path / "copies"))
            assert (answer["ok"], answer["code"]) == (False, "invalid")
            assert "no command" in answer["error"]
    assert not (tmp_path / "copies").exists()


# -- ways around a scope --------------------------------------------------------------------------


async def test_a_token_of_a_lease_in_the_wrong_hands_is_worth_nothing() -> None:
    """It is answered like one that never was, even to somebody who may look at the jobs."""
    async with serving(*TOKENS) as up:
        theirs = await settle_in(up.store, "ada")
        wire = await up.greeted("frames", "reader")
        answer = await wire.ask("STANDING", ids=[theirs.active])
        assert answer["code"] == "forbidden"
        for command in ("COMPLETE", "FAILED", "RELEASE", "EXTEND", "REPORT"):
            for row in COMMANDS[command](theirs):
                answer = await wire.ask(command, **row)
                never = await wire.ask(command, **row | {"lease": "f" * 32})
                assert answer == never
                assert answer["code"] == "lease_lost"
        answer = await wire.ask("ACK", id=theirs.active)
        assert answer["code"] == "forbidden"  # seen, and out of scope
        assert list((await up.store.ack("ada", theirs.lease)).acked) == [theirs.active]


async def test_own_leases_and_bulks_serve_whoever_has_some_queues() -> None:
    async with serving(*TOKENS) as up:
        await settle_in(up.store, "ada")
        for way in WAYS:
            wire = await up.wire(way, "mails")
            assert (await wire.ask("BULKOPEN", name=way))["ok"]
            said = {"queue": MINE, "payloads": [b"1"], "bulk": way}
            assert (await wire.ask("PUSHRUN", **said))["count"] == 1
            assert (await wire.ask("BULKCOMMIT", bulk=way))["bulk"]["jobs"] == 1
            lease = (await wire.ask("CLAIM", queues=[MINE]))["lease"]
            assert (await wire.ask("EXTEND", lease=lease))["ok"]
            assert (await wire.ask("COMPLETE", lease=lease))["ok"]


async def test_a_bulk_is_ended_by_whoever_may_push_all_that_it_holds() -> None:
    async with serving(*TOKENS) as up:
        await up.store.open_bulk("ada", "mixed")
        for queue in (MINE, "reports"):
            wire = await up.greeted("frames", "all")
            said = {"queue": queue, "payloads": [b"1"], "bulk": "mixed", "part": queue}
            assert (await wire.ask("PUSHRUN", **said))["ok"]
        for way in WAYS:
            some = await up.wire(way, "mails")
            for command in ("BULKCOMMIT", "BULKABORT"):
                answer = await some.ask(command, bulk="mixed")
                unknown_one = await some.ask(command, bulk="nixed")
                assert answer["error"] == unknown_one["error"].replace("nixed", "mixed")
                assert answer["code"] == "not_found"
            assert (await some.ask("BULKOPEN", name="mixed"))["code"] == "forbidden"
        assert (await up.store.commit_bulk("ada", "mixed")).jobs == 2


async def test_whoever_may_push_installs_messages_and_removes_none() -> None:
    """Another config takes the old one's place only for whoever may cancel what is removed."""
    tokens = (token("pusher", "push:emails-*", tenant="ada"), *TOKENS)
    async with serving(*tokens) as up:
        host, port = up.tcp
        services = {}
        stores = []
        for name in ("pusher", "mails"):
            store = await open_store(f"penstock://:{secret(name)}@{host}:{port}")
            stores.append(store)
            queue: Any = DelayedQueue(store, "emails-1", tenant="ada")
            services[name] = CronService(queue, clock=up.clock)
        one, two = cron_hash("one"), cron_hash("two")
        at = up.clock.now_ms() + 60_000
        old, new = [CronMessage("old", at)], [CronMessage("new", at), CronMessage("new", at + 1)]
        assert await services["pusher"].ainstall_tick(one, "report", old) == 1
        assert await services["pusher"].atick(one, "report", lambda _: old)
        assert up.audited() == []
        before = await up.store.find("ada", "emails-1.json")
        with pytest.raises(Forbidden):
            await services["pusher"].ainstall_tick(two, "report", new)
        with pytest.raises(Forbidden):
            await services["pusher"].auninstall_tick("report")
        assert await up.store.find("ada", "emails-1.json") == before
        assert await services["mails"].ainstall_tick(two, "report", new) == 2
        assert await services["mails"].auninstall_tick("report") == 2
        assert [(line["principal"], line["action"], line["outcome"]) for line in up.audited()] == [
            ("pusher", "PUTINSTANTS", "refused"),
            ("pusher", "DROPINSTANTS", "refused"),
            ("mails", "PUTINSTANTS", "done"),
            ("mails", "DROPINSTANTS", "done"),
        ]
        assert "old" not in str(up.audited())
        for store in stores:
            await store.close()


async def test_a_cron_reaches_no_queue_that_its_owner_does_not() -> None:
    async with serving(*TOKENS) as up:
        spec = CronSpec(name="mine", queue=MINE, schedule=Every(every_ms=60_000))
        await up.store.put_cron("ada", spec)
        theirs = CronSpec(name="theirs", queue="reports", schedule=Every(every_ms=60_000))
        await up.store.put_cron("ada", theirs)
        before = await up.store.crons("ada")
        for way in WAYS:
            wire = await up.wire(way, "mails")
            for name, queue in (("mine", "reports"), ("new", "reports"), ("theirs", MINE)):
                moved = msgspec.structs.replace(spec, name=name, queue=queue)
                assert (await wire.ask("PUTCRON", spec=moved))["code"] == "forbidden"
                said = {"name": name, "queue": queue, "repeat_every": 1_000}
                assert (await wire.ask("CRON", **said))["code"] == "forbidden"
            assert (await wire.ask("DROPCRON", name="theirs"))["dropped"] is False
            assert (await wire.ask("CRONDELETE", name="theirs"))["code"] == "not_found"
            assert [cron["name"] for cron in (await wire.ask("CRONLIST"))["crons"]] == ["mine"]
        client = await up.client("mails")
        for name, queue in (("mine", "reports"), ("new", "reports"), ("theirs", MINE)):
            body = {"queue": queue, "every_ms": 1_000}
            assert (await client.request("PUT", f"/v1/crons/{name}", body)).status == 403
        assert await up.store.crons("ada") == before


async def test_flows_lists_of_queues_and_dependencies_open_no_door() -> None:
    async with serving(*TOKENS) as up:
        (theirs,) = (await up.store.push_jobs("ada", "reports", [JobSpec()])).ids
        packed = {"queue": MINE, "data": b"1", "ends": [1]}
        for way in WAYS:
            wire = await up.wire(way, "mails")
            tried: list[tuple[str, Fields]] = [
                ("FLOW", {"queue": MINE, "children": [{"queue": MINE}, {"queue": "reports"}]}),
                ("FLOW", {"queue": "reports", "children": [{"queue": MINE}]}),
                ("FLOW", {"queue": MINE, "children": [{"queue": MINE, "depends_on": [theirs]}]}),
                ("FLOW", {"queue": MINE, "depends_on": [theirs]}),
                ("PUSH", {"queue": MINE, "depends_on": [theirs]}),
                ("PUSHB", {"queue": MINE, "jobs": [{"depends_on": [theirs]}]}),
                ("PUSHRUN", {"runs": [packed, packed | {"queue": "reports"}]}),
                ("PUSHRUN", {"runs": [packed | {"depends_on": [[theirs]]}]}),
                ("CLAIM", {"queues": [MINE, "reports"]}),
                ("QUEUES", {"names": [MINE, "reports"]}),
                ("WATCH", {"queues": [MINE, "reports"]}),
                ("STANDING", {"ids": [theirs]}),
                ("CONFIGURETENANT", {"bounds": {}}),
            ]
            for command, said in tried:
                answer = await wire.ask(command, **said)
                assert answer.get("code") == "forbidden", (command, answer)
        assert [info.queue for info in await up.store.queues("ada")] == ["reports"]


async def test_what_a_job_waits_for_is_told_as_far_as_one_sees() -> None:
    async with serving(*TOKENS) as up:
        (theirs,) = (await up.store.push_jobs("ada", "reports", [JobSpec()])).ids
        (mine,) = (await up.store.push_jobs("ada", MINE, [JobSpec()])).ids
        waiting = JobSpec(depends_on=(theirs, mine))
        (blocked,) = (await up.store.push_jobs("ada", MINE, [waiting])).ids
        for name, seen in (("mails", [mine]), ("all", [theirs, mine])):
            client = await up.client(name)
            told = (await client.get(f"/v1/jobs/{blocked}/explain")).json
            assert told["detail"]["blocked"] == seen
            answer = await CommandWire(client).ask("EXPLAIN", job_id=blocked)
            assert answer["explanation"]["detail"]["blocked"] == seen


async def test_events_are_told_of_queues_in_sight_only() -> None:
    async with serving(*TOKENS) as up:
        wires = [await up.greeted(way, "mails") for way in STREAMS]
        for wire in wires:
            assert (await wire.ask("WATCH"))["ok"]
            assert (await wire.ask("SUBSCRIBE", queue="reports"))["code"] == "forbidden"
        async with events_of(up.http, Authorization=f"Bearer {secret('mails')}") as events:
            await settle_in(up.store, "ada")
            await up.store.push_jobs("ada", MINE, [JobSpec()])
            for wire in wires:
                assert (await wire.event())["event"]["queue"] == MINE
            assert (await events.event())["data"]["queue"] == MINE


async def test_dead_letters_of_another_queue_are_not_redriven_by_their_ids() -> None:
    async with serving(*TOKENS) as up:
        theirs = await settle_in(up.store, "ada")
        for way in WAYS:
            wire = await up.wire(way, "mails")
            answer = await wire.ask("REDRIVE", queue=MINE, ids=[theirs.dead])
            assert (list(answer["ids"]), list(answer["conflicts"])) == ([], [])
            assert (await wire.ask("PURGEDEAD", queue=MINE, ids=[theirs.dead]))["count"] == 0
            assert (await wire.ask("RETRYDLQ", queue=MINE, id=theirs.dead))["code"] == "not_found"
        (standing,) = await up.store.standing("ada", [theirs.dead])
        assert standing is not None
        assert standing.state is State.DEAD


async def test_a_way_in_gives_nobody_more_than_another() -> None:
    """The grants are the token's, whichever way it comes."""
    async with serving(*TOKENS) as up:
        ways: tuple[Way, ...] = WAYS
        for way in ways:
            wire = await up.wire(way, "push")
            assert (await wire.ask("PULL", queue="q"))["code"] == "forbidden"
            assert (await wire.ask("PUSH", queue="q"))["ok"]
