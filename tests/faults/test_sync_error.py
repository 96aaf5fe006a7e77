"""A sync that fails: nobody knows what is on the disk, so nothing is said to be safe any more.

Also if the next sync would succeed: the system may have forgotten the pages that it could not
write. strace makes the n-th sync of a thread fail, once or from then on.
"""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.stores import ROOT, each_store, in_both_runs, opened, settled, url_of
from tests.history import record as r
from tests.history.checker import assert_clean

pytestmark = in_both_runs
# Of the thread that writes; opening, on another one, takes fewer.
FIRST = 30
once_and_for_ever = pytest.mark.parametrize("when", [f"{FIRST}", f"{FIRST}+"])


def failing(argv: list[str], when: str, calls: Path) -> str:
    """What the command prints while its syncs fail."""
    traced = ["strace", "-f", "-o", str(calls), "-e", "trace=fsync,fdatasync,write", "-s", "60"]
    traced += ["-e", f"inject=fsync,fdatasync:error=EIO:when={when}"]
    ran = subprocess.run(
        [*traced, "--", sys.executable, "-m", *argv],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@once_and_for_ever
@each_store
def test_nothing_is_acknowledged_after_a_sync_has_failed(
    scheme: str, when: str, tmp_path: Path
) -> None:
    url = url_of(scheme, tmp_path)
    calls = tmp_path / "calls"
    said = failing(["tests.faults.pusher", url], when, calls).splitlines()

    _, failed, after = calls.read_text().partition("(INJECTED)")
    assert failed, "no sync was made to fail"
    assert '"pushed' not in after and '"answered' not in after
    pushed = [line.split() for line in said if line.startswith("pushed")]
    assert pushed
    every = ("push", "waiting", "push", "claim", "ack", "get", "health")
    assert said[len(pushed) :] == [f"refused {name} unavailable" for name in every]

    async def look() -> None:
        store = await opened(url)
        jobs = await store.get("default", [int(job_id) for _, job_id, _ in pushed])
        found = [job.payload if job is not None else None for job in jobs]
        assert found == [number.encode() for _, _, number in pushed]
        (info,) = await store.queues("default")
        # And the first two; the push that nobody was answered may be there or not.
        assert sum(info.counts.values()) - len(pushed) in (2, 3)
        await store.close()

    asyncio.run(look())


@once_and_for_ever
@each_store
def test_many_at_once_lose_their_answers_and_nothing_else(
    scheme: str, when: str, tmp_path: Path
) -> None:
    url, log = url_of(scheme, tmp_path), tmp_path / "history"
    argv = ["tests.history.process", "--url", url, "--log", str(log)]
    argv += ["--seed", "1", "--operations", "100000"]
    assert failing(argv, when, tmp_path / "calls").split() == ["READY", "DONE"]
    lines = r.read_lines(log)
    ended = [isinstance(line, r.Lost) and "has ended" in line.why for line in lines].index(True)
    # What the batch before had made safe may be answered a moment later; nothing begun since is.
    since = {line.op for line in lines[ended:] if isinstance(line, r.Invoked)}
    assert not any(isinstance(line, r.Answered) and line.op in since for line in lines)
    assert_clean(asyncio.run(settled(url, log)))
