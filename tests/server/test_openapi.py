"""The OpenAPI document and the page made from it say what the table of routes says."""

import json
import re
from typing import Any

from penstock.protocol.http_shown import JobClaimed, JobRead
from penstock.server.openapi import document
from penstock.server.problems import STATUS, TITLES
from penstock.server.routes import ROUTES
from tests.server.harness import asking
from tools.docs import ROOT

DOCUMENT = document(ROUTES)

# Every route that the specification names, but those of webhooks.
SPECIFIED = {
    "POST /v1/queues/{queue}/jobs",
    "GET /v1/queues/{queue}/jobs",
    "POST /v1/queues/{queue}/claim",
    "POST /v1/claim",
    "POST /v1/leases/{lease}/ack",
    "POST /v1/leases/{lease}/fail",
    "POST /v1/leases/{lease}/release",
    "POST /v1/leases/{lease}/extend",
    "POST /v1/leases/{lease}/progress",
    "GET /v1/jobs/{id}",
    "PATCH /v1/jobs/{id}",
    "DELETE /v1/jobs/{id}",
    "POST /v1/jobs/{id}/retry",
    "GET /v1/jobs/{id}/result",
    "GET /v1/jobs/{id}/logs",
    "GET /v1/jobs/{id}/explain",
    "GET /v1/queues",
    "GET /v1/queues/{queue}",
    "DELETE /v1/queues/{queue}",
    "POST /v1/queues/{queue}/pause",
    "POST /v1/queues/{queue}/resume",
    "POST /v1/queues/{queue}/drain",
    "PUT /v1/queues/{queue}/config",
    "GET /v1/queues/{queue}/dead",
    "GET /v1/queues/{queue}/dead/groups",
    "POST /v1/queues/{queue}/dead/redrive",
    "DELETE /v1/queues/{queue}/dead",
    "PUT /v1/crons/{name}",
    "GET /v1/crons/{name}",
    "DELETE /v1/crons/{name}",
    "GET /v1/crons",
    "POST /v1/flows",
    "POST /v1/bulks",
    "POST /v1/bulks/{bulk}/commit",
    "POST /v1/bulks/{bulk}/abort",
    "GET /v1/events",
    "GET /v1/stats",
    "GET /v1/stats/history",
    "POST /v1/command",
    "POST /api/command",
    "GET /metrics",
    "GET /healthz",
    "GET /readyz",
    "GET /openapi.json",
    "GET /docs",
}


def operations() -> dict[str, dict[str, Any]]:
    return {
        f"{method.upper()} {path}": operation
        for path, methods in DOCUMENT["paths"].items()
        for method, operation in methods.items()
    }


def test_every_route_of_the_specification_is_there_and_no_other() -> None:
    assert operations().keys() == SPECIFIED
    assert {f"{route.method} {route.path}" for route in ROUTES} == SPECIFIED


def test_every_reference_leads_somewhere_and_every_name_is_one() -> None:
    text = json.dumps(DOCUMENT)
    for name in re.findall(r'"#/components/schemas/(\w+)"', text):
        assert name in DOCUMENT["components"]["schemas"]
    names = [operation["operationId"] for operation in operations().values()]
    assert len(names) == len(set(names))


def test_every_operation_lists_its_problems() -> None:
    for name, operation in operations().items():
        answers = operation["responses"]
        problems = {status for status in answers if status >= "400"}
        assert problems >= {"400", "408", "431", "503"}, name
        if "security" in operation:
            assert problems >= {"401", "403"}, name
        if "requestBody" in operation:
            assert problems >= {"413", "415"}, name
        for status in problems:
            ((media, content),) = answers[status]["content"].items()
            assert media == "application/problem+json"
            assert content["schema"] == {"$ref": "#/components/schemas/Problem"}


def test_every_code_has_a_status_and_a_title() -> None:
    assert STATUS.keys() == TITLES.keys()
    problem = DOCUMENT["components"]["schemas"]["Problem"]
    assert problem["required"] == ["type", "title", "status", "detail", "code"]


def test_the_documentation_has_every_code_with_its_status() -> None:
    page = (ROOT / "docs" / "reference" / "http.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.+?) \| (\d+)", page, re.MULTILINE)
    said = {code: int(status) for codes, status in rows for code in re.findall(r"`(\w+)`", codes)}
    assert said == STATUS


def test_jobs_have_the_fields_of_the_specification() -> None:
    claimed = [
        "id",
        "queue",
        "payload",
        "payload_base64",
        "codec",
        "attempt",
        "max_attempts",
        "priority",
        "task",
        "key",
        "group",
        "tags",
        "headers",
        "created_at",
        "run_at",
        "redelivered",
    ]
    read = [
        "state",
        "dead_reason",
        "attempts",
        "lease_expires_at",
        "last_heartbeat",
        "worker",
        "progress",
        "progress_message",
        "result",
        "result_base64",
        "errors",
        "started_at",
        "finished_at",
        "children",
        "parent",
    ]
    assert list(JobClaimed.__struct_encode_fields__) == claimed
    assert list(JobRead.__struct_encode_fields__) == claimed + read


async def test_the_document_and_the_page_are_served() -> None:
    async with asking() as (_, client):
        answer = await client.get("/openapi.json")
        assert answer.json == json.loads(json.dumps(DOCUMENT))
        page = await client.get("/docs")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in page.headers["content-security-policy"]
        text = page.body.decode()
        for name in SPECIFIED:
            method, path = name.split()
            assert f"<b>{method}</b> <code>{path}</code>" in text
        for shape in DOCUMENT["components"]["schemas"]:
            assert f'id="shape-{shape}"' in text
        for target in re.findall(r'href="#([^"]+)"', text):
            assert f'id="{target}"' in text
        assert "://" not in text
        assert "<script" not in text
