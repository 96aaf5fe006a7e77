"""`penstock workers`: who holds jobs, as the jobs tell, and who waits for some, as their claims tell.

Nobody registers anywhere: a worker is whoever has asked for work, under the name that it gave.
"""

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Annotated

import msgspec
import typer

from penstock.cli.listing import jobs_of, queues_with
from penstock.cli.session import NOT_SO, Session, note, register
from penstock.cli.show import Rows, brief, now_ms, table, when
from penstock.model.answers import WaitingClaim
from penstock.model.checks import MAX_PAGE, MAX_WAITING
from penstock.model.job import Job
from penstock.model.lifecycle import State


class WorkerShown(msgspec.Struct, kw_only=True):
    """Jobs that were claimed under one name, and claims under it that wait."""

    worker: str
    queues: list[str]  # by name
    active: int = 0
    room: int = 0  # jobs that its waiting claims take at most
    waiting: int = 0  # claims
    waiting_since: int | None = None
    oldest_start: int | None = None
    last_heartbeat: int | None = None
    lease_expires_at: int | None = None  # the first lease that ends, unless it is extended

    def count(self, job: Job) -> None:
        self.active += 1
        self._serve(job.queue)
        self.oldest_start = _of(min, self.oldest_start, job.started_at)
        self.last_heartbeat = _of(max, self.last_heartbeat, job.last_heartbeat)
        self.lease_expires_at = _of(min, self.lease_expires_at, job.lease_expires_at)

    def wait(self, claim: WaitingClaim) -> None:
        self.waiting += 1
        self.room += claim.n
        self._serve(*claim.queues)
        self.waiting_since = _of(min, self.waiting_since, claim.since)

    def _serve(self, *queues: str) -> None:
        new = [queue for queue in queues if queue not in self.queues]
        if new:
            self.queues = sorted(self.queues + new)


def _of(pick: Callable[[list[int]], int], one: int | None, other: int | None) -> int | None:
    known = [each for each in (one, other) if each is not None]
    return pick(known) if known else None


class Workers(msgspec.Struct, frozen=True, kw_only=True):
    workers: tuple[WorkerShown, ...]
    complete: bool  # every active job and every waiting claim was looked at


async def ls(
    at: Session,
    *,
    limit: Annotated[
        int,
        typer.Option(
            "--limit",
            "-n",
            min=1,
            help=f"Active jobs that are looked at, and waiting claims ({MAX_WAITING:,} at most).",
        ),
    ] = 10_000,
) -> int | None:
    """List who holds jobs and who waits for some: names, queues, active jobs, room for more."""
    found: dict[str, WorkerShown] = {}

    def named(name: str) -> WorkerShown:
        return found.setdefault(name, WorkerShown(worker=name, queues=[]))

    asked = min(limit, MAX_WAITING)
    line = await at.store.waiting(at.tenant, limit=asked)
    for claim in line.claims:
        named(claim.worker).wait(claim)
    looked = 0
    all_jobs = True
    async for job in _active(at, limit):
        if looked == limit:
            all_jobs = False
            break
        looked += 1
        named(job.worker or "").count(job)
    workers = tuple(sorted(found.values(), key=lambda one: one.worker))
    shown = Workers(workers=workers, complete=all_jobs and line.complete)
    at.answer(shown, _rows(workers) if workers else "nobody holds a job or waits for one")
    if not all_jobs:
        note(f"only the first {limit:,} active jobs were looked at; see --limit")
    if not line.complete:
        note(f"only the first {asked:,} waiting claims were looked at; see --limit")
    return None if workers else NOT_SO


def _rows(workers: Iterable[WorkerShown]) -> Rows:
    now = now_ms()
    rows = table(
        *("worker", ">active", ">room", ">waiting"),
        *(">oldest start", ">heartbeat", ">lease ends", "~queues"),
    )
    for each in workers:
        rows.add_row(
            brief(each.worker) or "(unnamed)",
            f"{each.active:,}",
            f"{each.room:,}",
            when(each.waiting_since, now),
            when(each.oldest_start, now),
            when(each.last_heartbeat, now),
            when(each.lease_expires_at, now),
            brief(", ".join(each.queues)),
        )
    return rows


async def _active(at: Session, limit: int) -> AsyncIterator[Job]:
    """Every active job, queue by queue."""
    for queue in await queues_with(at, State.ACTIVE):
        async for job in jobs_of(at, queue, at_once=min(MAX_PAGE, limit), state=State.ACTIVE):
            yield job


def add(app: typer.Typer) -> None:
    register(app, ls)
