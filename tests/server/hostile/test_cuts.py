"""Connections that end at any byte: nothing is half done, and nobody keeps what nobody will do.

A job is handed over with the answer that names it. Whoever is gone before that gets none; a job
whose answer was written to somebody who never read it comes back with the end of its lease, as the
server cannot know.
"""

import socket
from itertools import accumulate
from typing import Any

import pytest

from penstock.model.job import JobSpec
from penstock.model.lifecycle import State
from penstock.model.store import Store
from penstock.protocol.command import Encoding
from penstock.stores.clock import ManualClock
from tests.server.client import written
from tests.server.harness import running
from tests.server.hostile.served import Served, serving, until
from tests.server.hostile.wire import ENCODINGS, Address, Client, message

CLAIMS: dict[str, dict[str, Any]] = {
    "CLAIM": {"queues": ["q"], "wait_ms": 60_000},
    "PULL": {"queue": "q", "timeout": 60_000},
    "PULLB": {"queue": "q", "count": 3, "timeout": 60_000},
}
each_claim = pytest.mark.parametrize("claim", CLAIMS)
each_encoding = pytest.mark.parametrize("encoding", ENCODINGS)

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


@pytest.fixture(params=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def push(server: Served, queue: str = "q", many: int = 1) -> None:
    await server.store.push_jobs("default", queue, [JobSpec(payload=b"1")] * many)


@each_claim
@pytest.mark.parametrize("politely", [True, False])
async def test_a_claim_that_waits_ends_with_its_connection(
    claim: str, politely: bool, loop: str
) -> None:
    async with serving(live=False) as server:
        client = await Client.to(server.address)
        await client.send(message({"cmd": claim, **CLAIMS[claim]}, "msgpack"))
        await server.claims_wait(1)
        if politely:
            client.writer.write_eof()
        else:
            client.vanish()
        await server.claims_wait(0)
        await push(server)
        await server.connections_are(1)
        assert server.count("q", State.READY) == 1
        await client.close()


@each_claim
async def test_a_job_that_comes_in_the_moment_its_client_leaves_goes_back(
    claim: str, loop: str
) -> None:
    async with serving(live=False) as server:
        client = await Client.to(server.address)
        await client.send(message({"cmd": claim, **CLAIMS[claim]}, "msgpack"))
        await server.claims_wait(1)
        (connection,) = [each for each in server.listener._connections if each.in_hand]
        # Given out, and gone before the loop has come to say so.
        await push(server)
        assert server.count("q", State.ACTIVE) == 1
        connection.abort()
        await server.connections_are(1)
        await server.jobs_are("q", State.READY, 1)
        await client.close()


@each_claim
async def test_jobs_whose_answer_waits_its_turn_go_back_when_the_connection_ends(
    claim: str, loop: str
) -> None:
    """Without a number, answers keep the order of the requests: these lie behind one that waits."""
    async with serving(live=False) as server:
        await push(server, many=2)
        client = await Client.to(server.address)
        waits = message({"cmd": "PULL", "queue": "empty", "timeout": 60_000}, "json")
        await client.send(waits + message({"cmd": claim, **CLAIMS[claim]}, "json"))
        await server.jobs_are("q", State.ACTIVE, 2 if claim == "PULLB" else 1)
        client.vanish()
        await server.connections_are(1)
        await server.jobs_are("q", State.READY, 2)


@each_encoding
async def test_answers_that_wait_their_turn_are_bounded(encoding: Encoding, loop: str) -> None:
    """Behind one that waits, the server reads on, but not for ever."""
    large, asked = 100_000, 1_000
    async with serving(live=False) as server:
        await server.good.say("PUSH", queue="large", data="x" * large)
        (job,) = (await server.store.find("default", "large")).jobs
        client = await Client.to(server.address, encoding)
        waits = message({"cmd": "PULL", "queue": "q", "timeout": 60_000}, encoding)
        look = message({"cmd": "GETJOB", "id": job.id}, encoding)
        client.writer.write(waits + look * asked)
        await server.claims_wait(1)
        (connection,) = [each for each in server.listener._connections if each.in_hand]
        for _ in range(100):
            await server.good.say("PING")
        assert len(connection._line) < 50
        await push(server)
        assert (await client.next())["job"]["data"] == 1
        for _ in range(asked):
            assert len((await client.next())["job"]["data"]) == large
        await client.close()


# -- at every byte ---------------------------------------------------------------------------------

Totals = tuple[int, int, int]  # jobs known in one queue; taken from, and completed in, another


def cut(address: Address, said: bytes, end: str) -> None:
    """Say that and be gone, before the server has had a turn."""
    with socket.create_connection(address) as peer:
        if end == "reset":
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        peer.sendall(said)


async def totals(store: Store, filled: str, emptied: str) -> Totals:
    one, other = await store.queues("default", [filled, emptied])
    completed = other.counts[State.COMPLETED]
    return sum(one.counts.values()), other.counts[State.ACTIVE] + completed, completed


def judge(came: Totals, steps: list[Totals], whole: int, end: str) -> None:
    """Closed, a connection's bytes all arrive; reset, the last of them may not."""
    assert came == steps[whole] if end == "closed" else came in steps[: whole + 1]


def stretches(said: list[bytes]) -> list[int]:
    """Where each of them ends."""
    return list(accumulate(map(len, said)))


def conversation(filled: str, emptied: str, ids: list[int]) -> list[tuple[dict[str, Any], Totals]]:
    """Requests, each with what is so when it is done: 3 jobs lie in the second queue."""
    child = {"queue": filled, "data": 1}
    return [
        ({"cmd": "HELLO"}, (0, 0, 0)),
        ({"cmd": "PUSHB", "queue": filled, "jobs": [{"data": 1}, {"data": [2]}]}, (2, 0, 0)),
        ({"cmd": "PUSH", "queue": filled, "data": {"a": 1}}, (3, 0, 0)),
        ({"cmd": "FLOW", "queue": filled, "data": 0, "children": [child, child]}, (6, 0, 0)),
        ({"cmd": "CLAIM", "queues": [emptied], "n": 2, "reqId": 7}, (6, 2, 0)),
        ({"cmd": "PULL", "queue": emptied}, (6, 3, 0)),
        ({"cmd": "ACKB", "ids": ids[1:]}, (6, 3, 2)),
        ({"cmd": "CLAIM", "queues": ["nothing"], "wait_ms": HOUR_MS}, (6, 3, 2)),
    ]


@pytest.mark.parametrize(
    ("encoding", "end", "loop"),
    [
        ("json", "closed", "uvloop"),
        ("json", "reset", "asyncio"),
        ("msgpack", "closed", "asyncio"),
        ("msgpack", "reset", "uvloop"),
    ],
)
async def test_a_connection_cut_at_any_byte_leaves_nothing_half_done(
    encoding: Encoding, end: str, loop: str
) -> None:
    async with serving(live=False) as server:
        store, at = server.store, 0
        while True:
            filled, emptied = f"f{at:04}", f"e{at:04}"
            pushed = await store.push_jobs("default", emptied, [JobSpec(payload=b"1")] * 3)
            told = conversation(filled, emptied, list(pushed.ids))
            said = [message(each, encoding) for each, _ in told]
            ends = stretches(said)
            if at > ends[-1]:
                break
            cut(server.address, b"".join(said)[:at], end)
            whole = sum(each <= at for each in ends)
            at += 1
            await until(lambda: server.listener.ended == at)  # noqa: B023 - it is awaited here
            steps = [(0, 0, 0), *(each for _, each in told)]
            judge(await totals(store, filled, emptied), steps, whole, end)
            await server.claims_wait(0)
        await server.check()
        assert isinstance(server.clock, ManualClock)
        await everything_comes_back(server.store, server.clock, at)


async def everything_comes_back(store: Store, clock: ManualClock, cuts: int) -> None:
    """When the leases of those who are gone have ended, whatever did not end can be claimed."""
    for _ in range(2):  # then they fail, and then they are due again
        clock.advance(MINUTE_MS)
        await store.tick()
    for at in range(cuts):
        (info,) = await store.queues("default", [f"e{at:04}"])
        left = 3 - info.counts[State.COMPLETED]
        assert info.counts[State.READY] == left, at


def http_conversation(filled: str, emptied: str) -> list[tuple[bytes, Totals]]:
    push, claim = f"/v1/queues/{filled}/jobs", f"/v1/queues/{emptied}/claim"
    flow = {"jobs": [{"name": name, "queue": filled, "payload": name} for name in "ab"]}
    return [
        (written("POST", push, {"payload": {"a": 1}}), (1, 0, 0)),
        (written("POST", push, {"jobs": [{"payload": 1}, {"payload": 2}]}), (3, 0, 0)),
        (written("POST", "/v1/flows", flow), (5, 0, 0)),
        (written("POST", claim, {"n": 2}), (5, 2, 0)),
        (written("POST", "/v1/queues/nothing/claim", {"wait_ms": HOUR_MS}), (5, 2, 0)),
    ]


@pytest.mark.parametrize(("end", "loop"), [("closed", "asyncio"), ("reset", "uvloop")])
async def test_http_cut_at_any_byte_leaves_nothing_half_done(end: str, loop: str) -> None:
    async with running() as up:
        store, at = up.store, 0
        while True:
            filled, emptied = f"f{at:04}", f"e{at:04}"
            told = http_conversation(filled, emptied)
            ends = stretches([each for each, _ in told])
            if at > ends[-1]:
                break
            await store.push_jobs("default", emptied, [JobSpec(payload=b"1")] * 3)
            cut(up.address, b"".join(each for each, _ in told)[:at], end)
            whole = sum(each <= at for each in ends)
            # A second one behind it: when that one is served, the first has been let in.
            async with await up.client() as client:
                assert (await client.get("/healthz")).status == 200
            await up.connections_are(0)
            steps = [(0, 0, 0), *(each for _, each in told)]
            # Whoever has left gets no answer, and what it asked for last may not be begun.
            assert await totals(store, filled, emptied) in steps[: whole + 1]
            at += 1
        await up.claims_wait(0)
        assert isinstance(up.clock, ManualClock)
        await everything_comes_back(store, up.clock, at)


@each_encoding
async def test_a_command_about_many_jobs_is_done_to_its_end(encoding: Encoding, loop: str) -> None:
    """It gives others a turn in its midst; there, its connection ends."""
    many = 1_000
    async with serving(live=False) as server:
        await push(server, many=many)
        async with await Client.to(server.address) as worker:
            jobs = (await worker.say("PULLB", queue="q", count=many))["jobs"]
        client = await Client.to(server.address, encoding)
        await server.connections_are(2)
        ids = [job["id"] for job in jobs]
        await client.send(message({"cmd": "ACKB", "ids": ids}, encoding))
        await until(lambda: server.count("q", State.ACTIVE) < many)
        assert server.count("q", State.ACTIVE) > 0
        (connection,) = [each for each in server.listener._connections if each.in_hand]
        connection.abort()
        await server.connections_are(1)
        await server.jobs_are("q", State.COMPLETED, many)
        await client.close()
