"""Processes killed with an event log: its events are those of the store's history, each once.

Random kills and kills on the way to the disk; every process goes on with what the one before left.
What the event log has then is compared twice: with all that a whole log tells when it is replayed,
and, where checkpoints have cut the log short, with what was answered to those who called.
"""

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from random import Random
from typing import Final

import pytest

from penstock.events.log import EventLog
from penstock.events.reader import BadLine, read
from penstock.events.segment import Line
from penstock.events.segments import Rules
from penstock.model.errors import Unavailable
from penstock.model.job import Run
from penstock.open import open_store
from penstock.stores import keeper
from penstock.stores.remote import RemoteStore
from penstock.stores.target import target_of
from tests.faults.stores import LONG, ROOT, SCHEMES, in_both_runs, url_of
from tests.faults.test_kill import killed_after, killed_at
from tests.history import record as r
from tests.history.operations import History

pytestmark = [*in_both_runs, pytest.mark.timeout(3_600 if LONG else 120)]

PUSHES: Final = 300  # jobs, before a server is killed
KILLS: Final = 12 if LONG else 2
CASES: Final = [(scheme, case) for scheme in SCHEMES for case in range(8)]
# Nothing is cut off the log by a checkpoint before it is as long as that.
WHOLE: Final = {"checkpoint_records": 1_000_000, "checkpoint_replay_s": 3_600}
POINTS: Final = ("after sync", "checkpoint final", "checkpoint done", "truncation slice")
ENDS: Final = ("completed", "dead", "cancelled", "expired")
each_case = pytest.mark.parametrize(("scheme", "case"), CASES if LONG else [("sqlite", 0)], ids=str)


def with_events(scheme: str, directory: Path, **settings: object) -> str:
    where = directory / "events"
    return url_of(scheme, directory, events=where, events_seal_s=0.05, **settings)


def kill_at_random(url: str, log: Path, draw: Random) -> None:
    for seed in range(KILLS):
        lines = draw.randint(20, 400)
        killed_after(url, log, seed, lines, draw.choice((0.002, 0.05, 0.5)) * draw.random())


def told(url: str, directory: Path) -> list[Line]:
    """What the event log has when the store was opened once more, and closed."""
    asyncio.run(_open_and_close(url))
    bad: list[BadLine] = []
    lines = list(read(directory, bad=bad.append))
    assert bad == []
    assert [line for line in lines if line.kind == "gap"] == []
    assert list(directory.glob("_open-*")) == []
    assert len({line.store for line in lines}) == 1
    return lines


async def _open_and_close(url: str, events: EventLog | None = None) -> None:
    store = await open_store(url, share=False, events=events)
    await store.close()


def retold(scheme: str, directory: Path) -> list[Line]:
    """What the whole log tells to an event log that has nothing."""
    url = url_of(scheme, directory, **WHOLE)
    asyncio.run(_open_and_close(url, EventLog(directory / "again", Rules(reserve_bytes=0))))
    return list(read(directory / "again"))


@each_case
def test_killed_it_has_what_the_whole_log_tells(
    scheme: str, case: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = with_events(scheme, tmp_path, **WHOLE)
    kill_at_random(url, tmp_path / "history", Random(f"{scheme} {case}"))
    monkeypatch.setattr(keeper, "WORTH", inf)  # the checkpoint that is written at a close
    monkeypatch.setattr(keeper, "WORTH_S", inf)
    lines = told(url, tmp_path / "events")
    again = retold(scheme, tmp_path)
    assert len(lines) > 20
    assert again[: len(lines)] == lines
    assert all(line.position > lines[-1].position for line in again[len(lines) :])


@each_case
def test_killed_between_checkpoints_it_has_what_was_answered(
    scheme: str, case: int, tmp_path: Path
) -> None:
    url, log, draw = with_events(scheme, tmp_path), tmp_path / "history", Random(f"{scheme} {case}")
    kill_at_random(url, log, draw)
    for seed, point in enumerate(POINTS if LONG else POINTS[1:3]):
        killed_at(url, log, seed, point, draw.randint(1, 4))
    check_answers(History.read(log), told(url, tmp_path / "events"))


def test_a_killed_server_tells_the_pushes_it_answered(tmp_path: Path) -> None:
    """`penstock serve --events`, killed while producers push; a store that goes on has them all."""
    store = f"sqlite:///{tmp_path}/store"
    answered: list[int] = []
    for _ in range(4 if LONG else 1):
        with serving(store, tmp_path) as (process, url):
            answered += asyncio.run(pushed_until_killed(process, url, len(answered)))
    lines = told(f"{store}?events={tmp_path}/events", tmp_path / "events")
    assert len(answered) >= PUSHES
    assert set(answered) - set(ids_of(lines, "pushed")) == set()


@contextmanager
def serving(store: str, directory: Path) -> "Iterator[tuple[subprocess.Popen[str], str]]":
    argv = [sys.executable, "-m", "penstock.cli.main", "serve", "--json", "--no-http"]
    argv += ["--url", store, "--port", "0", "--events", str(directory / "events")]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, f"penstock://{json.loads(process.stdout.readline())['tcp']}"
        finally:
            process.kill()


async def pushed_until_killed(process: "subprocess.Popen[str]", url: str, before: int) -> list[int]:
    """The ids that were answered; the server is killed amid the pushes of several producers."""
    store = RemoteStore(target_of(url), patience_s=0.1)
    await store.connect()
    answered: list[int] = []

    async def produce() -> None:
        while True:
            pushed = await store.push("default", [Run.pack("q", [b"1"] * 3)])
            answered.extend(pushed.ids)
            if len(answered) >= PUSHES + before % 7:
                process.kill()

    done = await asyncio.gather(*(produce() for _ in range(4)), return_exceptions=True)
    assert all(isinstance(error, Unavailable) for error in done), done
    await store.close()
    return answered


def check_answers(history: History, lines: Sequence[Line]) -> None:
    pushed = ids_of(lines, "pushed")
    assert len(pushed) == len(set(pushed)), "a job was pushed twice"
    assert history.ids() - set(pushed) == set(), "an answered push is not told"
    again = {*ids_of(lines, "replaced"), *ids_of(lines, "redriven")}
    ended = Counter(job for kind in ENDS for job in ids_of(lines, kind))
    assert {job for job, times in ended.items() if times > 1} - again == set(), "it ended twice"
    acked = {
        job
        for operation in history.operations
        if operation.ok and isinstance(operation.call, r.Ack)
        for first, count in operation.answer.ids
        for job in range(first, first + count)
    }
    assert acked
    missing = acked - set(ids_of(lines, "completed")) - again
    assert missing == set(), "an answered ack is not told"


def ids_of(lines: Sequence[Line], kind: str) -> list[int]:
    return [
        job
        for line in lines
        if line.kind == kind
        for first, count in line.ids
        for job in range(first, first + count)
    ]
