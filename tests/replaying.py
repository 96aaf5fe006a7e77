"""A command that is told to end while its store has more to replay than anybody waits for."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.durable import crashed
from tools.docs import ROOT

RECORDS = 20_000  # at 10 ms each

SLOWLY = """
import sys
from tests.durable import replay_slowly
replay_slowly()
"""


def environment(**more: str) -> dict[str, str]:
    """For commands of this tree: nobody else's settings are in it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return kept | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"} | more


def ended_while_replaying(program: str, number: signal.Signals, directory: Path) -> str:
    """The last line of a program that opens the store which its first argument names."""
    url = f"sqlite:///{directory}/jobs.db"
    asyncio.run(crashed(url, RECORDS))
    with subprocess.Popen(
        [sys.executable, "-c", SLOWLY + program, url],
        cwd=directory,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "replaying\n"
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out) == (0, ""), err
    assert "Traceback" not in err
    return err.splitlines()[-1]
