"""Programs that a test starts and kills: in groups of their own, so that nothing of them is left."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.spark.cluster import environment
from tests.spark.served import PATIENCE_S, ROOT


@contextmanager
def program(
    *words: str, module: str = "tests.spark.program", **environ: str
) -> Iterator["subprocess.Popen[str]"]:
    """Until the end of the block, whatever becomes of it; `stdout` is there to be read."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *words],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment() | environ,
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


def kill(events: Path, lake: Path, when: str, table: str) -> None:
    """A `penstock pipeline run` that ends before, amid or after the writing of a table, by SIGKILL."""
    with program("pipeline", str(events), str(lake), when, table) as process:
        assert process.wait(PATIENCE_S) == -signal.SIGKILL, f"{when} {table} never came"
