"""The native commands: one for each method of Store, and those of the connection itself.

They are what `stores/remote.py` speaks. Batch- and lease-first: runs of jobs travel packed, ids in
ranges. The fields of a command are its arguments; what they mean is said in `model/store.py`.
"""

from typing import ClassVar, Final

from penstock.model.answers import Health
from penstock.model.errors import Invalid
from penstock.model.version import __version__
from penstock.protocol.access import NOBODY, not_accepted
from penstock.protocol.command import Answer, ReqId, Request, Session
from penstock.protocol.native_look import LOOKING
from penstock.protocol.native_manage import MANAGING
from penstock.protocol.native_push import PUSHING
from penstock.protocol.native_work import WORKING
from penstock.protocol.short import JobKinds

VERSION: Final = 1  # of the native commands; raised when an older client would misunderstand


class Welcome(Answer, kw_only=True):
    server: str  # version of the software
    protocol: int
    tenant: str | None  # whose credentials these are; null: they may name any tenant
    frame: int  # bytes of the largest message, in either direction
    requests: int  # that may be in hand at once; more are left unread
    short: bool = False  # whether short frames are understood


class Hello(Request, kw_only=True, tag="HELLO", omit_defaults=True):
    """Who speaks, and in which version; the first word of our own clients."""

    answer: ClassVar[type[Answer]] = Welcome

    protocol: int = VERSION
    token: str | None = None
    client: str = ""  # software and version, for people
    short: bool = False  # whether a claim may be answered by a short frame

    async def call(self, session: Session) -> Welcome:
        if self.protocol != VERSION:
            raise Invalid(f"{self.protocol} is not spoken here; {VERSION} is", "protocol")
        principal = session.principal if self.token is None else session.authenticate(self.token)
        if principal is NOBODY:
            raise not_accepted()
        if self.short and session.pushes is not None:
            session.kinds = JobKinds()
        return Welcome(
            server=__version__,
            protocol=VERSION,
            tenant=principal.tenant,
            frame=session.frame_limit,
            requests=session.request_limit,
            short=session.pushes is not None,
        )


class Ping(Request, kw_only=True, tag="PING", omit_defaults=True):
    """Whether anybody is there."""

    async def call(self, session: Session) -> Answer:
        return Answer()


class Abandoned(Answer, kw_only=True):
    abandoned: bool  # true: it will not be answered; false: it has been


class Abandon(Request, kw_only=True, tag="ABANDON", omit_defaults=True):
    """Cancel a request of this connection that is still in hand; what it got is given back."""

    answer: ClassVar[type[Answer]] = Abandoned

    request: ReqId  # its number

    async def call(self, session: Session) -> Abandoned:
        session.principal.require_sight()
        return Abandoned(abandoned=session.abandon(self.request))


class Tick(Request, kw_only=True, tag="TICK", omit_defaults=True):
    """Let everything that is due by the store's clock take effect."""

    async def call(self, session: Session) -> Answer:
        session.principal.require_all("admin")
        await session.store.tick()
        return Answer()


class Healthy(Answer, kw_only=True):
    health: Health


class AskHealth(Request, kw_only=True, tag="HEALTH", omit_defaults=True):
    """Whether the store is well, and how durable it is."""

    answer: ClassVar[type[Answer]] = Healthy

    async def call(self, session: Session) -> Healthy:
        session.principal.require_sight()
        health = await session.store.health()
        if session.principal.tenant is not None:  # the details are about all tenants
            health = Health(ok=health.ok, store=health.store, durability=health.durability)
        return Healthy(health=health)


CONNECTION: Final[tuple[type[Request], ...]] = (Hello, Ping, Abandon, Tick, AskHealth)

NATIVE: Final[tuple[type[Request], ...]] = (
    *CONNECTION,
    *PUSHING,
    *WORKING,
    *LOOKING,
    *MANAGING,
)
