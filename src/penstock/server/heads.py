"""Heads of HTTP messages: what a request's says, and the bytes of a response's."""

from collections.abc import Iterable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from time import time
from typing import Final

from penstock.model.errors import Invalid
from penstock.server.messages import Head, Response

_SINGLE: Final = ("host", "authorization", "content-type")  # two of them would be two meanings


def read_head(
    method: bytes, version: str, target: bytes, lines: Iterable[tuple[str, str]]
) -> tuple[Head, int, bool]:
    """The head, how long its body will be if it says so, and whether there will be one."""
    if version not in ("1.0", "1.1"):
        raise Invalid(f"HTTP/{version} is not spoken here")
    headers: dict[str, str] = {}
    for name, value in lines:
        if name not in headers:
            headers[name] = value
        elif name in _SINGLE:
            raise Invalid("is given twice", name)
        else:
            headers[name] += f", {value}"
    if "host" not in headers and version == "1.1":
        raise Invalid("a request of HTTP/1.1 names its host", "Host")
    written = target.decode("latin-1")
    if written.startswith("http://"):  # as proxies are asked
        written = "/" + written.partition("://")[2].partition("/")[2]
    path, _, query = written.partition("#")[0].partition("?")
    length = int(headers.get("content-length", "0"))
    has_body = length > 0 or "transfer-encoding" in headers
    return Head(method.decode(), path, query, headers), length, has_body


def write_head(response: Response, ends: bool, *, chunked: bool = False) -> bytes:
    status = response.status
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", f"Date: {_date(int(time()))}"]
    if response.stream is not None:
        lines.append(f"Content-Type: {response.type}")
        if chunked:
            lines.append("Transfer-Encoding: chunked")
    elif status != HTTPStatus.NO_CONTENT:
        lines += [f"Content-Type: {response.type}", f"Content-Length: {len(response.body)}"]
    lines += [f"{name}: {value}" for name, value in response.headers]
    if ends:
        lines.append("Connection: close")
    return "\r\n".join((*lines, "", "")).encode("latin-1")


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    """An instant in the words of HTTP, made once a second."""
    return formatdate(second, usegmt=True)
