"""Native commands that look: jobs, results, explanations, events."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import ClassVar

import msgspec

from penstock.model.answers import Explanation, Page, Result, Standing, WaitingClaim
from penstock.model.errors import PenstockError
from penstock.model.event import Event, EventKind
from penstock.model.job import Job, LogLine
from penstock.model.lifecycle import State
from penstock.protocol.command import Answer, Refusal, ReqId, Session
from penstock.protocol.native_base import Native, in_sight, require_job
from penstock.protocol.reach import explained, waiting_in_sight


class Jobs(Answer, kw_only=True):
    jobs: list[Job | None]  # in the order of the ids; null for each that is not known


class Get(Native, kw_only=True, tag="GET"):
    """The jobs of these ids."""

    answer: ClassVar[type[Answer]] = Jobs
    large: ClassVar[bool] = True

    ids: list[int]

    async def call(self, session: Session) -> Jobs:
        tenant = self.where(session)
        session.principal.require_sight()
        return Jobs(jobs=await in_sight(session, tenant, self.ids))


class Stands(Answer, kw_only=True):
    jobs: list[Standing | None]  # in the order of the ids; null for each that is not known


class WhereStanding(Native, kw_only=True, tag="STANDING"):
    """Queue, state and lease of these jobs: for servers, as it tells the tokens of others. Needs
    both `admin` and `claim` over every queue."""

    answer: ClassVar[type[Answer]] = Stands

    ids: list[int]

    async def call(self, session: Session) -> Stands:
        tenant = self.where(session)
        session.principal.require_all("admin")
        session.principal.require_all("claim")
        return Stands(jobs=await session.store.standing(tenant, self.ids))


class Reaches(Answer, kw_only=True):
    queues: list[str]  # by name; none if there is no such lease or bulk


class Reach(Native, kw_only=True, tag="REACH"):
    """The queues that a lease, or a bulk that is open, has jobs of: those in sight."""

    answer: ClassVar[type[Answer]] = Reaches

    lease: str | None = None
    bulk: str | None = None  # either this or `lease`

    async def call(self, session: Session) -> Reaches:
        tenant = self.where(session)
        principal = session.principal
        principal.require_sight()
        queues = await session.store.reach(tenant, lease=self.lease, bulk=self.bulk)
        return Reaches(queues=sorted(filter(principal.sees, queues)))


class Found(Answer, kw_only=True):
    jobs: tuple[Job, ...]
    cursor: int | None  # for the next FIND; null: nothing lies behind


class Find(Native, kw_only=True, tag="FIND"):
    """Jobs of a queue by ascending id, or the newest first."""

    answer: ClassVar[type[Answer]] = Found
    large: ClassVar[bool] = True

    queue: str
    state: State | None = None
    task: str | None = None
    tag: str | None = None
    cursor: int = 0  # where to go on; 0: at the beginning
    limit: int = 100
    newest: bool = False  # by descending id: the beginning is the last one

    async def call(self, session: Session) -> Found:
        tenant = self.where(session)
        session.principal.require_sight(self.queue)
        page = await session.store.find(
            tenant,
            self.queue,
            state=self.state,
            task=self.task,
            tag=self.tag,
            cursor=self.cursor,
            limit=self.limit,
            newest=self.newest,
        )
        return _short(page, session.frame_limit // 2)


def _short(page: Page, room: int) -> Found:
    """As much of the page as fits into an answer; the next begins behind it."""
    for place, job in enumerate(page.jobs):
        room -= len(job.payload) + len(job.result or b"")
        if room < 0 and place:
            return Found(jobs=page.jobs[:place], cursor=job.id)
    return Found(jobs=page.jobs, cursor=page.cursor)


class Meant(Answer, kw_only=True):
    id: int | None  # null: the key is free


class ByKey(Native, kw_only=True, tag="BYKEY"):
    """The id that a key stands for now."""

    answer: ClassVar[type[Answer]] = Meant

    queue: str
    key: str

    async def call(self, session: Session) -> Meant:
        tenant = self.where(session)
        session.principal.require_sight(self.queue)
        return Meant(id=await session.store.by_key(tenant, self.queue, self.key))


class HowItEnded(Answer, kw_only=True):
    result: Result


class AskResult(Native, kw_only=True, tag="RESULT"):
    """How a job ended, waiting for its end."""

    answer: ClassVar[type[Answer]] = HowItEnded
    waits: ClassVar[bool] = True

    job_id: int
    wait_ms: int = 0

    async def call(self, session: Session) -> HowItEnded:
        tenant = self.where(session)
        await require_job(session, tenant, self.job_id)
        result = await session.store.result(tenant, self.job_id, wait_ms=self.wait_ms)
        return HowItEnded(result=result)


class Lines(Answer, kw_only=True):
    logs: list[LogLine]


class Logs(Native, kw_only=True, tag="LOGS"):
    """The last lines that a job's workers logged."""

    answer: ClassVar[type[Answer]] = Lines

    job_id: int

    async def call(self, session: Session) -> Lines:
        tenant = self.where(session)
        await require_job(session, tenant, self.job_id)
        return Lines(logs=await session.store.logs(tenant, self.job_id))


class Explained(Answer, kw_only=True):
    explanation: Explanation


class Explain(Native, kw_only=True, tag="EXPLAIN"):
    """Why a job is not running."""

    answer: ClassVar[type[Answer]] = Explained

    job_id: int

    async def call(self, session: Session) -> Explained:
        tenant = self.where(session)
        await require_job(session, tenant, self.job_id)
        explanation = await session.store.explain(tenant, self.job_id)
        return Explained(
            explanation=await explained(session.principal, session.store, tenant, explanation)
        )


class InLine(Answer, kw_only=True):
    claims: tuple[WaitingClaim, ...]  # in the order in which they came
    complete: bool  # false: more wait than are told here


class Waiting(Native, kw_only=True, tag="WAITING"):
    """The claims that wait in line, and of the queues that they wait for those in sight."""

    answer: ClassVar[type[Answer]] = InLine
    large: ClassVar[bool] = True

    limit: int = 1_000  # claims told of

    async def call(self, session: Session) -> InLine:
        tenant = self.where(session)
        session.principal.require_sight()
        told = await waiting_in_sight(session.principal, session.store, tenant, self.limit)
        return InLine(claims=told.claims, complete=told.complete)


# -- events --------------------------------------------------------------------------------------


class Happened(msgspec.Struct, kw_only=True):
    """No answer: an event, told to a watcher."""

    watch: str | int  # what WATCH called it
    event: Event


class WatchEnded(msgspec.Struct, kw_only=True):
    """No answer: the watcher has been ended by the server, and why."""

    watch: str | int
    ended: bool = True
    code: str = ""  # empty where the store has closed
    error: str = ""


class Watching(Answer, kw_only=True):
    watch: str | int


class Watch(Native, kw_only=True, tag="WATCH"):
    """Tell events as they happen, from now on."""

    answer: ClassVar[type[Answer]] = Watching

    watch: str | int | None = None  # what to call it; left out: the request's number, else 0
    queues: list[str] | None = None  # left out: every queue in sight
    kinds: list[EventKind] | None = None

    async def call(self, session: Session) -> Watching:
        tenant = self.where(session)
        session.principal.require_sight(*(self.queues or ()))
        name = _name(self.watch, self.req_id)
        events = session.store.watch(tenant, queues=self.queues, kinds=self.kinds)
        session.start(("watch", name), _tell(session, name, events))
        return Watching(watch=name)


def _name(said: str | int | None, number: ReqId) -> str | int:
    if said is not None:
        return said
    return number if isinstance(number, (str, int)) else 0


async def _tell(session: Session, name: str | int, events: AsyncIterator[Event]) -> None:
    principal = session.principal
    reason = WatchEnded(watch=name)
    try:
        async with aclosing(events) as told:  # type: ignore[type-var]
            async for event in told:
                if principal.everywhere or principal.sees(event.queue):
                    session.send(Happened(watch=name, event=event))
                    await session.drained()
    except PenstockError as error:
        refusal = Refusal.of(error)
        reason = WatchEnded(watch=name, code=refusal.code, error=refusal.error)
    session.send(reason)


class Stopped(Answer, kw_only=True):
    stopped: bool  # false: there was no such watcher


class Unwatch(Native, kw_only=True, tag="UNWATCH"):
    """Tell no more events."""

    answer: ClassVar[type[Answer]] = Stopped

    watch: str | int = 0

    async def call(self, session: Session) -> Stopped:
        self.where(session)
        session.principal.require_sight()
        return Stopped(stopped=session.stop(("watch", self.watch)))


LOOKING: tuple[type[Native], ...] = (
    Get,
    WhereStanding,
    Reach,
    Find,
    ByKey,
    AskResult,
    Logs,
    Explain,
    Waiting,
    Watch,
    Unwatch,
)
