"""What the audit log is told of a command, the same on every transport."""

from collections.abc import Mapping
from typing import Final

from msgspec import UNSET

from penstock.protocol.access import DEFAULT_TENANT, Principal
from penstock.protocol.command import Request
from penstock.protocol.table import name_of

# Details that say how it ended; without one of them it was done.
REFUSED: Final = "refused"  # and why
INTERRUPTED: Final = "interrupted"  # whoever asked went away meanwhile: it may be done, or not

_ENVELOPE: Final = ("req_id", "tenant")


def audited(
    principal: Principal, request: Request, more: Mapping[str, object] | None = None
) -> tuple[Principal, str, str, dict[str, object]]:
    """Principal, tenant, action and details. The log itself leaves out payloads and secrets."""
    said: dict[str, object] = {
        field: value
        for field in request.__struct_fields__
        if (value := getattr(request, field)) is not None
        and value is not UNSET
        and field not in _ENVELOPE
    }
    tenant = principal.tenant or getattr(request, "tenant", None) or DEFAULT_TENANT
    return principal, tenant, name_of(type(request)), said | dict(more or {})
