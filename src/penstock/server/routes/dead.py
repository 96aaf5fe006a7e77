"""Dead letters: listed, grouped by error, made ready again, forgotten."""

from typing import Final

from penstock.model.lifecycle import State
from penstock.protocol.dead_groups import Grouping
from penstock.protocol.http_said import RedriveSaid, Said
from penstock.protocol.http_shown import JobPage, JobRead
from penstock.protocol.http_shown_queues import Counted, DeadGroups, RedrivenShown
from penstock.server.routes.paging import Cursor, Limit, page
from penstock.server.routing import Route
from penstock.server.service import Call


class Paged(Said, frozen=True, kw_only=True):
    cursor: Cursor = 0
    limit: Limit = 100


class Scanned(Said, frozen=True, kw_only=True):
    """How many dead jobs one call looks at."""

    cursor: Cursor = 0
    limit: Limit = 1_000


async def list_dead(call: Call) -> JobPage:
    call.principal.require_sight(call.params["queue"])
    paged: Paged = call.query
    jobs, cursor = await page(call, paged.cursor, paged.limit, state=State.DEAD)
    return JobPage(jobs=tuple(map(JobRead.of, jobs)), cursor=cursor)


async def group_dead(call: Call) -> DeadGroups:
    call.principal.require_sight(call.params["queue"])
    scanned: Scanned = call.query
    jobs, cursor = await page(call, scanned.cursor, scanned.limit, state=State.DEAD)
    grouping = Grouping()
    grouping.add(jobs)
    return DeadGroups(groups=grouping.groups, cursor=cursor)


async def redrive_dead(call: Call) -> RedrivenShown:
    queue = call.params["queue"]
    call.principal.require("admin", queue)
    said: RedriveSaid = call.body
    redriven = await call.store.redrive(
        call.tenant, queue, ids=said.ids, limit=said.limit, fingerprint=said.fingerprint
    )
    return RedrivenShown.of(redriven)


async def purge_dead(call: Call) -> Counted:
    queue = call.params["queue"]
    call.principal.require("admin", queue)
    return Counted(count=await call.store.purge_dead(call.tenant, queue))


_DEAD: Final = "/v1/queues/{queue}/dead"

ROUTES: Final = (
    Route(
        method="GET",
        path=_DEAD,
        handler=list_dead,
        doc="Dead jobs by ascending id, page by page.",
        scope="see",
        query=Paged,
        shown=JobPage,
    ),
    Route(
        method="GET",
        path=f"{_DEAD}/groups",
        handler=group_dead,
        doc="Dead jobs by the fingerprint of their last error, counted.",
        scope="see",
        query=Scanned,
        shown=DeadGroups,
    ),
    Route(
        method="POST",
        path=f"{_DEAD}/redrive",
        handler=redrive_dead,
        doc="Make dead jobs ready again, oldest first.",
        scope="admin",
        said=RedriveSaid,
        shown=RedrivenShown,
        errors=("batch_too_large",),
    ),
    Route(
        method="DELETE",
        path=_DEAD,
        handler=purge_dead,
        doc="Forget the dead jobs of a queue.",
        scope="admin",
        shown=Counted,
    ),
)
