"""Handlers in processes: what they answer, how they are stopped, and what becomes of those who die."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.client.home import Home
from penstock.model.lifecycle import State
from penstock.worker.limits import rss_mb
from penstock.worker.settings import WorkerSettings
from penstock.worker.worker import Worker
from tests.faults.stores import ROOT
from tests.worker import shop
from tests.worker.harness import closing, ending, eventually, run, seen, working
from tests.worker.spawned import PATIENCE_S

WHERE = "tests.worker.shop:app"


@pytest.fixture(autouse=True)
def in_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Handlers here never use the store; the worker does, and that is in this process."""
    monkeypatch.setattr(shop.app, "home", Home("memory://", "default"))
    # A process that is started finds the code where this one has it.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    yield


def test_handlers_in_processes_answer_speak_and_are_stopped() -> None:
    async def case() -> None:
        app = shop.app
        async with closing(app), working(app, pool="process", where=WHERE, concurrency=2):
            one = await shop.quick.apush(5)
            talk = await shop.talks.options(depends_on=[one]).apush(7)
            assert await ending(one) == "5"
            assert await ending(talk) == "{'n': 7, 'attempt': 1, 'results': [5]}"
            assert (await seen(app, talk.id)).progress == 40
            lines = await (await app.store()).logs(app.tenant, talk.id)
            assert [line.message for line in lines] == ["said"]
            assert await ending(await shop.softly.apush()) == "'tidied up'"
            late = await shop.turns.options(timeout="100ms", max_attempts=1).apush(60)
            assert await ending(late) == "dead timeout"
            jobs = await shop.rows.options(max_attempts=1).apush_many(range(4))
            ended = [await ending(job) for job in jobs]
            assert ended == ["0", "dead ValueError", "2", "dead ValueError"]

    run(case)


@pytest.mark.parametrize("pool", ["async", "thread", "process"])
def test_whatever_a_handler_says_is_kept_or_refused_where_it_is_said(pool: str) -> None:
    async def case() -> None:
        app = shop.app
        async with closing(app), working(app, pool=pool, where=WHERE, concurrency=1):
            jobs = {
                how: await shop.mumbles.apush(how)
                for how in (
                    "number",
                    "percent",
                    "beyond",
                    "nan",
                    "huge",
                    "text",
                    "fails",
                    "nameless",
                )
            }
            ended = {how: await ending(job) for how, job in jobs.items()}
            assert ended == {
                "number": "'number'",
                "huge": "dead PayloadTooLarge",
                "percent": "'percent'",
                "beyond": "'beyond'",
                "nan": "dead Invalid",
                "text": "'text'",
                "fails": "dead ValueError",
                "nameless": "dead Exception",
            }
            assert (await seen(app, jobs["percent"].id)).progress == 33
            assert (await seen(app, jobs["beyond"].id)).progress == 100
            (error,) = (await seen(app, jobs["nan"].id)).errors
            assert error.message == "percent: is nan, not a number"
            (error,) = (await seen(app, jobs["fails"].id)).errors
            assert error.message == r"no file \ud800"
            said = await seen(app, jobs["number"].id)
            assert (said.progress, said.progress_message) == (50, "5")
            said = await seen(app, jobs["text"].id)
            assert said.progress == 50
            assert said.progress_message == r"\ud800" + "x" * 4_090
            (line,) = await (await app.store()).logs(app.tenant, said.id)
            assert line.message == r"\ud800" + "x" * 16_378

    run(case)


def test_a_job_that_kills_its_process_is_dead_and_others_go_on() -> None:
    async def case() -> None:
        app = shop.app
        async with closing(app), working(app, pool="process", where=WHERE, concurrency=1):
            killed, left = await shop.poison.apush("kill"), await shop.poison.apush("exit")
            after = await shop.quick.apush(1)
            assert [await ending(job) for job in (killed, left)] == ["dead WorkerDied"] * 2
            assert await ending(after) == "1"
            errors = (await seen(app, killed.id)).errors
            assert [error.attempt for error in errors] == [1, 2]
            assert errors[0].message == "the process that ran it was killed by SIGKILL"
            (error, _) = (await seen(app, left.id)).errors
            assert error.message == "the process that ran it ended with exit code 3"

    run(case)


@pytest.mark.parametrize("pool", ["async", "thread", "process"])
def test_an_exception_that_cannot_be_asked_what_it_is_harms_nothing_but_its_job(pool: str) -> None:
    """With one slot: a job whose end nobody heard of would keep the next one waiting."""

    async def case() -> None:
        app = shop.app
        async with closing(app), working(app, pool=pool, where=WHERE, concurrency=1):
            for which, kind, why in (
                ("leaves", "NoLeaves", "LookupError"),
                ("class", "NoClass", "NoClass"),
                ("depth", "ExceptionGroup", "RecursionError"),
            ):
                for task in (shop.fails_shyly, shop.fails_shyly_awaited):
                    job = await task.apush(which)
                    assert await ending(job) == f"dead {kind}"
                    assert [each.message for each in (await seen(app, job.id)).errors] == [
                        f"what it is cannot be said: {why}"
                    ] * 2
            assert await ending(await shop.quick.apush(1)) == "1"

    run(case)


@pytest.mark.parametrize("pool", ["async", "thread", "process"])
def test_a_job_whose_handler_nobody_awaits_is_not_completed(pool: str) -> None:
    async def case() -> None:
        app = shop.app
        async with closing(app), working(app, pool=pool, where=WHERE, concurrency=1):
            one = await shop.charges.apush(5)
            assert await ending(one) == "dead NotAwaited"
            assert (await seen(app, one.id)).attempt == 1
            assert await ending(await shop.charges_many.apush(5)) == "dead NotAwaited"

    run(case)


@pytest.mark.parametrize("pool", ["async", "thread", "process"])
def test_what_a_handler_sets_in_its_context_is_gone_with_it(pool: str) -> None:
    async def case() -> None:
        app = shop.app
        async with closing(app), working(app, pool=pool, where=WHERE, concurrency=1):
            for task in (shop.owned, shop.owned_awaited):
                for owner in ("a", "b"):
                    assert await ending(await task.apush(owner)) == repr("nobody's")

    run(case)


@pytest.mark.parametrize("pool", ["async", "thread", "process"])
def test_an_exit_beside_a_handler_ends_no_process(pool: str) -> None:
    async def case() -> None:
        app = shop.app
        async with closing(app), working(app, pool=pool, where=WHERE, concurrency=1):
            for task in (shop.takes, shop.takes_awaited):
                job = await task.options(max_attempts=1).apush(cast(shop.Exiting, {"code": 3}))
                assert await ending(job) == "dead SystemExit"
            many = await shop.takes_many.options(max_attempts=1).apush({"code": 3})  # type: ignore[arg-type]
            assert await ending(many) == "dead SystemExit"
            assert await ending(await shop.quick.apush(1)) == "1"

    run(case)


def test_a_process_of_the_pool_that_has_grown_too_large_is_replaced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    limit_mb = round(rss_mb()) + 100  # this process is the worker, and stays

    async def case() -> None:
        app = shop.app
        settings: dict[str, Any] = {"where": WHERE, "concurrency": 1, "max_rss_mb": limit_mb}
        async with closing(app), working(app, pool="process", **settings) as worker:
            small, large, after = [await shop.grows.apush(mb) for mb in (1, limit_mb, 1)]
            pids = [await job.aresult(60) for job in (small, large, after)]
            assert pids[0] == pids[1] != pids[2]
            assert not worker.outlived

    run(case)
    said = [record for record in caplog.records if "of the pool" in record.getMessage()]
    assert [record.levelname for record in said] == ["INFO"]
    assert "MB and is replaced" in said[0].getMessage()


def test_nobody_reads_a_url_on_the_command_line_of_a_process() -> None:
    """It may have a token in it."""

    async def case() -> None:
        app = shop.app
        async with closing(app), working(app, pool="process", where=WHERE, concurrency=1):
            said = await (await shop.command_line.apush()).aresult("30s")
            assert "penstock.worker.pools.child" in said
            assert app.url not in said

    run(case)


def test_a_soft_timeout_is_raised_in_a_handler_and_at_no_step_around_it() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "tests.worker.every_step"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        check=True,
        text=True,
        timeout=PATIENCE_S,
    )
    *ends, late = json.loads(said.stdout)
    assert late == ["begins_late", "", False, '["tidied up"]']
    undisturbed = {"answers": '["5"]', "raises": "LookupError"}
    for task, where, inside, end in ends:
        if inside:
            assert end in ('["tidied up"]', "SoftTimeout"), (task, where)
        else:
            assert end == undisturbed[task], (task, where)
    assert [end for task, _, inside, end in ends if inside and task == "answers"] == [
        *("SoftTimeout", '["tidied up"]', '["tidied up"]', "SoftTimeout")
    ]
    wheres = {(task, where) for task, where, inside, _ in ends if not inside}
    assert {("answers", "return Arguments.call"), ("raises", "return Arguments.call")} <= wheres
    assert said.stderr == ""


def test_a_soft_timeout_behind_the_end_of_a_handler_changes_nothing() -> None:
    async def case() -> None:
        app = shop.app
        async with closing(app), working(app, pool="process", where=WHERE, concurrency=1):
            before = await (await shop.speaks_late.apush()).aresult("30s")
            assert await ending(await shop.ends_early.apush()) == "dead ValueError"
            assert await (await shop.speaks_late.apush()).aresult("30s") == before

    run(case)


def test_a_child_that_a_handler_leaves_behind_does_not_hide_the_end_of_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = tmp_path / "ran"
    monkeypatch.setenv("RAN", str(ran))

    async def case() -> None:
        app = shop.app
        async with closing(app), working(app, pool="process", where=WHERE, concurrency=1):
            job = await shop.forks.options(max_attempts=1).apush()
            assert await ending(job) == "dead WorkerDied"
            assert await ending(await shop.quick.apush(1)) == "1"

    try:
        run(case)
    finally:
        for line in ran.read_text().splitlines():
            if line.startswith("child"):
                os.kill(int(line.split()[1]), signal.SIGKILL)


def test_what_handlers_in_processes_log_is_in_the_worker_s_form(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async def case() -> None:
        app = shop.app
        settings = {"pool": "process", "where": WHERE, "concurrency": 1, "log_format": "json"}
        async with closing(app), working(app, **settings):
            job = await shop.talks.apush(7)
            await ending(job)
            said = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
            assert [(line["level"], line["message"], line["job"]) for line in said] == [
                ("info", "said", job.id)
            ]

    run(case)


def test_words_about_a_job_that_has_ended_are_not_heard_and_end_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ran = tmp_path / "ran"
    monkeypatch.setenv("RAN", str(ran))

    async def spoke() -> bool:
        return ran.exists()

    async def case() -> None:
        app = shop.app
        async with closing(app), working(app, pool="process", where=WHERE, concurrency=1):
            first = await (await shop.speaks_late.apush()).aresult("30s")
            await eventually(spoke)
            assert await (await shop.speaks_late.apush()).aresult("30s") == first

    with caplog.at_level("ERROR"):
        run(case)
    assert not caplog.messages


@pytest.mark.parametrize(
    ("pool", "how"),
    [("async", "itself"), ("thread", "itself"), ("process", "itself"), ("process", "all")],
)
def test_a_handler_that_cancels_its_task_and_waits_for_nothing_has_answered(
    pool: str, how: str
) -> None:
    """All tasks are cancelled in a process alone: on the loop of this test its own are among them."""

    async def case() -> None:
        app = shop.app
        async with closing(app), working(app, pool=pool, where=WHERE, concurrency=1):
            for _ in range(2):
                assert await ending(await shop.cancels_itself.apush(how)) == "'went on'"

    run(case)


def test_a_cancelled_job_s_process_is_killed_and_a_shutdown_spends_nothing() -> None:
    async def case() -> None:
        app = shop.app
        async with closing(app):
            settings = WorkerSettings(
                pool="process", where=WHERE, concurrency=1, lease_ms=1_500, shutdown_s=0, cron=False
            )
            worker = Worker(app, settings)
            living = asyncio.create_task(worker.run())
            store = await app.store()
            begun = store.watch(app.tenant, kinds=["progress"])
            endless = [await shop.turns.apush(60) for _ in range(2)]
            await anext(begun)
            assert await endless[0].acancel()
            await anext(begun)  # there is a slot again
            assert worker.counts.lost == 1
            worker.stop()
            counts = await living
            assert (counts.released, counts.failed) == (1, 0)
            back = await seen(app, endless[1].id)
            assert (back.state, back.attempt) == (State.READY, 0)

    run(case)
