"""The documentation of this interface, made from its own table."""

from typing import Final

from penstock.server.docs_page import render
from penstock.server.messages import JSON, PRIVATE, Response
from penstock.server.openapi import document, encoded
from penstock.server.routing import Route
from penstock.server.service import Call

# Nothing is loaded from anywhere, and no script runs.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"


async def get_openapi(call: Call) -> Response:
    return Response(body=encoded(call.service.routes), type=JSON)


async def get_docs(call: Call) -> Response:
    page = render(document(call.service.routes))
    headers = (*PRIVATE, ("Content-Security-Policy", _POLICY))
    return Response(body=page.encode(), type="text/html; charset=utf-8", headers=headers)


ROUTES: Final = (
    Route(
        method="GET",
        path="/openapi.json",
        handler=get_openapi,
        doc="This interface as an OpenAPI document.",
        media="application/json",
    ),
    Route(
        method="GET",
        path="/docs",
        handler=get_docs,
        doc="This interface as a page to read.",
        media="text/html",
    ),
)
