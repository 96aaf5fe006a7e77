"""One path, and its users as they are: a web process with the SDK, two `penstock worker`, the CLI.

Whoever owns the path is killed, again and again: sometimes two in a row, before anybody has been
replaced. What was killed is replaced, as a supervisor would; the others are never touched, and must
need nothing. At the end every push that somebody was answered has been done; twice only where the
worker that did it first was killed with the job in its hands.

What is killed, stopped or told to end while stores are used by hand: `test_one_path.py`.
"""

import asyncio
import json
import os
import signal
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from penstock.cli.session import DONE, NOT_SO, WRONG
from penstock.model.job import Job
from penstock.model.lifecycle import ENDED, State
from penstock.model.store import Store
from penstock.open import open_store
from penstock.stores.journal.ownership import owner_of
from tests.cli.cli import COMMAND
from tests.faults.heard import PATIENCE_S, Heard, News
from tests.faults.site import MAIL
from tests.faults.stores import LONG, ROOT, in_both_runs, url_of
from tests.history.final import every_job

pytestmark = [*in_both_runs, pytest.mark.timeout(3_600 if LONG else 240)]
# Owners that are killed in a row before anybody is replaced. Of three, two leave the third as the
# only heir, and then it is its turn.
BURSTS: Final = (2, 1) * 10 if LONG else (2, 1, 1)
STEPS: Final = 40 if LONG else 2  # that everybody makes between two bursts
COMMANDS: Final = 4  # of the CLI that are answered meanwhile
ROLES: Final = ("web", "worker one", "worker two")
LEASE: Final = "5s"  # many times as long as it takes to become an heir
BY_HAND: Final = "20s"  # longer than it takes to say the next command, on a busy machine
SLOTS: Final = 4  # of a worker: it has no more than twice as many jobs in hand
TENANT: Final = "default"
ERRANDS: Final = "errands"  # what is claimed by hand
# The same as what the site says of its jobs.
LASTING: Final = ("--retain", "1h", "--max-attempts", "0", "--backoff-base", "10ms")


class Ran(NamedTuple):
    job: int
    attempt: int
    worker: str


class Company:
    """Everybody on one path, and what they were told."""

    def __init__(self, directory: Path) -> None:
        self.url = url_of("sqlite", directory)
        self.path = directory / "store"
        self.staff: list[Heard] = []  # who live until they are killed
        self.killed: list[str] = []  # roles, in order
        self.killed_workers: set[str] = set()
        self.commands: dict[int, asyncio.subprocess.Process] = {}  # of the CLI, that run
        self.answers = 0  # of commands
        self.news = News()
        self.diary = directory / "diary"
        self.diary.touch()
        self._logs = directory / "logs"
        self._logs.mkdir()
        self._hired = count(1)
        self._names: dict[Heard, str] = {}
        self._environ = {
            **os.environ,
            "PENSTOCK_URL": self.url,
            "RAN": str(self.diary),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }

    # -- processes -------------------------------------------------------------------------------

    async def start(self, name: str, *argv: str) -> asyncio.subprocess.Process:
        """Its log is written to a file of that name."""
        with (self._logs / name).open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *argv, cwd=ROOT, env=self._environ, stdout=asyncio.subprocess.PIPE, stderr=log
            )

    async def hire(self, role: str) -> None:
        name = f"{role.replace(' ', '-')}-{next(self._hired)}"
        if role == "web":
            argv = [sys.executable, "-m", "tests.faults.site", name]
        else:
            argv = [*COMMAND, "worker", "tests.faults.site:app", "--name", name]
            argv += ["--lease", LEASE, "-c", str(SLOTS)]
        heard = Heard(role, await self.start(name, *argv), self.news)
        self._names[heard] = name
        self.staff.append(heard)

    async def penstock(self, *words: str) -> tuple[int, str] | None:
        """The command as people run it: its exit code, and what it printed; None if it was killed
        because it owned the path."""
        process = await self.start("cli", *COMMAND, *words)
        self.commands[process.pid] = process
        try:
            async with asyncio.timeout(PATIENCE_S):
                told, _ = await process.communicate()
        finally:
            self.commands.pop(process.pid, None)
            if process.returncode is None:  # nobody waits for it any more
                process.kill()
                await process.wait()
            self.answers += process.returncode == DONE
            await self.news.tell()
        assert process.returncode is not None
        if process.returncode == -signal.SIGKILL:
            return None
        return process.returncode, told.decode()

    # -- killing ---------------------------------------------------------------------------------

    async def owner(self) -> Heard:
        """Which of the staff owns the path. A command that happens to is killed."""
        found: list[Heard] = []

        def look() -> bool:
            pid = owner_of(self.path)
            command = self.commands.pop(pid or 0, None)
            if command is not None and command.returncode is None:
                command.kill()
                self.killed.append("cli")
            found[:] = [each for each in self.staff if each.process.pid == pid]
            return bool(found)

        await self.news.until(look)
        return found[0]

    async def kill_the_owner(self) -> str:
        owner = await self.owner()
        await owner.end(signal.SIGKILL)
        self.staff.remove(owner)
        self.killed.append(owner.role)
        if owner.role != "web":
            self.killed_workers.add(self._names[owner])
        return owner.role

    async def progress(self) -> None:
        """Wait until everybody has been answered anew."""
        waits = []
        for each in self.staff:
            if each.role == "web":
                waits += [each.hear("pushed", STEPS), each.hear("pushed in the loop", STEPS)]
            else:
                waits.append(each.hear("ran", 2 * SLOTS + STEPS))  # more than it had in hand
        await asyncio.gather(*waits)

    async def commands_are_answered(self) -> None:
        enough = self.answers + COMMANDS
        await self.news.until(lambda: self.answers >= enough)

    async def clear(self) -> None:
        for each in self.staff:
            await each.clear()

    # -- what was written down -------------------------------------------------------------------

    def wrote(self, kind: str) -> list[list[str]]:
        lines = [line.split() for line in self.diary.read_text().splitlines()]
        return [words[1:] for words in lines if words[0] == kind]

    def logs(self) -> dict[str, str]:
        return {log.name: log.read_text() for log in self._logs.iterdir()}


def ids(pushed: Any) -> list[int]:
    return [job["id"] for job in pushed["jobs"]]


class People:
    """Two who work with the CLI: one pushes and looks, the other waits for errands."""

    def __init__(self, company: Company) -> None:
        self.company = company
        self.pushed: dict[str, int] = {}  # what, and the job that the answer named
        self.errands: set[int] = set()  # whose pushes were answered
        self.over = False

    async def _do(self, *words: str, or_code: int = DONE) -> Any:
        """What a command answers, in JSON; None if it was killed, or ended as it may."""
        ended = await self.company.penstock(*words, "--json")
        if ended is None:
            return None
        code, told = ended
        assert code in (DONE, or_code), (words, code, told, self.company.logs()["cli"])
        return json.loads(told) if code == DONE else None

    async def push_and_look(self) -> None:
        for n in count():
            what = f"cli-{n}"
            said = ("push", MAIL, json.dumps({"what": what}), "--task", "send", *LASTING)
            if pushed := await self._do(*said):
                (self.pushed[what],) = ids(pushed)
            if listed := await self._do("queues", "ls"):
                assert MAIL in {queue["queue"] for queue in listed["queues"]}
            if pushed := await self._do("push", ERRANDS, "1", *LASTING):
                self.errands.update(ids(pushed))
            if listed := await self._do("jobs", "ls", "--queue", MAIL, "--limit", "5"):
                assert listed["jobs"]
            if stats := await self._do("stats"):
                assert stats["ok"]
            if self.over and self.pushed and self.errands:  # and not only killed
                return

    async def run_errands(self) -> None:
        while not self.over:
            await self.run_errand()

    async def run_errand(self) -> None:
        """Claim something, and ack it. Who is told that it is not known what became of an ack says
        it again; if the lease is over then, it was heard, or the job comes back."""
        claimed = await self._do(
            "claim", ERRANDS, "--wait", "2s", "--lease", BY_HAND, or_code=NOT_SO
        )
        while claimed is not None:
            ended = await self.company.penstock("ack", claimed["lease"])
            if ended is not None and ended[0] != WRONG:
                assert ended[0] in (DONE, NOT_SO), ended
                return


@asynccontextmanager
async def working(*what: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """If one of them fails, so does the test, at once; otherwise they are waited for."""
    async with asyncio.TaskGroup() as group:
        for each in what:
            group.create_task(each())
        yield


def test_owners_are_killed_under_those_who_use_the_path(tmp_path: Path) -> None:
    async def whole() -> None:
        company = Company(tmp_path)
        people = People(company)
        try:
            for role in ROLES:
                await company.hire(role)
            await company.progress()
            async with working(people.push_and_look, people.run_errands):
                for burst in BURSTS:
                    gone = [await company.kill_the_owner() for _ in range(burst)]
                    await company.owner()  # so that whoever is left is it, and nobody who is new
                    for role in gone:
                        await company.hire(role)
                    await asyncio.gather(company.progress(), company.commands_are_answered())
                people.over = True
            jobs = await finished(company, people)
        except BaseException as error:
            for name, log in company.logs().items():
                error.add_note(f"-- {name}\n{log[-3_000:]}")
            raise
        finally:
            await company.clear()
        check(company, people, jobs)
        await sound(company)

    asyncio.run(whole())


async def finished(company: Company, people: People) -> list[Job]:
    """End everybody, when all that there is has been done; answers all jobs."""
    web, *workers = sorted(company.staff, key=lambda each: each.role)
    await web.end(signal.SIGTERM)
    assert web.said["closed"] == 1
    assert web.said["heard"] and web.said["heard in the loop"], "no results"
    store = await open_store(company.url)
    while await left(store, ERRANDS):
        await people.run_errand()
    for queue in await store.queues(TENANT):
        while waiting := await left(store, queue.queue):
            await asyncio.gather(*(store.result(TENANT, job, wait_ms=30_000) for job in waiting))
    for each in workers:
        await each.end(signal.SIGTERM)
    jobs = [
        job
        for queue in await store.queues(TENANT)
        for job in await every_job(store, TENANT, queue.queue)
    ]
    await store.close()
    company.staff.clear()
    return jobs


async def left(store: Store, queue: str) -> list[int]:
    return [job.id for job in await every_job(store, TENANT, queue) if job.state not in ENDED]


def check(company: Company, people: People, jobs: list[Job]) -> None:
    by_id = {job.id: job for job in jobs}
    assert {job.state for job in jobs} == {State.COMPLETED}
    assert set(ROLES) <= set(company.killed)

    ran: defaultdict[str, list[Ran]] = defaultdict(list)
    for what, number, attempt, worker, _ in company.wrote("ran"):
        ran[what].append(Ran(int(number), int(attempt), worker))
    answered = {what: int(number) for what, number, _ in company.wrote("pushed")}
    assert answered
    assert people.pushed
    assert people.errands
    for what, job in (answered | people.pushed).items():
        assert {run.job for run in ran[what]} == {job}, f"{what} was lost, or pushed twice"
    assert people.errands <= by_id.keys()

    # Nobody knows whether a push happened whose producer was killed; but nothing comes of nothing.
    asked = {what for what, _ in company.wrote("asked")}
    assert {what for what in ran if not what.startswith("cli-")} <= asked
    for what, runs in ran.items():
        (job,) = {run.job for run in runs}
        expired = {(e.attempt, e.worker) for e in by_id[job].errors if e.kind == "lease_expired"}
        assert len({run.attempt for run in runs}) == len(runs), f"{what} ran twice at once"
        for run in runs[:-1]:
            assert run.worker in company.killed_workers, f"{what} ran twice for nothing: {runs}"
            assert (run.attempt, run.worker) in expired, f"{what} ran after it was done: {runs}"

    for name, log in company.logs().items():
        assert "Traceback" not in log, f"{name}: {log}"


async def sound(company: Company) -> None:
    assert owner_of(company.path) is None
    ended = await company.penstock("doctor", "--check", "--json", company.url)
    assert ended is not None
    code, told = ended
    report = json.loads(told)
    assert code == DONE, report["problems"]
    assert report["store"]["closed"]
