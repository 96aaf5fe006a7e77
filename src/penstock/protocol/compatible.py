"""The compatible commands: the wire of the system in seeds/000, complete, so that a client written
for it works.

What holds for all of them: fields that a command does not have are ignored; times are integer
milliseconds; success carries `ok` and `success`, and `error` only where a job has one; a refusal
carries `error` and `code`. The tenant is that of the credentials. Commands are in the files beside
this one, by who sends them: producers (`compatible_push`), workers (`compatible_work`), whoever
looks (`compatible_look`), owners and operators (`compatible_change`, `compatible_queues`,
`compatible_crons`), and listeners (`compatible_events`).
"""

from typing import Final

from penstock.protocol.command import Request, Session
from penstock.protocol.compatible_change import CHANGE
from penstock.protocol.compatible_crons import CRONS
from penstock.protocol.compatible_events import Subscribe, Unsubscribe
from penstock.protocol.compatible_look import LOOK
from penstock.protocol.compatible_push import Flow, Push, PushB
from penstock.protocol.compatible_queues import QUEUES
from penstock.protocol.compatible_reach import Done
from penstock.protocol.compatible_work import WORK


class Auth(Request, tag="AUTH", kw_only=True):
    """Say who speaks over this connection, once and for all: as somebody else it is refused
    (conflict)."""

    token: str

    async def call(self, session: Session) -> Done:
        session.authenticate(self.token)
        return Done()


COMPATIBLE: Final[tuple[type[Request], ...]] = (
    Auth,
    Push,
    PushB,
    Flow,
    *WORK,
    *LOOK,
    *CHANGE,
    *QUEUES,
    *CRONS,
    Subscribe,
    Unsubscribe,
)
