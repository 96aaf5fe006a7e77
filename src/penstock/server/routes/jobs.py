"""Jobs: pushed, looked at, changed, awaited."""

from collections.abc import Iterable
from typing import Final

from msgspec import UNSET, UnsetType

from penstock.model.errors import Conflict, NotFound
from penstock.model.lifecycle import State
from penstock.protocol.http_said import (
    EditSaid,
    FlowSaid,
    JobSaid,
    JobsSaid,
    Said,
    graph_of,
    run_of,
)
from penstock.protocol.http_shown import (
    ExplanationShown,
    FlowPushed,
    JobPage,
    JobRead,
    Logs,
    PushedJobs,
    ResultShown,
)
from penstock.protocol.http_types import NameOrNone, Tag, WaitMs
from penstock.protocol.reach import explained, require_bulk, require_dependencies
from penstock.server.routes.paging import Cursor, Limit, page
from penstock.server.routing import Either, Route
from penstock.server.service import Call


class Waiting(Said, frozen=True, kw_only=True):
    wait_ms: WaitMs = 0


class Chosen(Said, frozen=True, kw_only=True):
    """Which jobs of a queue."""

    state: State | UnsetType = UNSET
    task: NameOrNone | UnsetType = UNSET
    tag: Tag | UnsetType = UNSET
    cursor: Cursor = 0
    limit: Limit = 100
    newest: bool = False


async def push(call: Call) -> PushedJobs:
    queue = call.params["queue"]
    call.principal.require("push", queue)
    said: JobSaid | JobsSaid = call.body
    if isinstance(said, JobSaid):
        await _check_dependencies(call, [said])
        return PushedJobs.of(await call.store.push(call.tenant, [run_of(queue, [said])]))
    await _check_dependencies(call, said.jobs)
    if said.bulk is not None:
        await require_bulk(call.principal, call.store, call.tenant, said.bulk)
    pushed = await call.store.push(
        call.tenant,
        [run_of(queue, said.jobs)] if said.jobs else [],
        producer=said.producer,
        sequence=said.sequence,
        bulk=said.bulk,
        part=said.part,
        durability=said.durability,
    )
    return PushedJobs.of(pushed)


async def push_flow(call: Call) -> FlowPushed:
    said: FlowSaid = call.body
    call.principal.require("push", *{job.queue for job in said.jobs})
    await _check_dependencies(call, said.jobs)
    runs, names = graph_of(said.jobs)
    pushed = await call.store.push(call.tenant, runs)
    ids = dict(zip(names, pushed.ids, strict=True))
    return FlowPushed(jobs={job.name: ids[job.name] for job in said.jobs})


async def _check_dependencies(call: Call, jobs: Iterable[JobSaid]) -> None:
    if not call.principal.everywhere:
        named = (job_id for job in jobs for job_id in job.depends_on)
        await require_dependencies(call.principal, call.store, call.tenant, named)


async def get_job(call: Call) -> JobRead:
    return JobRead.of(await call.job())


async def edit_job(call: Call) -> JobRead:
    job = await call.job()
    call.principal.require("admin", job.queue)
    said: EditSaid = call.body
    payload, codec = said.content()
    await call.store.edit(
        call.tenant,
        job.id,
        priority=said.priority,
        run_at=said.run_at,
        delay_ms=said.delay_ms,
        payload=payload,
        codec=codec,
    )
    return JobRead.of(await call.job())


async def cancel_job(call: Call) -> None:
    job = await call.job()
    call.principal.require("admin", job.queue)
    if (await call.store.cancel(call.tenant, [job.id])).lost:
        (again,) = await call.store.get(call.tenant, [job.id])
        if again is None:
            raise NotFound(f"job {job.id} is not known", "id")
        raise Conflict(f"job {job.id} has ended: it is {again.state}", "id")


async def retry_job(call: Call) -> JobRead:
    job = await call.job()
    call.principal.require("admin", job.queue)
    if job.state is not State.DEAD:
        raise Conflict(f"job {job.id} is not dead: it is {job.state}", "id")
    redriven = await call.store.redrive(call.tenant, job.queue, ids=[job.id])
    if redriven.conflicts:
        raise Conflict(f"another job has the key of job {job.id}", "id")
    return JobRead.of(await call.job())


async def get_result(call: Call) -> ResultShown:
    await call.check_job()
    waiting: Waiting = call.query
    return ResultShown.of(
        await call.store.result(call.tenant, call.job_id, wait_ms=waiting.wait_ms)
    )


async def get_logs(call: Call) -> Logs:
    await call.check_job()
    return Logs.of(await call.store.logs(call.tenant, call.job_id))


async def explain_job(call: Call) -> ExplanationShown:
    await call.check_job()
    explanation = await call.store.explain(call.tenant, call.job_id)
    return ExplanationShown.of(
        await explained(call.principal, call.store, call.tenant, explanation)
    )


async def list_jobs(call: Call) -> JobPage:
    call.principal.require_sight(call.params["queue"])
    chosen: Chosen = call.query
    jobs, cursor = await page(
        call,
        chosen.cursor,
        chosen.limit,
        state=None if chosen.state is UNSET else chosen.state,
        task=None if chosen.task is UNSET else chosen.task,
        tag=None if chosen.tag is UNSET else chosen.tag,
        newest=chosen.newest,
    )
    return JobPage(jobs=tuple(map(JobRead.of, jobs)), cursor=cursor)


_STORING: Final = ("payload_too_large", "overloaded", "storage_full")
_JOB: Final = "/v1/jobs/{id}"

ROUTES: Final = (
    Route(
        method="POST",
        path="/v1/queues/{queue}/jobs",
        handler=push,
        doc="Push one job, or several at once, all or nothing.",
        scope="push",
        said=Either(JobSaid, JobsSaid, "jobs"),
        shown=PushedJobs,
        status=201,
        errors=(*_STORING, "batch_too_large", "conflict", "not_found", "rate_limited"),
    ),
    Route(
        method="POST",
        path="/v1/flows",
        handler=push_flow,
        doc="Push a graph of jobs, each of which waits for those it names in `after`.",
        scope="push",
        said=FlowSaid,
        shown=FlowPushed,
        status=201,
        errors=(*_STORING, "batch_too_large", "conflict", "rate_limited"),
    ),
    Route(
        method="GET",
        path="/v1/queues/{queue}/jobs",
        handler=list_jobs,
        doc="List jobs of a queue by ascending id, or the newest first, page by page.",
        scope="see",
        query=Chosen,
        shown=JobPage,
    ),
    Route(
        method="GET",
        path=_JOB,
        handler=get_job,
        doc="Everything that is known of a job.",
        scope="see",
        shown=JobRead,
        errors=("not_found",),
    ),
    Route(
        method="PATCH",
        path=_JOB,
        handler=edit_job,
        doc="Change a job that neither runs nor has ended.",
        scope="admin",
        said=EditSaid,
        shown=JobRead,
        errors=(*_STORING, "not_found", "conflict"),
    ),
    Route(
        method="DELETE",
        path=_JOB,
        handler=cancel_job,
        doc="Cancel a job, running or not; its worker learns by `lost`.",
        scope="admin",
        status=204,
        errors=("not_found", "conflict"),
    ),
    Route(
        method="POST",
        path=f"{_JOB}/retry",
        handler=retry_job,
        doc="Make a dead job ready again, its attempts afresh.",
        scope="admin",
        shown=JobRead,
        errors=("not_found", "conflict"),
    ),
    Route(
        method="GET",
        path=f"{_JOB}/result",
        handler=get_result,
        doc="How a job ended, waiting up to `wait_ms` for its end.",
        scope="see",
        query=Waiting,
        shown=ResultShown,
        errors=("not_found", "deadline", "overloaded"),
        waits=True,
    ),
    Route(
        method="GET",
        path=f"{_JOB}/logs",
        handler=get_logs,
        doc="The last lines that workers wrote about a job.",
        scope="see",
        shown=Logs,
        errors=("not_found",),
    ),
    Route(
        method="GET",
        path=f"{_JOB}/explain",
        handler=explain_job,
        doc="Why a job is not running.",
        scope="see",
        shown=ExplanationShown,
        errors=("not_found",),
    ),
)
