"""Errors as problem documents (RFC 9457): one status and one title for each code.

The codes are those of every transport; HTTP adds a few for what can only go wrong there.
"""

import re
from typing import Final

import msgspec
from msgspec import UNSET

from penstock.model.errors import Invalid, PenstockError, Unavailable
from penstock.protocol.http_shown import Problem

MEDIA_TYPE: Final = "application/problem+json"

STATUS: Final[dict[str, int]] = {
    "invalid": 400,
    "unauthenticated": 401,
    "forbidden": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "deadline": 408,
    "conflict": 409,
    "lease_lost": 409,
    "payload_too_large": 413,
    "batch_too_large": 413,
    "unsupported_media_type": 415,
    "expectation_failed": 417,
    "rate_limited": 429,
    "headers_too_large": 431,
    "internal": 500,
    "overloaded": 503,
    "unavailable": 503,
    "storage_full": 507,
}

TITLES: Final[dict[str, str]] = {
    "invalid": "The request is wrong",
    "unauthenticated": "These credentials are not accepted",
    "forbidden": "These credentials do not allow that",
    "not_found": "There is no such thing",
    "method_not_allowed": "This cannot be done with that method",
    "deadline": "The time given was not enough",
    "conflict": "The state of things forbids it",
    "lease_lost": "The lease does not hold what was named",
    "payload_too_large": "The payload is too large",
    "batch_too_large": "The batch is too large",
    "unsupported_media_type": "The body is not JSON",
    "expectation_failed": "This expectation cannot be met",
    "rate_limited": "Too many pushes in too short a time",
    "headers_too_large": "The head of the request is too large",
    "internal": "The server made a mistake",
    "overloaded": "Too much at once",
    "unavailable": "The store cannot answer",
    "storage_full": "The storage is full",
}

# How fields of the model are called on this interface.
_SPELLED: Final = {"runs": "jobs", "job_id": "id", "error.kind": "error.class", "at": "daily"}

_WHERE: Final = re.compile(r"^(.*?)(?: - at `(?:key` in `)?\$(?:\.(.*))?`)?$", re.DOTALL)
_MEMBER: Final = re.compile("(?:unknown|required) field `(.*)`", re.DOTALL)


class Stopping(Unavailable):
    """The server ends, and gives out no more jobs. Nothing was done: whoever asks again a little
    later finds the one that follows. An empty answer would have them ask again at once."""

    def __init__(self) -> None:
        super().__init__("the server is stopping")


class Misshapen(Invalid):
    """What does not fit a shape: its field is called as on this interface already."""


class Refused(Exception):
    """What only HTTP refuses, or refuses with headers of its own."""

    def __init__(self, code: str, detail: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.headers = headers


def problem(code: str, detail: str, field: str = "") -> Problem:
    return Problem(
        type=f"urn:penstock:problem:{code}",
        title=TITLES[code],
        status=STATUS[code],
        detail=detail,
        code=code,
        field=field or UNSET,
    )


def problem_of(error: PenstockError) -> Problem:
    code = error.code if error.code in STATUS else "internal"
    field = error.field
    if not isinstance(error, Misshapen):
        field = _SPELLED.get(field, field)
    return problem(code, error.message, field)


def misshapen(error: msgspec.ValidationError) -> Misshapen:
    """With the field that is to blame."""
    found = _WHERE.match(str(error))
    assert found is not None
    said, path = found[1], found[2] or ""
    member = _MEMBER.search(said)
    if member is not None:
        path = f"{path}.{member[1]}" if path else member[1]
    return Misshapen(said, path)
