"""A request as it came and a response as it goes, apart from how their bytes travel."""

from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, Final

import msgspec

from penstock.protocol.http_shown import Problem
from penstock.server.problems import MEDIA_TYPE

JSON: Final = "application/json"

_encode: Final = msgspec.json.Encoder().encode

# Answers are about the present, and nothing but what they say they are.
PRIVATE: Final = (("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff"))


class Head(msgspec.Struct, frozen=True):
    """The first part of a request. Header names are in lower case."""

    method: str
    path: str  # as it was written, percent signs and all
    query: str
    headers: dict[str, str]  # one that came several times is joined by commas


class Response(msgspec.Struct, kw_only=True):
    status: int = 200
    body: bytes = b""
    type: str = JSON
    headers: tuple[tuple[str, str], ...] = PRIVATE
    stream: AsyncGenerator[bytes, None] | None = None  # instead of a body: goes on until it ends
    # What has to be done if nobody was there to be given this.
    undo: Callable[[], Coroutine[Any, Any, object]] | None = None

    @classmethod
    def json(cls, status: int, value: msgspec.Struct) -> "Response":
        return cls(status=status, body=_encode(value))

    @classmethod
    def problem(cls, problem: Problem, headers: tuple[tuple[str, str], ...] = ()) -> "Response":
        body = _encode(problem)
        return cls(status=problem.status, body=body, type=MEDIA_TYPE, headers=PRIVATE + headers)
