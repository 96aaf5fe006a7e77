"""The audit log: one line for each action of an administrator, whichever way it came, and none of
what was said in confidence."""

import asyncio
import socket
import struct
from typing import Any

import pytest

from penstock.protocol.table import name_of
from penstock.server.routes import ROUTES as SERVED
from penstock.server.tcp import COMMANDS as SPOKEN
from tests.server.estate import Estate, inventory, settle_in
from tests.server.matrix import COMMANDS, ROUTES
from tests.server.whole import WAYS, Way, Whole, everything, secret, serving, token

TOKENS = (
    everything("ada", "ada"),
    everything("operator"),
    token("worker", "claim", tenant="ada"),
)
CONFIDENTIAL = "confidential"
AUDITED = [name_of(command) for command in SPOKEN if command.audited]
QUIET = [name_of(command) for command in SPOKEN if not command.audited]
WRITTEN = [route for route in SERVED if route.audited]

# Changes that are an administrator's; whatever else changes something is a producer's or a worker's.
ADMINISTRATIVE = {
    *("CANCELJOBS", "EDIT", "REDRIVE", "PURGEDEAD", "CONFIGURE", "CONFIGURETENANT", "DRAINQUEUE"),
    *("CLEANQUEUE", "PURGE", "PUTCRON", "DROPCRON", "PUTINSTANTS", "DROPINSTANTS"),
    *("CANCEL", "DISCARD", "UPDATEJOB", "UPDATE", "CHANGEPRIORITY", "PROMOTE", "MOVETODELAYED"),
    *("RETRYDLQ", "PURGEDLQ", "PAUSE", "RESUME", "RATELIMIT", "RATELIMITCLEAR"),
    *("SETCONCURRENCY", "CLEARCONCURRENCY", "DRAIN", "OBLITERATE", "CLEAN", "CRON", "CRONDELETE"),
}

# Where the row of the matrix does not say what must not be written down.
SAID: dict[str, dict[str, Any]] = {
    "EDIT": {"payload": b'"confidential"', "codec": "json"},
    "UPDATEJOB": {"data": CONFIDENTIAL},
    "UPDATE": {"data": {"deep": CONFIDENTIAL}},
    "CRON": {"data": CONFIDENTIAL},
}


def test_every_change_by_an_administrator_is_audited() -> None:
    assert set(AUDITED) == ADMINISTRATIVE
    for route in SERVED:
        changes = route.method != "GET" and route.scope not in ("push", "claim")
        assert route.audited == (changes and route.name != "run_command"), route


def row_of(command: str, mine: Estate) -> dict[str, Any]:
    """Something that can be done."""
    rows = COMMANDS[command](mine)
    row = rows[0] | SAID.get(command, {})
    dead = {"RETRYDLQ": {"queue": "q", "id": mine.dead}}
    of_ids = {"id": mine.scheduled} if "id" in row else {}
    of_ids |= {"job_id": mine.scheduled} if "job_id" in row else {}
    return row | of_ids | dead.get(command, {})


@pytest.mark.parametrize("command", AUDITED)
async def test_an_audited_command_leaves_one_line_whichever_way_it_comes(command: str) -> None:
    for way in WAYS:
        async with serving(*TOKENS) as up:
            mine = await settle_in(up.store, "ada")
            row = row_of(command, mine)
            wire = await up.wire(way, "ada")
            answer = await wire.ask(command, **row, reqId=9)
            assert answer["ok"], answer
            (line,) = up.audited()
            assert (line["principal"], line["tenant"]) == ("ada", "ada")
            assert (line["action"], line["outcome"]) == (command, "done")
            assert "refused" not in line["details"]
            _nothing_confidential(up, mine)


@pytest.mark.parametrize("command", AUDITED)
async def test_an_audited_command_that_is_forbidden_leaves_one_line_that_says_so(
    command: str,
) -> None:
    async with serving(*TOKENS) as up:
        mine = await settle_in(up.store, "ada")
        before = await inventory(up.store, "ada")
        row = row_of(command, mine)
        for number, way in enumerate(WAYS, 1):
            wire = await up.wire(way, "worker")
            answer = await wire.ask(command, **row)
            assert answer["code"] == "forbidden"
            assert len(up.audited()) == number
            line = up.audited()[-1]
            assert (line["principal"], line["tenant"]) == ("worker", "ada")
            assert (line["action"], line["outcome"]) == (command, "refused")
            assert line["details"]["refused"] == answer["error"]
        _nothing_confidential(up, mine)
        assert await inventory(up.store, "ada") == before


@pytest.mark.parametrize("route", WRITTEN, ids=lambda route: f"{route.method} {route.path}")
async def test_an_audited_route_leaves_one_line(route: Any) -> None:
    async with serving(*TOKENS) as up:
        mine = await settle_in(up.store, "ada")
        row = ROUTES[route.name](mine)[0]
        if "id" in row.params:
            row.params["id"] = mine.dead if route.name == "retry_job" else mine.scheduled
        if route.name in ("edit_job", "put_cron"):
            row.body = {**row.body, "payload": {"deep": CONFIDENTIAL}}
        client = await up.client("worker")
        assert (await client.request(route.method, row.path(route), row.body)).status == 403
        (line,) = up.audited()
        assert (line["principal"], line["tenant"]) == ("worker", "ada")
        assert (line["action"], line["outcome"]) == (route.name, "refused")
        client = await up.client("ada")
        assert (await client.request(route.method, row.path(route), row.body)).status < 300
        _, line = up.audited()
        assert (line["principal"], line["tenant"]) == ("ada", "ada")
        assert (line["action"], line["outcome"]) == (route.name, "done")
        _nothing_confidential(up, mine)


def _nothing_confidential(up: Whole, mine: Estate) -> None:
    written = str(up.audited())
    assert CONFIDENTIAL not in written
    assert "Y29uZmlkZW50aWFs" not in written  # in base64
    assert mine.lease not in written
    for each in TOKENS:
        assert secret(each.name) not in written
        assert each.hash not in written


async def test_whatever_is_not_administration_leaves_no_line() -> None:
    async with serving(*TOKENS) as up:
        mine = await settle_in(up.store, "ada")
        for way in WAYS:
            for command in QUIET:
                if command != "AUTH":
                    wire = await up.wire(way, "ada")
                    for row in COMMANDS[command](mine)[:1]:
                        await wire.ask(command, **row)
        assert up.audited() == []


async def test_what_changed_nothing_leaves_no_line() -> None:
    async with serving(*TOKENS) as up:
        for way in WAYS:
            wire = await up.wire(way, "ada")
            assert (await wire.ask("CANCEL", id=1))["code"] == "not_found"
            assert (await wire.ask("SETCONCURRENCY", queue="q", limit=-1))["code"] == "invalid"
        assert up.audited() == []


@pytest.mark.parametrize("way", WAYS)
async def test_whoever_speaks_for_all_is_written_down_with_the_tenant_that_it_was_about(
    way: Way,
) -> None:
    async with serving(*TOKENS) as up:
        wire = await up.wire(way, "operator")
        assert (await wire.ask("PURGE", queue="q", tenant="bob"))["ok"]
        assert (await wire.ask("PURGE", queue="q"))["ok"]
        mine = await up.wire(way, "ada")
        assert (await mine.ask("PURGE", queue="q", tenant="bob"))["code"] == "forbidden"
        assert [(line["principal"], line["tenant"], line["outcome"]) for line in up.audited()] == [
            ("operator", "bob", "done"),
            ("operator", "default", "done"),
            ("ada", "ada", "refused"),
        ]


class Slow:
    """What a store does before it answers takes until it is told to go on."""

    def __init__(self, up: Whole) -> None:
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        inner: Any = up.store
        purge = inner.purge

        async def slowly(tenant: str, queue: str) -> int:
            count = await purge(tenant, queue)
            self.begun.set()
            await self.go_on.wait()
            return int(count)

        inner.purge = slowly


@pytest.mark.parametrize("way", ["lines", "frames"])
async def test_whoever_hangs_up_is_written_down_all_the_same(way: Way) -> None:
    async with serving(*TOKENS) as up:
        slow = Slow(up)
        wire = await up.greeted(way, "ada")
        await wire.say("PURGE", queue="q")
        await slow.begun.wait()
        _cut(wire.writer)
        slow.go_on.set()  # what is under way is done to its end, whoever is left to hear of it
        await _until_written(up)
        (line,) = up.audited()
        assert (line["principal"], line["action"]) == ("ada", "PURGE")
        assert line["outcome"] == "done"


@pytest.mark.parametrize("path", ["/v1/queues/q", "/v1/command"])
async def test_whoever_hangs_up_on_http_is_written_down_all_the_same(path: str) -> None:
    async with serving(*TOKENS) as up:
        slow = Slow(up)
        client = await up.client("ada")
        if path == "/v1/command":
            await client.ask("POST", path, {"cmd": "PURGE", "queue": "q"})
        else:
            await client.ask("DELETE", path)
        await slow.begun.wait()
        _cut(client.writer)
        await _until_written(up)
        (line,) = up.audited()
        assert (line["principal"], line["outcome"]) == ("ada", "unknown")


def _cut(writer: asyncio.StreamWriter) -> None:
    """End the connection by force: not even what is under way is waited for."""
    writer.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
    )
    writer.transport.abort()


async def _until_written(up: Whole) -> None:
    while not up.audited():  # noqa: ASYNC110 - nobody would tell
        await asyncio.sleep(0)
