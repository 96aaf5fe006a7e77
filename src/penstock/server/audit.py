"""The audit log: who did what as an administrator, or was not let, one JSON line each.

What was done to jobs by the thousand is in the event log; this is about hands on the controls.
Neither secrets nor payloads are written, whoever passes them.
"""

import logging
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.model.errors import Unavailable
from penstock.protocol.access import Principal
from penstock.protocol.audited import INTERRUPTED, REFUSED

log: Final = logging.getLogger("penstock.audit")

# Said by callers, and nobody's business afterwards.
UNSAID: Final = frozenset(
    {"data", "error", "hash", "headers", "lease", "payload", "payload_base64", "result", "results"}
    | {"password", "secret", "token"}
)
LONGEST: Final = 256  # characters of a text
MOST: Final = 100  # items of a list or a table
DEEPEST: Final = 4


class AuditLog:
    """Called once per action, when it is over or was refused."""

    def __init__(
        self,
        path: Path | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._path = path
        self._now = now
        if path is not None:
            self._check(path)

    @staticmethod
    def _check(path: Path) -> None:
        """Better now than at the first action."""
        try:
            os.close(_opened(path))
        except OSError as error:
            why = f"{path} cannot be written: {error.strerror or error}"
            raise Unavailable(why, "audit_file") from error

    def __call__(
        self, principal: Principal, tenant: str, action: str, details: Mapping[str, object]
    ) -> None:
        line = {
            "time": self._now().isoformat(timespec="milliseconds"),
            "principal": principal.name,
            "tenant": tenant,
            "action": action,
            "details": {k: _shown(v) for k, v in details.items() if k.lower() not in UNSAID},
            "outcome": _outcome(details),
        }
        encoded = msgspec.json.encode(line)
        if self._path is None:
            log.info("%s", encoded.decode())
            return
        try:
            # Opened anew each time: actions are rare, and the file may have been rotated.
            handle = _opened(self._path)
            try:
                os.write(handle, encoded + b"\n")
            finally:
                os.close(handle)
        except OSError as error:
            log.error("%s cannot be written (%s): %s", self._path, error, encoded.decode())


def _opened(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def _outcome(details: Mapping[str, object]) -> str:
    if REFUSED in details:
        return "refused"
    return "unknown" if INTERRUPTED in details else "done"


def _shown(value: Any, depth: int = 0) -> Any:
    """The value as it may stand in a line: bounded, and without what is unsaid."""
    if isinstance(value, msgspec.Struct):
        value = {name: getattr(value, name) for name in value.__struct_fields__}
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return value if len(value) <= LONGEST else value[:LONGEST] + "…"
    if depth < DEEPEST and isinstance(value, Mapping):
        items = list(value.items())[:MOST]
        return {str(k): _shown(v, depth + 1) for k, v in items if str(k).lower() not in UNSAID}
    if depth < DEEPEST and isinstance(value, list | tuple | set | frozenset):
        shown = [_shown(each, depth + 1) for each in list(value)[:MOST]]
        return shown if len(value) <= MOST else [*shown, f"… {len(value)} in all"]
    return f"<{type(value).__name__}>"
