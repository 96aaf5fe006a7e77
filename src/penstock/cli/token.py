"""`penstock token`: make tokens, and what is kept of them."""

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from penstock.model.checks import check_name, check_tenant
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
        check_name(name, "name")
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


def create_command(
    name: Annotated[str, typer.Option(help="Who it is for; the audit log says so.")],
    tenant: Annotated[str, typer.Option(help="Whose jobs it is about; *: any tenant's.")] = "*",
    scope: Annotated[
        list[str] | None,
        typer.Option(help="push, claim or admin, or with queues: claim:emails-*. All, unsaid."),
    ] = None,
    expires_in_days: Annotated[
        float | None, typer.Option(help="From when on it is refused; never, unsaid.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Make a token; print it, once, and what to put into penstock.toml."""
    raise typer.Exit(create(name, tenant, scope, expires_in_days, as_json=as_json))


def hash_command() -> None:
    """Print what is kept of the token that comes on standard input."""
    raise typer.Exit(print_hash())


def add(app: typer.Typer) -> None:
    app.command("create")(create_command)
    app.command("hash")(hash_command)
