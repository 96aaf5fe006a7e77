"""A backup taken under full load, restored elsewhere, against the history of everything that was done.

What was answered before the backup began must be in it. What came later may be, or not: that is
what going back to a backup costs. Whoever asks for it, its owner takes it, and may be killed meanwhile.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from penstock.model.errors import Unavailable
from penstock.open import JOURNALS, open_store
from penstock.stores import backup
from penstock.stores.clock import SystemClock
from penstock.stores.shared import SharedStore
from tests.faults.stores import LONG, ROOT, each_store, in_both_runs, opened, settled, url_of
from tests.faults.test_one_path import Company
from tests.history import record as r
from tests.history.checker import assert_clean, check
from tests.history.final import FinalState, settle
from tests.history.operations import History
from tests.history.recorder import Recorder
from tests.history.workload import work

pytestmark = in_both_runs
SEEDS = 20 if LONG else 2
OPERATIONS = 400
PATIENCE_S: Final = 60.0
LARGE: Final = 24  # MB: a backup of them takes a while


class Halfway(r.ListLog):
    """Tells when half of the work is done."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = asyncio.Event()

    def append(self, line: r.Line) -> None:
        super().append(line)
        if len(self.lines) >= OPERATIONS // 2:
            self.reached.set()


async def backed_up(url: str, log: Halfway, seed: int, directory: Path) -> int:
    """Work on a store, and back it up in the middle; answers when that began (elapsed, ms)."""
    clock = SystemClock()
    store = await opened(url, clock)
    recorder = Recorder(store, log, clock=clock)
    working = asyncio.create_task(work(recorder, seed=seed, operations=OPERATIONS))
    await log.reached.wait()
    assert not working.done(), "the backup is to be taken while others work"
    began = clock.elapsed_ms()
    await store.backup(directory)
    await working
    await store.close()
    return began


async def gone_on(url: str, log: r.ListLog) -> FinalState:
    clock = SystemClock()
    store = await opened(url, clock)
    known = History(log.lines).ids()
    final = await settle(Recorder(store, log, clock=clock), known=known)
    await store.close()
    return final


@pytest.mark.timeout(600 if LONG else 120)
@pytest.mark.parametrize("seed", range(SEEDS))
@each_store
def test_a_restored_backup_has_everything_from_before_it(
    scheme: str, seed: int, tmp_path: Path
) -> None:
    log = Halfway()
    (tmp_path / "live").mkdir()
    url = url_of(scheme, tmp_path / "live", durability="fsync")
    began = asyncio.run(backed_up(url, log, seed, tmp_path / "backups"))
    (taken,) = backup.kept(tmp_path / "backups")
    assert backup.verify(taken, JOURNALS).problems == []
    backup.restore(taken, scheme, tmp_path / "restored" / "store")
    restored = f"{scheme}:///{tmp_path}/restored/store"
    final = asyncio.run(gone_on(restored, log))
    assert_clean(check(History(log.lines), final, claims_survive=False, lost_ok_after=began))


# -- asked for by another process ------------------------------------------------------------------


def penstock(*said: str, within: Path) -> "subprocess.Popen[str]":
    """The command as people run it, in a directory of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "penstock.cli.main", *said],
        cwd=within,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    told, warned = process.communicate(timeout=PATIENCE_S)
    return process.returncode, told, warned


@pytest.mark.timeout(600 if LONG else 120)
@each_store
def test_a_store_is_backed_up_by_the_command_while_others_push_and_claim(
    scheme: str, tmp_path: Path
) -> None:
    (tmp_path / "live").mkdir()
    company = Company(scheme, tmp_path / "live")

    async def whole() -> int:
        try:
            for role in ("web", "web", "worker"):
                await company.hire(role)
            await company.progress()
            began = SystemClock().elapsed_ms()
            asked = penstock("backup", company.url, "copies", within=tmp_path)
            while asked.poll() is None:
                await company.progress()
            code, told, warned = ended(asked)
            assert (code, warned) == (0, "")
            assert Path(tmp_path, told.strip()) == backup.kept(tmp_path / "copies")[0]
            await company.progress()
            await company.close()
            return began
        finally:
            for each in company.all:
                await each.clear()

    began = asyncio.run(whole())
    (taken,) = backup.kept(tmp_path / "copies")
    assert backup.verify(taken, JOURNALS).problems == []
    backup.restore(taken, scheme, tmp_path / "restored" / "store")
    restored = url_of(scheme, tmp_path / "restored")
    allowed = {"claims_survive": False, "lost_ok_after": began}
    assert_clean(asyncio.run(settled(restored, company.log, **allowed)))


# Somebody with so much in a store that a backup of it takes a while.
_OWNER: Final = """
import asyncio, random, sys
from penstock.model.job import JobOptions, Run
from penstock.open import open_store

async def main():
    store = await open_store(sys.argv[1])
    for number in range(int(sys.argv[2])):
        data = random.Random(number).randbytes(1 << 20)
        await store.push("default", [Run.pack("q", [data], JobOptions(codec="bytes"))])
    print("filled", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@contextmanager
def owning(url: str) -> Iterator[int]:
    """Such a process; answers its number."""
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, url, str(LARGE)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "filled\n"
        yield owner.pid
    finally:
        owner.kill()
        owner.communicate()


def copying(directory: Path) -> bool:
    return any(directory.glob(".taking-*/*/*"))


def packing(directory: Path) -> bool:
    return any(path.stat().st_size for path in directory.glob(f".taking-*/{backup.ARCHIVE}"))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("reached", [copying, packing])
@each_store
def test_an_owner_that_is_killed_leaves_no_half_backup_for_a_whole_one(
    scheme: str, reached: Callable[[Path], bool], tmp_path: Path
) -> None:
    url = url_of(scheme, tmp_path)
    copies = tmp_path / "copies"

    async def whole(owner: int) -> None:
        store = await open_store(url)
        assert isinstance(store, SharedStore)
        assert not store.owned
        asked = asyncio.create_task(store.backup(copies))
        while not reached(copies):
            assert not asked.done(), "it has come to its end unseen"
            await asyncio.sleep(0.001)
        os.kill(owner, signal.SIGSTOP)
        assert reached(copies)
        assert backup.kept(copies) == []
        os.kill(owner, signal.SIGKILL)
        with pytest.raises(Unavailable) as refused:
            await asked
        assert str(refused.value) == (
            f"the owner ended before it said that the backup in {copies} is whole: ask again"
        )
        assert backup.kept(copies) == []
        taken = await store.backup(copies)  # by the next owner, which may be us
        assert list(copies.iterdir()) == [taken]
        report = await asyncio.to_thread(backup.verify, taken, JOURNALS)
        assert (report.problems, report.jobs) == ([], LARGE)
        await store.close()

    with owning(url) as owner:
        asyncio.run(whole(owner))


@pytest.mark.timeout(120)
def test_the_command_says_in_a_sentence_that_the_owner_was_killed(tmp_path: Path) -> None:
    url = url_of("rocksdb", tmp_path)
    copies = tmp_path / "copies"
    with owning(url) as owner:
        asked = penstock("backup", url, "copies", within=tmp_path)
        while not packing(copies):
            assert asked.poll() is None
            time.sleep(0.001)
        os.kill(owner, signal.SIGKILL)
        said = f"the owner ended before it said that the backup in {copies} is whole: ask again\n"
        assert ended(asked) == (1, "", said)
        assert backup.kept(copies) == []
        code, told, warned = ended(penstock("backup", url, "copies", within=tmp_path))
        assert (code, warned) == (0, "")
        assert backup.verify(tmp_path / told.strip(), JOURNALS).problems == []
        assert list(copies.iterdir()) == backup.kept(copies)
