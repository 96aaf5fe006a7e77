"""Who is at the other end: static tokens now, others behind the same seam later.

A token is 256 random bits. What is kept is its SHA-256, and a slow hash would add nothing: slow
hashes make guessing dear where secrets can be guessed, and nobody guesses 256 bits at any price;
but a slow hash on every connection would be a way to keep the server busy.

Every refusal reads the same, whatever was wrong, and every known hash is compared each time.
"""

import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from typing import Final

from penstock.model.checks import check_tenant
from penstock.model.errors import Invalid, Unauthenticated
from penstock.protocol.access import Authenticator, Grant, OpenToAll, Principal, not_accepted
from penstock.settings import Settings, Token, read_tokens

log: Final = logging.getLogger("penstock.auth")

PREFIX: Final = "pst_"  # so that a token that leaked is recognised as one
HASH: Final = "sha256:"
LONGEST: Final = 4_096  # characters of a token; of longer ones no more is looked at


def new_token() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def hash_of(token: str) -> str:
    """What is kept of a token."""
    return HASH + sha256(token[:LONGEST].encode("utf-8", "surrogatepass")).hexdigest()


class Tokens:
    """The authenticator of static tokens."""

    open_to_all = False

    def __init__(
        self,
        tokens: Iterable[Token],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._now = now
        self._known = [(_checked_hash(token), token, _principal(token)) for token in tokens]
        names = [token.name for _, token, _ in self._known]
        for name in names:
            if names.count(name) > 1:
                raise Invalid(f"two tokens are called {name!r}", "tokens")

    def authenticate(self, token: str) -> Principal:
        given = hash_of(token).encode()
        found = None
        for known, record, principal in self._known:
            if compare_digest(known, given):  # each one, whatever was found before
                found = record, principal
        if found is None or self._expired(found[0]) or len(token) > LONGEST:
            raise not_accepted()
        return found[1]

    def _expired(self, token: Token) -> bool:
        return token.expires_at is not None and token.expires_at <= self._now()


class FirstOf:
    """Several authenticators, asked in order: the first that knows the credentials decides."""

    open_to_all = False

    def __init__(self, authenticators: Sequence[Authenticator]) -> None:
        self._authenticators = tuple(authenticators)

    def authenticate(self, token: str) -> Principal:
        for each in self._authenticators:
            try:
                return each.authenticate(token)
            except Unauthenticated:
                continue
        raise not_accepted()


def tokens_of(settings: Settings) -> list[Token]:
    """The tokens of the settings and of the file that they name."""
    tokens = list(settings.tokens)
    if settings.tokens_file:
        path = Path(settings.tokens_file)
        tokens += read_tokens(path)
        warn_if_others_read(path)
    return tokens


def authenticator_of(tokens: Sequence[Token]) -> Authenticator:
    """Who is let in. Other kinds of credentials join the list here."""
    return FirstOf([Tokens(tokens)]) if tokens else OpenToAll()


def warn_if_others_read(path: Path) -> None:
    """A hash gives no token away, but who may do what is nobody else's business."""
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        log.warning("%s can be read by others (mode %04o): chmod 600 %s", path, mode, path)


def _checked_hash(token: Token) -> bytes:
    digits = token.hash.removeprefix(HASH)
    if digits == token.hash or len(digits) != 64 or not set(digits) <= set("0123456789abcdef"):
        raise Invalid(
            f"the hash of token {token.name!r} is not {HASH} and 64 hexadecimal digits:"
            " see penstock token hash",
            "tokens",
        )
    return token.hash.encode()


def _principal(token: Token) -> Principal:
    tenant = None if token.tenant == "*" else token.tenant
    if tenant is not None:
        check_tenant(tenant)
    return Principal(token.name, tenant, tuple(Grant.of(scope) for scope in token.scopes))
