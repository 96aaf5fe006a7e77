"""`penstock workers`: who holds jobs now, as far as the jobs themselves tell."""

from collections.abc import AsyncIterator, Callable
from typing import Annotated

import msgspec
import typer

from penstock.cli.listing import jobs_of, queues_with
from penstock.cli.session import NOT_SO, Session, note, register
from penstock.cli.show import brief, now_ms, table, when
from penstock.model.checks import MAX_PAGE
from penstock.model.job import Job
from penstock.model.lifecycle import State


class WorkerShown(msgspec.Struct, kw_only=True):
    """Jobs that were claimed under one name."""

    worker: str
    queues: list[str]
    active: int = 0
    oldest_start: int | None = None
    last_heartbeat: int | None = None
    lease_expires_at: int | None = None  # the first lease that ends, unless it is extended

    def count(self, job: Job) -> None:
        self.active += 1
        if job.queue not in self.queues:
            self.queues.append(job.queue)
        self.oldest_start = _of(min, self.oldest_start, job.started_at)
        self.last_heartbeat = _of(max, self.last_heartbeat, job.last_heartbeat)
        self.lease_expires_at = _of(min, self.lease_expires_at, job.lease_expires_at)


def _of(pick: Callable[[list[int]], int], one: int | None, other: int | None) -> int | None:
    known = [each for each in (one, other) if each is not None]
    return pick(known) if known else None


class Workers(msgspec.Struct, frozen=True, kw_only=True):
    workers: tuple[WorkerShown, ...]
    complete: bool  # every active job was looked at


async def ls(
    at: Session,
    *,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="Active jobs that are looked at.")
    ] = 10_000,
) -> int | None:
    """List who holds jobs: their names, queues, active jobs and last heartbeat."""
    found: dict[str, WorkerShown] = {}
    looked = 0
    complete = True
    async for job in _active(at, limit):
        if looked == limit:
            complete = False
            break
        looked += 1
        name = job.worker or ""
        found.setdefault(name, WorkerShown(worker=name, queues=[])).count(job)
    workers = tuple(sorted(found.values(), key=lambda one: one.worker))
    now = now_ms()
    rows = table("worker", ">active", ">oldest start", ">heartbeat", ">lease ends", "~queues")
    for each in workers:
        rows.add_row(
            brief(each.worker) or "(unnamed)",
            f"{each.active:,}",
            when(each.oldest_start, now),
            when(each.last_heartbeat, now),
            when(each.lease_expires_at, now),
            brief(", ".join(each.queues)),
        )
    shown = Workers(workers=workers, complete=complete)
    at.answer(shown, rows if workers else "nobody holds a job")
    if not complete:
        note(f"only the first {limit:,} active jobs were looked at; see --limit")
    return None if workers else NOT_SO


async def _active(at: Session, limit: int) -> AsyncIterator[Job]:
    """Every active job, queue by queue."""
    for queue in await queues_with(at, State.ACTIVE):
        async for job in jobs_of(at, queue, at_once=min(MAX_PAGE, limit), state=State.ACTIVE):
            yield job


def add(app: typer.Typer) -> None:
    register(app, ls)
