"""One path, many processes: a web process, two workers and the CLI, while owners end in every way.

Whoever owns the path is killed, stopped or told to end, again and again, each time after everybody
has been answered since the last time. The one that ended is replaced, as a supervisor would; the
others are never restarted, and must need nothing. At the end all of them close the store, and what
they wrote down is compared with what is there.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Final

import pytest

from penstock.model.job import JobSpec
from penstock.open import open_store
from penstock.stores.journal.ownership import owner_of
from tests.faults.heard import PATIENCE_S, Heard, News
from tests.faults.stores import LONG, ROOT, each_store, in_both_runs, settled, url_of
from tests.history import record as r
from tests.history.checker import assert_clean
from tests.history.operations import History

pytestmark = [*in_both_runs, pytest.mark.timeout(3_600 if LONG else 120)]
KILLS: Final = 60 if LONG else 3
TURNS: Final = 10 if LONG else 1  # of everything else
ROLES: Final = ("web", "worker", "worker")
LOOK_EVERY: Final = 10 if LONG else 4  # kills between two looks of the CLI
SILENCE_S: Final = 0.5


class Sharer(Heard):
    """A process of `tests.faults.sharer`."""

    def tell(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")

    async def end(self, number: signal.Signals) -> None:
        await super().end(number)
        assert self.said["closed"] == (number is signal.SIGTERM)


class Company:
    """Everybody on one path."""

    def __init__(self, scheme: str, directory: Path, *said: str) -> None:
        self.url = url_of(scheme, directory)
        self.path = directory / "store"
        self.log = directory / "history"
        self.all: list[Sharer] = []
        self.losses = 0  # of connections, that claims in flight were repeated after
        self.stood_ms = 0  # owners that were stopped, together
        self._said = said
        self._seed = 0
        self._news = News()
        self._heirs: list[Sharer] = []  # who have recovered the store, or began to

    async def hire(self, role: str) -> Sharer:
        self._seed += 1
        more = ("--url", self.url, "--log", str(self.log), "--seed", str(self._seed), *self._said)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.faults.sharer",
            role,
            *more,
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        sharer = Sharer(role, process, self._news)
        self.all.append(sharer)
        return sharer

    async def progress(self, those: Iterable[Sharer] | None = None) -> None:
        """Wait until everybody has been answered."""
        await asyncio.gather(*(each.hear("step", 2) for each in those or self.all))

    def owner(self) -> Sharer:
        pid = owner_of(self.path)
        (owner,) = [each for each in self.all if each.process.pid == pid]
        return owner

    def others(self, *those: Sharer) -> list[Sharer]:
        return [each for each in self.all if each not in those]

    async def replace(self, one: Sharer, number: signal.Signals) -> None:
        """End it, and have another one do the same work. The survivors go on at once."""
        await one.end(number)
        self.all.remove(one)
        self.losses += 1
        await self.progress()
        await self.hire(one.role)
        await self.progress()

    async def heir(self) -> Sharer:
        """Who is next to recover the store, when it says so."""

        def found() -> list[Sharer]:
            return [x for x in self.all if x.said["recovering"] and x not in self._heirs]

        await self._news.until(found)
        (heir,) = found()
        self._heirs.append(heir)
        return heir

    async def close(self, those: Iterable[Sharer] | None = None) -> None:
        """Tell everybody to end, one after the other, as a service that is shut down."""
        for each in those or self.all:
            await each.end(signal.SIGTERM)
        self.losses += len(self.all)
        assert owner_of(self.path) is None
        assert not self.path.with_name("store.sock").exists()

    async def check(self) -> None:
        """What was answered has happened, once, and the store is sound."""
        violations = await settled(
            self.url, self.log, claims_repeated=self.losses, stood_ms=self.stood_ms
        )
        assert_clean(violations)
        code, report = await self.doctor("--check")
        assert code == 0, report["problems"]
        assert report["store"]["closed"]
        history = History.read(self.log)
        answered = Counter(type(each.call) for each in history.operations if each.ok)
        assert min(answered[r.Push], answered[r.Claim], answered[r.Ack]) > 0

    async def doctor(self, *said: str) -> tuple[int | None, dict[str, dict[str, object]]]:
        code, told = await penstock("doctor", "--json", *said, self.url)
        return code, json.loads(told)


async def penstock(*said: str) -> tuple[int | None, str]:
    """The command as people run it: its exit code, and what it printed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "penstock.cli.main", *said, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(PATIENCE_S):
        told, _ = await process.communicate()
    return process.returncode, told.decode()


def play(
    scheme: str, directory: Path, story: Callable[[Company], Awaitable[None]], *said: str
) -> None:
    async def whole() -> None:
        company = Company(scheme, directory, *said)
        try:
            for role in ROLES:
                await company.hire(role)
            await story(company)
            await company.check()
        finally:
            for each in company.all:
                await each.clear()

    asyncio.run(whole())


@each_store
def test_owners_are_killed_in_turn(scheme: str, tmp_path: Path) -> None:
    async def story(company: Company) -> None:
        killed = set()
        await company.progress()
        for turn in range(KILLS):
            owner = company.owner()
            killed.add(owner.role)
            await company.replace(owner, signal.SIGKILL)
            if turn % LOOK_EVERY == 0:
                await look(company, scheme)
        if LONG:
            assert killed == set(ROLES)
        await company.close()

    play(scheme, tmp_path, story)


async def look(company: Company, scheme: str) -> None:
    """The commands that look at a store work beside a live owner, and change nothing for anybody."""
    code, report = await company.doctor()
    if scheme == "sqlite":
        assert code == 0, report
    backups = company.path.with_name("backups")
    taken, told = await penstock("backup", company.url, str(backups), "--keep", "1")
    assert taken == 0
    sound, told = await penstock("verify", told.strip())
    assert sound == 0
    assert told.endswith(": sound\n")
    # A look at RocksDB may need files that its owner compacts away meanwhile.
    assert report["store"]["owner"] == company.owner().process.pid


@pytest.mark.parametrize("scheme", ["sqlite", "rocksdb"] if LONG else ["sqlite"])
def test_owners_close_in_turn(scheme: str, tmp_path: Path) -> None:
    async def story(company: Company) -> None:
        await company.progress()
        for _ in range(2 * TURNS):
            await company.replace(company.owner(), signal.SIGTERM)
        await company.close()

    play(scheme, tmp_path, story)


@pytest.mark.parametrize("then", [signal.SIGCONT, signal.SIGKILL])
@pytest.mark.parametrize("scheme", ["sqlite", "rocksdb"] if LONG else ["sqlite"])
def test_owners_are_stopped_for_longer_than_they_are_trusted(
    scheme: str, then: signal.Signals, tmp_path: Path
) -> None:
    """Nobody takes the path from a process that lives. It goes on where it was, or its heirs do."""

    async def story(company: Company) -> None:
        await company.progress()
        for _ in range(TURNS):
            owner = company.owner()
            others = company.others(owner)
            stopped_at = time.monotonic()
            owner.process.send_signal(signal.SIGSTOP)
            await asyncio.gather(*(each.hear("lost") for each in others))
            assert company.owner() is owner
            company.losses += len(others)
            if then is signal.SIGCONT:
                owner.process.send_signal(signal.SIGCONT)
                await company.progress()  # by then it has gone on
                company.stood_ms += round((time.monotonic() - stopped_at) * 1_000)
                assert company.owner() is owner
            else:
                await company.replace(owner, signal.SIGKILL)
        await company.close()

    play(scheme, tmp_path, story, "--silence", str(SILENCE_S))


@pytest.mark.parametrize("scheme", ["sqlite", "rocksdb"] if LONG else ["sqlite"])
def test_heirs_are_killed_while_they_recover(scheme: str, tmp_path: Path) -> None:
    """One at the beginning of its recovery, the next at its end, before it listens."""

    async def recovers(company: Company) -> Sharer:
        heir = await company.heir()
        assert company.owner() is heir
        return heir

    async def goes_on(heir: Sharer) -> None:
        recovered = asyncio.ensure_future(heir.hear("recovered"))
        await asyncio.sleep(0)  # it listens
        heir.tell()
        await recovered

    async def story(company: Company) -> None:
        for _ in range(TURNS):
            owner = await recovers(company)
            await goes_on(owner)
            owner.tell()
            await company.progress()
            await owner.end(signal.SIGKILL)
            first = await recovers(company)
            await first.end(signal.SIGKILL)
            second = await recovers(company)
            await goes_on(second)
            await second.end(signal.SIGKILL)
            assert not company.others(owner, first, second)
            company.losses += len(company.all)
            company.all.clear()
            for role in ROLES:
                await company.hire(role)
        owner = await recovers(company)
        await goes_on(owner)
        owner.tell()
        await company.progress()
        await company.close([*company.others(owner), owner])  # so that nobody has to recover it

    play(scheme, tmp_path, story, "--hesitate")


@pytest.mark.long
def test_a_server_beside_an_owner_serves_the_same_jobs(tmp_path: Path) -> None:
    """`penstock serve` is one of the many: a client of the owner, and its heir."""

    async def story(company: Company) -> None:
        await company.progress()
        serving = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "penstock.cli.main", "serve", "--json", "--no-http"),
            *("--url", company.url, "--port", "0"),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PENSTOCK_LOG_LEVEL": "warning"},
        )
        try:
            assert serving.stdout is not None
            where = json.loads(await serving.stdout.readline())
            remote = await open_store(f"penstock://{where['tcp'].removeprefix('tcp://')}")
            for _ in range(TURNS):
                (job,) = (await remote.push_jobs("served", "work", [JobSpec()])).ids
                if owner_of(company.path) != serving.pid:
                    await company.replace(company.owner(), signal.SIGKILL)
                assert await remote.get("served", [job]) != [None]
            await remote.close()
        finally:
            serving.terminate()
            assert await serving.wait() == 0
        await company.progress()
        await company.close()

    play("sqlite", tmp_path, story)
