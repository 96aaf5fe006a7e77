"""HTTP/1.1 as bytes: order, framing, limits, deadlines, and clients that behave badly."""

import asyncio
import re
import subprocess
import sys
from itertools import pairwise

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.model.job import JobSpec
from penstock.model.lifecycle import State
from penstock.server.http import HttpLimits
from tests.server.client import PATIENCE_S, Client, written
from tests.server.harness import asking, running
from tests.server.test_http_jobs import refused

PUSH = "/v1/queues/q/jobs"


@pytest.fixture(autouse=True, params=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> str:
    """Everything here is about when which callback comes, so both kinds of loop have to do."""
    return str(request.param)


# -- framing -------------------------------------------------------------------------------------


async def test_one_connection_serves_many_requests() -> None:
    async with asking() as (up, client):
        for n in range(20):
            assert (await client.post(PUSH, {"payload": n})).json["jobs"][0]["id"] == n + 1
        assert up.server.connections == 1


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with asking() as (_, client):
        requests = [written("POST", PUSH, {"payload": n}) for n in range(200)]
        requests.insert(100, written("GET", "/nowhere"))
        await client.send(b"".join(requests))
        answers = [await client.answer() for _ in range(201)]
        assert answers.pop(100).status == 404
        assert [a.json["jobs"][0]["id"] for a in answers] == list(range(1, 201))


async def test_more_may_be_pipelined_than_is_read_at_once() -> None:
    async with asking() as (up, client):
        client.writer.write(b"".join(written("POST", PUSH, {"payload": n}) for n in range(3_000)))
        for n in range(3_000):
            assert (await client.answer()).json["jobs"][0]["id"] == n + 1
        assert up.server.kept == 0


async def test_a_request_may_come_byte_by_byte() -> None:
    async with asking() as (_, client):
        for byte in written("POST", PUSH, {"payload": 1}):
            await client.send(bytes([byte]))
            await asyncio.sleep(0)
        assert (await client.answer()).status == 201


async def test_two_requests_may_be_cut_at_any_byte() -> None:
    async with asking() as (_, client):
        chunked = {"Transfer-Encoding": "chunked"}
        both = written("POST", PUSH, b'5\r\n{"pay\r\n8\r\nload":1}\r\n0\r\n\r\n', chunked)
        both += written("GET", "/healthz")
        for cut in range(1, len(both)):
            await client.send(both[:cut])
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            await client.send(both[cut:])
            assert (await client.answer()).status == 201
            assert (await client.answer()).status == 200


async def test_a_connection_cut_at_any_byte_costs_nothing_else() -> None:
    async with running() as up:
        request = written("POST", PUSH, {"payload": 1})
        for cut in range(len(request)):
            client = await up.client()
            await client.send(request[:cut])
            client.vanish()
        async with await up.client() as client:
            assert (await client.get("/healthz")).status == 200
        assert await up.store.queues("default") == []


async def test_head_is_get_without_the_body() -> None:
    async with asking() as (_, client):
        get = await client.get("/healthz")
        head = await client.request("HEAD", "/healthz")
        assert (head.status, head.body) == (200, b"")
        assert head.headers["content-length"] == get.headers["content-length"]
        assert (await client.request("HEAD", "/nowhere")).status == 404
        events = await client.request("HEAD", "/v1/events")
        assert (events.status, events.headers["content-type"]) == (200, "text/event-stream")
        assert (await client.get("/healthz")).status == 200


async def test_answers_have_a_date_and_are_not_kept() -> None:
    async with asking() as (_, client):
        answer = await client.get("/v1/queues")
        assert answer.headers["date"].endswith(" GMT")
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"


async def test_who_says_close_is_closed_upon() -> None:
    async with asking() as (_, client):
        answer = await client.get("/healthz", Connection="close")
        assert answer.headers["connection"] == "close"
        assert await client.ended()


async def test_http_1_0_is_answered_and_closed() -> None:
    async with asking() as (_, client):
        await client.send(b"GET /healthz HTTP/1.0\r\n\r\n")
        answer = await client.answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await client.ended()


async def test_a_client_that_says_no_more_is_still_answered() -> None:
    async with asking() as (_, client):
        await client.send(written("POST", PUSH, {"payload": 1}) * 3)
        client.writer.write_eof()
        ids = [(await client.answer()).json["jobs"][0]["id"] for _ in range(3)]
        assert ids == [1, 2, 3]
        assert await client.ended()


async def test_a_body_that_is_waited_with_is_asked_for() -> None:
    async with asking() as (_, client):
        body = b'{"payload":1}'
        head = {"Expect": "100-continue", "Content-Length": str(len(body))}
        request = written("POST", PUSH, body, head)
        await client.send(request[: -len(body)])
        assert (await client.head_of_answer())[0] == 100
        await client.send(body)
        assert (await client.answer()).status == 201


async def test_a_body_behind_other_requests_is_asked_for_after_their_answers() -> None:
    async with asking() as (_, client):
        body = b'{"payload":1}'
        head = {"Expect": "100-continue", "Content-Length": str(len(body))}
        request = written("POST", PUSH, body, head)
        await client.send(written("GET", "/v1/queues") + request[: -len(body)])
        assert (await client.answer()).status == 200
        assert (await client.head_of_answer())[0] == 100
        await client.send(body)
        assert (await client.answer()).status == 201


async def test_a_body_that_is_not_wanted_is_not_asked_for() -> None:
    async with asking() as (_, client):
        head = {"Expect": "100-continue", "Content-Length": "5"}
        await client.ask("POST", "/nowhere", headers=head)
        assert (await client.answer()).status == 404
        assert await client.ended()
    async with asking() as (_, client):
        await client.ask("POST", PUSH, headers={"Expect": "a-miracle", "Content-Length": "5"})
        assert refused(await client.answer(), 417, "expectation_failed")


async def test_absolute_targets_and_fragments_are_understood() -> None:
    async with asking() as (_, client):
        assert (await client.get("http://test/healthz")).status == 200
        assert (await client.get("/healthz?")).status == 200


async def test_an_upgrade_is_not_agreed_to() -> None:
    async with asking() as (_, client):
        upgrade = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c"}
        answer = await client.request("GET", "/healthz", headers=upgrade)
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await client.ended()
    async with asking() as (_, client):
        answer = await client.request("POST", PUSH, {"payload": 1}, upgrade)
        assert refused(answer, 400, "invalid", "Upgrade")


# -- what is no request --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "junk",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS hello
        b'{"cmd":"PING"}\n\n',
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /healthz\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nbad header\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost : a\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\n\tfolded\r\n\r\n",
        b"POST /v1/claim HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/claim HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"POST /v1/claim HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n",
        b"POST /v1/claim HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"POST /v1/claim HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_a_bad_request_costs_its_connection_and_no_other(junk: bytes) -> None:
    async with asking() as (up, other), await up.client() as client:
        await client.send(written("GET", "/healthz") + junk)
        assert (await client.answer()).status == 200  # what came before is answered
        assert refused(await client.answer(), 400, "invalid")
        assert await client.ended()
        assert (await other.get("/healthz")).status == 200


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /healthz HTTP/1.1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    ],
)
async def test_a_request_names_one_host(request_bytes: bytes) -> None:
    async with asking() as (_, client):
        await client.send(request_bytes)
        assert (await client.answer()).status == 400


# -- limits --------------------------------------------------------------------------------------


async def test_a_head_that_is_too_large_is_refused() -> None:
    async with asking(limits=HttpLimits(head_bytes=2_000)) as (_, client):
        assert (await client.get("/healthz", Long="x" * 1_000)).status == 200
        answer = await client.get("/healthz", Long="x" * 3_000)
        assert refused(answer, 431, "headers_too_large")
        assert await client.ended()


async def test_a_head_without_end_is_refused() -> None:
    async with asking(limits=HttpLimits(head_bytes=2_000)) as (_, client):
        await client.send(b"GET /healthz HTTP/1.1\r\nLong: ")
        for _ in range(30):
            await client.send(b"x" * 100)
            await asyncio.sleep(0)
        assert refused(await client.answer(), 431, "headers_too_large")


async def test_trailers_without_end_are_refused() -> None:
    async with asking(limits=HttpLimits(head_bytes=2_000)) as (_, client):
        head = {"Transfer-Encoding": "chunked"}
        await client.send(written("POST", PUSH, b"2\r\n{}\r\n0\r\n", head))
        for _ in range(100):
            await client.send(b"Trailer: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\n")
            await asyncio.sleep(0)
        assert refused(await client.answer(), 431, "headers_too_large")


async def test_trailers_and_small_chunks_are_understood() -> None:
    async with asking(limits=HttpLimits(head_bytes=500)) as (_, client):
        body = b'{"payload": "' + b"x" * 2_000 + b'"}'
        chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
        request = written(
            "POST", PUSH, chunks + b"0\r\nHost: other\r\n\r\n", {"Transfer-Encoding": "chunked"}
        )
        for start in range(0, len(request), 100):
            await client.send(request[start : start + 100])
            await asyncio.sleep(0)
        assert (await client.answer()).status == 201


async def test_what_is_thrown_away_has_an_end() -> None:
    async with asking(limits=HttpLimits(body_bytes=1_000)) as (_, client):
        chunk = b"64\r\n" + b"x" * 100 + b"\r\n"
        await client.send(written("POST", "/nowhere", chunk, {"Transfer-Encoding": "chunked"}))
        for _ in range(20):
            await client.send(chunk)
            await asyncio.sleep(0)
        assert (await client.answer()).status == 404
        assert await client.ended()


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_that_is_too_large_is_refused_before_it_is_there(chunked: bool) -> None:
    async with asking(limits=HttpLimits(body_bytes=1_000)) as (up, client):
        if chunked:
            head = {"Transfer-Encoding": "chunked"}
            await client.send(written("POST", PUSH, b"400\r\n" + b" " * 1_024 + b"\r\n", head))
        else:
            await client.send(written("POST", PUSH, b"", {"Content-Length": "1001"}))
        assert refused(await client.answer(), 413, "payload_too_large")
        assert await client.ended()
        assert up.server.kept == 0


async def test_a_client_that_goes_on_sending_still_reads_why_it_was_refused() -> None:
    async with asking(limits=HttpLimits(body_bytes=1_000)) as (_, client):
        request = written("POST", PUSH, b" " * 3_000_000)
        sending = asyncio.create_task(client.send(request))
        assert refused(await client.answer(), 413, "payload_too_large")
        await asyncio.gather(sending, return_exceptions=True)


async def test_all_bodies_together_have_a_bound() -> None:
    limits = HttpLimits(bodies_bytes=10_000)
    async with asking(limits=limits) as (up, client), await up.client() as other:
        part = written("POST", PUSH, b" " * 8_000, {"Content-Length": "8001"})
        await client.send(part)
        await up.kept(8_000)
        answer = await other.request("POST", PUSH, b" " * 5_000)
        assert refused(answer, 503, "overloaded")
        client.vanish()
        await up.kept(0)
        async with await up.client() as third:
            assert (await third.request("POST", PUSH, b"{}" + b" " * 5_000)).status == 201
        assert up.server.kept == 0


async def test_there_is_a_most_of_connections() -> None:
    async with running(limits=HttpLimits(connections=3)) as up:
        clients = [await up.client() for _ in range(3)]
        for client in clients:
            assert (await client.get("/healthz")).status == 200
        async with await up.client() as one_more:
            assert refused(await one_more.answer(), 503, "overloaded")
            assert await one_more.ended()
        await clients.pop().close()
        await up.connections_are(2)
        async with await up.client() as again:
            assert (await again.get("/healthz")).status == 200
        for client in clients:
            await client.close()


# -- deadlines -----------------------------------------------------------------------------------


async def test_a_request_that_does_not_come_in_full_is_given_up() -> None:
    async with asking(limits=HttpLimits(request_s=0.05)) as (_, client):
        await client.send(written("POST", PUSH, {"payload": 1})[:-1])
        assert refused(await client.answer(), 408, "deadline")
        assert await client.ended()


async def test_a_connection_that_asks_nothing_is_closed() -> None:
    async with asking(limits=HttpLimits(idle_s=0.05)) as (_, client):
        assert await client.ended()


async def test_a_long_poll_is_no_idle_connection() -> None:
    limits = HttpLimits(idle_s=0.02, request_s=0.02)
    async with asking(limits=limits, live=True) as (_, client):
        answer = await client.post("/v1/queues/q/claim", {"wait_ms": 200})
        assert answer.status == 204


async def test_a_client_that_does_not_read_is_dropped_and_holds_nobody_up() -> None:
    limits = HttpLimits(stalled_s=0.3)
    async with running(limits=limits) as up, await up.client() as other:
        body = {"payload": "x" * 5_000_000}
        assert (await other.post(PUSH, body)).status == 201
        deaf = await up.client()
        deaf.writer.transport.set_write_buffer_limits(1 << 30)
        deaf.reader._transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(50):
            deaf.writer.write(written("GET", "/v1/jobs/1"))
        while up.server.connections == 2:
            assert (await other.get("/healthz")).status == 200
        deaf.vanish()


# -- clients that go away ------------------------------------------------------------------------


@pytest.mark.parametrize("politely", [True, False])
async def test_a_claim_whose_client_has_left_takes_nothing(politely: bool) -> None:
    async with asking() as (up, client):
        gone = await up.client()
        await gone.ask("POST", "/v1/queues/q/claim", {"wait_ms": 60_000})
        await up.claims_wait(1)
        if politely:
            await gone.close()
        else:
            gone.vanish()
        await up.claims_wait(0)
        await client.post(PUSH, {"payload": 1})
        assert await up.count(State.READY) == 1
        assert (await client.post("/v1/queues/q/claim")).json["jobs"][0]["attempt"] == 1


async def test_a_job_handed_to_a_client_that_is_gone_goes_back() -> None:
    """The answer is larger than what the network holds, and nobody reads it."""
    async with asking(limits=HttpLimits(stalled_s=0.1)) as (up, client):
        await client.post(PUSH, {"payload": "x" * 9_000_000})
        gone = await up.client()
        gone.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await gone.ask("POST", "/v1/queues/q/claim")
        await up.jobs_are(State.ACTIVE, 1)
        await up.jobs_are(State.ACTIVE, 0)
        assert await up.count(State.READY) == 1
        assert (await client.post("/v1/queues/q/claim")).json["jobs"][0]["attempt"] == 1
        gone.vanish()


async def test_a_job_that_comes_in_the_moment_its_client_leaves_goes_back() -> None:
    async with asking() as (up, client):
        for _ in range(20):
            gone = await up.client()
            await gone.ask("POST", "/v1/queues/q/claim", {"wait_ms": 60_000})
            await up.claims_wait(1)
            (connection,) = [
                each for each in up.server.open if each.task and each._in_hand is not None
            ]
            await up.store.push_jobs(
                "default", "q", [JobSpec(payload=b"1")]
            )  # handed over, not taken yet
            connection.abort()
            gone.vanish()
            await up.connections_are(1)
            await up.jobs_are(State.ACTIVE, 0)
            claimed = (await client.post("/v1/queues/q/claim")).json
            assert claimed["jobs"][0]["attempt"] == 1
            await client.post(f"/v1/leases/{claimed['lease']}/ack")


async def test_a_thousand_idle_long_polls_hold_nobody_up() -> None:
    async with running() as up:
        clients: list[Client] = [await up.client() for _ in range(1_000)]
        for client in clients:
            await client.ask("POST", "/v1/queues/q/claim", {"wait_ms": 60_000})
        await up.claims_wait(1_000)
        async with await up.client() as other:
            assert (await other.get("/healthz")).status == 200
            jobs = [{"payload": n} for n in range(1_000)]
            assert (await other.post(PUSH, {"jobs": jobs})).status == 201
        payloads = []
        for client in clients:
            answer = await client.answer()
            payloads += [job["payload"] for job in answer.json["jobs"]]
            client.writer.close()
        assert payloads == list(range(1_000))  # in the order in which they came


async def test_five_hundred_slow_clients_hold_nobody_up() -> None:
    async with running() as up, await up.client() as other:
        request = written("POST", PUSH, {"payload": 1})
        slow = [await up.client() for _ in range(500)]
        for cut in range(len(request)):
            for client in slow[cut::50]:
                client.writer.write(request[cut : cut + 1])
            assert (await other.get("/healthz")).status == 200
        assert up.server.connections == 501
        assert up.server.kept < 500 * len(request)
        for client in slow:
            client.vanish()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_bytes_come_others_are_served(loop: str, data: st.DataObject) -> None:
    """Requests with a few bytes changed, in pieces: an answer or an end, never a hang."""
    request = bytearray(b"".join(written("POST", PUSH, {"payload": n}) for n in range(3)))
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(request) - 1))
        request[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(request)), max_size=3)))
    pieces = [bytes(request[a:b]) for a, b in pairwise([0, *cuts, len(request)])]

    async def case() -> None:
        async with asking() as (up, other), await up.client() as client:
            for piece in pieces:
                client.writer.write(piece)
                await asyncio.sleep(0)
            client.writer.write_eof()
            async with asyncio.timeout(PATIENCE_S):
                said = await client.reader.read()
            for status in re.findall(rb"^HTTP/1.1 (\d+)", said, re.MULTILINE):
                assert int(status) < 500
            assert (await other.get("/healthz")).status == 200

    factory = uvloop.new_event_loop if loop == "uvloop" else None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(case())


# -- the end -------------------------------------------------------------------------------------


async def test_a_stop_finishes_what_is_in_hand_and_ends_what_waits() -> None:
    async with running() as up:
        idle, waiting, watching = [await up.client() for _ in range(3)]
        assert (await idle.get("/healthz")).status == 200
        await waiting.ask("POST", "/v1/queues/q/claim", {"wait_ms": 60_000})
        await watching.ask("GET", "/v1/events")
        assert (await watching.head_of_answer())[0] == 200
        await up.claims_wait(1)
        await up.server.stop()
        assert refused(await waiting.answer(), 503, "unavailable")
        for client in (idle, waiting):
            assert await client.ended()
        assert (await watching.reader.read()).endswith(b"0\r\n\r\n")
        with pytest.raises(OSError):
            await up.client()
        for client in (idle, waiting, watching):
            await client.close()


async def test_a_stop_lets_workers_finish_before_it_ends() -> None:
    working = asyncio.Event()
    graces = []

    async def idle(grace_s: float) -> None:
        graces.append(grace_s)
        await working.wait()

    async with asking(idle=idle) as (up, client):
        await client.post(PUSH, {})
        claimed = (await client.post("/v1/queues/q/claim")).json
        stopping = asyncio.create_task(up.server.stop(7.0))
        while (await client.get("/readyz")).status == 200:
            pass
        ack = await client.post(f"/v1/leases/{claimed['lease']}/ack")
        assert ack.json == {"acked": [1], "lost": []}
        assert not stopping.done()
        working.set()
        await stopping
        assert graces == [7.0]
        assert await client.ended()


async def test_a_stop_that_is_cut_short_can_be_called_again() -> None:
    async def idle(grace_s: float) -> None:
        if grace_s:
            await asyncio.Event().wait()

    async with asking(idle=idle) as (up, client):
        assert (await client.get("/healthz")).status == 200
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await up.server.stop(30.0)
        assert (await client.get("/healthz")).status == 200
        await up.server.stop(0)
        assert await client.ended()


async def test_when_claims_stop_everything_else_goes_on() -> None:
    async with asking() as (up, client), await up.client() as waiting:
        await client.post(PUSH, {"jobs": [{}, {}]})
        claimed = (await client.post("/v1/queues/q/claim")).json
        await waiting.ask("POST", "/v1/queues/other/claim", {"wait_ms": 60_000})
        await up.claims_wait(1)
        assert (await client.get("/readyz")).status == 200
        up.server.service.stop_claims()
        for answer in (
            await waiting.answer(),
            await client.post("/v1/queues/q/claim"),
            await client.post("/v1/claim", {"queues": ["q"]}),
            await client.get("/readyz"),
        ):
            assert refused(answer, 503, "unavailable")
            assert answer.json["detail"] == "the server is stopping"
            assert answer.headers["retry-after"] == "1"
        assert (await waiting.get("/healthz")).status == 200
        assert (await client.post(PUSH, {})).status == 201
        ack = await client.post(f"/v1/leases/{claimed['lease']}/ack")
        assert ack.json == {"acked": [1], "lost": []}


async def test_a_mistake_of_ours_is_one_answer(caplog: pytest.LogCaptureFixture) -> None:
    def broken(tenant: str) -> object:
        raise ZeroDivisionError

    async with asking(figures=broken) as (_, client):
        assert refused(await client.get("/v1/stats"), 500, "internal")
        assert (await client.get("/healthz")).status == 200
    assert "ZeroDivisionError" in caplog.text


def test_without_its_parser_the_module_says_what_to_install() -> None:
    code = "import sys; sys.modules['httptools'] = None; import penstock.server.http"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "pip install 'penstock[server]'" in ran.stderr
