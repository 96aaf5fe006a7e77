"""Native commands of administrators: jobs, queues, crons."""

from typing import ClassVar

from penstock.model.answers import CronInfo, PushedInstead, PushedRun, QueueInfo
from penstock.model.errors import Forbidden
from penstock.model.job import Codec, Ids
from penstock.model.lifecycle import State
from penstock.model.policy import Bounds, QueueConfig
from penstock.model.schedule import CronSpec
from penstock.protocol.command import Answer, Session
from penstock.protocol.native_base import Native, in_sight, require_job
from penstock.protocol.runs import PushedJobs, Ranges, named

# -- jobs ----------------------------------------------------------------------------------------


class Cancelled(Answer, kw_only=True):
    acked: Ids  # cancelled by this call
    lost: Ids  # ended before, or not known


class CancelJobs(Native, kw_only=True, tag="CANCELJOBS"):
    """Cancel jobs, active ones too."""

    answer: ClassVar[type[Answer]] = Cancelled
    audited: ClassVar[bool] = True

    ids: list[int] | None = None
    ranges: Ranges | None = None  # instead of `ids`
    discard: bool = False  # dead with `discarded` instead

    async def call(self, session: Session) -> Cancelled:
        tenant = self.where(session)
        session.principal.require("admin")
        ids = list(named(self.ids, self.ranges) or ())
        known = ids
        if ids and not session.principal.reaches_all("admin"):
            jobs = [job for job in await in_sight(session, tenant, ids) if job is not None]
            session.principal.require("admin", *{job.queue for job in jobs})
            seen = {job.id for job in jobs}
            known = [job_id for job_id in ids if job_id in seen]
            if not known:
                return Cancelled(acked=Ids(), lost=Ids.of(dict.fromkeys(ids)))
        done = await session.store.cancel(tenant, known, discard=self.discard)
        if known is ids:
            return Cancelled(acked=done.acked, lost=done.lost)
        acked = set(done.acked)
        lost = [job_id for job_id in dict.fromkeys(ids) if job_id not in acked]
        return Cancelled(acked=done.acked, lost=Ids.of(lost))


class Edit(Native, kw_only=True, tag="EDIT"):
    """Change a job that is neither active nor ended; `delay_ms` 0 promotes it."""

    audited: ClassVar[bool] = True

    job_id: int
    priority: int | None = None
    run_at: int | None = None
    delay_ms: int | None = None
    payload: bytes | None = None
    codec: Codec | None = None  # of the payload; left out: as it was

    async def call(self, session: Session) -> Answer:
        tenant = self.where(session)
        await require_job(session, tenant, self.job_id, "admin")
        await session.store.edit(
            tenant,
            self.job_id,
            priority=self.priority,
            run_at=self.run_at,
            delay_ms=self.delay_ms,
            payload=self.payload,
            codec=self.codec,
        )
        return Answer()


class Redriven(Answer, kw_only=True):
    ids: tuple[int, ...]
    conflicts: tuple[int, ...]  # their key is taken meanwhile; they stay dead


class Redrive(Native, kw_only=True, tag="REDRIVE"):
    """Make dead jobs ready again, oldest first."""

    answer: ClassVar[type[Answer]] = Redriven
    audited: ClassVar[bool] = True

    queue: str
    ids: list[int] | None = None
    ranges: Ranges | None = None
    limit: int | None = None
    fingerprint: str | None = None  # of the last error: 16 hexadecimal digits

    async def call(self, session: Session) -> Redriven:
        tenant = self.where(session)
        session.principal.require("admin", self.queue)
        done = await session.store.redrive(
            tenant,
            self.queue,
            ids=named(self.ids, self.ranges),
            limit=self.limit,
            fingerprint=self.fingerprint,
        )
        return Redriven(ids=done.ids, conflicts=done.conflicts)


class Counted(Answer, kw_only=True):
    count: int


class PurgeDead(Native, kw_only=True, tag="PURGEDEAD"):
    """Forget dead jobs; without ids and ranges all of the queue's."""

    answer: ClassVar[type[Answer]] = Counted
    audited: ClassVar[bool] = True

    queue: str
    ids: list[int] | None = None
    ranges: Ranges | None = None

    async def call(self, session: Session) -> Counted:
        tenant = self.where(session)
        session.principal.require("admin", self.queue)
        ids = named(self.ids, self.ranges)
        return Counted(count=await session.store.purge_dead(tenant, self.queue, ids=ids))


# -- queues --------------------------------------------------------------------------------------


class QueueList(Answer, kw_only=True):
    queues: list[QueueInfo]


class Queues(Native, kw_only=True, tag="QUEUES"):
    """The queues that hold jobs, kept keys or configuration, by name."""

    answer: ClassVar[type[Answer]] = QueueList

    names: list[str] | None = None  # these, whether they exist or not; left out: all in sight

    async def call(self, session: Session) -> QueueList:
        tenant = self.where(session)
        principal = session.principal
        principal.require_sight(*(self.names or ()))
        infos = await session.store.queues(tenant, self.names)
        if not principal.everywhere:
            infos = [info for info in infos if principal.sees(info.queue)]
        return QueueList(queues=infos)


class Configure(Native, kw_only=True, tag="CONFIGURE"):
    """Set all of a queue's configuration."""

    audited: ClassVar[bool] = True

    queue: str
    config: QueueConfig

    async def call(self, session: Session) -> Answer:
        tenant = self.where(session)
        session.principal.require("admin", self.queue)
        await session.store.configure(tenant, self.queue, self.config)
        return Answer()


class ConfigureTenant(Native, kw_only=True, tag="CONFIGURETENANT"):
    """Set what a tenant may push in all its queues together."""

    audited: ClassVar[bool] = True

    bounds: Bounds

    async def call(self, session: Session) -> Answer:
        tenant = self.where(session)
        session.principal.require_all("admin")
        await session.store.configure_tenant(tenant, self.bounds)
        return Answer()


class DrainQueue(Native, kw_only=True, tag="DRAINQUEUE"):
    """Cancel and forget what is ready, scheduled or blocked."""

    answer: ClassVar[type[Answer]] = Counted
    audited: ClassVar[bool] = True

    queue: str

    async def call(self, session: Session) -> Counted:
        tenant = self.where(session)
        session.principal.require("admin", self.queue)
        return Counted(count=await session.store.drain(tenant, self.queue))


class Clean(Native, kw_only=True, tag="CLEANQUEUE"):
    """Forget jobs of one state that are old enough: by their end, or by their push if they wait."""

    answer: ClassVar[type[Answer]] = Counted
    audited: ClassVar[bool] = True

    queue: str
    state: State
    older_ms: int = 0
    limit: int | None = None

    async def call(self, session: Session) -> Counted:
        tenant = self.where(session)
        session.principal.require("admin", self.queue)
        count = await session.store.clean(
            tenant, self.queue, self.state, older_ms=self.older_ms, limit=self.limit
        )
        return Counted(count=count)


class Purge(Native, kw_only=True, tag="PURGE"):
    """Forget every job of a queue, leases too; its configuration stays."""

    answer: ClassVar[type[Answer]] = Counted
    audited: ClassVar[bool] = True

    queue: str

    async def call(self, session: Session) -> Counted:
        tenant = self.where(session)
        session.principal.require("admin", self.queue)
        return Counted(count=await session.store.purge(tenant, self.queue))


# -- crons ---------------------------------------------------------------------------------------


class Installed(Answer, kw_only=True):
    cron: CronInfo


class PutCron(Native, kw_only=True, tag="PUTCRON"):
    """Install, refresh or change a cron."""

    answer: ClassVar[type[Answer]] = Installed
    audited: ClassVar[bool] = True

    spec: CronSpec

    async def call(self, session: Session) -> Installed:
        tenant = self.where(session)
        session.principal.require("admin", self.spec.queue)
        known = await _queue_of(session, tenant, self.spec.name)
        if known is not None and not session.principal.may("admin", known):
            raise _out_of_reach()
        return Installed(cron=await session.store.put_cron(tenant, self.spec))


class RefreshCron(Native, kw_only=True, tag="REFRESHCRON"):
    """Install what is missing of a cron that is known just as it is said; `not_found` otherwise.

    Nothing that an administrator decided is changed by it, and schedulers say it all the time: the
    audit log has no use for it.
    """

    answer: ClassVar[type[Answer]] = Installed

    spec: CronSpec

    async def call(self, session: Session) -> Installed:
        tenant = self.where(session)
        session.principal.require("admin", self.spec.queue)
        return Installed(cron=await session.store.put_cron(tenant, self.spec, refresh=True))


class CronList(Answer, kw_only=True):
    crons: list[CronInfo]


class Crons(Native, kw_only=True, tag="CRONS"):
    """Every cron whose queue is in sight."""

    answer: ClassVar[type[Answer]] = CronList

    async def call(self, session: Session) -> CronList:
        tenant = self.where(session)
        session.principal.require_sight()
        infos = await session.store.crons(tenant)
        if not session.principal.everywhere:
            infos = [info for info in infos if session.principal.sees(info.spec.queue)]
        return CronList(crons=infos)


class Dropped(Answer, kw_only=True):
    dropped: bool  # false: there was none


class DropCron(Native, kw_only=True, tag="DROPCRON"):
    """Remove a cron and its instants that have not started."""

    answer: ClassVar[type[Answer]] = Dropped
    audited: ClassVar[bool] = True

    name: str

    async def call(self, session: Session) -> Dropped:
        tenant = self.where(session)
        session.principal.require("admin")
        known = await _queue_of(session, tenant, self.name)
        if known is not None and not session.principal.may("admin", known):
            if not session.principal.sees(known):
                return Dropped(dropped=False)
            raise _out_of_reach()
        return Dropped(dropped=await session.store.drop_cron(tenant, self.name))


async def _queue_of(session: Session, tenant: str, name: str) -> str | None:
    """The queue that the cron of this name has now, where that matters. Names belong to the tenant:
    whoever changes a cron must reach both queues."""
    if session.principal.reaches_all("admin"):
        return None
    for info in await session.store.crons(tenant):
        if info.spec.name == name:
            return info.spec.queue
    return None


def _out_of_reach() -> Forbidden:
    return Forbidden("these credentials do not reach the cron of this name", "name")


class InstantsPut(Answer, kw_only=True):
    runs: tuple[PushedRun, ...]  # what became of each job; of none, none
    removed: int  # how many of other configs left

    @classmethod
    def of(cls, pushed: PushedInstead) -> "InstantsPut":
        return cls(runs=pushed.runs, removed=pushed.removed)


class PutInstants(Native, kw_only=True, tag="PUTINSTANTS"):
    """Add jobs for instants; those of other configs of that name that nobody has been given leave
    at the same instant. The store makes the keys, `{name}/{config_hash}/{run_at}`."""

    answer: ClassVar[type[Answer]] = InstantsPut
    audited: ClassVar[bool] = True

    name: str  # of the queue's
    config_hash: str  # 16 hexadecimal digits: whose instants come, and stay
    run: PushedJobs  # with a `run_at` for each job and no keys; without jobs, others only leave

    async def call(self, session: Session) -> InstantsPut:
        tenant = self.where(session)
        session.principal.require("admin", self.run.queue)
        done = await session.store.put_instants(tenant, self.name, self.config_hash, self.run.run())
        return InstantsPut.of(done)


class RefreshInstants(Native, kw_only=True, tag="REFRESHINSTANTS"):
    """The same, and nothing leaves: `not_found` if another config was put after this one.

    So it takes no more than the right to push, and the audit log has no use for it.
    """

    answer: ClassVar[type[Answer]] = InstantsPut

    name: str
    config_hash: str
    run: PushedJobs

    async def call(self, session: Session) -> InstantsPut:
        tenant = self.where(session)
        session.principal.require("push", self.run.queue)
        done = await session.store.put_instants(
            tenant, self.name, self.config_hash, self.run.run(), refresh=True
        )
        return InstantsPut.of(done)


class DropInstants(Native, kw_only=True, tag="DROPINSTANTS"):
    """Remove instants that were put and that nobody has been given; answers how many."""

    answer: ClassVar[type[Answer]] = Counted
    audited: ClassVar[bool] = True

    queue: str
    name: str
    config_hash: str | None = None  # left out: of every config of that name

    async def call(self, session: Session) -> Counted:
        tenant = self.where(session)
        session.principal.require("admin", self.queue)
        count = await session.store.drop_instants(tenant, self.queue, self.name, self.config_hash)
        return Counted(count=count)


MANAGING: tuple[type[Native], ...] = (
    CancelJobs,
    Edit,
    Redrive,
    PurgeDead,
    Queues,
    Configure,
    ConfigureTenant,
    DrainQueue,
    Clean,
    Purge,
    PutCron,
    RefreshCron,
    Crons,
    DropCron,
    PutInstants,
    RefreshInstants,
    DropInstants,
)
