"""Power cuts: whatever the disk had not been told to keep may be gone; what was answered is not.

A workload is recorded once, from the opening of a new store or of one that was killed to its end,
and cut at many places. Claims are answered before they are on stable storage, so a cut may undo
them; nothing else that was answered. The control runs with `durability=os`: there answers may be
lost, and the checker has to see it, or else it would see nothing.
"""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import pytest

from penstock.model.job import Run
from penstock.stores.clock import SystemClock
from tests.faults.powerloss import Image, record
from tests.faults.stores import LONG, ROOT, each_store, in_both_runs, opened, url_of
from tests.faults.test_kill import killed_at
from tests.history import record as r
from tests.history.checker import Violation, assert_clean, check
from tests.history.final import FinalState, settle
from tests.history.operations import History
from tests.history.recorder import Recorder

pytestmark = in_both_runs
SEEDS, IMAGES = (10, 220) if LONG else (2, 30)
CONTROL = 100 if LONG else 20
OPERATIONS = 90
OFF_MS: Final = 10_000  # how long the machine is off: leases and delays of the workload are over

decode = msgspec.json.Decoder(r.Line).decode


class Later:
    """The system's clock, some time after the cut."""

    def __init__(self) -> None:
        self._clock = SystemClock()

    def now_ms(self) -> int:
        return self._clock.now_ms() + OFF_MS

    def elapsed_ms(self) -> int:
        return self._clock.elapsed_ms() + OFF_MS

    def instant(self) -> tuple[int, int]:
        return self.now_ms(), self.elapsed_ms()

    def boot_id(self) -> str:
        return self._clock.boot_id()


def cuts(
    scheme: str, tmp_path: Path, seed: int, count: int, durability: str
) -> Iterator[tuple[Image, list[r.Line]]]:
    """Images of a run of that seed, each with the history up to its cut.

    Every other run goes on with a store that was killed, so that cuts hit a recovery, too.
    """
    directory, log = tmp_path / "recorded", tmp_path / "history"
    directory.mkdir()
    url = url_of(scheme, directory, durability=durability)
    before: list[r.Line] = []
    if seed % 2:
        killed_at(url, log, seed, "after write", 15)
        before = r.read_lines(log)
    argv = [sys.executable, "-m", "tests.history.process", "--url", url, "--log", str(log)]
    argv += ["--seed", str(seed), "--operations", str(OPERATIONS)]
    recording = record(argv, directory, tmp_path / "calls", markers=log, cwd=ROOT)
    for image in recording.images(seed, count, strict=seed % 4 > 1):
        yield image, before + [decode(line) for line in image.markers]


async def found(url: str, lines: Sequence[r.Line]) -> tuple[History, FinalState]:
    """Go on with a store: push, then finish what is left."""
    clock = Later()
    store = await opened(url, clock)
    log = r.ListLog()
    log.lines += lines
    recorder = Recorder(store, log, clock=clock)
    pushed = await recorder.push([Run.pack("plain", recorder.payloads(3))])
    known = History(lines).ids()
    assert known.isdisjoint(pushed.ids), "an id was given a second time"
    final = await settle(recorder, known=known)
    await store.close()
    return History(log.lines), final


def violations(
    scheme: str, image: Image, lines: Sequence[r.Line], path: Path, **allowed: int
) -> list[Violation]:
    image.materialise(path)
    # What happens from here on is not cut once more, so it need not wait for the disk.
    url = url_of(scheme, path, durability="os", checkpoint_records=10_000)
    history, final = asyncio.run(found(url, lines))
    return check(history, final, claims_survive=False, **allowed)


@pytest.mark.timeout(3_600 if LONG else 120)
@pytest.mark.parametrize("seed", range(SEEDS))
@each_store
def test_a_power_cut_loses_nothing_that_was_answered(
    scheme: str, seed: int, tmp_path: Path
) -> None:
    answered = 0
    for image, lines in cuts(scheme, tmp_path, seed, IMAGES, "fsync"):
        found = violations(scheme, image, lines, tmp_path / "image")
        assert_clean(found)
        answered += any(isinstance(line, r.Answered) for line in lines)
    assert answered > IMAGES / 2, "most cuts came before any answer: they show nothing"


@pytest.mark.timeout(3_600 if LONG else 120)
@each_store
def test_without_a_sync_answers_are_lost_and_seen_to_be(scheme: str, tmp_path: Path) -> None:
    caught = 0
    for image, lines in cuts(scheme, tmp_path, 1, CONTROL, "os"):
        caught += bool(violations(scheme, image, lines, tmp_path / "image"))
    assert caught
