"""Two tenants × every operation × every transport: no leak, no touch.

Whatever `bob` says with the names of what `anna` owns, he is answered, and his own things fare, as
on a server where she never was; and of hers nothing changes.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from penstock.model.event import Event
from penstock.model.job import JobSpec
from penstock.protocol.table import name_of
from penstock.server.routes import ROUTES as SERVED
from penstock.server.tcp import COMMANDS as SPOKEN
from tests.server.client import Client, events_of
from tests.server.estate import (
    Estate,
    Names,
    ids_of,
    inventory,
    long_ago,
    one_waits,
    settle_in,
    unknown,
)
from tests.server.matrix import COMMANDS, ROUTES
from tests.server.whole import STREAMS, WAYS, Way, Whole, everything, secret, serving

BOBS = {way: f"bob-{way}" for way in WAYS}  # one for each way in, alike but for their names
TOKENS = (
    everything("anna", "anna"),
    everything("operator"),
    *(everything(bob, bob) for bob in BOBS.values()),
)
NAMES = [name_of(command) for command in SPOKEN]


def test_every_command_and_every_route_has_a_row() -> None:
    assert set(COMMANDS) == set(NAMES)
    assert set(ROUTES) == {route.name for route in SERVED} - {"run_command"}


class World:
    """A server on which bobs live, with anna or without."""

    def __init__(self, up: Whole, theirs: Estate) -> None:
        self.up = up
        self.theirs = theirs  # what a bob could name: anna's, or what never was
        self.seen: list[Event] = []  # what happened to anna's things meanwhile

    async def ids(self, bob: str) -> list[int]:
        return ids_of(await inventory(self.up.store, bob))

    async def inventory(self, bob: str, before: list[int]) -> tuple[Names, Any]:
        found = await inventory(self.up.store, bob)
        names = Names(self.theirs.ids, [*before, *ids_of(found)])
        return names, names.renamed(found)


@asynccontextmanager
async def with_her(bobs: Iterable[str]) -> AsyncIterator[World]:
    async with serving(*TOKENS) as up:
        long_ago(up.store)
        hers = await settle_in(up.store, "anna")
        for bob in bobs:
            await settle_in(up.store, bob)
        world = World(up, hers)
        async with one_waits(up.store, "anna"):
            before = await inventory(up.store, "anna", hers.ids)
            figures = up.parts.figures("anna")
            watching = asyncio.create_task(_watch(world))
            await asyncio.sleep(0)
            yield world
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            assert await inventory(up.store, "anna", hers.ids) == before
        assert up.parts.figures("anna") == figures
        assert world.seen == []
        # She is where she was: her lease holds, her bulk can be committed.
        assert list((await up.store.ack("anna", hers.lease)).acked) == [hers.active]
        assert (await up.store.commit_bulk("anna", "open")).jobs == 1


async def _watch(world: World) -> None:
    async for event in world.up.store.watch("anna"):
        world.seen.append(event)


@asynccontextmanager
async def without_her(bobs: Iterable[str]) -> AsyncIterator[World]:
    async with serving(*TOKENS) as up:
        long_ago(up.store)
        estates = [await settle_in(up.store, bob) for bob in bobs]
        yield World(up, unknown(estates[0]))


Said = Callable[[World, Way], Awaitable[list[Any]]]


async def compare(said: Said, ways: Sequence[Way] = WAYS) -> list[Any]:
    """Bobs say the same on both servers: the answers, which must be alike."""
    bobs = [BOBS[way] for way in ways]
    told: list[list[Any]] = []
    for world_of in (with_her, without_her):
        async with world_of(bobs) as world:
            told.append([])
            for way, bob in zip(ways, bobs, strict=True):
                before = await world.ids(bob)
                answers = await said(world, way)
                names, things = await world.inventory(bob, before)
                # Her name has letters that no hexadecimal digit is: tokens are of those.
                assert not any("anna" in str(answer) for answer in answers)
                told[-1].append((bob, names.renamed(answers), things))
    for (bob, with_answers, with_things), (_, answers, things) in zip(*told, strict=True):
        assert with_answers == answers, bob
        assert with_things == things, bob
    return [answer for _, answers, _ in told[0] for answer in answers]


@pytest.mark.parametrize("command", NAMES)
async def test_a_command_tells_and_touches_nothing_of_another_tenant(command: str) -> None:
    async def said(world: World, way: Way) -> list[Any]:
        wire = await world.up.wire(way, BOBS[way])
        rows = COMMANDS[command](world.theirs)
        return [await wire.ask(command, **row) for row in rows]

    await compare(said)


NATIVE = [name_of(command) for command in SPOKEN if "tenant" in command.__struct_fields__]


async def test_naming_another_tenant_is_refused_whether_there_is_such_a_one_or_not() -> None:
    async def said(world: World, way: Way) -> list[Any]:
        wire = await world.up.wire(way, BOBS[way])
        return [
            await wire.ask(command, tenant=tenant, **row)
            for command in NATIVE
            for row in COMMANDS[command](world.theirs)
            for tenant in ("anna", "nobody")
        ]

    for answer in await compare(said):
        assert (answer["code"], answer["field"]) == ("forbidden", "tenant")


async def test_a_tenant_said_on_the_compatible_wire_is_not_heard() -> None:
    async def said(world: World, way: Way) -> list[Any]:
        wire = await world.up.wire(way, BOBS[way])
        names = [name for name in NAMES if name not in NATIVE and name not in ("HELLO", "AUTH")]
        return [
            await wire.ask(command, **row, tenant="anna")
            for command in names
            for row in COMMANDS[command](world.theirs)[:1]
        ]

    await compare(said)


ASKED = [route for route in SERVED if route.name != "run_command"]


@pytest.mark.parametrize("route", ASKED, ids=lambda route: f"{route.method} {route.path}")
async def test_a_route_tells_and_touches_nothing_of_another_tenant(route: Any) -> None:
    async def said(world: World, way: Way) -> list[Any]:
        answers = []
        for row in ROUTES[route.name](world.theirs):
            client = await world.up.client(BOBS[way])
            await client.ask(route.method, row.path(route), row.body)
            answers.append(await _answer(client, route))
        return answers

    await compare(said, ["command"])


async def _answer(client: Client, route: Any) -> Any:
    if route.media == "text/event-stream":
        head = await client.head_of_answer()
        head[1].pop("date")
        return [head, await client.chunk()]
    answer = await client.answer()
    body = answer.body
    return [answer.status, msgspec.json.decode(body) if body[:1] == b"{" else body.decode()]


async def test_the_figures_of_the_whole_server_are_for_whoever_speaks_for_all() -> None:
    async with with_her([]) as world:
        client = await world.up.client("bob-command")
        assert (await client.get("/metrics")).status == 403
        client = await world.up.client("operator")
        assert b'tenant="anna"' in (await client.get("/metrics")).body


# -- events ---------------------------------------------------------------------------------------


async def test_whoever_watches_hears_nothing_of_another_tenant() -> None:
    async with serving(*TOKENS) as up:
        wires = []
        for way in STREAMS:
            for command, said in (("WATCH", {}), ("SUBSCRIBE", {"queue": "q"})):
                wire = await up.greeted(way, BOBS["lines"])
                assert (await wire.ask(command, **said))["ok"]
                wires.append(wire)
        address, authorization = up.http, f"Bearer {secret(BOBS['lines'])}"
        async with events_of(address, Authorization=authorization) as events:
            await settle_in(up.store, "anna")
            (mine,) = (await up.store.push_jobs("bob-lines", "q", [JobSpec()])).ids
            for wire in wires:
                event = await wire.event()
                told = event["event"]["ids"]["runs"][0]["first"] if "event" in event else None
                assert mine == event.get("job_id", told)
            first = await events.event()
            assert first["data"]["ids"] == [[mine, mine]]


async def test_a_name_that_another_tenant_gave_a_watcher_means_nothing() -> None:
    """Nor does the number of a request: both are a connection's own."""
    async with serving(*TOKENS) as up:
        for way in STREAMS:
            hers, mine = await up.greeted(way, "anna"), await up.greeted(way, BOBS[way])
            assert (await hers.ask("WATCH", watch=7))["ok"]
            await hers.say("CLAIM", queues=["empty"], wait_ms=60_000, reqId=5)
            assert (await mine.ask("UNWATCH", watch=7))["stopped"] is False
            assert (await mine.ask("ABANDON", request=5))["abandoned"] is False
            await up.store.push_jobs("anna", "empty", [JobSpec()])
            assert (await hers.answer())["reqId"] == 5
            kinds = {(await hers.event())["event"]["kind"] for _ in range(2)}
            assert kinds == {"pushed", "claimed"}
