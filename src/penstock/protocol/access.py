"""Who speaks, and what they may do: a principal is what a token, later a JWT, stands for.

A grant is a scope over the queues that a pattern names. `push` may push, `claim` may claim and end
what was claimed, `admin` may do everything else that changes something; any scope over a queue may
look at it. Where tokens come from and how they are compared is the server's business.
"""

from fnmatch import fnmatchcase
from typing import Final, Literal, Protocol, get_args

import msgspec

from penstock.model.errors import Conflict, Forbidden, Invalid, Unauthenticated

Scope = Literal["push", "claim", "admin"]
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)

DEFAULT_TENANT: Final = "default"


class Grant(msgspec.Struct, frozen=True):
    scope: Scope
    pattern: str = "*"  # of queue names; *, ? and [] as in a shell

    @classmethod
    def of(cls, said: str) -> "Grant":
        """`push`, or `push:emails-*`."""
        scope, _, pattern = said.partition(":")
        for known in SCOPES:
            if scope == known:
                return cls(known, pattern or "*")
        raise Invalid(f"{said!r} is no scope: {', '.join(SCOPES)}, each with :PATTERN", "scopes")


class Principal(msgspec.Struct, frozen=True):
    """Whoever is at the other end."""

    name: str  # for the audit log
    tenant: str | None  # None: may speak for every tenant
    grants: tuple[Grant, ...] = tuple(Grant(scope) for scope in SCOPES)

    def tenant_of(self, asked: str | None = None) -> str:
        """The tenant that a request is about. Raises Forbidden if it is somebody else's."""
        if self.tenant is None:
            return asked or DEFAULT_TENANT
        if asked is not None and asked != self.tenant:
            raise Forbidden("these credentials are another tenant's", "tenant")
        return self.tenant

    def confirmed(self, other: "Principal") -> "Principal":
        """The same again. Raises Conflict if it is another: what was begun by one must not go on
        as somebody else, so whoever changes hands connects anew."""
        if other != self:
            raise Conflict("this connection speaks for somebody else already", "token")
        return other

    @property
    def everywhere(self) -> bool:
        """Whether no queue is out of sight: nothing has to be filtered then."""
        return any(grant.pattern == "*" for grant in self.grants)

    def may(self, scope: Scope, queue: str) -> bool:
        return any(
            grant.scope == scope and (grant.pattern == "*" or fnmatchcase(queue, grant.pattern))
            for grant in self.grants
        )

    def sees(self, queue: str) -> bool:
        """Whether any scope reaches that queue."""
        return any(
            grant.pattern == "*" or fnmatchcase(queue, grant.pattern) for grant in self.grants
        )

    def reaches_all(self, scope: Scope) -> bool:
        """Whether the scope covers every queue: then nobody has to look where something lies."""
        return any(grant.scope == scope and grant.pattern == "*" for grant in self.grants)

    def require(self, scope: Scope, *queues: str) -> None:
        """Raise Forbidden unless the scope reaches all of these queues; of none: any queue."""
        if not queues:
            if not any(grant.scope == scope for grant in self.grants):
                raise Forbidden(f"these credentials have no scope {scope!r}")
            return
        for grant in self.grants:  # asked by every request, and most may do it everywhere
            if grant.scope == scope and grant.pattern == "*":
                return
        for queue in queues:
            if not self.may(scope, queue):
                raise Forbidden(f"these credentials may not {scope} in this queue", "queue")

    def require_sight(self, *queues: str) -> None:
        """Raise Forbidden unless all of these queues are in sight; of none: any queue."""
        if not queues and not self.grants:
            raise Forbidden("these credentials have no scope")
        for queue in queues:
            if not self.sees(queue):
                raise Forbidden("these credentials do not reach this queue", "queue")

    def require_all(self, scope: Scope) -> None:
        """Raise Forbidden unless the scope reaches every queue: for what belongs to none."""
        if not self.reaches_all(scope):
            raise Forbidden(f"this needs the scope {scope!r} over every queue")


class Authenticator(Protocol):
    """Whom credentials stand for."""

    open_to_all: bool  # whether nobody is asked for any

    def authenticate(self, token: str) -> Principal:
        """Raises Unauthenticated, in the same words whatever is wrong."""
        ...


ANYBODY: Final = Principal(name="anybody", tenant=None)  # where no credentials are asked for
NOBODY: Final = Principal(name="nobody", tenant=None, grants=())  # has not said who it is


def not_accepted() -> Unauthenticated:
    """The one refusal of credentials, whatever is wrong with them and wherever they stood."""
    return Unauthenticated("these credentials are not accepted")


class OpenToAll:
    """Everybody is anybody: for loopback addresses and sockets that only their owner reaches."""

    open_to_all = True

    def authenticate(self, token: str) -> Principal:
        return ANYBODY
