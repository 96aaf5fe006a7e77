"""Work over HTTP: claimed, acked, failed, released, extended, reported on."""

import asyncio

from penstock.server.tcp import COMMANDS
from tests.server.client import Client
from tests.server.harness import asking
from tests.server.test_http_jobs import NOW, refused

PUSH = "/v1/queues/q/jobs"
CLAIM = "/v1/queues/q/claim"
AFTER_5S = {"kind": "fixed", "base_ms": 5_000, "jitter": "none"}


async def claimed(client: Client, jobs: int, **job: object) -> str:
    """The token of a lease on so many new jobs."""
    await client.post(PUSH, {"jobs": [{**job, "payload": n} for n in range(jobs)]})
    answer = await client.post(CLAIM, {"n": jobs})
    assert len(answer.json["jobs"]) == jobs
    return str(answer.json["lease"])


async def test_a_claim_gives_a_lease_and_its_jobs() -> None:
    async with asking() as (_, client):
        await client.post(PUSH, {"payload": {"a": 1}, "key": "k", "tags": ["t"], "task": "f"})
        answer = await client.post(CLAIM, {"n": 5, "lease_ms": 1_000, "worker": "w"})
        assert answer.status == 200
        lease = answer.json
        assert len(lease.pop("lease")) >= 16
        assert lease == {
            "expires_at": NOW + 1_000,
            "jobs": [
                {
                    "id": 1,
                    "queue": "q",
                    "payload": {"a": 1},
                    "codec": "json",
                    "attempt": 1,
                    "max_attempts": 3,
                    "priority": 0,
                    "task": "f",
                    "key": "k",
                    "group": None,
                    "tags": ["t"],
                    "headers": None,
                    "created_at": NOW,
                    "run_at": NOW,
                    "redelivered": False,
                }
            ],
        }
        read = (await client.get("/v1/jobs/1")).json
        assert (read["state"], read["worker"]) == ("active", "w")
        assert read["lease_expires_at"] == NOW + 1_000


async def test_a_claim_without_work_is_204_at_once_or_after_its_wait() -> None:
    async with asking() as (up, client):
        answer = await client.post(CLAIM)
        assert (answer.status, answer.body) == (204, b"")
        waiting = asyncio.create_task(client.post(CLAIM, {"wait_ms": 1_000}))
        await up.claims_wait(1)
        await up.advance(1_000)
        assert (await waiting).status == 204


async def test_a_waiting_claim_gets_the_job_that_comes() -> None:
    async with asking() as (up, client), await up.client() as other:
        waiting = asyncio.create_task(client.post(CLAIM, {"wait_ms": 60_000}))
        await up.claims_wait(1)
        await other.post(PUSH, {"payload": "there"})
        assert (await waiting).json["jobs"][0]["payload"] == "there"


async def test_who_waits_for_work_is_told_by_a_command() -> None:
    async with asking(commands=COMMANDS) as (up, client), await up.client() as one:
        body = {"queues": ["a", "b"], "n": 5, "worker": "w", "wait_ms": 1_000}
        waiting = asyncio.create_task(one.post("/v1/claim", body))
        await up.claims_wait(1)
        told = (await client.post("/v1/command", {"cmd": "WAITING"})).json
        claim = {"worker": "w", "queues": ["a", "b"], "n": 5, "since": NOW}
        assert told == {"ok": True, "claims": [claim], "complete": True}
        await up.advance(1_000)
        assert (await waiting).status == 204


async def test_a_claim_over_several_queues_takes_from_the_first_that_has_work() -> None:
    async with asking() as (_, client):
        await client.post("/v1/queues/b/jobs", {"payload": "b"})
        await client.post("/v1/queues/c/jobs", {"payload": "c"})
        answer = await client.post("/v1/claim", {"queues": ["a", "b", "c"], "n": 10})
        assert [job["queue"] for job in answer.json["jobs"]] == ["b"]
        assert (await client.post("/v1/claim", {"queues": ["a"]})).status == 204


async def test_bad_claims_say_what_is_wrong() -> None:
    async with asking() as (_, client):
        for body, field in [
            ({"n": 0}, "n"),
            ({"lease_ms": 1}, "lease_ms"),
            ({"wait_ms": -1}, "wait_ms"),
            ({"worker": "w" * 513}, "worker"),
            ({"count": 1}, "count"),
        ]:
            assert refused(await client.post(CLAIM, body), 400, "invalid", field)
        assert refused(await client.post(CLAIM, {"n": 10_001}), 413, "batch_too_large", "n")
        assert refused(await client.post("/v1/claim", {}), 400, "invalid", "queues")
        assert refused(await client.post("/v1/claim", {"queues": []}), 400, "invalid", "queues")


async def test_acks_with_and_without_ids_and_results() -> None:
    async with asking() as (_, client):
        lease = await claimed(client, 5)
        ack = f"/v1/leases/{lease}/ack"
        answer = await client.post(ack, {"ids": [1, 9], "results": {"1": {"x": 1}}})
        assert (answer.status, answer.json) == (200, {"acked": [1], "lost": [9]})
        answer = await client.post(ack, {"ids": [2], "results_base64": {"2": "AQ=="}})
        assert answer.json == {"acked": [2], "lost": []}
        packed = {"ids": [3], "results": {"3": [1]}, "codec": "msgpack"}
        assert (await client.post(ack, packed)).json["acked"] == [3]
        assert (await client.post(ack)).json == {"acked": [4, 5], "lost": []}
        assert refused(await client.post(ack), 409, "lease_lost", "lease")
        results = [(await client.get(f"/v1/jobs/{n}/result")).json for n in (1, 2, 3, 4)]
        assert [result.get("result", result.get("result_base64")) for result in results] == [
            {"x": 1},
            "AQ==",
            [1],
            None,
        ]


async def test_a_lease_that_is_over_or_was_never_there_changes_nothing() -> None:
    async with asking() as (up, client):
        lease = await claimed(client, 1)
        await up.advance(30_000)
        for token in (lease, "0" * 32, "%20"):
            path = f"/v1/leases/{token}"
            for verb, body in [
                ("ack", {}),
                ("fail", {"error": {}}),
                ("release", {}),
                ("extend", {}),
                ("progress", {"id": 1, "progress": 1}),
            ]:
                answer = await client.post(f"{path}/{verb}", body)
                assert (answer.status, answer.json["code"]) == (409, "lease_lost")
        assert (await client.get("/v1/jobs/1")).json["errors"][0]["class"] == "lease_expired"


async def test_a_failure_is_retried_or_dead_and_says_when() -> None:
    async with asking() as (_, client):
        lease = await claimed(client, 4, backoff=AFTER_5S)
        fail = f"/v1/leases/{lease}/fail"
        error = {"class": "Boom", "message": "it broke", "trace": "here"}
        answer = await client.post(fail, {"ids": [1, 7], "error": error})
        assert answer.json == {
            "jobs": [{"id": 1, "state": "scheduled", "run_at": NOW + 5_000}],
            "lost": [7],
        }
        answer = await client.post(fail, {"ids": [2], "error": error, "retry_in_ms": 7})
        assert answer.json["jobs"] == [{"id": 2, "state": "scheduled", "run_at": NOW + 7}]
        answer = await client.post(fail, {"ids": [3], "error": error, "dead": True})
        assert answer.json["jobs"] == [{"id": 3, "state": "dead", "run_at": None}]
        answer = await client.post(fail, {"error": {}})
        assert [job["id"] for job in answer.json["jobs"]] == [4]
        read = (await client.get("/v1/jobs/3")).json
        assert (read["state"], read["dead_reason"]) == ("dead", "rejected")
        assert read["errors"] == [{**error, "at": NOW, "worker": "", "attempt": 1}]


async def test_releases_give_back_and_extensions_go_on() -> None:
    async with asking() as (up, client):
        lease = await claimed(client, 3)
        path = f"/v1/leases/{lease}"
        answer = await client.post(f"{path}/release", {"ids": [1, 8]})
        assert answer.json == {"released": [1], "lost": [8]}
        await up.advance(10_000)
        await up.store.cancel("default", [2])
        answer = await client.post(f"{path}/extend", {"lease_ms": 60_000})
        assert answer.json == {"expires_at": NOW + 70_000, "lost": [2]}
        answer = await client.post(f"{path}/extend")
        assert answer.json == {"expires_at": NOW + 40_000, "lost": [2]}
        assert (await client.post(f"{path}/release")).json == {"released": [3], "lost": []}


async def test_what_is_said_badly_under_a_lease_is_refused() -> None:
    async with asking() as (_, client):
        path = f"/v1/leases/{await claimed(client, 2)}"
        for verb, body, field in [
            ("ack", {"ids": []}, "ids"),
            ("ack", {"ids": ["1"]}, "ids[0]"),
            ("ack", {"results": {"one": 1}}, "results"),
            ("ack", {"ids": [1], "results": {"2": 1}}, "results"),
            ("ack", {"results": {}, "results_base64": {}}, "results_base64"),
            ("ack", {"results": {"1": 1}, "codec": "bytes"}, "codec"),
            ("fail", {}, "error"),
            ("fail", {"error": {"kind": "x"}}, "error.kind"),
            ("fail", {"error": {"class": ""}}, "error.class"),
            ("fail", {"error": {}, "retry_in_ms": -1}, "retry_in_ms"),
            ("extend", {"lease_ms": 49}, "lease_ms"),
            ("progress", {"id": 1, "progress": 101}, "progress"),
            ("progress", {"progress": 1}, "id"),
            ("progress", {"id": 1, "logs": [{"message": "m", "level": ""}]}, "logs.level"),
        ]:
            answer = await client.post(f"{path}/{verb}", body)
            assert refused(answer, 400, "invalid", field), (verb, body)
        answer = await client.post(f"{path}/ack", {"ids": [1] * 10_001})
        assert refused(answer, 413, "batch_too_large", "ids")
        assert (await client.get("/v1/queues/q")).json["counts"]["active"] == 2
