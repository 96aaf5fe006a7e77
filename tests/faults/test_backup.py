"""A backup taken under full load, restored elsewhere, against the history of everything that was done.

What was answered before the backup began must be in it. What came later may be, or not: that is
what going back to a backup costs.
"""

import asyncio
from pathlib import Path

import pytest

from penstock.open import JOURNALS
from penstock.stores import backup
from penstock.stores.clock import SystemClock
from tests.faults.stores import LONG, each_store, in_both_runs, opened, url_of
from tests.history import record as r
from tests.history.checker import assert_clean, check
from tests.history.final import FinalState, settle
from tests.history.operations import History
from tests.history.recorder import Recorder
from tests.history.workload import work

pytestmark = in_both_runs
SEEDS = 20 if LONG else 2
OPERATIONS = 400


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
