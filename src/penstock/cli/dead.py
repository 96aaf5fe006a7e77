"""`penstock dead`: dead letters: listed, grouped by what they died of, redriven, forgotten."""

from typing import Annotated

import msgspec
import typer

from penstock.cli.listing import first_jobs, jobs_of, queues_with
from penstock.cli.options import Cursor, Newest, Queue
from penstock.cli.session import NOT_SO, Session, note, register
from penstock.cli.show import NOTHING, brief, many, now_ms, table, when
from penstock.model.checks import MAX_PAGE
from penstock.model.lifecycle import State
from penstock.protocol.dead_groups import Grouping
from penstock.protocol.http_shown import JobPage, JobRead
from penstock.protocol.http_shown_queues import Counted, DeadGroup, RedrivenShown

AnyQueue = Annotated[str | None, typer.Argument(metavar="QUEUE", help="The queue; unsaid: all.")]
Ids = Annotated[
    list[int] | None, typer.Argument(metavar="ID", help="The jobs; unsaid: all of the queue.")
]


class QueueGroups(msgspec.Struct, frozen=True, kw_only=True):
    queue: str
    groups: tuple[DeadGroup, ...]
    cursor: int | None  # where to go on; None: all dead jobs of the queue are in the groups


class Groups(msgspec.Struct, frozen=True, kw_only=True):
    queues: tuple[QueueGroups, ...]


async def ls(
    at: Session,
    queue: AnyQueue = None,
    *,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Jobs at most.")] = 50,
    cursor: Cursor = 0,
    newest: Newest = False,
) -> int | None:
    """List dead jobs by ascending id, or the newest first, each with its last error."""
    queues = await queues_with(at, State.DEAD, queue)
    jobs, behind = await first_jobs(at, queues, cursor, limit, newest=newest, state=State.DEAD)
    following = None if behind is None else behind.id
    now = now_ms()
    rows = table(">id", "queue", "~task", ">died", "because", "~error")
    for job in jobs:
        error = job.errors[-1] if job.errors else None
        rows.add_row(
            str(job.id),
            job.queue,
            brief(job.options.task, 30),
            when(job.finished_at, now),
            job.dead_reason or NOTHING,
            brief(f"{error.kind}: {error.message}") if error else NOTHING,
        )
    page = JobPage(jobs=tuple(map(JobRead.of, jobs)), cursor=following)
    at.answer(page, rows if jobs else "no dead jobs")
    if following is not None and not at.as_json:
        note(f"there are more: --cursor {following}")
    return None if jobs else NOT_SO


async def groups(
    at: Session,
    queue: AnyQueue = None,
    *,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="Dead jobs that are looked at, per queue.")
    ] = 100_000,
) -> int | None:
    """Count dead jobs by the fingerprint of their last error."""
    found = [await _grouped(at, each, limit) for each in await queues_with(at, State.DEAD, queue)]
    now = now_ms()
    rows = table("queue", "fingerprint", ">jobs", ">first", ">last", ">sample", "~error")
    for each in found:
        for group in each.groups:
            rows.add_row(
                each.queue,
                group.fingerprint,
                f"{group.count:,}",
                when(group.first_at, now),
                when(group.last_at, now),
                str(group.first_id),
                brief(f"{group.kind}: {group.message}") if group.kind else "(no error)",
            )
    at.answer(Groups(queues=tuple(found)), rows if found else "no dead jobs", *_next_step(found))
    for each in found:
        if each.cursor is not None:
            note(f"{each.queue}: only the first {limit:,} dead jobs were looked at; see --limit")
    return None if found else NOT_SO


async def _grouped(at: Session, queue: str, limit: int) -> QueueGroups:
    grouping = Grouping()
    looked = 0
    cursor = None
    async for job in jobs_of(at, queue, at_once=min(MAX_PAGE, limit), state=State.DEAD):
        if looked == limit:
            cursor = job.id
            break
        grouping.add((job,))
        looked += 1
    return QueueGroups(queue=queue, groups=grouping.groups, cursor=cursor)


def _next_step(found: list[QueueGroups]) -> list[str]:
    """What whoever has looked at the groups does next."""
    if not found:
        return []
    queue, group = found[0].queue, found[0].groups[0]
    return [
        f"\none of them:         penstock jobs show {group.first_id}",
        f"when it is repaired: penstock dead redrive {queue} --fingerprint {group.fingerprint}",
    ]


async def redrive(
    at: Session,
    queue: Queue,
    ids: Ids = None,
    *,
    fingerprint: Annotated[
        str | None,
        typer.Option(metavar="HEX", help="Those of one group: see penstock dead groups."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="So many at most, the oldest first.")
    ] = None,
) -> int | None:
    """Make dead jobs of a queue ready again, with all their attempts."""
    await at.queue(queue)
    done = await at.store.redrive(
        at.tenant, queue, ids=ids or None, limit=limit, fingerprint=fingerprint
    )
    at.answer(RedrivenShown.of(done), f"{many(len(done.ids), 'job')} ready again")
    if done.conflicts:
        some = ", ".join(map(str, done.conflicts[:20]))
        note(f"{many(len(done.conflicts), 'job')}: another has the key, still dead: {some}")
    missing = set(ids or ()) - set(done.ids) - set(done.conflicts)
    if missing:
        note(f"not dead, or not of {queue}: {', '.join(map(str, sorted(missing)))}")
    return NOT_SO if done.conflicts or missing or not done.ids else None


async def purge(at: Session, queue: Queue, ids: Ids = None) -> int | None:
    """Forget dead jobs of a queue."""
    await at.queue(queue)
    count = await at.store.purge_dead(at.tenant, queue, ids=ids or None)
    at.answer(Counted(count=count), f"{many(count, 'dead job')} forgotten")
    return None if count else NOT_SO


def add(app: typer.Typer) -> None:
    for each in (ls, groups, redrive):
        register(app, each)
    register(app, purge, asks="Forget dead jobs of {queue}?")
