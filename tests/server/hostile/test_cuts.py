"""Connections that end at any byte: nothing is half done, and nobody keeps what nobody will do.

A job is handed over with the answer that names it. Whoever is gone before that gets none; a job
whose answer was written to somebody who never read it comes back with the end of its lease, as the
server cannot know.
"""

from typing import Any

import pytest

from penstock.model.job import JobSpec
from penstock.model.lifecycle import State
from tests.server.hostile.served import Served, serving
from tests.server.hostile.wire import ENCODINGS, Client, Encoding, message

CLAIMS: dict[str, dict[str, Any]] = {
    "CLAIM": {"queues": ["q"], "wait_ms": 60_000},
    "PULL": {"queue": "q", "timeout": 60_000},
    "PULLB": {"queue": "q", "count": 3, "timeout": 60_000},
}
each_claim = pytest.mark.parametrize("claim", CLAIMS)
each_encoding = pytest.mark.parametrize("encoding", ENCODINGS)


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
