"""The interface as an OpenAPI 3.1 document, made from the table of routes and its shapes."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Final

import msgspec

import penstock
from penstock.model.job import MAX_ID
from penstock.model.schedule import MAX_NAME_BYTES as MAX_CRON_NAME
from penstock.protocol.http_shown import Problem
from penstock.protocol.http_shown_server import EventShown
from penstock.protocol.http_types import NO_NUL, QUEUE_PATTERN
from penstock.server.problems import MEDIA_TYPE, STATUS, TITLES
from penstock.server.routing import Either, Route

# What any request may be answered with, whatever it asks for: a head that makes no sense or is
# too large, a body that does not come, a server that is too busy.
_ANY: Final = ("invalid", "deadline", "headers_too_large", "overloaded", "unavailable")
_WITH_BODY: Final = ("payload_too_large", "unsupported_media_type")
_ASKED_WHO: Final = ("unauthenticated", "forbidden")

_SCOPES: Final = {
    "push": "Needs the scope `push` over the queue.",
    "claim": "Needs the scope `claim` over the queue.",
    "admin": "Needs the scope `admin` over the queue.",
    "see": "Needs any scope over the queue.",
}

_PARAMETERS: Final[dict[str, dict[str, Any]]] = {
    "queue": {"type": "string", "pattern": QUEUE_PATTERN},
    "id": {"type": "integer", "minimum": 1, "maximum": MAX_ID},
    "lease": {"type": "string", "pattern": NO_NUL, "minLength": 1, "maxLength": 512},
    "bulk": {"type": "string", "pattern": NO_NUL, "minLength": 1, "maxLength": 512},
    "name": {"type": "string", "pattern": NO_NUL, "minLength": 1, "maxLength": MAX_CRON_NAME},
}

_EVENT_ID: Final = {
    "name": "Last-Event-ID",
    "in": "header",
    "description": "The id of the last event that was seen.",
    "schema": {"type": "string", "pattern": "^[0-9]{1,16}[.][0-9]{1,8}$"},
}


# What holds between fields of a shape.
_ONE_PAYLOAD: Final = {"not": {"required": ["payload", "payload_base64"]}}
_RULES: Final[dict[str, dict[str, Any]]] = {
    "JobSaid": _ONE_PAYLOAD,
    "FlowJobSaid": _ONE_PAYLOAD,
    "EditSaid": _ONE_PAYLOAD,
    "CronSaid": {
        **_ONE_PAYLOAD,
        "oneOf": [{"required": [name]} for name in ("expression", "every_ms", "daily")],
    },
}


@lru_cache(maxsize=8)
def encoded(routes: tuple[Route, ...]) -> bytes:
    return msgspec.json.encode(document(routes))


def document(routes: Sequence[Route]) -> dict[str, Any]:
    shapes = _shapes(routes)
    references, components = msgspec.json.schema_components(
        shapes, ref_template="#/components/schemas/{name}"
    )
    for name, rules in _RULES.items():
        components.get(name, {}).update(rules)
    reference = dict(zip(shapes, references, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    names: set[str] = set()
    for route in routes:
        name = route.name
        while name in names:
            name += "_too"
        names.add(name)
        operation = _operation(route, name, reference, components)
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock",
            "version": penstock.__version__,
            "description": "A job queue: producers push jobs, workers claim them on leases and"
            " ack them. Durations and instants are integer milliseconds. A refusal is a problem"
            " document whose `code` is the same on every transport.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _shapes(routes: Iterable[Route]) -> list[Any]:
    found: dict[Any, None] = {Problem: None, EventShown: None}
    for route in routes:
        said = (route.said.one, route.said.many) if isinstance(route.said, Either) else [route.said]
        found.update((shape, None) for shape in (*said, route.query, route.shown) if shape)
    return list(found)


def _operation(
    route: Route, name: str, reference: dict[Any, Any], components: dict[str, Any]
) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": name,
        "summary": route.doc,
        "responses": _responses(route, reference),
    }
    if route.scope is not None:
        operation["description"] = _SCOPES[route.scope]
        operation["security"] = [{"token": []}]
    parameters = [*_path_parameters(route), *_query_parameters(route, components)]
    if route.media == "text/event-stream":
        parameters.append(_EVENT_ID)
    if parameters:
        operation["parameters"] = parameters
    if route.said is not None:
        operation["requestBody"] = {
            "required": _is_required(route.said),
            "content": {"application/json": {"schema": _said(route.said, reference)}},
        }
    return operation


def _said(said: type[msgspec.Struct] | Either, reference: dict[Any, Any]) -> Any:
    if isinstance(said, Either):
        return {"anyOf": [reference[said.one], reference[said.many]]}
    return reference[said]


def _is_required(said: type[msgspec.Struct] | Either) -> bool:
    """Whether an empty object would not do."""
    shape = said.one if isinstance(said, Either) else said
    return any(field.required for field in msgspec.structs.fields(shape))


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in route.path.split("/") if part.startswith("{")]
    return [
        {"name": name, "in": "path", "required": True, "schema": _PARAMETERS[name]}
        for name in names
    ]


def _query_parameters(route: Route, components: dict[str, Any]) -> list[dict[str, Any]]:
    if route.query is None:
        return []
    shape = components[route.query.__name__]
    return [
        {"name": name, "in": "query", "required": False, "schema": schema}
        for name, schema in shape["properties"].items()
    ]


def _responses(route: Route, reference: dict[Any, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    if route.shown is not None:
        answer = {route.media: {"schema": reference[route.shown]}}
    elif route.status != 204:
        answer = {route.media: {"schema": {}}}
    responses: dict[int, dict[str, Any]] = {}
    for status in (route.status, *route.also):
        responses[status] = {"description": HTTPStatus(status).phrase}
        if answer and status != 204:
            responses[status]["content"] = answer
    for status, codes in sorted(_errors(route).items()):
        responses[status] = {
            "description": "; ".join(f"`{code}`: {TITLES[code]}" for code in codes),
            "content": {MEDIA_TYPE: {"schema": reference[Problem]}},
        }
    return {str(status): response for status, response in sorted(responses.items())}


def _errors(route: Route) -> dict[int, list[str]]:
    codes = dict.fromkeys(
        (
            *_ANY,
            *(_WITH_BODY if route.said is not None else ()),
            *(_ASKED_WHO if route.scope is not None else ()),
            *(("forbidden",) if route.method != "GET" else ()),
            *route.errors,
        )
    )
    found: dict[int, list[str]] = {}
    for code in codes:
        found.setdefault(STATUS[code], []).append(code)
    return found
