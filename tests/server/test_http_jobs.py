"""Jobs over HTTP: pushed, looked at, changed, awaited."""

import asyncio
from base64 import b64encode
from typing import Any

import msgspec

from penstock.model.job import JobError, JobSpec
from penstock.model.lifecycle import State
from tests.server.client import Answer, Client
from tests.server.harness import asking

NOW = 1_700_000_000_000


def refused(answer: Answer, status: int, code: str, field: str | None = None) -> bool:
    """Whether the answer is that problem, complete and with its own status."""
    assert answer.headers["content-type"] == "application/problem+json"
    said = answer.json
    assert said["type"] == f"urn:penstock:problem:{said['code']}"
    assert said["status"] == answer.status
    assert said["title"]
    assert said["detail"]
    assert (answer.status, said["code"], said.get("field")) == (status, code, field)
    return True


async def pushed(client: Client, **job: Any) -> int:
    answer = await client.post("/v1/queues/q/jobs", job)
    assert answer.status == 201
    return int(answer.json["jobs"][0]["id"])


async def test_one_job_is_pushed_and_read_with_every_field() -> None:
    async with asking() as (_, client):
        answer = await client.post(
            "/v1/queues/emails/jobs",
            {
                "payload": {"user": 1},
                "task": "welcome",
                "lease_ms": 60_000,
                "priority": 7,
                "delay_ms": 1_000,
                "max_attempts": 5,
                "backoff": {"kind": "list", "list_ms": [1, 2], "jitter": "none"},
                "timeout_ms": 5_000,
                "ttl_ms": 90_000,
                "key": "welcome:1",
                "on_conflict": "replace",
                "keep_key": 5_000,
                "group": "g",
                "on_dependency_failure": "ignore",
                "tags": ["a", "b"],
                "headers": {"trace": "1"},
                "retain_ms": 1,
                "retain_dead_ms": 2,
            },
        )
        assert answer.status == 201
        assert answer.headers["content-type"] == "application/json"
        assert answer.json == {"jobs": [{"id": 1, "outcome": "created"}]}
        read = await client.get("/v1/jobs/1")
        assert read.status == 200
        assert read.json == {
            "id": 1,
            "queue": "emails",
            "payload": {"user": 1},
            "codec": "json",
            "attempt": 0,
            "max_attempts": 5,
            "priority": 7,
            "task": "welcome",
            "key": "welcome:1",
            "group": "g",
            "tags": ["a", "b"],
            "headers": {"trace": "1"},
            "created_at": NOW,
            "run_at": NOW + 1_000,
            "redelivered": False,
            "state": "scheduled",
            "dead_reason": None,
            "attempts": 0,
            "lease_expires_at": None,
            "last_heartbeat": None,
            "worker": None,
            "progress": None,
            "progress_message": None,
            "result": None,
            "errors": [],
            "started_at": None,
            "finished_at": None,
            "children": [],
            "parent": None,
        }


async def test_every_option_reaches_the_store() -> None:
    async with asking() as (up, client):
        body = {
            "payload": 1,
            "lease_ms": 60_000,
            "timeout_ms": 5_000,
            "ttl_ms": 90_000,
            "backoff": {"kind": "linear", "base_ms": 5, "cap_ms": 50, "jitter": "equal"},
            "lifo": True,
            "retain_ms": 1,
            "retain_dead_ms": 2,
            "on_conflict": "match",
            "keep_key": "retained",
            "on_dependency_failure": "ignore",
        }
        await client.post("/v1/queues/q/jobs", body)
        (job,) = await up.store.get("default", [1])
        assert job is not None
        options = msgspec.to_builtins(job.options)
        backoff = options.pop("backoff")
        assert options == {name: body[name] for name in options}
        assert set(options) == set(body) - {"payload", "backoff"}
        assert backoff == body["backoff"]


async def test_several_jobs_are_pushed_at_once_and_keys_decide() -> None:
    async with asking() as (_, client):
        jobs = [{"payload": 1, "key": "k"}, {"payload": 2}, {"payload": 3, "key": "k"}]
        answer = await client.post("/v1/queues/q/jobs", {"jobs": jobs})
        assert answer.json == {
            "jobs": [
                {"id": 1, "outcome": "created"},
                {"id": 2, "outcome": "created"},
                {"id": 1, "outcome": "ignored"},
            ]
        }
        replace = {"payload": 4, "key": "k", "on_conflict": "replace"}
        answer = await client.post("/v1/queues/q/jobs", replace)
        assert answer.json == {"jobs": [{"id": 1, "outcome": "updated"}]}
        reject = {"payload": 4, "key": "k", "on_conflict": "reject"}
        assert refused(await client.post("/v1/queues/q/jobs", reject), 409, "conflict", "key")


async def test_a_repeated_push_of_a_producer_gives_the_first_answer() -> None:
    async with asking() as (_, client):
        body = {"jobs": [{"payload": 1}], "producer": "p", "sequence": 1}
        first = await client.post("/v1/queues/q/jobs", body)
        again = await client.post("/v1/queues/q/jobs", body)
        assert first.json == again.json == {"jobs": [{"id": 1, "outcome": "created"}]}
        other = {**body, "jobs": [{"payload": 2}]}
        assert refused(await client.post("/v1/queues/q/jobs", other), 400, "invalid", "sequence")


async def test_bytes_travel_as_base64_and_come_back_so() -> None:
    async with asking() as (_, client):
        said = b64encode(b"\0\1\2").decode()
        await pushed(client, payload_base64=said)
        read = (await client.get("/v1/jobs/1")).json
        assert (read["payload_base64"], read["codec"]) == (said, "bytes")
        assert "payload" not in read


async def test_msgpack_is_shown_as_json_if_it_has_that_form() -> None:
    async with asking() as (up, client):
        await pushed(client, payload={"a": [1, 2.5, None, "x"]}, codec="msgpack")
        (job,) = await up.store.get("default", [1])
        assert job is not None
        assert msgspec.msgpack.decode(job.payload) == {"a": [1, 2.5, None, "x"]}
        read = (await client.get("/v1/jobs/1")).json
        assert (read["payload"], read["codec"]) == ({"a": [1, 2.5, None, "x"]}, "msgpack")
        for odd in (b"\xc4\x01\0", b"\x81\x01\x02", b"\xcb\x7f\xf8\0\0\0\0\0\0", b"\xc1"):
            job_id = await pushed(client, payload_base64=b64encode(odd).decode(), codec="msgpack")
            read = (await client.get(f"/v1/jobs/{job_id}")).json
            assert read["payload_base64"] == b64encode(odd).decode()
            assert "payload" not in read


async def test_json_keeps_every_digit() -> None:
    async with asking() as (_, client):
        odd = b'{"n": 123456789012345678901234567890, "f": 0.10000000000000000000001, "e": 1e999}'
        await client.request("POST", "/v1/queues/q/jobs", b'{"payload": %b}' % odd)
        assert odd in (await client.get("/v1/jobs/1")).body


async def test_payloads_that_do_not_fit_are_refused_with_their_field() -> None:
    async with asking() as (_, client):
        both = {"payload": 1, "payload_base64": "AA=="}
        post = "/v1/queues/q/jobs"
        assert refused(await client.post(post, both), 400, "invalid", "payload_base64")
        assert refused(
            await client.post(post, {"payload": 1, "codec": "bytes"}), 400, "invalid", "codec"
        )
        assert refused(
            await client.post(post, {"payload_base64": "?"}), 400, "invalid", "payload_base64"
        )
        large = b'{"codec": "msgpack", "payload": 123456789012345678901234567890}'
        assert refused(await client.request("POST", post, large), 400, "invalid", "payload")
        not_json = {"codec": "json", "payload_base64": b64encode(b"{").decode()}
        assert refused(await client.post(post, not_json), 400, "invalid", "payload")


async def test_a_payload_of_more_than_10_mib_is_too_large() -> None:
    async with asking() as (_, client):
        body = b'{"payload": "%b"}' % (b"x" * (10 * 1024 * 1024))
        answer = await client.request("POST", "/v1/queues/q/jobs", body)
        assert refused(answer, 413, "payload_too_large", "payload")


async def test_a_batch_of_more_than_10_000_jobs_is_too_large() -> None:
    async with asking() as (_, client):
        answer = await client.post("/v1/queues/q/jobs", {"jobs": [{}] * 10_001})
        assert refused(answer, 413, "batch_too_large", "jobs")
        answer = await client.post("/v1/queues/q/jobs", {"jobs": [{}] * 10_000})
        assert answer.status == 201
        assert len(answer.json["jobs"]) == 10_000


async def test_bad_pushes_say_which_field_is_wrong() -> None:
    async with asking() as (up, client):
        for body, field in [
            ({"prioritty": 1}, "prioritty"),
            ({"priority": "high"}, "priority"),
            ({"priority": 2**31}, "priority"),
            ({"backoff": {"kind": "cubic"}}, "backoff.kind"),
            ({"backoff": {"factor": 2}}, "backoff.factor"),
            ({"jobs": [{}, {"payloads": 1}]}, "jobs[1].payloads"),
            ({"jobs": [], "bulk": None}, "jobs"),
            ({"delay_ms": 1, "run_at": 1}, "run_at"),
            ({"ttl_ms": 5, "delay_ms": 5}, "ttl_ms"),
            ({"lifo": True, "group": "g"}, "lifo"),
            ({"keep_key": "forever"}, "keep_key"),
            ({"webhook": "w"}, "webhook"),
            ({"depends_on": [10_000]}, "depends_on"),
            ({"key": ""}, "key"),
            ({"jobs": [{}], "sequence": 1}, "producer"),
            ({"jobs": [{}], "part": "p"}, "part"),
            ({"jobs": [{}], "durability": "os"}, "durability"),
        ]:
            answer = await client.post("/v1/queues/q/jobs", body)
            assert refused(answer, 400, "invalid", field), body
        assert refused(await client.post("/v1/queues/a%20b/jobs", {}), 400, "invalid", "queue")
        assert await up.store.queues("default") == []


async def test_bounds_refuse_with_their_own_statuses() -> None:
    async with asking() as (_, client):
        config = {"bounds": {"jobs": 1, "push_rate": {"tokens": 1, "per_ms": 1_000}}}
        await client.request("PUT", "/v1/queues/q/config", config)
        assert (await client.post("/v1/queues/q/jobs", {})).status == 201
        answer = await client.post("/v1/queues/q/jobs", {})
        assert (answer.status, answer.json["code"]) in [(429, "rate_limited"), (503, "overloaded")]
        await client.request("PUT", "/v1/queues/q/config", {"bounds": {"jobs": 1}})
        answer = await client.post("/v1/queues/q/jobs", {})
        assert (answer.status, answer.json["code"]) == (503, "overloaded")


async def test_a_job_is_edited_cancelled_and_retried() -> None:
    async with asking() as (up, client):
        await pushed(client, payload=1, delay_ms=5_000)
        edited = await client.request("PATCH", "/v1/jobs/1", {"priority": 3, "payload": [2]})
        assert edited.status == 200
        assert (edited.json["priority"], edited.json["payload"]) == (3, [2])
        promoted = await client.request("PATCH", "/v1/jobs/1", {"delay_ms": 0})
        assert promoted.json["state"] == "ready"
        to_bytes = await client.request("PATCH", "/v1/jobs/1", {"payload_base64": "AA=="})
        assert (to_bytes.json["codec"], to_bytes.json["payload_base64"]) == ("bytes", "AA==")
        assert refused(await client.request("PATCH", "/v1/jobs/1", {}), 400, "invalid", "priority")
        assert refused(
            await client.request("PATCH", "/v1/jobs/1", {"codec": "json"}), 400, "invalid", "codec"
        )
        assert refused(await client.post("/v1/jobs/1/retry"), 409, "conflict", "id")
        lease = await up.store.claim("default", ["q"])
        assert lease is not None
        await up.store.fail("default", lease.token, error=JobError(), dead=True)
        answer = await client.request("PATCH", "/v1/jobs/1", {"priority": 1})
        assert (answer.status, answer.json["code"]) == (409, "conflict")
        retried = await client.post("/v1/jobs/1/retry")
        assert (retried.status, retried.json["state"], retried.json["attempts"]) == (
            200,
            "ready",
            0,
        )
        cancelled = await client.request("DELETE", "/v1/jobs/1")
        assert (cancelled.status, cancelled.body) == (204, b"")
        assert "content-length" not in cancelled.headers
        assert refused(await client.request("DELETE", "/v1/jobs/1"), 409, "conflict", "id")


async def test_a_dead_job_whose_key_is_taken_cannot_be_retried() -> None:
    async with asking() as (up, client):
        await pushed(client, key="k")
        lease = await up.store.claim("default", ["q"])
        assert lease is not None
        await up.store.fail("default", lease.token, error=JobError(), dead=True)
        await pushed(client, key="k")
        assert refused(await client.post("/v1/jobs/1/retry"), 409, "conflict", "id")


async def test_unknown_jobs_are_not_found_and_odd_ids_invalid() -> None:
    async with asking() as (_, client):
        for method, path in [
            ("GET", "/v1/jobs/7"),
            ("DELETE", "/v1/jobs/7"),
            ("POST", "/v1/jobs/7/retry"),
            ("GET", "/v1/jobs/7/result"),
            ("GET", "/v1/jobs/7/logs"),
            ("GET", "/v1/jobs/7/explain"),
        ]:
            assert refused(await client.request(method, path), 404, "not_found", "id")
        answer = await client.request("PATCH", "/v1/jobs/7", {"priority": 1})
        assert refused(answer, 404, "not_found", "id")
        for odd in ("x", "0", "-1", "1.0", "%D9%A3", "9007199254740992", "9" * 400):
            assert refused(await client.get(f"/v1/jobs/{odd}"), 400, "invalid", "id")


async def test_the_result_of_a_job_in_each_of_its_ends() -> None:
    async with asking() as (up, client):
        for _ in range(4):
            await pushed(client)
        assert refused(await client.get("/v1/jobs/1/result"), 408, "deadline", "wait_ms")
        lease = await up.store.claim("default", ["q"], 3, worker="w")
        assert lease is not None
        await up.store.ack("default", lease.token, [1], results={1: b'{"x": 1}'})
        await up.store.ack("default", lease.token, [2], results={2: b"\1"}, codec="bytes")
        error = JobError(kind="Boom", message="it broke", trace="line 1")
        await up.store.fail("default", lease.token, [3], error=error, dead=True)
        await up.store.cancel("default", [4])
        assert (await client.get("/v1/jobs/1/result")).json == {
            "state": "completed",
            "result": {"x": 1},
        }
        assert (await client.get("/v1/jobs/2/result")).json == {
            "state": "completed",
            "result_base64": "AQ==",
        }
        assert (await client.get("/v1/jobs/3/result")).json == {
            "state": "dead",
            "error": {
                "class": "Boom",
                "message": "it broke",
                "trace": "line 1",
                "at": NOW,
                "worker": "w",
                "attempt": 1,
            },
            "dead_reason": "rejected",
        }
        assert (await client.get("/v1/jobs/4/result")).json == {"state": "cancelled", "error": None}
        assert (await client.get("/v1/jobs/1")).json["result"] == {"x": 1}
        assert (await client.get("/v1/jobs/2")).json["result_base64"] == "AQ=="
        assert (await client.get("/v1/jobs/3")).json["errors"][0]["class"] == "Boom"


async def test_a_result_is_waited_for_and_the_wait_has_an_end() -> None:
    async with asking() as (up, client):
        await pushed(client)
        lease = await up.store.claim("default", ["q"])
        assert lease is not None
        await client.ask("GET", "/v1/jobs/1/result?wait_ms=60000")
        async with await up.client() as other:
            assert (await other.get("/healthz")).status == 200  # nobody is held up by the wait
        await up.store.ack("default", lease.token)
        assert (await client.answer()).json == {"state": "completed", "result": None}
        await pushed(client)
        waiting = asyncio.create_task(client.request("GET", "/v1/jobs/2/result?wait_ms=1000"))
        async with await up.client() as other:
            await other.get("/healthz")
        await up.advance(1_000)
        assert refused(await waiting, 408, "deadline", "wait_ms")


async def test_logs_and_explanations() -> None:
    async with asking() as (_, client):
        await pushed(client)
        assert (await client.get("/v1/jobs/1/explain")).json == {
            "id": 1,
            "state": "ready",
            "reasons": ["next"],
            "detail": {},
            "ahead": 0,
            "start_at": NOW,
        }
        claimed = (await client.post("/v1/queues/q/claim")).json
        said = {
            "id": 1,
            "progress": 40,
            "message": "almost",
            "logs": [{"message": "hello"}, {"message": "careful", "level": "warn", "at": 5}],
            "partial": {"so": "far"},
        }
        answer = await client.post(f"/v1/leases/{claimed['lease']}/progress", said)
        assert answer.status == 204
        assert (await client.get("/v1/jobs/1/logs")).json == {
            "logs": [
                {"at": NOW, "message": "hello", "level": "info"},
                {"at": 5, "message": "careful", "level": "warn"},
            ]
        }
        read = (await client.get("/v1/jobs/1")).json
        assert (read["progress"], read["progress_message"]) == (40, "almost")


async def test_jobs_are_listed_by_state_page_by_page() -> None:
    async with asking() as (up, client):
        jobs = [{"payload": n, "task": "even" if n % 2 == 0 else "odd"} for n in range(1, 251)]
        await client.post("/v1/queues/q/jobs", {"jobs": jobs})
        await up.store.cancel("default", [3])
        found: list[int] = []
        cursor: int | None = 0
        while cursor is not None:
            answer = await client.get(f"/v1/queues/q/jobs?state=ready&limit=100&cursor={cursor}")
            assert answer.status == 200
            page = answer.json
            assert len(page["jobs"]) <= 100
            found += [job["id"] for job in page["jobs"]]
            cursor = page["cursor"]
        assert found == [n for n in range(1, 251) if n != 3]
        odd = (await client.get("/v1/queues/q/jobs?task=odd&limit=3")).json
        assert [job["id"] for job in odd["jobs"]] == [1, 3, 5]
        newest = (await client.get("/v1/queues/q/jobs?task=odd&limit=3&newest=true")).json
        assert [job["id"] for job in newest["jobs"]] == [249, 247, 245]
        before = await client.get(
            f"/v1/queues/q/jobs?newest=true&cursor={newest['cursor']}&limit=2"
        )
        assert [job["id"] for job in before.json["jobs"]] == [244, 243]
        for query, field in [
            ("state=lost", "state"),
            ("limit=0", "limit"),
            ("limit=1001", "limit"),
            ("limit=ten", "limit"),
            ("cursor=-1", "cursor"),
            ("newest=perhaps", "newest"),
            ("limit=1&limit=2", "limit"),
            ("colour=red", "colour"),
            ("limit", "query"),
            ("task=%00", "task"),
            ("task=%ff", "query"),
        ]:
            answer = await client.get(f"/v1/queues/q/jobs?{query}")
            assert refused(answer, 400, "invalid", field), query


async def test_a_page_ends_when_it_is_large_whatever_the_limit() -> None:
    async with asking() as (up, client):
        large = JobSpec(payload=b'"' + b"x" * 3_000_000 + b'"')
        for _ in range(4):
            await up.store.push_jobs("default", "q", [large] * 5)
        sizes, seen = [], 0
        cursor: int | None = 0
        while cursor is not None:
            answer = await client.get(f"/v1/queues/q/jobs?limit=1000&cursor={cursor}")
            sizes.append(len(answer.body))
            seen += len(answer.json["jobs"])
            cursor = answer.json["cursor"]
        assert seen == 20
        assert len(sizes) > 1
        assert max(sizes) < 60_000_000


async def test_a_flow_is_pushed_as_a_graph() -> None:
    async with asking() as (up, client):
        flow = {
            "jobs": [
                {"name": "report", "queue": "r", "payload": 3, "after": ["a", "b"]},
                {"name": "a", "queue": "q", "payload": 1},
                {"name": "b", "queue": "q", "payload": 2, "after": ["a"]},
            ]
        }
        answer = await client.post("/v1/flows", flow)
        assert answer.status == 201
        ids = answer.json["jobs"]
        assert list(ids) == ["report", "a", "b"]
        report, a, b = [(await client.get(f"/v1/jobs/{ids[name]}")).json for name in ids]
        assert [job["state"] for job in (report, a, b)] == ["blocked", "ready", "blocked"]
        assert sorted(report["children"]) == sorted([ids["a"], ids["b"]])
        assert (b["children"], b["parent"], report["parent"]) == ([ids["a"]], ids["report"], None)
        explained = (await client.get(f"/v1/jobs/{ids['b']}/explain")).json
        assert (explained["reasons"], explained["detail"]) == (["blocked"], {"blocked": [ids["a"]]})
        for _ in range(3):
            lease = await up.store.claim("default", ["q", "r"])
            assert lease is not None
            await up.store.ack("default", lease.token)
        (last,) = await up.store.get("default", [ids["report"]])
        assert last is not None
        assert last.state is State.COMPLETED


async def test_a_flow_that_makes_no_sense_is_refused_whole() -> None:
    async with asking() as (up, client):
        for jobs, field in [
            ([], "jobs"),
            ([{"name": "a", "queue": "q"}, {"name": "a", "queue": "q"}], "name"),
            ([{"name": "a", "queue": "q", "after": ["b"]}], "after"),
            ([{"name": "a", "queue": "q", "after": ["a"]}], "depends_on"),
            ([{"queue": "q"}], "jobs[0].name"),
            ([{"name": "a", "queue": "?"}], "queue"),
            ([{"name": "", "queue": "q"}], "name"),
            ([{"name": "n" * 513, "queue": "q"}], "name"),
        ]:
            answer = await client.post("/v1/flows", {"jobs": jobs})
            assert refused(answer, 400, "invalid", field), jobs
        circle = [
            {"name": "a", "queue": "q", "after": ["b"]},
            {"name": "b", "queue": "q", "after": ["a"]},
        ]
        answer = await client.post("/v1/flows", {"jobs": circle})
        assert (answer.status, answer.json["code"]) == (400, "invalid")
        assert await up.store.queues("default") == []
