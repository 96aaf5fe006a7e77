"""What a worker logs as JSON: one object a line, ids, task and queue in fields of their own."""

import asyncio
import json
import re
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock import Context, Penstock
from penstock.model.job import JobSpec
from penstock.worker import dispatch
from penstock.worker.counts import Counts
from tests.faults.stores import ROOT
from tests.worker import shop
from tests.worker.harness import (
    PATIENCE_S,
    changing,
    closing,
    ending,
    eventually,
    run,
    told_of,
    working,
)
from tests.worker.spawned import reaching, serving, worker

PAGE = ROOT / "docs" / "how-to" / "run-workers.md"
ALWAYS = {"time", "level", "logger", "message"}

Line = dict[str, Any]


def documented() -> dict[str, tuple[set[str], set[str]]]:
    """What the page says of each kind of line: its levels, and the fields that only it has."""
    section = PAGE.read_text().partition("## See what happens")[2]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:2] == "| "]
    return {
        what: (set(re.findall("`(.+?)`", levels)), set(re.findall("`(.+?)`", fields)))
        for what, levels, fields in rows[1:]
    }


def lines(log: Path) -> list[Line]:
    """Every line, each of which must be an object with what all of them have."""
    text = log.read_text()
    assert text.endswith("\n")
    found = [json.loads(line) for line in text.splitlines()]
    for line in found:
        assert line.keys() >= ALWAYS
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", line["time"])
    return found


def told(line: Line) -> tuple[object, ...]:
    """What it says, and of which job."""
    return line["message"], line.get("job"), line.get("task"), line.get("queue")


def test_a_worker_process_logs_one_object_a_line_with_the_fields_that_are_documented(
    tmp_path: Path,
) -> None:
    log, ids = tmp_path / "worker.log", dict[str, int]()

    async def says(what: str) -> None:
        async def look() -> bool:
            return what in log.read_text()

        await eventually(look)

    async def case() -> None:
        with serving("memory://", tmp_path / "server.log") as (_, url):
            async with reaching(url):
                flags = ("--log-format", "json", "--log-level", "debug", "--lease", "3s")
                with worker(url, log, *flags, "--name", "ada") as working:
                    fails = await shop.fails.apush('no "luck"\nat all')
                    assert await ending(fails) == "dead ValueError"
                    overruns = await shop.overruns.apush()
                    assert await ending(overruns) == "dead timeout"
                    naps = await shop.naps.apush(60)
                    await working.hears("naps")
                    assert await naps.acancel()
                    await says("was taken away")
                    strange = JobSpec(payload=b"{}", task="strange")
                    store = await shop.app.store()
                    pushed = await store.push_jobs("default", "default", [strange])
                    await says("no task is called")
                    assert await ending(await shop.quick.apush(1)) == "1"
                    working.tell(signal.SIGTERM)
                    assert await working.end() == 0
                ids.update(
                    fails=fails.id, overruns=overruns.id, naps=naps.id, strange=pushed.ids[0]
                )

    run(case)
    first, *between, last = lines(log)
    pages = documented()

    assert (first["level"], first["message"]) == ("info", "ada works on default, rows")
    assert first["queues"] == ["default", "rows"]
    assert first["tasks"] == sorted(shop.app.tasks)
    assert first.keys() - ALWAYS == pages["a worker starts"][1]

    claims = [line for line in between if line["message"].startswith("claimed")]
    assert {line["queue"] for line in claims} == {"default"}
    assert sum(line["count"] for line in claims) == last["counts"]["claimed"]
    fields = pages["jobs were claimed"][1]
    assert all((line["level"], line.keys() - ALWAYS) == ("debug", fields) for line in claims)

    jobs = [line for line in between if line not in claims]
    why, late = 'ValueError: no "luck"\nat all', "timeout: the attempt ran longer than 150ms"
    unknown = "no task is called 'strange' here: its jobs are put off until a worker knows it"
    again = "an attempt failed or timed out, and there will be another"
    said = [
        (again, f"job {ids['fails']} failed: {why}", "fails"),
        ("a job is dead", f"job {ids['fails']} is dead: {why}", "fails"),
        (again, f"job {ids['overruns']} failed: {late}", "overruns"),
        ("a job is dead", f"job {ids['overruns']} is dead: {late}", "overruns"),
        ("a job was taken away while it ran", f"job {ids['naps']} was taken away", "naps"),
        ("a task is not known here, once for each", unknown, "strange"),
    ]
    assert [told(line) for line in jobs] == [
        (message, ids[name], task(name), "default") for _, message, name in said
    ], "and nothing else"
    assert [({line["level"]}, line.keys() - ALWAYS) for line in jobs] == [
        pages[kind] for kind, _, _ in said
    ]

    assert last["level"] == "info"
    assert last["message"].startswith("ada ends: ")
    assert last["worker"] == first["worker"] == "ada"
    assert last.keys() - ALWAYS == pages["a worker ends"][1]
    assert last["counts"].keys() == {each.name for each in msgspec.structs.fields(Counts)}
    counted = {name: count for name, count in last["counts"].items() if name != "claimed"}
    assert {name: count for name, count in counted.items() if count} == {
        "completed": 1,
        "failed": 2,
        "dead": 2,
        "timed_out": 2,
        "lost": 1,
        "parked": counted["parked"],
    }


def task(name: str) -> str:
    return name if name == "strange" else shop.app.tasks[name].name


def records(caplog: pytest.LogCaptureFixture, what: str) -> list[tuple[object, ...]]:
    """Of the lines that say so: job, task and queue."""
    return [
        tuple(getattr(record, name, None) for name in ("job", "task", "queue"))
        for record in caplog.records
        if what in record.getMessage()
    ]


def test_every_job_of_a_batch_that_is_taken_away_is_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = Penstock("memory://")
    began, stopped = asyncio.Event(), asyncio.Event()

    @app.task(name="rows", queue="q", batch=10)
    async def rows(items: list[int]) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async def case() -> list[int]:
        async with closing(app):
            jobs = await rows.apush_many(range(3))
            async with working(app, lease_ms=300) as worker:
                await began.wait()
                store = await app.store()
                await store.cancel(app.tenant, jobs.ids)
                await stopped.wait()
        assert worker.counts.lost == 3
        return jobs.ids

    ids = run(case)
    assert records(caplog, "was taken away") == [(job, "rows", "q") for job in ids]


def test_a_dead_job_whose_result_was_refused_is_told_with_its_task(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = Penstock("memory://")

    @app.task(name="large", queue="q")
    async def large() -> str:
        return "x" * (11 << 20)

    async def case() -> int:
        async with closing(app), working(app):
            job = await large.apush()
            assert await ending(job) == "dead ResultRefused"
            return job.id

    job = run(case)
    assert records(caplog, "is dead: ResultRefused") == [(job, "large", "q")]


@pytest.mark.parametrize("pool", ["async", "thread"])
def test_a_cancelled_job_that_speaks_is_stopped_by_it_and_told_of_once(
    pool: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its lease is long: the next beat would find it gone after minutes."""
    app = Penstock("memory://")

    @app.task(name="speaks", queue="q")
    async def speaks(ctx: Context) -> None:
        while True:
            ctx.progress(1)
            ctx.partial(1)
            await asyncio.sleep(0.001)

    @app.task(name="says", queue="q")
    def says(ctx: Context) -> None:
        while True:
            ctx.progress(1)
            ctx.partial(1)
            time.sleep(0.001)

    async def case() -> int:
        async with closing(app), working(app, pool=pool, lease_ms=600_000) as worker:
            begun = await changing(app, "progress")
            job = await (speaks if pool == "async" else says).apush()
            await told_of(begun, [job])
            assert await job.acancel()

            async def lost() -> bool:
                return worker.counts.lost == 1

            await eventually(lost)
            return job.id

    job = run(case)
    task = "speaks" if pool == "async" else "says"
    assert records(caplog, "was not heard") == [(job, task, "q")]
    assert records(caplog, "taken away") == [(job, task, "q")]


def test_a_job_that_does_not_stop_is_told_with_its_task(caplog: pytest.LogCaptureFixture) -> None:
    app = Penstock("memory://")
    began = asyncio.Event()
    go_on = asyncio.Event()

    @app.task(name="stays", queue="q")
    async def stays() -> None:
        began.set()
        while not go_on.is_set():
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                continue

    async def case() -> int:
        async with closing(app):
            job = await stays.apush()
            async with working(app, shutdown_s=0.1):
                await began.wait()
            go_on.set()
            return job.id

    job = run(case)
    assert records(caplog, "does not stop") == [(job, "stays", "q")]


def test_a_slot_that_a_stopped_handler_keeps_is_told_of(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "STOPS_S", 0.05)
    app = Penstock("memory://", max_attempts=1)
    go_on = threading.Event()

    @app.task(name="waits", queue="q", timeout="100ms")
    def waits() -> None:
        while not go_on.is_set():
            with suppress(BaseException):
                go_on.wait(PATIENCE_S)

    @app.task(name="ends", queue="q", timeout="20ms")
    async def ends() -> None:
        await asyncio.Event().wait()

    async def case() -> int:
        async with closing(app), working(app, concurrency=2):
            job = await waits.apush()
            assert await ending(job) == "dead timeout"
            assert await ending(await ends.apush()) == "dead timeout"

            async def told() -> bool:
                return bool(records(caplog, "does not end"))

            await eventually(told)
            go_on.set()
            return job.id

    job = run(case)
    assert records(caplog, "1 of 2 slots are kept so") == [(job, "waits", "q")]


@pytest.mark.parametrize(
    ("queues", "said"),
    [
        ({"emials": 1}, ["the queue emials, but on emails some are; it is served all the same"]),
        ({"emails": 1, "night": 2}, ["the queue night; it is served all the same"]),
        ({"emails": 3}, []),
        (None, []),
    ],
)
def test_a_queue_that_no_task_is_on_is_wondered_at(
    queues: dict[str, int] | None, said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    app = Penstock("memory://")

    @app.task(queue="emails")
    async def mail() -> None: ...

    async def case() -> None:
        async with closing(app), working(app, queues=queues or {}):
            await ending(await mail.options(queue=next(iter(queues or {"emails": 1}))).apush())

    run(case)
    told = [each for each in caplog.records if each.levelname == "WARNING"]
    assert [each.getMessage() for each in told] == [
        f"no task of the app is on {one}" for one in said
    ]
