"""SIGKILL at any instant and at every step on the way to the disk: what was answered is there.

Each case kills the workload several times on one path; every process goes on with what the one
before left, and the history of all of them is checked at the end.
"""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from penstock.stores.journal.points import POINTS
from tests.faults.stores import LONG, ROOT, each_store, in_both_runs, settled, url_of
from tests.history.checker import assert_clean
from tests.history.operations import History

pytestmark = in_both_runs
OPERATIONS = 100_000  # more than anybody lives to see
ROUNDS = 8 if LONG else 1  # of the named points
CASES, KILLS = (16, 10) if LONG else (2, 4)
PATIENCE_S = 60


def spawn(module: str, url: str, log: Path, seed: int, *more: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", module, *more, "--url", url, "--log", str(log)]
    argv += ["--seed", str(seed), "--operations", str(OPERATIONS)]
    return subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def killed_at(url: str, log: Path, seed: int, point: str, nth: int, *more: str) -> None:
    """The workload, until it kills itself there."""
    more = ("--point", point, "--nth", str(nth), *more)
    with spawn("tests.faults.victim", url, log, seed, *more) as process:
        try:
            process.wait(PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == -signal.SIGKILL, f"{point} was not reached {nth} times"


def killed_after(url: str, log: Path, seed: int, lines: int, seconds: float) -> None:
    """The workload, killed when it has written so many lines of history, and worked for so long."""
    more = ("--tell-after", str(lines)) if lines else ()
    with spawn("tests.history.process", url, log, seed, *more) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "READY\n", "the store could not be opened"
            if lines:
                assert process.stdout.readline() == "TOLD\n"
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:
            process.kill()
    assert process.returncode == -signal.SIGKILL, "it ended by itself"


def check(url: str, log: Path, kills: int) -> None:
    assert_clean(asyncio.run(settled(url, log)))
    history = History.read(log)
    assert len(history.opened) <= kills + 1
    assert any(operation.ok for operation in history.operations), "nothing was answered at all"


@pytest.mark.timeout(3_600 if LONG else 120)
@pytest.mark.parametrize("case", range(CASES))
@each_store
def test_killed_at_any_instant(scheme: str, case: int, tmp_path: Path) -> None:
    url, log, draw = url_of(scheme, tmp_path), tmp_path / "history", Random(f"{scheme} {case}")
    for seed in range(KILLS):
        # Every other one as soon as may be; those between, however slow the machine, at work.
        lines = draw.randint(20, 400) if seed % 2 else 0
        killed_after(url, log, seed, lines, draw.choice((0.002, 0.05, 0.5)) * draw.random())
    check(url, log, KILLS)


# The way of every batch, of a checkpoint, and of what a checkpoint makes superfluous; and how often
# a process may pass a point of it unharmed.
STRETCHES = ((POINTS[:4], 40), (POINTS[4:7], 6), (POINTS[7:], 6))


@pytest.mark.timeout(3_600 if LONG else 120)
@pytest.mark.parametrize(("points", "most"), STRETCHES, ids=["batch", "checkpoint", "truncation"])
@each_store
def test_killed_on_the_way_to_the_disk(
    scheme: str, points: Sequence[str], most: int, tmp_path: Path
) -> None:
    url, log, draw = url_of(scheme, tmp_path), tmp_path / "history", Random(f"{scheme} {points}")
    for seed in range(ROUNDS):
        for point in points:
            killed_at(url, log, seed, point, draw.randint(1, most))
    check(url, log, ROUNDS * len(points))


@pytest.mark.timeout(3_600 if LONG else 120)
@each_store
def test_killed_while_a_replay_is_kept(scheme: str, tmp_path: Path) -> None:
    """Where every opening but the first begins with checkpoints of what it has replayed."""
    url = url_of(scheme, tmp_path, checkpoint_records=300)
    log, draw = tmp_path / "history", Random(scheme)
    for seed in range(ROUNDS):
        for point in POINTS[4:]:
            killed_after(url, log, seed, draw.randint(50, 150), 0.0)
            killed_at(url, log, seed, point, draw.randint(1, 3), "--replaying")
    check(url, log, 2 * ROUNDS * len(POINTS[4:]))
