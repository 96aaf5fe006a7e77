"""Workers are killed while they work: every job is completed, and only those run twice that a
worker had in its hands when it was killed."""

import asyncio
import signal
from collections import Counter
from pathlib import Path

import pytest

from penstock.model.lifecycle import State
from penstock.model.store import Store
from tests.faults.stores import LONG, in_both_runs
from tests.worker import shop
from tests.worker.harness import run
from tests.worker.spawned import reaching, serving, worker

pytestmark = in_both_runs
JOBS, KILLS = (100_000, 100) if LONG else (5_000, 6)
LEASE = "3s"  # longer than it takes to look who was active


async def counts(store: Store) -> dict[State, int]:
    (queue,) = await store.queues("default", ["default"])
    return queue.counts


async def left(store: Store) -> int:
    now = await counts(store)
    return now[State.READY] + now[State.SCHEDULED] + now[State.ACTIVE]


async def fallen_to(store: Store, most: int) -> None:
    while await left(store) > most:  # noqa: ASYNC110
        await asyncio.sleep(0.005)


@pytest.mark.timeout(3_600 if LONG else 240)
def test_killed_workers_lose_nothing(tmp_path: Path) -> None:
    log, ran = tmp_path / "log", tmp_path / "ran"
    active: set[int] = set()  # at a kill

    async def case() -> list[int]:
        with serving("memory://", log) as (_, url):
            async with reaching(url):
                store = await shop.app.store()
                jobs = await shop.step.apush_many((n,) for n in range(JOBS))
                flags = ("-c", "20", "--lease", LEASE, "--log-level", "error")
                for kill in range(1, KILLS + 1):
                    with worker(url, log, *flags, RAN=str(ran)) as killed:
                        await fallen_to(store, JOBS - kill * JOBS // (KILLS + 1))
                        killed.tell(signal.SIGKILL)
                        await killed.end()
                    page = await store.find("default", "default", state=State.ACTIVE, limit=1_000)
                    while page.cursor is not None:
                        active.update(job.id for job in page.jobs)
                        page = await store.find(
                            "default",
                            "default",
                            state=State.ACTIVE,
                            cursor=page.cursor,
                            limit=1_000,
                        )
                    active.update(job.id for job in page.jobs)
                with worker(url, log, *flags, RAN=str(ran)) as last:
                    await fallen_to(store, 0)
                    last.tell(signal.SIGTERM)
                    assert await last.end() == 0
                assert (await counts(store))[State.DEAD] == 0
                return jobs.ids

    ids = run(case, patience_s=3_600 if LONG else 200)
    times = Counter(int(line.split()[1]) for line in ran.read_text().splitlines())
    assert set(times) == set(range(JOBS)), "some were lost"
    twice = {ids[n] for n, runs in times.items() if runs > 1}
    assert twice <= active, "some ran twice that no killed worker had"
    assert active, "nothing was active at any kill"
