"""A server, or the owner of a path, is stopped for longer than its workers' leases and goes on.

What the workers said meanwhile lies unread in its sockets. Their jobs run once all the same.
"""

import asyncio
import signal
from pathlib import Path

import pytest

from penstock.model.lifecycle import State
from tests.faults.stores import in_both_runs
from tests.worker import shop
from tests.worker.harness import ending, run, seen
from tests.worker.spawned import Spawned, reaching, serving, worker

pytestmark = in_both_runs
LEASE = "2s"
STOPPED_S = 5.0
NAP_S = 8.0  # four leases, and longer than the store stands


async def stopped_under_a_job(owner: Spawned, works: Spawned) -> None:
    """The job begins, its store stops for two leases and goes on, and the job runs once."""
    job = await shop.naps.apush(NAP_S)
    await works.hears("naps")
    owner.tell(signal.SIGSTOP)
    await asyncio.sleep(STOPPED_S)
    owner.tell(signal.SIGCONT)
    await works.hears("woke")
    assert await ending(job) == "'slept'"
    known = await seen(shop.app, job.id)
    assert (known.state, known.attempt, known.errors) == (State.COMPLETED, 1, ())
    assert "the store stood still for " in owner.log.read_text()


@pytest.mark.parametrize("scheme", ["memory", "sqlite"])
def test_a_job_runs_once_whose_server_was_stopped_for_longer_than_its_lease(
    tmp_path: Path, scheme: str
) -> None:
    url = "memory://" if scheme == "memory" else f"sqlite:///{tmp_path}/jobs.db"

    async def case() -> None:
        with serving(url, tmp_path / "server") as (server, address):
            async with reaching(address):
                with worker(address, tmp_path / "log", "--lease", LEASE) as works:
                    await stopped_under_a_job(server, works)

    run(case)


def test_a_job_runs_once_whose_paths_owner_was_stopped_for_longer_than_its_lease(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"

    async def case() -> None:
        with serving(url, tmp_path / "owner") as (owner, _):
            async with reaching(url):
                with worker(url, tmp_path / "log", "--lease", LEASE) as works:
                    await stopped_under_a_job(owner, works)

    run(case)
