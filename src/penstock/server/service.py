"""Requests to answers: who asks, whether they may, what they said, and what came of it.

No bytes of HTTP and no sockets here: `http.py` brings heads and bodies and takes responses away.
What a route does is in `routes/`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from penstock.model.errors import (
    Forbidden,
    Invalid,
    NotFound,
    PenstockError,
    Unauthenticated,
)
from penstock.model.job import MAX_ID, Job
from penstock.model.store import Store
from penstock.protocol.access import ANYBODY, Authenticator, Principal, not_accepted
from penstock.protocol.audited import INTERRUPTED, REFUSED
from penstock.protocol.command import Figures, Request
from penstock.protocol.reach import lease_within
from penstock.server.messages import Head, Response
from penstock.server.problems import Refused, Stopping, problem, problem_of
from penstock.server.routing import Route, Router, check_media_type, read_body, read_query
from penstock.server.sse import Feeds

Audit = Callable[[Principal, str, str, Mapping[str, object]], None]

_log: Final = logging.getLogger(__name__)

RETRY_AFTER_S: Final = "1"  # for whoever comes while the server ends
_SAFE: Final = ("GET", "HEAD")
_UNSAID: Final = ("payload", "payload_base64", "headers")  # not for the audit log

T = TypeVar("T")


async def _no_metrics() -> str:
    return ""


class Sources(msgspec.Struct, frozen=True, kw_only=True):
    """What the server around this one counts, measures and writes down."""

    figures: Callable[[str], Figures] = lambda tenant: Figures()
    history: Callable[[str], Sequence[msgspec.Struct | Mapping[str, object]]] = lambda tenant: ()
    history_interval_ms: int = 5_000
    metrics: Callable[[], Awaitable[str]] = _no_metrics
    audit: Audit = lambda principal, tenant, action, details: None
    commands: tuple[type[Request], ...] = ()  # what can be asked for at /v1/command


class Admission(msgspec.Struct, frozen=True):
    """A request that may go on, judged by its head."""

    head: Head
    route: Route
    params: dict[str, str]
    principal: Principal


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A request as its handler sees it. `body` and `query` are in the shapes of its route."""

    service: "Service"
    head: Head
    params: dict[str, str]
    principal: Principal
    tenant: str
    body: Any = None
    query: Any = None
    written: bytes = b""  # the body as it came

    @property
    def store(self) -> Store:
        return self.service.store

    @property
    def job_id(self) -> int:
        written = self.params["id"]
        if not (written.isascii() and written.isdigit() and len(written) <= 16):
            raise Invalid(f"{written[:60]!r} is no job id", "id")
        job_id = int(written)
        if not 1 <= job_id <= MAX_ID:
            raise Invalid(f"{job_id} is not an integer from 1 to {MAX_ID}", "id")
        return job_id

    async def job(self) -> Job:
        """The job that the path names. One of a queue out of sight does not exist."""
        self.principal.require_sight()
        (found,) = await self.store.get(self.tenant, [self.job_id])
        if found is None or not self.principal.sees(found.queue):
            raise NotFound(f"job {self.job_id} is not known", "id")
        return found

    async def lease(self) -> str:
        """The lease that the path names, as far as the principal reaches."""
        lease = self.params["lease"]
        return await lease_within(self.principal, self.store, self.tenant, lease)

    async def check_job(self) -> None:
        """Raise NotFound where `job` would, without looking where nothing is out of sight."""
        if not self.principal.everywhere:
            await self.job()


class Service:
    """Answers requests over one store."""

    def __init__(
        self,
        store: Store,
        routes: Sequence[Route],
        *,
        authenticator: Authenticator,
        sources: Sources | None = None,
        heartbeat_s: float = 15.0,
    ) -> None:
        self.store = store
        self.routes = tuple(routes)
        self.sources = sources or Sources()
        self.feeds = Feeds(store)
        self.heartbeat_s = heartbeat_s
        self.stopping = False
        self._authenticator = authenticator
        self._router = Router(routes)
        self._claiming: set[asyncio.Task[Any]] = set()

    # -- by the head -----------------------------------------------------------------------------

    def admit(self, head: Head, *, has_body: bool) -> Admission:
        """Judge a request before its body is read. Raises Refused or a PenstockError."""
        route, params = self._router.match(head.method, head.path)
        principal = ANYBODY if route.scope is None else self._principal(head.headers)
        if head.method not in _SAFE:
            _check_origin(head.headers)
        if has_body and route.said is not None:
            check_media_type(head.headers)
        return Admission(head, route, params, principal)

    def _principal(self, headers: Mapping[str, str]) -> Principal:
        if self._authenticator.open_to_all:
            return ANYBODY
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            raise not_accepted()
        return self.authenticate(token.strip(" \t"))  # which are no part of a header's value

    def authenticate(self, token: str) -> Principal:
        """Whom the token stands for; every bad one is refused in the same words."""
        try:
            return self._authenticator.authenticate(token)
        except Unauthenticated:
            raise not_accepted() from None

    # -- with the body ---------------------------------------------------------------------------

    async def answer(self, admission: Admission, body: bytes) -> Response:
        """The answer, whatever happens; only being cancelled gets through."""
        try:
            return await self._answer(admission, body)
        except (PenstockError, Refused) as error:
            return refusal(error)
        except Exception:  # noqa: BLE001 - a bug costs one answer, not the server
            _log.exception("%s %s failed", admission.head.method, admission.route.path)
            return Response.problem(problem("internal", "the server's log says more"))

    async def _answer(self, admission: Admission, body: bytes) -> Response:
        head, route, principal = admission.head, admission.route, admission.principal
        if body and route.said is None:
            raise Invalid("a body is not asked for here")
        call = Call(
            service=self,
            head=head,
            params=admission.params,
            principal=principal,
            tenant=principal.tenant_of(),
            query=read_query(head.query, route.query),
            body=None if route.said is None else read_body(body, route.said),
            written=body,
        )
        if not route.audited:
            return _response(route, await route.handler(call))
        try:
            shown = await route.handler(call)
        except Forbidden as error:
            self._write_down(route, call, {REFUSED: error.message})
            raise
        except asyncio.CancelledError:  # whoever asked is gone; it may be done, or not
            self._write_down(route, call, {INTERRUPTED: True})
            raise
        self._write_down(route, call, {})
        return _response(route, shown)

    def _write_down(self, route: Route, call: Call, more: dict[str, object]) -> None:
        details: dict[str, object] = {**call.params}
        if call.body is not None:
            said = msgspec.structs.asdict(call.body).items()
            details |= {
                name: msgspec.to_builtins(value)
                for name, value in said
                if name not in _UNSAID and value is not msgspec.UNSET and value is not None
            }
        self.sources.audit(call.principal, call.tenant, route.name, details | more)

    # -- ending ----------------------------------------------------------------------------------

    async def while_claims_are_open(self, claim: Coroutine[Any, Any, T]) -> T:
        """The claim's answer, unless the server stops giving out jobs before there is one."""
        if self.stopping:
            claim.close()
            raise Stopping
        task = asyncio.current_task()
        assert task is not None
        self._claiming.add(task)
        try:
            return await claim
        except asyncio.CancelledError:
            if not self._claims_stopped() or task.uncancel():  # somebody else wants us to end
                raise
            raise Stopping from None
        finally:
            self._claiming.discard(task)

    def _claims_stopped(self) -> bool:
        return self.stopping

    def stop_claims(self) -> None:
        """Give out no more jobs; those who wait for one are told. Everything else goes on."""
        self.stopping = True
        for task in self._claiming:
            task.cancel()

    async def close(self) -> None:
        self.stop_claims()
        await self.feeds.close()


def refusal(error: PenstockError | Refused) -> Response:
    """An error as the client sees it."""
    if isinstance(error, Refused):
        return Response.problem(problem(error.code, error.detail), error.headers)
    return Response.problem(problem_of(error), headers_of(error))


def headers_of(error: PenstockError) -> tuple[tuple[str, str], ...]:
    """What else is said with an error."""
    if isinstance(error, Stopping):
        return (("Retry-After", RETRY_AFTER_S),)
    return (("WWW-Authenticate", "Bearer"),) if isinstance(error, Unauthenticated) else ()


def _response(route: Route, shown: object) -> Response:
    if isinstance(shown, Response):
        return shown
    if shown is None:
        return Response(status=204)
    assert isinstance(shown, msgspec.Struct)
    return Response.json(route.status, shown)


def _check_origin(headers: Mapping[str, str]) -> None:
    """A page of another origin must not change anything with its reader's access to this port."""
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != headers.get("host", ""):
        raise Forbidden("requests of pages from elsewhere are not taken", "Origin")
