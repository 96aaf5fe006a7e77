"""Jobs of one queue or of all, by ascending id or the newest first, however many queues and jobs
there are."""

from collections.abc import AsyncIterator
from heapq import heapify, heappop, heapreplace
from itertools import count
from typing import Any

from penstock.cli.session import Session
from penstock.model.errors import Invalid
from penstock.model.job import Job
from penstock.model.lifecycle import State
from penstock.model.listing import page

_AT_ONCE = 50  # jobs of one queue that are looked up ahead of what is shown


async def queues_with(at: Session, state: State | None, queue: str | None = None) -> list[str]:
    """The queues that have a job of that state (None: any)."""
    infos = [await at.queue(queue)] if queue is not None else await at.store.queues(at.tenant)
    states = State if state is None else (state,)
    return [info.queue for info in infos if any(info.counts[each] for each in states)]


async def jobs_of(
    at: Session, queue: str, cursor: int = 0, *, at_once: int = _AT_ONCE, **chosen: Any
) -> AsyncIterator[Job]:
    """Every job of a queue from the cursor on; looked up as they are wanted."""
    following: int | None = cursor
    while following is not None:
        found, following = await page(at.store, at.tenant, queue, following, at_once, **chosen)
        for job in found:
            yield job


async def first_jobs(
    at: Session, queues: list[str], cursor: int, limit: int, *, newest: bool = False, **chosen: Any
) -> tuple[list[Job], Job | None]:
    """The first `limit` jobs of all these queues by id, from the cursor on, and the one behind them.

    No two queues share an id, so one cursor serves for them all. `newest` first it is otherwise:
    ids tell which job of a queue is newer, and nothing about jobs of two queues. Among those it is
    the instant of the push, and the cursor names a job that has one.
    """
    at_once = max(min(_AT_ONCE, limit, 4 * limit // max(len(queues), 1)), 1)
    rank = _age if newest else _id
    after: Job | None = None
    if newest and cursor and len(queues) > 1:
        (after,) = await at.store.get(at.tenant, [cursor])
        if after is None:
            raise Invalid(f"job {cursor} is not known, or no longer: begin without it", "cursor")
        at_once = _AT_ONCE  # of the other queues all are looked up that came after it
    order = count()
    heads = []
    for queue in queues:
        begin = cursor if after is None or after.queue == queue else 0
        stream = jobs_of(at, queue, begin, at_once=at_once, newest=newest, **chosen)
        head = await anext(stream, None)
        while not begin and after is not None and head is not None and rank(head) < rank(after):
            head = await anext(stream, None)
        if head is not None:
            heads.append((rank(head), next(order), head, stream))
    heapify(heads)
    found: list[Job] = []
    while heads and len(found) < limit:
        _, _, job, stream = heads[0]
        found.append(job)
        following = await anext(stream, None)
        if following is None:
            heappop(heads)
        else:
            heapreplace(heads, (rank(following), next(order), following, stream))
    return found, heads[0][2] if heads else None


def _id(job: Job) -> tuple[int, str]:
    return job.id, ""


def _age(job: Job) -> tuple[int, str]:
    return -job.created_at, job.queue
