"""A server that is told to end while workers hold jobs and producers push.

No job is handed out any more, what was handed out can be ended, every word that was answered
holds, and then the process ends: when the last job has ended, when the time for that is up, or at
once when it is told twice.
"""

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.model.lifecycle import State
from penstock.open import open_store
from tests.server import client as http
from tests.server.hostile.process import serving
from tests.server.hostile.wire import Address, Client, message

WAIT_MS = 3_600_000  # longer than any test


async def push_until_the_end(client: Client) -> list[int]:
    """Push job after job; answers those that were said to be there."""
    acknowledged: list[int] = []
    async with client:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                pushed = await client.say("PUSHRUN", queue="load", payloads=[b"1", b"2"])
                acknowledged += range(pushed["first"], pushed["first"] + pushed["count"])
    return acknowledged


async def told_to_end(address: Address, send: Callable[[int], None]) -> None:
    """Tell the server; returns when a claim that waits has been told that nothing comes."""
    async with await Client.to(address) as waiting:
        wait = {"cmd": "CLAIM", "queues": ["empty"], "wait_ms": WAIT_MS}
        await waiting.send(message(wait, "msgpack"))
        await waiting.say("PING")  # it has a number, so its answer passes the other
        send(signal.SIGTERM)
        assert (await waiting.next())["lease"] is None


async def states(url: str, ids: list[int]) -> list[State | None]:
    """How these jobs stand in the store, which nobody serves any more."""
    store = await open_store(url, share=False)
    try:
        found = []
        for at in range(0, len(ids), 1_000):
            found += await store.standing("default", ids[at : at + 1_000])
        return [None if each is None else each.state for each in found]
    finally:
        await store.close()


async def test_told_to_end_it_waits_for_the_last_ack_and_loses_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    with serving(url, tmp_path, shutdown_s=600) as server:
        async with (
            await Client.to(server.tcp) as native,
            await Client.to(server.tcp, "json") as compatible,
            await http.Client.to(server.http) as web,
        ):
            pushed = await native.say("PUSHRUN", queue="q", payloads=[b"1"] * 5)
            ids = list(range(pushed["first"], pushed["first"] + 5))
            lease = (await native.say("CLAIM", queues=["q"], n=2))["lease"]
            pulled = (await compatible.say("PULL", queue="q"))["job"]["id"]
            held = (await web.post("/v1/queues/q/claim", {"n": 1})).json
            producer = await Client.to(server.tcp)
            await producer.say("PING")
            producing = asyncio.create_task(push_until_the_end(producer))
            await told_to_end(server.tcp, server.send)

            assert (await native.say("CLAIM", queues=["q"]))["lease"] is None
            assert (await compatible.say("PULL", queue="q", timeout=WAIT_MS))["job"] is None
            assert (await web.post("/v1/queues/q/claim", {})).status == 503
            with pytest.raises(ConnectionError):
                await Client.to(server.tcp)

            await native.say("EXTEND", lease=lease)
            await native.say("COMPLETE", lease=lease)
            await compatible.say("ACK", id=pulled)
            assert server.runs  # one job is still held
            acked = await web.post(f"/v1/leases/{held['lease']}/ack", {})
            assert acked.json["acked"] == ids[3:4]
            acknowledged = await producing
        assert server.ended() == 0
        assert server.errors() == ""
    assert await states(url, ids) == [State.COMPLETED] * 4 + [State.READY]
    assert len(acknowledged) > 0
    assert set(await states(url, acknowledged)) == {State.READY}


async def test_when_its_time_is_up_it_ends_and_jobs_come_back_after_a_restart(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    with serving(url, tmp_path, shutdown_s=0.3) as server:
        async with await Client.to(server.tcp) as client:
            await client.say("PUSHRUN", queue="q", payloads=[b"1", b"2", b"3"])
            lease = (await client.say("CLAIM", queues=["q"], n=2, lease_ms=500))["lease"]
            producer = await Client.to(server.tcp)
            await producer.say("PING")
            producing = asyncio.create_task(push_until_the_end(producer))
            server.send(signal.SIGTERM)
            acknowledged = await producing
            assert await client.rest() == b""
        assert server.ended() == 0
        assert server.errors() == ""
    with serving(url, tmp_path) as server:
        async with await Client.to(server.tcp) as client:
            came = b""
            while len(came) < 3:
                claim = await client.say("CLAIM", queues=["q"], n=3, wait_ms=WAIT_MS)
                came += b"".join(run["data"] for run in claim["runs"])
                await client.say("COMPLETE", lease=claim["lease"])
            assert sorted(came) == sorted(b"123")
            refused = await client.ask("COMPLETE", lease=lease)
            assert refused["code"] == "lease_lost"
        server.send(signal.SIGTERM)
        assert server.ended() == 0
    assert set(await states(url, acknowledged)) <= {State.READY}


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_told_twice_it_ends_at_once(second: signal.Signals, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    with serving(url, tmp_path, shutdown_s=600) as server:
        async with await Client.to(server.tcp) as client, await Client.to(server.tcp) as idle:
            pushed = await client.say("PUSHRUN", queue="q", payloads=[b"1"])
            await client.say("CLAIM", queues=["q"])
            await told_to_end(server.tcp, server.send)
            assert (await idle.say("PING"))["ok"]
            server.send(second)
            assert await idle.rest() == b""
        assert server.ended() == 0
        assert server.errors() == ""
    assert await states(url, [pushed["first"]]) == [State.ACTIVE]
