"""`penstock worker` as a process: signals, kills, stops, servers that go and come back."""

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from penstock.model.job import JobError
from penstock.model.lifecycle import State
from penstock.server.auth import hash_of, new_token
from penstock.stores.journal.ownership import owner_of
from tests.faults.stores import ROOT
from tests.replaying import ended_while_replaying
from tests.worker import shop
from tests.worker.harness import ending, eventually, run, seen
from tests.worker.spawned import PATIENCE_S, reaching, serving, worker


def test_signals_end_it_gracefully_and_then_at_once(tmp_path: Path) -> None:
    """Also where a handler never lets go of the loop."""
    log = tmp_path / "log"

    async def case() -> None:
        with serving("memory://", log) as (_, url):
            async with reaching(url):
                finishes = await shop.naps.apush(0.2)
                with worker(url, log, "--log-format", "json") as first:
                    await first.hears("naps")
                    first.tell(signal.SIGTERM)
                    await first.hears("woke")
                    assert await first.end() == 0
                assert await ending(finishes) == "'slept'"
                stuck = await shop.spins.apush()
                with worker(url, log) as second:
                    await second.hears("spins")
                    second.tell(signal.SIGINT)
                    second.tell(signal.SIGTERM)
                    assert await second.end() == 0
                back = await seen(shop.app, stuck.id)
                assert (back.state, back.attempt, back.errors) == (State.READY, 0, ())
        assert '"message":"' in log.read_text()

    run(case)


@pytest.mark.parametrize("how", ["blocks", "lingers"])
def test_a_handler_that_does_not_stop_does_not_put_off_the_end(tmp_path: Path, how: str) -> None:
    """The time that running jobs have left is when the process ends, not when it begins to."""
    log = tmp_path / "log"

    async def case() -> None:
        with serving("memory://", log) as (_, url):
            async with reaching(url):
                stuck = await shop.app.tasks[how].apush(60)
                with worker(url, log, "--shutdown-s", "1") as blocked:
                    await blocked.hears(how)
                    began = time.monotonic()
                    blocked.tell(signal.SIGTERM)
                    assert await blocked.end() == 0
                    took = time.monotonic() - began
                back = await seen(shop.app, stuck.id)
                assert (back.state, back.attempt, back.errors) == (State.READY, 0, ())
                assert 0.5 < took < 2.5

    run(case)


@pytest.mark.parametrize("pool", ["async", "thread", "process"])
def test_a_handler_does_not_stop_the_loop_that_others_run_on(tmp_path: Path, pool: str) -> None:
    log = tmp_path / "log"

    async def case() -> None:
        with serving("memory://", log) as (_, url):
            async with reaching(url):
                with worker(url, log, "--pool", pool, "-c", "2") as working:
                    beside = await shop.naps.apush(0.5)
                    await working.hears("naps")
                    for how in ("at once", "later", "at once"):
                        stops = await shop.stops.apush(how)
                        assert await ending(stops) == "'went on'"
                        assert (await seen(shop.app, stops.id)).attempt == 1
                    assert await ending(beside) == "'slept'"
                    working.tell(signal.SIGTERM)
                    assert await working.end() == 0
        text = log.read_text()
        told = text.count("task 'stops' tried to stop the event loop")
        assert told == 1 or (told == 2 and pool != "async"), "once for each loop"
        assert text.count("something that a handler left behind tried to stop the event loop") == 1
        assert "Traceback" not in text

    run(case)


def test_a_handler_that_cancels_every_task_of_its_loop_does_not_end_the_worker(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"

    async def case() -> None:
        with serving("memory://", log) as (_, url):
            async with reaching(url):
                with worker(url, log) as working:
                    for _ in range(2):
                        job = await shop.cancels.apush()
                        assert await ending(job) == "'went on'"
                    working.tell(signal.SIGTERM)
                    assert await working.end() == 0
        text = log.read_text()
        assert text.count("cancelled what the worker waits in: it goes on") == 1
        assert "Traceback" not in text

    run(case)


@pytest.mark.parametrize("pool", ["async", "thread", "process"])
def test_an_exit_in_a_task_of_a_handler_ends_that_job_and_nothing_else(
    tmp_path: Path, pool: str
) -> None:
    log = tmp_path / "log"
    expected = {
        "group": "dead SystemExit",
        "wait_for": "dead SystemExit",
        "interrupt": "dead KeyboardInterrupt",
        "alone": "'went on'",
        "callback": "'went on'",
    }
    traces: list[str] = []

    async def case() -> None:
        with serving("memory://", log) as (_, url):
            async with reaching(url):
                with worker(url, log, "--pool", pool, "-c", "2") as working:
                    beside = await shop.naps.apush(1.0)
                    await working.hears("naps")
                    for how, end in expected.items():
                        job = await shop.exits.apush(how)
                        assert await ending(job) == end, how
                        errors = (await seen(shop.app, job.id)).errors
                        traces.extend(error.trace for error in errors)
                    assert await ending(beside) == "'slept'"
                    assert await ending(await shop.quick.apush(3)) == "3"
                    working.tell(signal.SIGTERM)
                    assert await working.end() == 0
        text = log.read_text()
        lines = [line for line in text.splitlines() if "nothing ends by it" in line]
        assert any("task 'exits' raised SystemExit: 4" in line for line in lines)
        told = [
            re.search(r"(\S+ \(.*shop.py:\d+\)|task 'exits') raised (\w+): 4", line)
            for line in lines
        ]
        assert {each[2] for each in told if each} >= {"SystemExit"}
        assert any(
            "something that a handler left behind raised SystemExit: 4" in line for line in lines
        )
        assert "of the pool" not in text, "no process was replaced"
        assert len(traces) == 3
        assert all("shop.py" in trace for trace in traces)

    run(case)


def test_a_job_that_kills_its_worker_each_time_ends_among_the_dead(tmp_path: Path) -> None:
    log, ran = tmp_path / "log", tmp_path / "ran"

    async def case() -> None:
        with serving("memory://", log) as (_, url):
            async with reaching(url):
                job = await shop.poison.apush("kill")
                flags = ("--processes", "1", "--lease", "200ms")
                with worker(url, log, *flags, RAN=str(ran)) as parent:
                    assert await ending(job) == "dead lease_expired"
                    assert await ending(await shop.quick.apush(3)) == "3"
                    parent.tell(signal.SIGTERM)
                    assert await parent.end() == 0
        lines = [line.split() for line in ran.read_text().splitlines()]
        assert [line[0] for line in lines] == ["poison", "poison", "quick"]
        assert len({line[2] for line in lines}) == 3

    run(case)


def test_a_process_is_replaced_after_as_many_jobs_as_it_may_run(tmp_path: Path) -> None:
    log, ran = tmp_path / "log", tmp_path / "ran"

    async def case() -> None:
        with serving("memory://", log) as (_, url):
            async with reaching(url):
                jobs = await shop.quick.apush_many((n,) for n in range(25))
                with worker(url, log, "--max-jobs", "10", RAN=str(ran)) as parent:
                    for job in jobs:
                        await ending(job)
                    parent.tell(signal.SIGTERM)
                    assert await parent.end() == 0
        lines = [line.split() for line in ran.read_text().splitlines()]
        assert sorted(int(line[1]) for line in lines) == list(range(25))
        assert sorted(Counter(line[2] for line in lines).values()) == [5, 10, 10]

    run(case)


def test_it_goes_on_with_a_server_that_was_killed_and_came_back(tmp_path: Path) -> None:
    log, store = tmp_path / "log", f"sqlite:///{tmp_path}/jobs.db"

    async def case() -> None:
        with serving(store, log) as (server, url), worker(url, log, "--lease", "20s") as working:
            async with reaching(url):
                before = await shop.naps.apush(0.5)
                await working.hears("naps")
                server.process.kill()
                await working.hears("woke")  # and has nobody to tell
                with serving(store, log, int(url.rpartition(":")[2])):
                    assert await ending(before) == "'slept'"
                    assert (await seen(shop.app, before.id)).attempt == 1
                    assert await ending(await shop.quick.apush(2)) == "2"
                    working.tell(signal.SIGTERM)
                    assert await working.end() == 0

    run(case)


def test_a_token_that_was_taken_away_is_asked_for_and_may_be_put_back(tmp_path: Path) -> None:
    """The job that ran meanwhile is told of, its lease not being over, and runs once."""
    log, store, tokens = tmp_path / "log", f"sqlite:///{tmp_path}/jobs.db", tmp_path / "tokens"
    known, other = new_token(), new_token()

    def accept(*accepted: str) -> None:
        tables = (
            f'[[tokens]]\nname = "{n}"\nhash = "{hash_of(t)}"\n' for n, t in enumerate(accepted)
        )
        tokens.write_text("".join(tables))
        tokens.chmod(0o600)

    async def says(text: str) -> None:
        async def said() -> bool:
            return text in log.read_text()

        await eventually(said)

    async def case() -> None:
        accept(known)
        with serving(store, log, 0, "--tokens-file", str(tokens)) as (server, url):
            port, theirs = int(url.rpartition(":")[2]), url.replace("//", f"//:{known}@")
            with worker(theirs, log) as working:
                async with reaching(theirs):
                    before = await shop.naps.apush(0.2)
                    await working.hears("naps")
                    server.process.kill()
                    await working.hears("woke")
                    await server.end()
                    accept(other)
                    with serving(store, log, port, "--tokens-file", str(tokens)):
                        await says("no jobs can be claimed: these credentials are not accepted; ")
                        await says("to hear how jobs ended: these credentials are not accepted; ")
                    accept(known, other)
                    with serving(store, log, port, "--tokens-file", str(tokens)):
                        assert await ending(before) == "'slept'"
                        assert (await seen(shop.app, before.id)).attempt == 1
                        assert await ending(await shop.quick.apush(2)) == "2"
                        working.tell(signal.SIGTERM)
                        assert await working.end() == 0
        text = log.read_text()
        assert text.count("no jobs can be claimed: these credentials are not accepted") == 1
        assert text.count("to hear how jobs ended") == 1
        assert known not in text

    run(case)


def test_it_waits_for_a_server_that_is_not_there_yet(tmp_path: Path) -> None:
    log, store = tmp_path / "log", "memory://"

    async def case() -> None:
        with serving(store, log) as (server, url):
            server.process.kill()
            await server.end()
        with worker(url, log) as early, worker(url, log) as unlucky:
            said = f"the worker waits for its store: {url} cannot be reached"

            async def waiting() -> bool:
                return log.read_text().count(said) == 2

            await eventually(waiting)
            unlucky.tell(signal.SIGTERM)
            assert await unlucky.end() == 0
            with serving(store, log, int(url.rpartition(":")[2])):
                async with reaching(url):
                    assert await ending(await shop.quick.apush(2)) == "2"
                    early.tell(signal.SIGTERM)
                    assert await early.end() == 0
            text = log.read_text()
            assert text.count("is penstock serve running there?") == 2, "each says so once"
            assert text.count("the store answers") == 1

    run(case)


def test_what_no_waiting_mends_is_said_at_once(tmp_path: Path) -> None:
    """Also of a server: only one that does not answer is waited for."""
    log, broken = tmp_path / "log", tmp_path / "jobs.db"
    broken.write_bytes(b"no store at all" * 1_000)
    for url in (f"sqlite:///{broken}", "penstock://"):
        with worker(url, log) as refused:
            assert refused.process.wait(PATIENCE_S) == 2
    assert "waits for its store" not in log.read_text()


def test_the_late_ack_of_a_stopped_worker_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def case() -> None:
        with serving("memory://", log) as (_, url):
            async with reaching(url):
                # Its lease is over later than its nap: whoever is given it next knows both to be.
                job = await shop.naps.apush(1.5)
                with worker(url, log, "--lease", "2s", "-c", "1") as stopped:
                    await stopped.hears("naps")
                    stopped.tell(signal.SIGSTOP)
                    store = await shop.app.store()
                    lease = await store.claim("default", ["default"], wait_ms=30_000)
                    assert lease is not None
                    assert lease.jobs[0].attempt == 2
                    stopped.tell(signal.SIGCONT)

                    async def told() -> bool:
                        text = log.read_text()
                        return "was taken away" in text or "not ended by this worker" in text

                    await eventually(told)
                    assert (await seen(shop.app, job.id)).state is State.ACTIVE
                    error = JobError(kind="Ours", message="the second attempt is ours")
                    failed = await store.fail("default", lease.token, error=error)
                    assert failed.jobs[0].state is State.DEAD
                    stopped.tell(signal.SIGTERM)
                    assert await stopped.end() == 0

    run(case)


def test_a_handler_that_computes_for_three_leases_runs_once(tmp_path: Path) -> None:
    """It blocks the loop at once, before anybody but that loop knows of its lease."""
    log, ran = tmp_path / "log", tmp_path / "ran"

    async def case() -> None:
        with serving("memory://", log) as (_, url):
            async with reaching(url):
                with worker(url, log, "--lease", "1500ms", RAN=str(ran)) as busy:
                    jobs = [await shop.computes.apush(1, 4.5)]
                    await busy.hears("computes")
                    jobs.append(await shop.computes.apush(2, 0.0))
                    for job in jobs:
                        assert await ending(job) == "None"
                        assert (await seen(shop.app, job.id)).attempt == 1
                    busy.tell(signal.SIGTERM)
                    assert await busy.end() == 0
        assert [line.split()[1] for line in ran.read_text().splitlines()] == ["1", "2"]

    run(case)


REPLAYING = """
from penstock.cli.main import main
sys.argv = ["penstock", "worker", "tests.worker.shop:app", "--no-cron", "--url", sys.argv[1]]
main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_while_its_store_is_being_replayed(
    number: signal.Signals, tmp_path: Path
) -> None:
    last = ended_while_replaying(REPLAYING, number, tmp_path)
    assert "not opened: told to end, " in last


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("tests.worker.nothing:app", "there is no module 'tests.worker.nothing'"),
        ("tests.worker.shop", "is not MODULE:APP, as in shop.tasks:app"),
        ("tests.worker.shop:apps", "the module 'tests.worker.shop' has no 'apps'"),
        ("tests.worker.shop:quick", "is a Task, not a Penstock app"),
        ("tests.worker.empty:app", "has no tasks"),
    ],
)
def test_what_is_wrong_with_an_app_is_said_in_a_sentence(where: str, says: str) -> None:
    from penstock.model.errors import Invalid
    from penstock.worker.loading import load_app

    with pytest.raises(Invalid, match=says):
        load_app(where)


def test_the_command_says_what_is_wrong_and_ends(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "penstock.cli.main", "worker", "nothing:app"]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert "there is no module 'nothing'" in ended.stderr


@pytest.mark.parametrize("pool", ["async", "thread", "process"])
def test_what_a_handler_starts_ends_when_it_is_told_to(pool: str, tmp_path: Path) -> None:
    """A worker hears signals in a way of its own, and its children in theirs."""
    log = tmp_path / "log"

    async def case() -> None:
        with serving("memory://", log) as (_, url):
            async with reaching(url):
                job = await shop.ends_children.apush()
                with worker(url, log, "--pool", pool):
                    assert await ending(job) == str([-signal.SIGTERM] * 2)

    run(case)


def test_what_a_handler_has_left_behind_does_not_put_off_the_end(tmp_path: Path) -> None:
    """Nor does it hold the path: another has it at once."""
    log, path = tmp_path / "log", tmp_path / "jobs.db"

    async def case() -> None:
        with worker(f"sqlite:///{path}", log, "--shutdown-s", "2") as first:
            await owned(path, first.process.pid)
            async with reaching(f"sqlite:///{path}"):
                await shop.leaves_behind.apush()
                await first.hears("left behind")
                first.tell(signal.SIGTERM)
                await owned(path, os.getpid())
                assert first.process.poll() is None
                assert await first.end() == 0
                assert "something that a handler began does not end" in log.read_text()

    run(case)


def test_a_worker_that_has_ended_hears_signals_as_any_process_does(tmp_path: Path) -> None:
    log, path = tmp_path / "log", tmp_path / "jobs.db"

    async def case() -> None:
        with worker(f"sqlite:///{path}", log) as first:
            await owned(path, first.process.pid)
            async with reaching(f"sqlite:///{path}"):
                await shop.leaves_behind.apush()
                await first.hears("left behind")
                first.tell(signal.SIGTERM)
                await owned(path, os.getpid())
                first.tell(signal.SIGTERM)
                assert await first.end() == -signal.SIGTERM

    run(case)


async def owned(path: Path, pid: int) -> None:
    async def so() -> bool:
        return owner_of(path) == pid

    await eventually(so)
