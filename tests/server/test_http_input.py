"""Input that is wrong on purpose: each is one problem document, and changes nothing."""

import pytest

from tests.server.harness import asking
from tests.server.test_http_jobs import refused

PUSH = "/v1/queues/q/jobs"


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"null",
        b"1",
        b'"text"',
        b"{} {}",
        b"\xff\xfe{}",
        b'\xef\xbb\xbf{"payload": 1}',
        b'{"payload": NaN}',
        b'{"payload": -Infinity}',
        b'{"payload": 1, "payload": 2}',
        b'{"payload": {"a": 1, "a": 2}}',
        b'{"payload": {"a": 1, "\\u0061": 2}}',
        b'{"task": "a", "task": "b"}',
        b'{"payload": "\\ud800"}',
        b'{"key": "\\ud800"}',
        b'{"payload": "\xff"}',
        b'{"payload": 01}',
        b'{"payload": [1,]}',
        b'{"payload": ' + b"[" * 101 + b"]" * 101 + b"}",
        b'{"payload": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"payload": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
        b"[" * 1_000_000,
        b'{"priority": 1e999}',
        b'{"priority": ' + b"9" * 10_000 + b"}",
        b'{"priority": 123456789012345678901234567890}',
        b'{"priority": 1.5}',
        b'{"priority": true}',
        b'{"priority": "1"}',
        b'{"depends_on": [9007199254740992]}',
        b'{"key": "a\\u0000b"}',
        b'{"group": "\\u0000"}',
        b'{"task": "\\u0000"}',
        b'{"tags": ["\\u0000"]}',
        b'{"\\u0000": 1}',
        b'{"key": "' + b"k" * 513 + b'"}',
        b'{"tags": ["' + b"t" * 65 + b'"]}',
        b'{"headers": {"a": "' + b"h" * 4_096 + b'"}}',
        b'{"headers": {"a": 1}}',
    ],
)
async def test_a_body_that_is_wrong_is_one_problem(body: bytes) -> None:
    async with asking() as (up, client):
        answer = await client.request("POST", PUSH, body)
        assert (answer.status, answer.json["code"]) == (400, "invalid")
        assert await up.store.queues("default") == []
        assert (await client.post(PUSH, {})).status == 201  # the connection goes on


async def test_a_payload_may_be_nested_a_hundred_deep_whatever_is_around_it() -> None:
    async with asking() as (_, client):
        deep = b"[" * 100 + b"]" * 100
        assert (await client.request("POST", PUSH, b'{"payload": %b}' % deep)).status == 201
        body = b'{"jobs": [{"payload": %b}]}' % deep
        assert (await client.request("POST", PUSH, body)).status == 201
        too_deep = b'{"jobs": [{"payload": [%b]}]}' % deep
        answer = await client.request("POST", PUSH, too_deep)
        assert refused(answer, 400, "invalid", "payload")


@pytest.mark.parametrize(
    ("said", "detail"),
    [
        ({}, "of no type"),
        ({"Content-Type": "text/plain"}, "text/plain"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, "x-www-form-urlencoded"),
        ({"Content-Type": "application/json; charset=latin-1"}, "UTF-8"),
        ({"Content-Type": "application/json", "Content-Encoding": "gzip"}, "compressed"),
    ],
)
async def test_only_json_is_taken(said: dict[str, str], detail: str) -> None:
    async with asking() as (_, client):
        body = b'{"payload": 1}'
        head = {"Host": "test", "Content-Length": str(len(body)), **said}
        lines = [f"POST {PUSH} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items())]
        await client.send("\r\n".join((*lines, "", "")).encode() + body)
        answer = await client.answer()
        assert refused(answer, 415, "unsupported_media_type")
        assert detail in answer.json["detail"]
        assert (await client.get("/healthz")).status == 200


@pytest.mark.parametrize("media", ["application/json; charset=utf-8", "Application/JSON"])
async def test_json_may_be_spelled_in_several_ways(media: str) -> None:
    async with asking() as (_, client):
        answer = await client.request("POST", PUSH, b"{}", {"Content-Type": media})
        assert answer.status == 201


async def test_a_body_where_none_is_asked_for_is_refused() -> None:
    async with asking() as (_, client):
        assert refused(await client.post("/v1/queues/q/pause", {"a": 1}), 400, "invalid")
        assert refused(await client.request("GET", "/v1/queues", {}), 400, "invalid")


async def test_unknown_paths_and_methods_are_told_apart() -> None:
    async with asking() as (_, client):
        for path in (
            "/",
            "/v1",
            "/v1/",
            "/v1/queues/",
            "/v1/queues//jobs",
            "/v1/queues/q/jobs/",
            "/v2/queues",
            "/v1/webhooks/w",
            "/%76%31/queues",
            "/..",
        ):
            assert refused(await client.get(path), 404, "not_found"), path
        for method, path, allowed in [
            ("PUT", PUSH, "POST, GET, HEAD"),
            ("DELETE", "/v1/queues", "GET, HEAD"),
            ("GET", "/v1/claim", "POST"),
            ("OPTIONS", "/v1/jobs/1", "GET, PATCH, DELETE, HEAD"),
            ("TRACE", "/healthz", "GET, HEAD"),
        ]:
            answer = await client.request(method, path)
            assert refused(answer, 405, "method_not_allowed")
            assert answer.headers["allow"] == allowed


async def test_a_path_that_is_no_text_is_invalid() -> None:
    async with asking() as (_, client):
        assert refused(await client.get("/v1/crons/%ff"), 400, "invalid", "name")
        assert refused(await client.get("/v1/crons/%00"), 400, "invalid", "name")
        assert refused(await client.get("/v1/queues?x=1"), 400, "invalid", "x")
