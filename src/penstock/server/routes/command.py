"""Any command of the TCP wire, as JSON in a request of its own.

The answer is what the wire would give. A refusal is a problem document that is also what the wire
would give: `ok`, `error` and `reqId` stand in it beside the rest.
"""

import asyncio
from collections.abc import Coroutine
from functools import lru_cache, partial, reduce
from operator import or_
from typing import Any, Final

import msgspec
from msgspec import UNSET

from penstock.model.errors import Forbidden, Invalid, PenstockError
from penstock.model.store import Store
from penstock.protocol.access import Principal
from penstock.protocol.audited import INTERRUPTED, REFUSED, audited
from penstock.protocol.command import Answer, Figures, ReqId, Request, Session
from penstock.protocol.http_shown import Problem
from penstock.server.messages import Response
from penstock.server.problems import STATUS, misshapen, problem_of
from penstock.server.routing import Route
from penstock.server.service import Call, headers_of


class CommandSaid(msgspec.Struct, kw_only=True):
    """A command by its name, and the fields that it takes."""

    cmd: str
    req_id: ReqId = msgspec.field(name="reqId", default=UNSET)


class CommandRefused(Problem, frozen=True, kw_only=True):
    """A problem document that is a refusal of the wire as well."""

    ok: bool = False
    error: str
    req_id: ReqId = msgspec.field(name="reqId", default=UNSET)


class RequestSession(Session):
    """A connection that lasts for one request: nothing can go on beside it."""

    encoding = "json"

    def __init__(self, call: Call) -> None:
        self._service = call.service
        self.store: Store = call.store
        self.principal = call.principal

    def authenticate(self, token: str) -> Principal:
        return self.principal.confirmed(self._service.authenticate(token))

    def send(self, message: msgspec.Struct) -> None:
        raise _no_connection()

    def start(self, name: object, work: Coroutine[Any, Any, None]) -> None:
        work.close()
        raise _no_connection()

    def stop(self, name: object) -> bool:
        return False

    def figures(self, tenant: str) -> Figures:
        return self._service.sources.figures(tenant)

    def abandon(self, request: ReqId) -> bool:
        return False


def _no_connection() -> Invalid:
    return Invalid("this needs a connection that stays; watch with GET /v1/events", "cmd")


async def run_command(call: Call) -> Response:
    said: CommandSaid = call.body
    session = RequestSession(call)
    try:
        request = _read(call)
        answer = await _run(call, session, request)
    except PenstockError as error:
        return _refused(error, said.req_id)
    answer.req_id = said.req_id
    response = Response.json(200, answer)
    if type(request).take_back is not Request.take_back:
        response.undo = partial(request.take_back, session, answer)
    return response


async def _run(call: Call, session: RequestSession, request: Request) -> Answer:
    work = request.call(session)
    if not request.audited:
        return await call.service.while_claims_are_open(work) if _claims(request) else await work
    audit = call.service.sources.audit
    try:
        answer = await work
    except Forbidden as error:
        audit(*audited(call.principal, request, {REFUSED: error.message}))
        raise
    except asyncio.CancelledError:
        audit(*audited(call.principal, request, {INTERRUPTED: True}))
        raise
    audit(*audited(call.principal, request))
    return answer


def _claims(request: Request) -> bool:
    return str(type(request).__struct_config__.tag) in CLAIMING


# Commands that give out jobs: none of them is begun while the server stops.
CLAIMING: Final = frozenset({"PULL", "PULLB", "CLAIM"})


def _read(call: Call) -> Request:
    commands = call.service.sources.commands
    known = {str(command.__struct_config__.tag) for command in commands}
    said: CommandSaid = call.body
    if said.cmd not in known:
        raise Invalid(f"{said.cmd[:60]!r} is no command", "cmd")
    try:
        request: Request = _decoder(commands).decode(call.written)
    except msgspec.ValidationError as error:
        raise misshapen(error) from None
    except msgspec.DecodeError as error:
        raise Invalid(f"the body cannot be read: {error}") from None
    return request


@lru_cache(maxsize=8)
def _decoder(commands: tuple[type[Request], ...]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(reduce(or_, commands))


def _refused(error: PenstockError, req_id: ReqId) -> Response:
    said = problem_of(error)
    refused = CommandRefused(**msgspec.structs.asdict(said), error=error.message, req_id=req_id)
    return Response.problem(refused, headers_of(error))


_ERRORS: Final = tuple(
    code
    for code, status in STATUS.items()
    if status not in (405, 417, 431, 500) and code != "unauthenticated"
)


def _route(path: str) -> Route:
    return Route(
        method="POST",
        path=path,
        handler=run_command,
        doc="Run one command of the TCP wire; see its documentation for the fields.",
        scope="see",
        said=CommandSaid,
        shown=Answer,
        errors=_ERRORS,
        waits=True,
    )


ROUTES: Final = (_route("/v1/command"), _route("/api/command"))
