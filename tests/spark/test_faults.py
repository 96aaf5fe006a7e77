"""Executors and drivers that are killed, and copies that run a race: each row once, or none.

Each of these starts a Spark of its own. The small ones of every kind of fault are in `test_write` and
`test_stream`, where tasks fail and micro-batches are repeated.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from penstock.model.store import Store
from tests.spark.log import seal
from tests.spark.served import ROOT, Served, served

pytestmark = pytest.mark.long

CLUSTER = "local-cluster[2,1,1024]"


@pytest.fixture
def server() -> Iterator[Served]:
    with served() as one:
        yield one


@contextmanager
def program(*words: str) -> Iterator["subprocess.Popen[str]"]:
    """In a group of its own, so that nothing of it is left, whatever becomes of it."""
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.program", *words],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def said(process: "subprocess.Popen[str]", word: str) -> bool:
    """Whether it says the word before it ends."""
    assert process.stdout is not None
    return any(line.strip() == word for line in process.stdout)


def numbers(server: Served, queue: str, name: str) -> list[int]:
    return sorted(one[name] for one in server.payloads(queue))  # type: ignore[index]


def children(group: int, words: str) -> list[int]:
    """Processes of a group whose command has these words in it."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if os.getpgid(int(place.name)) == group and words in command:
                found.append(int(place.name))
        except (OSError, ProcessLookupError):
            continue
    return found


def test_an_executor_that_is_killed_half_way(server: Served) -> None:
    rows = 400_000
    with program("write", CLUSTER, server.url, "q", str(rows)) as process:
        assert said(process, "started")
        server.wait_for("q", "pushed", 20_000)
        executors = children(process.pid, "CoarseGrainedExecutorBackend")
        assert len(executors) == 2
        os.kill(executors[0], signal.SIGKILL)
        assert said(process, "done")
    assert server.counts("q") == {"ready": rows}
    assert numbers(server, "q", "id") == list(range(rows))


def test_a_driver_that_is_killed_half_way_leaves_nothing_to_be_seen(server: Served) -> None:
    with program("write", "local[2]", server.url, "q", "400000") as process:
        assert said(process, "started")
        server.wait_for("q", "pushed", 20_000)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    async def claimed(store: Store) -> bool:
        return await store.claim("default", ["q"]) is not None

    assert not server.ask(claimed)
    assert set(server.counts("q")) == {"held"}


def test_copies_that_race_count_once(server: Served) -> None:
    """Speculation starts a second copy of whatever takes longer than the median."""
    rows = 200_000
    settings = [
        "spark.speculation=true",
        "spark.speculation.interval=50ms",
        "spark.speculation.multiplier=1.01",
        "spark.speculation.quantile=0.1",
        "spark.speculation.minTaskRuntime=50ms",
    ]
    with program("write", CLUSTER, server.url, "q", str(rows), *settings) as process:
        assert said(process, "done")
    assert server.counts("q") == {"ready": rows}
    assert numbers(server, "q", "id") == list(range(rows))


@pytest.mark.parametrize("kills", [1, 3])
def test_a_stream_whose_driver_is_killed_goes_on_where_it_was(
    server: Served, events: Path, tmp_path: Path, kills: int
) -> None:
    for first in range(1, 601, 20):
        seal(events, first, 20)
    words = ("stream", "local[2]", server.url, "q", str(events), str(tmp_path / "point"))
    for kill in range(kills):
        with program(*words) as process:
            assert said(process, "started")
            server.wait_for("q", "committed", 100 * (kill + 1))
            os.killpg(process.pid, signal.SIGKILL)
    with program(*words) as process:
        assert said(process, "done")
    assert numbers(server, "q", "position") == list(range(1, 601))
