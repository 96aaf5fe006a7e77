"""Where a server listens, and which setting to change where it cannot."""

import errno
import os
from typing import Final

from penstock.model.errors import Conflict, PenstockError, Unavailable
from penstock.server.parts import Kind
from penstock.settings import Settings

# The setting that names the place of a transport, beside `host`.
SETTING: Final[dict[Kind, str]] = {"tcp": "port", "http": "http_port", "unix": "unix"}


def cannot_listen(settings: Settings, kind: Kind, error: OSError) -> PenstockError:
    """What the operating system refused, with the setting as its field."""
    setting = SETTING[kind]
    said = getattr(settings, setting)
    place = said if kind == "unix" else shown(settings.host, said)
    code = error.errno or 0
    if code == errno.EADDRINUSE:
        return Conflict(f"{place} is taken", setting)
    why = os.strerror(code) if code > 0 else error.strerror  # negative: of a name that is none
    elsewhere = code < 0 or code == errno.EADDRNOTAVAIL
    return Unavailable(f"nobody can listen at {place}: {why}", "host" if elsewhere else setting)


def shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
