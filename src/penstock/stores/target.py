"""Where a server is: a host and a port, or a socket's path, and what we say to be let in."""

from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec

from penstock.model.errors import Invalid

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
    try:
        port = parts.port
    except ValueError as error:
        raise Invalid(f"the url's port is wrong: {error}", "url") from None
    if token is None:
        said = parts.password or parts.username
        token = None if said is None else unquote(said)
    if parts.query or parts.fragment:
        raise Invalid(f"{parts.scheme}:// takes no settings", "url")
    if parts.scheme == "penstock+unix":
        path = unquote(parts.path)
        if parts.hostname or port is not None or len(path) < 2:
            raise Invalid(f"{parts.scheme}:///path names a socket's path", "url")
        return Target(path=path, token=token)
    if parts.scheme != "penstock" or not parts.hostname or parts.path not in ("", "/"):
        raise Invalid("penstock://host:port names a server", "url")
    return Target(host=parts.hostname, port=PORT if port is None else port, token=token)
