"""Server-sent events: live, filtered, resumed, with gaps told."""

import asyncio

import pytest

from penstock.model.job import JobSpec
from penstock.server import sse
from tests.server.client import Client, Events, events_of
from tests.server.harness import asking, principal, running
from tests.server.test_http_jobs import NOW, refused

PUSH = "/v1/queues/q/jobs"


async def test_events_come_as_they_happen() -> None:
    async with asking() as (up, client), events_of(up.address) as events:
        await client.post(PUSH, {"jobs": [{"task": "t"}] * 3})
        claimed = (await client.post("/v1/queues/q/claim", {"n": 2, "worker": "w"})).json
        await client.post(f"/v1/leases/{claimed['lease']}/ack", {"ids": [2]})
        pushed = await events.event()
        assert pushed["event"] == "pushed"
        assert pushed["data"]["kind"] == "pushed"
        assert pushed["data"]["queue"] == "q"
        assert pushed["data"]["ids"] == [[1, 3]]
        assert pushed["data"]["at"] == NOW
        assert pushed["data"]["task"] == "t"
        assert "tenant" not in pushed["data"]
        took = await events.event()
        assert (took["event"], took["data"]["ids"]) == ("claimed", [[1, 2]])
        assert took["data"]["worker"] == "w"
        done = await events.event()
        assert (done["event"], done["data"]["ids"]) == ("completed", [[2, 2]])
        places = [tuple(map(int, each["id"].split("."))) for each in (pushed, took, done)]
        assert places == sorted(set(places))


async def test_events_are_chosen_by_queue_and_kind() -> None:
    async with asking() as (up, client):
        path = "/v1/events?queue=a,b&kind=claimed&kind=cancelled"
        async with events_of(up.address, path) as events:
            for queue in ("a", "b", "c"):
                await client.post(f"/v1/queues/{queue}/jobs", {})
                await client.post(f"/v1/queues/{queue}/claim")
            await client.request("DELETE", "/v1/jobs/1")
            seen = [await events.event() for _ in range(3)]
            assert [(each["event"], each["data"]["queue"]) for each in seen] == [
                ("claimed", "a"),
                ("claimed", "b"),
                ("cancelled", "a"),
            ]
        assert refused(await client.get("/v1/events?kind=lost"), 400, "invalid", "kind[0]")
        assert refused(await client.get("/v1/events?queue=a%20b"), 400, "invalid", "queue")


async def test_events_of_queues_out_of_sight_and_other_tenants_do_not_come() -> None:
    tokens = {"mails": principal("mails", "push:mail-*")}
    async with running(tokens=tokens) as up, await up.client("mails") as client:
        await client.ask("GET", "/v1/events")
        await client.head_of_answer()
        events = Events(client)
        await events.frame()
        await up.store.push_jobs("other", "mail-1", [JobSpec()])
        await up.store.push_jobs("default", "secret", [JobSpec()])
        await up.store.push_jobs("default", "mail-1", [JobSpec()])
        assert (await events.event())["data"]["queue"] == "mail-1"


async def test_a_watcher_that_comes_back_misses_nothing() -> None:
    async with asking() as (up, client):
        async with events_of(up.address) as events:
            await client.post(PUSH, {"payload": 1})
            first = await events.event()
        for n in range(2, 6):
            await client.post(PUSH, {"payload": n})
        async with events_of(up.address, Last_Event_ID=first["id"]) as events:
            seen = [await events.event() for _ in range(4)]
            assert [each["data"]["ids"] for each in seen] == [[[n, n]] for n in range(2, 6)]
            last = seen[-1]["id"]
            await client.post(PUSH, {"payload": 6})
            assert (await events.event())["data"]["ids"] == [[6, 6]]
        async with events_of(up.address, Last_Event_ID=last) as events:
            assert (await events.event())["data"]["ids"] == [[6, 6]]


async def test_what_is_older_than_the_ring_is_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "RING_EVENTS", 3)
    async with asking() as (up, client):
        async with events_of(up.address) as events:
            ids = []
            for n in range(1, 7):
                await client.post(PUSH, {"payload": n})
                ids.append((await events.event())["id"])
        async with events_of(up.address, Last_Event_ID=ids[0]) as events:
            assert (await events.event())["event"] == "gap"
            seen = [await events.event() for _ in range(3)]
            assert [each["id"] for each in seen] == ids[3:]
        async with events_of(up.address, Last_Event_ID=ids[2]) as events:
            assert (await events.event())["id"] == ids[3]  # the last that left: nothing is missing


@pytest.mark.parametrize("place", ["0.0", "999999.0"])
async def test_an_id_of_another_history_is_a_gap(place: str) -> None:
    async with asking() as (up, client), events_of(up.address) as before:
        await client.post(PUSH, {})
        await before.event()
        async with events_of(up.address, Last_Event_ID=place) as events:
            assert (await events.event())["event"] == "gap"


async def test_an_id_that_is_none_is_refused() -> None:
    async with asking() as (_, client):
        for odd in ("x", "1", "1.", ".1", "-1.0", "1.0.0", "9" * 50 + ".0"):
            answer = await client.request("GET", "/v1/events", headers={"Last-Event-ID": odd})
            assert refused(answer, 400, "invalid", "Last-Event-ID")


async def test_a_watcher_that_reads_slowly_is_told_of_its_gap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sse, "RING_EVENTS", 10)
    async with asking() as (up, client), events_of(up.address) as events:
        reading = events._client.reader._transport  # type: ignore[attr-defined]
        reading.pause_reading()
        # One event larger than what the network holds stops the stream; then the ring turns over.
        claimed = await _running_job(client)
        large = {"id": 1, "partial": "x" * 8_000_000}
        await client.post(f"/v1/leases/{claimed}/progress", large)
        for _ in range(30):
            await client.post(PUSH, {})
        reading.resume_reading()
        kinds = []
        while "gap" not in kinds:
            kinds.append((await events.event())["event"])
        assert kinds[:3] == ["pushed", "claimed", "partial"]
        for _ in range(10):
            assert (await events.event())["event"] == "pushed"


async def _running_job(client: Client) -> str:
    await client.post(PUSH, {})
    return str((await client.post("/v1/queues/q/claim")).json["lease"])


async def test_a_server_that_falls_behind_its_store_tells_of_a_gap() -> None:
    async with asking() as (up, client), events_of(up.address) as events:
        # All in one turn of the loop: nobody can read meanwhile.
        for _ in range(10_001):
            await up.store.push_jobs("default", "q", [JobSpec()])
        assert (await events.event())["event"] == "gap"
        await client.post(PUSH, {})
        assert (await events.event())["event"] == "pushed"


async def test_silence_is_broken_by_comments() -> None:
    async with running(heartbeat_s=0.01) as up, events_of(up.address) as events:
        for _ in range(3):
            assert (await events.frame()).startswith(":")


async def test_a_ring_that_nobody_reads_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "KEEP_S", 0.01)
    async with asking() as (up, client):
        feeds = up.server.service.feeds
        async with events_of(up.address) as events:
            await client.post(PUSH, {})
            await events.event()
            assert len(feeds._feeds) == 1
            (feed,) = feeds._feeds.values()
        await asyncio.wait([feed.task])
        assert feeds._feeds == {}


async def test_http_1_0_gets_events_without_chunks() -> None:
    async with asking() as (_, client):
        await client.send(b"GET /v1/events HTTP/1.0\r\n\r\n")
        _, headers = await client.head_of_answer()
        assert "transfer-encoding" not in headers
        assert await client.reader.readuntil(b"\n\n") == b"retry: 1000\n\n"


async def test_when_the_store_ends_the_stream_ends() -> None:
    async with running() as up, events_of(up.address) as events:
        await up.store.close()
        with pytest.raises(EOFError):
            await events.event()
