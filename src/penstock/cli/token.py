"""`penstock token`: make tokens, and what is kept of them."""

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from penstock.model.checks import check_tenant
from penstock.model.errors import PenstockError
from penstock.protocol.access import SCOPES, Grant
from penstock.server.auth import PREFIX, hash_of, new_token


def create(
    name: str,
    tenant: str,
    scopes: Sequence[str] | None,
    expires_in_days: float | None,
    *,
    as_json: bool,
) -> int:
    try:
        if tenant != "*":
            check_tenant(tenant)
        for scope in scopes or ():
            Grant.of(scope)
    except PenstockError as error:
        print(error, file=sys.stderr)
        return 2
    token = new_token()
    kept: dict[str, object] = {
        "name": name,
        "hash": hash_of(token),
        "tenant": tenant,
        "scopes": list(scopes or SCOPES),
    }
    expires_at = None
    if expires_in_days is not None:
        until = datetime.now(UTC) + timedelta(days=expires_in_days)
        expires_at = until.isoformat(timespec="seconds")
    if as_json:
        print(json.dumps({"token": token, **kept, "expires_at": expires_at}))
        return 0
    print(f"token: {token}\n")
    print("It is shown this once; hand it to whoever it is for. What the server keeps of it, for")
    print("penstock.toml:\n")
    print("[[tokens]]")
    for key, value in kept.items():
        print(f"{key} = {json.dumps(value)}")
    if expires_at is not None:
        print(f"expires_at = {expires_at}")
    return 0


def print_hash() -> int:
    """Of the token on standard input: arguments are shown to everybody on the machine."""
    token = sys.stdin.read().strip()
    if not token.startswith(PREFIX):
        print(f"this is no token: they begin with {PREFIX}", file=sys.stderr)
        return 2
    print(hash_of(token))
    return 0
