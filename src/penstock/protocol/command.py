"""What every command has in common: a request that answers itself, an answer, a refusal.

A request is a Struct whose tag is the command's name; decoding a frame gives the request, and
`await request.call(session)` gives the answer. `native.py` has the commands of our own clients,
`compatible.py` those of the wire described in seeds/000. The documentation of a command is its
class: docstring, fields, defaults, answer.
"""

from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType

from penstock.model.errors import PenstockError, Unavailable
from penstock.model.store import Store
from penstock.protocol.access import Principal

if TYPE_CHECKING:
    from penstock.protocol.native_push import PushKind
    from penstock.protocol.short import JobKinds

ReqId = str | int | UnsetType | None  # unset: answers come in the order of the requests
Encoding = Literal["json", "msgpack"]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What a server has counted since it started, of one tenant."""

    pushed: int = 0
    completed: int = 0
    failed: int = 0  # attempts that ended in failure
    timed_out: int = 0  # attempts whose lease ran out or that took too long
    jobs_per_second: float = 0.0  # completed, over the last minute
    latency_ms: float = 0.0  # mean from push to completion, over the last minute


class Session(ABC):
    """One connection, as far as commands see it."""

    store: Store
    principal: Principal
    encoding: Encoding  # of the request being answered, and of its answer
    frame_limit: int = 64 * 1024 * 1024  # bytes of one message, once it is known who speaks
    request_limit: int = 10_000  # in hand at once; what comes beyond is left unread
    # The kinds of single jobs that short frames name; None: there are no such frames here.
    pushes: "dict[int, PushKind] | None" = None
    kinds: "JobKinds | None" = None  # … and of those given; None: short frames are not understood

    @abstractmethod
    def authenticate(self, token: str) -> Principal:
        """Whom the token stands for, from now on. Raises Unauthenticated: one for every reason."""

    @abstractmethod
    def send(self, message: msgspec.Struct) -> None:
        """Say something that is no answer: an event."""

    async def drained(self) -> None:  # noqa: B027 # nothing to wait for where nothing is buffered
        """Wait until there is room for what is said next; said anyway, too much ends it all."""

    @abstractmethod
    def start(self, name: object, work: Coroutine[Any, Any, None]) -> None:
        """Have this done beside the requests until it ends, is stopped, or the connection ends.
        Whatever runs under that name is stopped first."""

    @abstractmethod
    def stop(self, name: object) -> bool:
        """End what was started under that name; False if nothing was."""

    @abstractmethod
    def figures(self, tenant: str) -> Figures:
        """What has been counted. Raises Unavailable where nothing is."""

    async def backup(self, directory: str, keep: int) -> str:
        """Have the store written into a file there; answers its path. Raises Unavailable where
        that is nobody's business but the owner's."""
        raise Unavailable("no backups are taken here: ask where the store lies")

    @abstractmethod
    def abandon(self, request: ReqId) -> bool:
        """Cancel that request of this connection, if it is still in hand; it is not answered."""


class Answer(msgspec.Struct, kw_only=True, omit_defaults=False):
    """What goes back. The connection fills in `req_id`."""

    ok: bool = True
    req_id: ReqId = msgspec.field(name="reqId", default=UNSET)


class Refusal(msgspec.Struct, kw_only=True):
    ok: bool = False
    error: str
    code: str
    field: str | UnsetType = UNSET  # which of the request's fields is to blame
    req_id: ReqId = msgspec.field(name="reqId", default=UNSET)

    @classmethod
    def of(cls, error: PenstockError, req_id: ReqId = UNSET) -> "Refusal":
        field = error.field or UNSET
        return cls(error=error.message, code=error.code, field=field, req_id=req_id)


class Request(msgspec.Struct, kw_only=True, tag_field="cmd"):
    """A command with its fields. Fields that it does not have are ignored."""

    answer: ClassVar[type[Answer]] = Answer
    audited: ClassVar[bool] = False  # an action of an administrator: the audit log has it
    waits: ClassVar[bool] = False  # for what may never come: ends with whoever asked
    large: ClassVar[bool] = False  # the answer may be: few of them are in hand at a time
    req_id: ReqId = msgspec.field(name="reqId", default=UNSET)

    async def call(self, session: Session) -> Answer:
        """Check that the principal may, do it, and say what came of it."""
        raise NotImplementedError

    def foretold(self, session: Session, given: object) -> Answer | bytes | None:
        """The answer, where `given` is what the request waits for and nothing else is needed; or a
        whole frame that says it. It goes out before everything that led to it has gone on: somebody
        may be idle until then."""
        return None

    async def take_back(self, session: Session, answer: Answer) -> None:
        """Undo what only the receiver of the answer could make use of: it could not be sent."""
