"""`penstock demo`: push, claim and ack a hundred thousand jobs on the embedded store, and show it."""

import asyncio
import sys
from time import perf_counter

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from penstock.model.job import JobError, JobOptions, Run
from penstock.model.lifecycle import State
from penstock.model.policy import Backoff
from penstock.open import open_store

TENANT = "default"
QUEUE = "emails"


def demo(jobs: int = 100_000, batch: int = 1_000) -> None:
    """Run the demo; it ends by itself within seconds."""
    asyncio.run(_demo(jobs, batch))


async def _demo(jobs: int, batch: int) -> None:
    console = Console()
    store = await open_store("memory://")
    options = JobOptions(
        task="welcome", max_attempts=3, backoff=Backoff(kind="fixed", base_ms=1, jitter="none")
    )
    seconds: dict[str, float] = {}
    columns = (
        TextColumn("{task.description:>6}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    failed = 0
    try:
        with Progress(*columns, console=console, disable=not sys.stdout.isatty()) as progress:
            bar = progress.add_task("push", total=jobs)
            began = perf_counter()
            for first in range(0, jobs, batch):
                numbers = range(first, min(first + batch, jobs))
                payloads = [b'{"user":%d,"lang":"en"}' % number for number in numbers]
                await store.push(TENANT, [Run.pack(QUEUE, payloads, options)])
                progress.advance(bar, len(payloads))
            seconds["push"] = perf_counter() - began

            bar = progress.add_task("work", total=jobs)
            began = perf_counter()
            done = 0
            while done < jobs:
                lease = await store.claim(TENANT, [QUEUE], batch, worker="demo", wait_ms=1_000)
                if lease is None:
                    break
                ids = lease.ids
                if failed < 3 and len(ids) > 1:  # a third party that is down now and then
                    error = JobError(kind="ConnectionError", message="mail relay refused")
                    await store.fail(TENANT, lease.token, ids[:1], error=error)
                    failed += 1
                    ids = ids[1:]
                await store.ack(TENANT, lease.token)
                done += len(ids)
                progress.advance(bar, len(ids))
            seconds["claim + ack"] = perf_counter() - began
        (info,) = await store.queues(TENANT, [QUEUE])
    finally:
        await store.close()

    table = Table(title=f"{jobs:,} jobs in batches of {batch:,}, memory store, one process")
    table.add_column("step")
    table.add_column("seconds", justify="right")
    table.add_column("jobs/s", justify="right")
    for step, spent in seconds.items():
        table.add_row(step, f"{spent:.2f}", f"{jobs / spent:,.0f}")
    console.print(table)
    left = sum(info.counts[state] for state in (State.READY, State.ACTIVE, State.SCHEDULED))
    console.print(
        f"{done:,} completed (the last {info.counts[State.COMPLETED]:,} are kept), "
        f"{failed} failed once and were retried, {info.counts[State.DEAD]} dead, {left} left."
    )
