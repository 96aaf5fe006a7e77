"""`penstock bench`: how fast this store takes and gives jobs, by the size of a batch.

One client, one call at a time, each waiting for its answer: what one producer or one worker sees,
not what the store can do for many at once. A queue of its own holds the jobs, and is purged at the
end.
"""

import os
from time import perf_counter
from typing import Annotated, Final

import msgspec
import typer

from penstock.cli.options import duration
from penstock.cli.progress import progress
from penstock.cli.session import Session, note, register
from penstock.cli.show import table
from penstock.model.errors import Invalid
from penstock.model.job import MAX_BATCH, MAX_PAYLOAD, JobOptions, Run
from penstock.model.urls import without_password

_SIZES: Final = (1, 10, 100, 1_000, 10_000)
_TIME_MS: Final = 1_000
_LEASE_MS: Final = 3_600_000
_MOST: Final = 1_000_000  # jobs that wait at once


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One size of a batch."""

    batch: int
    jobs: int
    push_per_s: float
    push_ms: float  # the median call
    work_per_s: float  # claimed and acked
    work_ms: float  # the median pair of calls


class Bench(msgspec.Struct, frozen=True, kw_only=True):
    store: str
    durability: str
    payload_bytes: int
    rows: tuple[Row, ...]


async def bench(
    at: Session,
    *,
    batch: Annotated[
        list[int] | None,
        typer.Option(
            min=1, max=MAX_BATCH, help="Jobs per call; several times. Unsaid: 1 to 10,000."
        ),
    ] = None,
    time: Annotated[int | None, duration("How long jobs are pushed, per size. Unsaid: 1s.")] = None,
    payload_bytes: Annotated[int, typer.Option(min=2, max=MAX_PAYLOAD, help="Of each job.")] = 100,
    queue: Annotated[
        str | None, typer.Option(metavar="QUEUE", help="An empty one. Unsaid: a new one.")
    ] = None,
) -> None:
    """Measure push and claim + ack, one client and one call at a time, by the size of a batch."""
    name = queue or f"penstock-bench-{os.getpid()}"
    (info,) = await at.store.queues(at.tenant, [name])
    if any(info.counts.values()):
        raise Invalid(f"{name} has jobs: they would be measured, and purged", "queue")
    spent = _TIME_MS if time is None else time
    payload = b'"' + b"x" * (payload_bytes - 2) + b'"'
    try:
        rows = []
        with progress(len(batch or _SIZES)) as advance:
            for size in batch or _SIZES:
                rows.append(await _measured(at, name, size, spent, payload))
                advance(1)
    finally:
        await at.store.purge(at.tenant, name)
    health = await at.store.health()
    shown = Bench(
        store=health.store,
        durability=health.durability,
        payload_bytes=payload_bytes,
        rows=tuple(rows),
    )
    made = table(">batch", ">jobs", ">push/s", ">ms a call", ">claim+ack/s", ">ms a pair")
    for row in rows:
        made.add_row(
            f"{row.batch:,}",
            f"{row.jobs:,}",
            f"{row.push_per_s:,.0f}",
            f"{row.push_ms:.3f}",
            f"{row.work_per_s:,.0f}",
            f"{row.work_ms:.3f}",
        )
    at.answer(
        shown,
        made,
        f"\n{without_password(at.url)}, durability {health.durability}, payloads of"
        f" {payload_bytes:,} bytes. One client, one call at a time, each waiting for its answer:\n"
        "many clients at once get more in all. Times are medians.",
    )


async def _measured(at: Session, queue: str, batch: int, time_ms: int, payload: bytes) -> Row:
    run = Run.pack(queue, [payload] * batch, JobOptions(retain_ms=0))
    pushes: list[float] = []
    began = perf_counter()
    until = began + time_ms / 1_000
    while not pushes or (perf_counter() < until and len(pushes) * batch < _MOST):
        before = perf_counter()
        await at.store.push(at.tenant, [run])
        pushes.append(perf_counter() - before)
    pushed_s = perf_counter() - began
    pairs: list[float] = []
    began = perf_counter()
    for _ in pushes:
        before = perf_counter()
        lease = await at.store.claim(at.tenant, [queue], batch, lease_ms=_LEASE_MS, worker="bench")
        if lease is None:
            note(f"somebody else takes jobs of {queue}: the figures are worth little")
            break
        await at.store.ack(at.tenant, lease.token)
        pairs.append(perf_counter() - before)
    worked_s = perf_counter() - began
    jobs = len(pushes) * batch
    return Row(
        batch=batch,
        jobs=jobs,
        push_per_s=round(jobs / pushed_s, 1),
        push_ms=_median_ms(pushes),
        work_per_s=round(len(pairs) * batch / worked_s, 1),
        work_ms=_median_ms(pairs),
    )


def _median_ms(seconds: list[float]) -> float:
    return round(1_000 * sorted(seconds)[len(seconds) // 2], 3) if seconds else 0.0


def add(app: typer.Typer) -> None:
    register(app, bench, creates=True, in_memory=True)
