"""Where a server is: a host and a port, or a socket's path, and what we say to be let in."""

from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from penstock.model.errors import Invalid
from penstock.model.urls import without_password

PORT: Final = 6789


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server listens, and what we say to be let in."""

    host: str = ""
    port: int = 0
    path: str = ""  # of a Unix socket, instead
    token: str | None = None

    def __str__(self) -> str:
        return (
            f"penstock+unix://{self.path}" if self.path else f"penstock://{self.host}:{self.port}"
        )


def target_of(url: str, token: str | None = None) -> Target:
    """Where a url points; a token in it may stand before the host: `penstock://:token@host`."""
    parts = urlsplit(url)
    bare = without_password(url).partition("?")[0].partition("#")[0]
    if parts.query or parts.fragment:
        raise _wrong(url, f"has settings, and a server has its own: {bare}")
    if token is None:
        said = parts.password or parts.username
        token = None if said is None else unquote(said)
    if parts.scheme == "penstock+unix":
        path = unquote(parts.path)
        if parts.netloc.rpartition("@")[2] or len(path) < 2:
            raise _wrong(url, "names no socket: penstock+unix:///path")
        return Target(path=path, token=token)
    if not parts.hostname:
        path = parts.path if parts.path.startswith("/") else ""
        hint = f"; a socket is penstock+unix://{path}" if len(path) > 1 else ""
        raise _wrong(url, f"names no host: penstock://host:{PORT}{hint}")
    if parts.path not in ("", "/"):
        raise _wrong(url, f"names more than a server: {bare.removesuffix(parts.path)} is one")
    return Target(host=parts.hostname, port=_port(url, parts), token=token)


def _port(url: str, parts: SplitResult) -> int:
    try:
        port = PORT if parts.port is None else parts.port
    except ValueError:
        port = 0
    if not port:
        host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else parts.hostname
        raise _wrong(url, f"has no port from 1 to 65535: penstock://{host}:{PORT}")
    return port


def _wrong(url: str, why: str) -> Invalid:
    return Invalid(f"{without_password(url)!r} {why}", "url")
