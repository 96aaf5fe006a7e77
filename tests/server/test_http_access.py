"""Who may do what over HTTP, and what is written down of it."""

from collections.abc import Mapping
from typing import Any

import pytest

from penstock.model.job import JobSpec
from penstock.model.schedule import CronSpec, Every
from penstock.protocol.access import Principal
from penstock.server.routes import ROUTES
from penstock.server.tcp import COMMANDS
from tests.server.client import Client
from tests.server.harness import asking, principal, running
from tests.server.test_http_jobs import refused

TOKENS = {
    "pusher": principal("pusher", "push"),
    "worker": principal("worker", "claim"),
    "admin": principal("admin", "admin"),
    "mails": principal("mails", "push:mail-*", "claim:mail-*", "admin:mail-*"),
    "nothing": principal("nothing"),
    "other": principal("other", "push", "claim", "admin", tenant="other"),
    "operator": principal("operator", "push", "claim", "admin", tenant=None),
}

# A request for every route that asks who it is, in the order of the table.
FILLED = {"queue": "mail-1", "id": "1", "lease": "0" * 32, "bulk": "b", "name": "c"}
BODIES: dict[str, object] = {
    "push_flow": {"jobs": [{"name": "a", "queue": "mail-1"}]},
    "claim_any": {"queues": ["mail-1"]},
    "fail": {"error": {}},
    "report_progress": {"id": 1, "progress": 1},
    "edit_job": {"priority": 1},
    "put_cron": {"queue": "mail-1", "every_ms": 1_000},
    "run_command": {"cmd": "NOPE"},
}
GUARDED = [route for route in ROUTES if route.scope is not None]


def path_of(route: Any) -> str:
    return str(route.path.format(**FILLED))


@pytest.mark.parametrize("route", GUARDED, ids=lambda route: f"{route.method} {route.path}")
async def test_every_bad_token_gets_the_same_refusal(route: Any) -> None:
    async with running(tokens=TOKENS) as up, await up.client() as client:
        seen = set()
        for said in (
            None,
            "",
            "Bearer",
            "Bearer ",
            "Bearer x",
            "Basic pusher",
            "pusher",
            "Bearer p",
        ):
            headers: dict[str, str] = {} if said is None else {"Authorization": said}
            body = BODIES.get(route.name, {}) if route.said is not None else None
            answer = await client.request(route.method, path_of(route), body, headers)
            assert refused(answer, 401, "unauthenticated")
            assert answer.headers["www-authenticate"] == "Bearer"
            answer.headers.pop("date")
            seen.add((answer.status, str(answer.headers), answer.body))
        assert len(seen) == 1


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/openapi.json", "/docs"])
async def test_health_and_documentation_ask_for_nothing(path: str) -> None:
    async with running(tokens=TOKENS) as up, await up.client() as client:
        assert (await client.get(path)).status == 200


@pytest.mark.parametrize("route", GUARDED, ids=lambda route: f"{route.method} {route.path}")
async def test_every_route_needs_its_scope(route: Any) -> None:
    allowed = {
        "push": {"pusher", "mails"},
        "claim": {"worker", "mails"},
        "admin": {"admin", "mails"},
        "see": {"pusher", "worker", "admin", "mails"},
    }[route.scope]
    if route.path in ("/v1/stats", "/v1/stats/history"):
        allowed = allowed - {"mails"}  # they are about every queue
    if route.path == "/metrics":
        allowed = {"operator"}  # they are about every tenant
    for token in ("pusher", "worker", "admin", "mails", "nothing", "operator"):
        async with running(tokens=TOKENS) as up, await up.client(token) as client:
            await up.store.push_jobs("default", "mail-1", [JobSpec()])
            await up.store.put_cron("default", _cron())
            body = BODIES.get(route.name, {}) if route.said is not None else None
            await client.ask(route.method, path_of(route), body)
            status, _ = await client.head_of_answer()
            if route.name == "run_command":
                assert status == 400  # commands look for themselves who asks
            elif token in allowed or token == "operator":
                assert status not in (401, 403), token
            else:
                # What is out of sight does not exist; the rest is forbidden.
                assert status == 403 or (token == "nothing" and status == 404), token
            client.vanish()


def _cron() -> CronSpec:
    return CronSpec(name="c", queue="mail-1", schedule=Every(every_ms=60_000))


async def test_queues_out_of_sight_do_not_exist() -> None:
    async with running(tokens=TOKENS) as up:
        async with await up.client("operator") as operator:
            await operator.post("/v1/queues/secret/jobs", {"payload": "hush"})
            await operator.post("/v1/queues/mail-1/jobs", {"payload": "hello"})
            secret = (await operator.get("/v1/queues/secret/jobs")).json["jobs"][0]["id"]
            cron = {"queue": "secret", "every_ms": 60_000}
            assert (await operator.request("PUT", "/v1/crons/c", cron)).status == 200
        async with await up.client("mails") as mails:
            listed = (await mails.get("/v1/queues")).json["queues"]
            assert [queue["queue"] for queue in listed] == ["mail-1"]
            assert (await mails.get("/v1/crons")).json == {"crons": []}
            job = f"/v1/jobs/{secret}"
            for method, path, body in [
                ("GET", job, None),
                ("PATCH", job, {"priority": 1}),
                ("DELETE", job, None),
                ("POST", f"{job}/retry", None),
                ("GET", f"{job}/result", None),
                ("GET", f"{job}/logs", None),
                ("GET", f"{job}/explain", None),
            ]:
                assert refused(await mails.request(method, path, body), 404, "not_found", "id")
            for method in ("GET", "DELETE"):
                answer = await mails.request(method, "/v1/crons/c")
                assert refused(answer, 404, "not_found", "name")
            own = {"queue": "mail-1", "every_ms": 60_000}
            answer = await mails.request("PUT", "/v1/crons/c", own)  # would replace another's
            assert answer.status == 403
            answer = await mails.post("/v1/queues/mail-1/jobs", {"depends_on": [secret]})
            assert refused(answer, 403, "forbidden", "depends_on")
            answer = await mails.post("/v1/claim", {"queues": ["mail-1", "secret"]})
            assert refused(answer, 403, "forbidden", "queue")
            answer = await mails.get("/v1/events?queue=secret")
            assert refused(answer, 403, "forbidden", "queue")
            flow = {"jobs": [{"name": "a", "queue": "mail-1"}, {"name": "b", "queue": "secret"}]}
            assert (await mails.post("/v1/flows", flow)).status == 403
        (info,) = await up.store.queues("default", ["secret"])
        assert info.counts["ready"] == 1  # type: ignore[index]


async def _touch_everything(client: Client, lease: str) -> list[int]:
    """Every route with the names of another tenant's things; answers the statuses."""
    filled = {"queue": "q", "id": "1", "lease": lease, "bulk": "b", "name": "c"}
    statuses = []
    for route in GUARDED:
        if route.name in ("watch_events", "run_command", "get_metrics"):
            continue
        body = BODIES.get(route.name, {}) if route.said is not None else None
        answer = await client.request(route.method, route.path.format(**filled), body)
        assert b"hush" not in answer.body
        statuses.append(answer.status)
    return statuses


async def test_another_tenant_sees_nothing_and_touches_nothing() -> None:
    async with asking(tokens=TOKENS) as (up, _):
        await up.store.push_jobs("default", "q", [JobSpec(payload=b'"hush"', key="k")])
        await up.store.open_bulk("default", "b")
        await up.store.put_cron("default", _cron())
        lease = await up.store.claim("default", ["q"], lease_ms=60_000)
        assert lease is not None
        before = await up.store.get("default", [1])
        async with await up.client("other") as other:
            await _touch_everything(other, lease.token)
            assert refused(await other.get("/metrics"), 403, "forbidden")
        assert await up.store.get("default", [1]) == before
        assert [info.spec.name for info in await up.store.crons("default")] == ["c"]
        assert (await up.store.open_bulk("default", "b")).state == "open"
        assert len((await up.store.ack("default", lease.token)).acked) == 1


async def test_without_tokens_the_tenant_is_default() -> None:
    async with asking(commands=COMMANDS) as (up, client):
        await client.post("/v1/queues/http/jobs", {})
        await client.post("/v1/command", {"cmd": "PUSH", "queue": "compatible", "data": 1})
        native = {"cmd": "PUSHRUN", "queue": "native", "payloads": ["MQ=="]}
        assert (await client.post("/v1/command", native)).status == 200
        there = [info.queue for info in await up.store.queues("default")]
        assert there == ["compatible", "http", "native"]


async def test_what_administrators_do_is_written_down_refused_or_not() -> None:
    written: list[tuple[str, str, str, dict[str, object]]] = []

    def audit(who: Principal, tenant: str, action: str, details: Mapping[str, object]) -> None:
        written.append((who.name, tenant, action, dict(details)))

    async with running(tokens=TOKENS, audit=audit) as up:
        async with await up.client("admin") as admin:
            await admin.post("/v1/queues/q/pause")
            config = {"limits": {"concurrency": 2}, "retain_count": 5}
            await admin.request("PUT", "/v1/queues/q/config", config)
            await admin.get("/v1/queues/q")
            await admin.request("DELETE", "/v1/jobs/1")  # not found: nothing was done
        async with await up.client("pusher") as pusher:
            await pusher.post("/v1/queues/q/drain")
            await pusher.post("/v1/queues/q/jobs", {"payload": 1})
        async with await up.client("admin") as admin:
            await admin.request("DELETE", "/v1/jobs/1")
            await admin.post("/v1/queues/q/dead/redrive", {"ids": [1]})
            cron = {"queue": "q", "every_ms": 60_000, "payload": "secret"}
            await admin.request("PUT", "/v1/crons/c", cron)
    assert [entry[:3] for entry in written] == [
        ("admin", "default", "pause_queue"),
        ("admin", "default", "configure_queue"),
        ("pusher", "default", "drain_queue"),
        ("admin", "default", "cancel_job"),
        ("admin", "default", "redrive_dead"),
        ("admin", "default", "put_cron"),
    ]
    details = [entry[3] for entry in written]
    assert details[0] == {"queue": "q"}
    assert details[1]["queue"] == "q"
    assert details[1]["retain_count"] == 5
    assert details[2] == {
        "queue": "q",
        "refused": "these credentials may not admin in this queue",
    }
    assert details[3] == {"id": "1"}
    assert details[4] == {"queue": "q", "ids": (1,)}
    assert "secret" not in str(details[5])
    assert details[5]["name"] == "c"


async def test_a_page_of_another_origin_changes_nothing() -> None:
    async with asking() as (_, client):
        await client.post("/v1/queues/q/jobs", {})
        elsewhere = {"Origin": "https://elsewhere.example"}
        answer = await client.request("POST", "/v1/queues/q/drain", headers=elsewhere)
        assert refused(answer, 403, "forbidden", "Origin")
        here = {"Origin": "http://test"}
        answer = await client.request("POST", "/v1/queues/q/drain", headers=here)
        assert answer.json == {"count": 1}
