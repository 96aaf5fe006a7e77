"""Routes: what can be asked for, in which shape, and by whom; and which one a request is for.

A route is a value: the OpenAPI document is made from the same table that requests are matched
against, so what is written there is what is done.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec

from penstock.model.errors import Invalid, NotFound
from penstock.model.payload import MAX_DEPTH, check_json
from penstock.protocol.access import Scope
from penstock.server.problems import Refused, misshapen

if TYPE_CHECKING:
    from penstock.server.service import Call

# Objects and lists that may lie around a payload.
_ENVELOPE_DEPTH: Final = 8

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Handler = Callable[["Call"], Awaitable[Any]]


class Either(msgspec.Struct, frozen=True):
    """A body in one of two shapes: `many` if it has the member, else `one`."""

    one: type[msgspec.Struct]
    many: type[msgspec.Struct]
    member: str


class Route(msgspec.Struct, frozen=True, kw_only=True):
    method: Method
    path: str  # with {names} for what varies
    handler: Handler
    doc: str
    scope: Scope | Literal["see"] | None = None  # None: no credentials are asked for
    said: type[msgspec.Struct] | Either | None = None  # the body
    query: type[msgspec.Struct] | None = None
    shown: type[msgspec.Struct] | None = None  # None: no answer of ours, see `media`
    status: int = 200
    also: tuple[int, ...] = ()  # what else may come of it that is no error
    errors: tuple[str, ...] = ()  # codes, beside those that any request of its kind may get
    media: str = "application/json"
    waits: bool = False  # may go on until something happens: ended when the client goes away

    @property
    def name(self) -> str:
        """Of the action, for the audit log and for generated clients."""
        return self.handler.__name__

    @property
    def audited(self) -> bool:
        return self.scope == "admin"


class Router:
    """Finds a route by method and path, segment by segment."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        for route in routes:
            node = self._root
            for segment in route.path.split("/")[1:]:
                if segment.startswith("{"):
                    if node.any is None:
                        node.any = _Node()
                    node = node.any
                else:
                    node = node.literal.setdefault(segment, _Node())
            names = [part[1:-1] for part in route.path.split("/") if part.startswith("{")]
            assert route.method not in node.routes, f"two routes for {route.method} {route.path}"
            node.routes[route.method] = (route, tuple(names))

    def match(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """The route and what stands in its names. A HEAD is a GET that is answered in brief."""
        node: _Node | None = self._root
        values: list[str] = []
        if not path.startswith("/"):
            raise NotFound("nothing is there")
        for segment in path.split("/")[1:]:
            assert node is not None
            inner = node.literal.get(segment)
            if inner is None and segment:
                inner = node.any
                values.append(segment)
            node = inner
            if node is None:
                break
        if node is None or not node.routes:
            raise NotFound("nothing is there")
        found = node.routes.get("GET" if method == "HEAD" else method)
        if found is None:
            allowed = [*node.routes, *(["HEAD"] if "GET" in node.routes else [])]
            raise Refused(
                "method_not_allowed",
                f"{method[:20]} is none of {', '.join(allowed)}",
                (("Allow", ", ".join(allowed)),),
            )
        route, names = found
        return route, {name: _text(value, name) for name, value in zip(names, values, strict=True)}


class _Node:
    __slots__ = ("any", "literal", "routes")

    def __init__(self) -> None:
        self.literal: dict[str, _Node] = {}
        self.any: _Node | None = None
        self.routes: dict[str, tuple[Route, tuple[str, ...]]] = {}


def _text(written: str, field: str) -> str:
    """A part of a path or query without its percent signs."""
    try:
        text = unquote_to_bytes(written).decode()
    except UnicodeDecodeError as error:
        raise Invalid("is not UTF-8", field) from error
    if "\0" in text:
        raise Invalid("has a NUL in it", field)
    return text


def read_query(written: str, shape: type[msgspec.Struct] | None) -> msgspec.Struct | None:
    """What stands behind the question mark. A name comes once, unless it takes a list."""
    if shape is None and not written:
        return None
    try:
        pairs = parse_qsl(
            written, keep_blank_values=True, strict_parsing=bool(written), errors="strict"
        )
    except ValueError as error:
        raise Invalid("is not of the form name=value&name=value", "query") from error
    values: dict[str, Any] = {}
    lists = _lists(shape)
    for name, value in pairs:
        if "\0" in name or "\0" in value:
            raise Invalid("has a NUL in it", name.replace("\0", ""))
        if name in lists:
            values.setdefault(name, []).extend(value.split(","))
        elif name in values:
            raise Invalid("is given twice", name)
        else:
            values[name] = value
    if shape is None:
        raise Invalid("is not asked for here", next(iter(values)))
    try:
        return msgspec.convert(values, shape, strict=False)
    except msgspec.ValidationError as error:
        raise misshapen(error) from None


def _lists(shape: type[msgspec.Struct] | None) -> frozenset[str]:
    if shape is None:
        return frozenset()
    return frozenset(
        field.encode_name
        for field in msgspec.structs.fields(shape)
        if str(field.type).startswith("tuple")
    )


def read_body(body: bytes, shape: type[msgspec.Struct] | Either) -> msgspec.Struct:
    """The body in its shape. Nothing at all counts as an empty object."""
    written = body or b"{}"
    check_body(written)
    try:
        if isinstance(shape, Either):
            members = msgspec.json.decode(written, type=dict[str, msgspec.Raw])
            shape = shape.many if shape.member in members else shape.one
        return msgspec.json.decode(written, type=shape)
    except msgspec.ValidationError as error:
        raise misshapen(error) from None
    except msgspec.DecodeError as error:  # a number in it that no machine holds
        raise Invalid(f"the body cannot be read: {error}") from None


def check_body(body: bytes) -> None:
    """JSON by the rules of payloads, nested a little deeper."""
    try:
        check_json(body, MAX_DEPTH + _ENVELOPE_DEPTH)
    except Invalid as error:
        raise Invalid(f"the body {error.message}") from None


def check_media_type(headers: Mapping[str, str]) -> None:
    """Bodies are JSON and say so. (Pages of other origins cannot say so without being asked.)"""
    said = headers.get("content-type", "")
    media, _, parameters = said.partition(";")
    if media.strip().lower() != "application/json":
        raise Refused(
            "unsupported_media_type",
            f"the body is {media.strip()[:100] or 'of no type'}; send Content-Type: application/json",
        )
    charset = parameters.strip().lower().removeprefix("charset=").strip('"')
    if parameters and charset not in ("utf-8", "utf8"):
        raise Refused("unsupported_media_type", "JSON is UTF-8")
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused("unsupported_media_type", "bodies are taken as they are, not compressed")
