"""Signals to workers of several processes: to one of them, to a group, to all. Each counts once."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest

from penstock.model.lifecycle import State
from tests.worker import shop
from tests.worker.harness import ending, eventually, run, seen
from tests.worker.spawned import Spawned, reaching, serving, worker

Tell = Callable[[Spawned, signal.Signals], None]

TERM: Final = signal.SIGTERM
INT: Final = signal.SIGINT
NAP_S: Final = 0.7  # longer than a signal needs that is heard twice

PARENT: Final = Spawned.tell
TERMINAL: Final = Spawned.tell_group
SERVICE: Final = Spawned.tell_all


def says(log: Path, text: str, times: int = 1) -> Awaitable[None]:
    def count() -> int:
        return log.read_text().count(text)

    async def said() -> bool:
        return count() >= times

    return eventually(said)


async def naps(told: Spawned, times: int) -> None:
    """That many have begun; on a slow machine the first may be over."""
    while times:
        times -= await asyncio.to_thread(told.line) == "naps"


@pytest.mark.parametrize(
    ("flags", "workers", "tell"),
    [
        ("--processes 2 -c 1", 2, PARENT),
        ("--processes 2 -c 1", 2, TERMINAL),
        ("--processes 2 -c 1", 2, SERVICE),
        ("--max-jobs 9 -c 2", 1, SERVICE),
        ("--pool process -c 2", 1, TERMINAL),
        ("--pool process -c 2", 1, SERVICE),
        ("--pool process -c 1 --processes 2", 2, TERMINAL),
        ("--pool process -c 1 --processes 2", 2, SERVICE),
    ],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_whoever_is_signalled_the_first_is_graceful_and_the_second_at_once(
    tmp_path: Path, flags: str, workers: int, tell: Tell
) -> None:
    log, again = tmp_path / "log", tmp_path / "again"

    async def case() -> None:
        with serving("memory://", log) as (_, url):
            async with reaching(url):
                jobs = [await shop.naps.apush(NAP_S) for _ in range(2)]
                with worker(url, log, *flags.split()) as once:
                    await naps(once, len(jobs))
                    tell(once, INT)
                    assert await once.end() == 0
                for job in jobs:
                    assert await ending(job) == "'slept'"
                    assert (await seen(shop.app, job.id)).attempt == 1
                jobs = [await shop.naps.apush(600) for _ in range(2)]
                with worker(url, again, *flags.split(), "--shutdown-s", "600") as twice:
                    await naps(twice, len(jobs))
                    tell(twice, TERM)
                    await says(again, "waits up to 10m for", workers)
                    tell(twice, INT)  # another: of two alike that come together one is lost
                    assert await twice.end() == 0
                    assert "does not end" not in again.read_text()
                for job in jobs:
                    back = await seen(shop.app, job.id)
                    assert (back.state, back.attempt, back.errors) == (State.READY, 0, ())
        assert "Traceback" not in log.read_text() + again.read_text()

    run(case)


def test_a_worker_that_is_signalled_itself_ends_gracefully_and_is_replaced(tmp_path: Path) -> None:
    """However often: of its signals nobody knows whether its parent will tell of them, too."""
    log, ran = tmp_path / "log", tmp_path / "ran"

    async def case() -> None:
        with serving("memory://", log) as (_, url):
            async with reaching(url):
                job = await shop.naps.apush(NAP_S)
                with worker(url, log, "--processes", "1", RAN=str(ran)) as supervised:
                    await supervised.hears("naps")
                    (signalled,) = supervised.started()
                    os.kill(signalled, TERM)
                    await says(log, "1 job that runs; a second signal to its parent ends it")
                    for number in (TERM, INT):
                        os.kill(signalled, number)
                    await supervised.hears("woke")
                    assert await ending(job) == "'slept'"
                    assert await ending(await shop.quick.apush(1)) == "1"
                    assert int(ran.read_text().split()[-1]) != signalled
                    supervised.tell(TERM)
                    assert await supervised.end() == 0

    run(case)


def test_a_signal_to_a_worker_and_one_to_its_parent_are_one(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def case() -> None:
        with serving("memory://", log) as (_, url):
            async with reaching(url):
                for first_to_parent in (False, True):
                    before = log.read_text().count("waits up to")
                    job = await shop.naps.apush(NAP_S)
                    with worker(url, log, "--processes", "1") as supervised:
                        await supervised.hears("naps")
                        order = [supervised.process.pid, *supervised.started()]
                        first, second = order if first_to_parent else reversed(order)
                        os.kill(first, TERM)
                        await says(log, "waits up to", before + 1)
                        os.kill(second, TERM)
                        assert await supervised.end() == 0
                    assert await ending(job) == "'slept'"
                    assert (await seen(shop.app, job.id)).attempt == 1

    run(case)


def test_workers_whose_parent_is_killed_end_gracefully_and_count_for_themselves(
    tmp_path: Path,
) -> None:
    log, again = tmp_path / "log", tmp_path / "again"

    async def case() -> None:
        with serving("memory://", log) as (_, url):
            async with reaching(url):
                job = await shop.naps.apush(NAP_S)
                with worker(url, log, "--processes", "1") as killed:
                    await killed.hears("naps")
                    (orphan,) = killed.started()
                    killed.process.kill()
                    os.kill(orphan, TERM)  # as a service manager does that notices
                    assert await ending(job) == "'slept'"
                    assert (await seen(shop.app, job.id)).attempt == 1
                    await says(log, " ends: 1 claimed, 1 completed")
                job = await shop.naps.apush(60)
                with worker(url, again, "--processes", "1") as killed:
                    await killed.hears("naps")
                    (orphan,) = killed.started()
                    killed.process.kill()
                    await says(again, "1 job that runs; a second signal ends it at once")
                    for number in (TERM, INT):
                        os.kill(orphan, number)
                    await says(again, " ends: 1 claimed, 1 released")
                back = await seen(shop.app, job.id)
                assert (back.state, back.attempt, back.errors) == (State.READY, 0, ())

    run(case)


def test_workers_that_are_being_started_end_with_the_others(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def case() -> None:
        with (
            serving("memory://", log) as (_, url),
            worker(url, log, "--processes", "3") as supervised,
        ):

            async def started() -> bool:
                return len(supervised.started()) == 3

            await eventually(started)
            supervised.tell_all(TERM)
            supervised.tell(INT)
            assert await supervised.end() == 0
        assert "Traceback" not in log.read_text()

    run(case)


def test_signals_to_processes_of_a_pool_that_are_being_started_end_none(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def case() -> None:
        with serving("memory://", log) as (_, url):
            async with reaching(url):
                job = await shop.quick.apush(1)
                with worker(url, log, "--pool", "process", "-c", "2") as working:

                    async def signalled() -> bool:
                        """As soon as there are any, and until one has run a job."""
                        for pid in working.started():
                            if "worker.pools.child" in _command_of(pid):
                                os.kill(pid, TERM)
                                os.kill(pid, INT)
                        return (await seen(shop.app, job.id)).state is State.COMPLETED

                    await eventually(signalled)
                    working.tell(TERM)
                    assert await working.end() == 0
        text = log.read_text()
        assert "of the pool" not in text
        assert "KeyboardInterrupt" not in text

    run(case)


def _command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def test_what_a_handler_starts_cannot_read_what_the_parent_says(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def case() -> None:
        with serving("memory://", log) as (_, url):
            async with reaching(url):
                with worker(url, log, "--processes", "1") as supervised:
                    assert await ending(await shop.reads.apush()) == "''"
                    supervised.tell(TERM)
                    assert await supervised.end() == 0

    run(case)
