"""What the native commands share: the tenant, and jobs that a principal must reach."""

from collections.abc import Sequence

from penstock.model.errors import NotFound
from penstock.model.job import Job
from penstock.protocol.access import Scope
from penstock.protocol.command import Request, Session


class Native(Request, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A command of our own clients. Fields that it does not have are refused."""

    tenant: str | None = None  # whose; left out: that of the credentials, else `default`

    def where(self, session: Session) -> str:
        return session.principal.tenant_of(self.tenant)


async def in_sight(session: Session, tenant: str, ids: Sequence[int]) -> list[Job | None]:
    """The jobs as this principal knows them: what lies in queues out of sight does not exist."""
    jobs = await session.store.get(tenant, ids)
    if session.principal.everywhere:
        return jobs
    return [job if job is not None and session.principal.sees(job.queue) else None for job in jobs]


async def require_job(
    session: Session, tenant: str, job_id: int, scope: Scope | None = None
) -> None:
    """Raise NotFound unless the job is in sight, Forbidden unless the scope covers its queue."""
    principal = session.principal
    if scope is None:
        principal.require_sight()
        if principal.everywhere:
            return
    else:
        principal.require(scope)
        if principal.reaches_all(scope):
            return
    (job,) = await session.store.standing(tenant, [job_id])  # and not its payload
    if job is None or not principal.sees(job.queue):
        raise NotFound(f"job {job_id} is not known", "job_id")
    if scope is not None:
        principal.require(scope, job.queue)
