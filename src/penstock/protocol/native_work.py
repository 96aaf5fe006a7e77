"""Native commands of workers: claim, and everything that needs a lease."""

from contextlib import suppress
from typing import ClassVar, Final

from msgspec import UNSET, UnsetType

from penstock.model.answers import FailedJob
from penstock.model.errors import PenstockError
from penstock.model.job import Codec, Ids, JobError, Lease, LogLine
from penstock.protocol.command import Answer, Session
from penstock.protocol.native_base import Native
from penstock.protocol.reach import lease_within
from penstock.protocol.runs import ClaimedJobs, Ranges, Single, fitting, named, packed_claimed

BESIDE: Final = 8 * 1024  # bytes: more than all that stands beside a single job's payload


class Claimed(Answer, kw_only=True):
    """A lease; without one there was nothing to claim."""

    lease: str | None = None  # its token: every later word about these jobs needs it
    queue: str | UnsetType = UNSET
    expires_at: int | UnsetType = UNSET  # wall clock of the store
    runs: tuple[ClaimedJobs, ...] = ()
    kind: int | UnsetType = UNSET  # by which short frames name its queue and options from now on

    @classmethod
    def of(cls, lease: Lease | None) -> "Claimed":
        if lease is None:
            return cls()
        return cls(
            lease=lease.token,
            queue=lease.queue,
            expires_at=lease.expires_at,
            runs=tuple(map(packed_claimed, lease.runs)),
        )

    def claimed(self) -> Lease | None:
        if self.lease is None:
            return None
        return Lease(
            token=self.lease,
            queue=self.queue,  # type: ignore[arg-type] # with a lease it is said
            expires_at=self.expires_at,  # type: ignore[arg-type]
            runs=self.runs,  # type: ignore[arg-type] # which have what a ClaimedRun has: see there
        )


class Claim(Native, kw_only=True, tag="CLAIM"):
    """Take up to `n` ready jobs of the first of the queues that has any, on one lease."""

    answer: ClassVar[type[Answer]] = Claimed
    waits: ClassVar[bool] = True

    queues: list[str]
    n: int = 1
    lease_ms: int | None = None  # left out: the longest that the jobs ask for, else 30 s
    worker: str = ""
    wait_ms: int = 0  # how long to wait for the first job

    async def call(self, session: Session) -> Claimed:
        tenant = self.where(session)
        session.principal.require("claim", *self.queues)
        lease = await session.store.claim(
            tenant,
            self.queues,
            self.n,
            lease_ms=self.lease_ms,
            worker=self.worker,
            wait_ms=self.wait_ms,
        )
        if lease is not None:
            room = session.frame_limit // 2  # the rest is for what stands beside the payloads
            if sum([len(run.data) for run in lease.runs]) > room:
                lease = await self._cut(session, tenant, lease, room)
        return Claimed.of(lease)

    def foretold(self, session: Session, given: object) -> Claimed | bytes | None:
        if type(given) is Single:
            if len(given.payload) > session.frame_limit // 2:
                return None
            kinds = session.kinds
            if kinds is not None and (frame := kinds.frame(self.req_id, given)) is not None:
                return frame
            answer = Claimed.of(given.lease())
            # What is told has to get there: where it might be too large, nothing is.
            if kinds is not None and session.frame_limit >= 2 * BESIDE:
                answer.kind = kinds.told(given.queue, given.options) or UNSET
            return answer
        if type(given) is not Lease:  # what it rests on is not safe yet, or it comes from elsewhere
            return None
        fits = len(given.runs) == 1 and len(given.runs[0].data) <= session.frame_limit // 2
        return Claimed.of(given) if fits else None

    async def _cut(self, session: Session, tenant: str, lease: Lease, room: int) -> Lease:
        """What fits into an answer; the rest is given back."""
        cut = fitting(lease, room)
        left = lease.ids[len(cut) :]
        if left:
            await session.store.release(tenant, lease.token, left)
        return cut

    async def take_back(self, session: Session, answer: Answer) -> None:
        if isinstance(answer, Claimed) and answer.lease is not None:
            with suppress(PenstockError):  # expired meanwhile, or the store is at its end
                await session.store.release(self.where(session), answer.lease)


class _UnderLease(Native, kw_only=True):
    """What is said with the token of a lease."""

    lease: str

    async def held(self, session: Session, tenant: str) -> str:
        """The lease, as far as this principal reaches."""
        return await lease_within(session.principal, session.store, tenant, self.lease)


class Ended(Answer, kw_only=True):
    """Which jobs the call was about."""

    acked: Ids
    lost: Ids  # named, but not (or no longer) held by this lease


class Complete(_UnderLease, kw_only=True, tag="COMPLETE"):
    """Ack jobs held by the lease; without ids and ranges every job that it still holds."""

    answer: ClassVar[type[Answer]] = Ended

    ids: list[int] | None = None
    ranges: Ranges | None = None  # instead of `ids`
    results: dict[int, bytes] | None = None  # by id
    codec: Codec = "json"  # of the results

    async def call(self, session: Session) -> Ended:
        tenant = self.where(session)
        lease = await self.held(session, tenant)
        done = await session.store.ack(
            tenant,
            lease,
            named(self.ids, self.ranges),
            results=self.results,
            codec=self.codec,
        )
        return Ended(acked=done.acked, lost=done.lost)


class AttemptsFailed(Answer, kw_only=True):
    jobs: tuple[FailedJob, ...]  # with their state, and when the next attempt is due
    lost: Ids


class Failed(_UnderLease, kw_only=True, tag="FAILED"):
    """End the attempt of jobs in failure; without ids and ranges of every job still held."""

    answer: ClassVar[type[Answer]] = AttemptsFailed

    ids: list[int] | None = None
    ranges: Ranges | None = None
    error: JobError
    retry_in_ms: int | None = None  # left out: by the jobs' backoff
    dead: bool = False  # whatever attempts are left

    async def call(self, session: Session) -> AttemptsFailed:
        tenant = self.where(session)
        lease = await self.held(session, tenant)
        done = await session.store.fail(
            tenant,
            lease,
            named(self.ids, self.ranges),
            error=self.error,
            retry_in_ms=self.retry_in_ms,
            dead=self.dead,
        )
        return AttemptsFailed(jobs=done.jobs, lost=done.lost)


class GivenBack(Answer, kw_only=True):
    released: Ids
    lost: Ids


class Release(_UnderLease, kw_only=True, tag="RELEASE"):
    """Give jobs back unspent; without ids and ranges every job still held."""

    answer: ClassVar[type[Answer]] = GivenBack

    ids: list[int] | None = None
    ranges: Ranges | None = None

    async def call(self, session: Session) -> GivenBack:
        tenant = self.where(session)
        lease = await self.held(session, tenant)
        done = await session.store.release(tenant, lease, named(self.ids, self.ranges))
        return GivenBack(released=done.released, lost=done.lost)


class Prolonged(Answer, kw_only=True):
    expires_at: int
    lost: Ids  # jobs taken from the lease otherwise than by its holder


class Extend(_UnderLease, kw_only=True, tag="EXTEND"):
    """Heartbeat: the lease now ends so long from now."""

    answer: ClassVar[type[Answer]] = Prolonged

    lease_ms: int | None = None  # left out: its original length

    async def call(self, session: Session) -> Prolonged:
        tenant = self.where(session)
        lease = await self.held(session, tenant)
        done = await session.store.extend(tenant, lease, self.lease_ms)
        return Prolonged(expires_at=done.expires_at, lost=done.lost)


class Report(_UnderLease, kw_only=True, tag="REPORT"):
    """Say something about a running job: progress, log lines, a partial result."""

    job_id: int
    progress: int | None = None  # 0 to 100
    message: str | None = None
    logs: tuple[LogLine, ...] = ()
    partial: bytes | None = None  # an event only

    async def call(self, session: Session) -> Answer:
        tenant = self.where(session)
        lease = await self.held(session, tenant)
        await session.store.report(
            tenant,
            lease,
            self.job_id,
            progress=self.progress,
            message=self.message,
            logs=self.logs,
            partial=self.partial,
        )
        return Answer()


WORKING: tuple[type[Native], ...] = (Claim, Complete, Failed, Release, Extend, Report)
