"""A standalone Spark on the loopback, of nothing but what `pip install pyspark` brings: a master, and
workers that each have a core.

The package lacks Spark's `start-master.sh`, but has `spark-class`, which that script calls. All ports
are free ones, and whoever starts them here ends them by their numbers.
"""

import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

import msgspec

from penstock.spark.java import find_java, home_for_spark
from penstock.spark.session import default_directory
from tests.spark.served import ROOT

HOST = "127.0.0.1"


class Cluster(msgspec.Struct):
    """Where the master is, and the workers' numbers."""

    master: str
    workers: list[int]


@contextmanager
def standalone(directory: Path, workers: int = 2) -> Iterator[Cluster]:
    """Until the end of the block; what the workers' executors leave lies in the directory."""
    with ExitStack() as stack:
        here = ("--host", HOST, "--webui-port", "0")
        starting = r"Starting Spark master at (\S+)"
        _, master = stack.enter_context(
            _started("master.Master", *here, "--port", "0", says=starting)
        )
        pids = []
        for number in range(workers):
            size = ("--cores", "1", "--memory", "1g", "--work-dir", f"{directory}/worker-{number}")
            registered = r"Successfully registered with master (\S+)"
            worker = _started("worker.Worker", *here, *size, master, says=registered)
            pids.append(stack.enter_context(worker)[0])
        yield Cluster(master, pids)


@contextmanager
def _started(name: str, *words: str, says: str) -> Iterator[tuple[int, str]]:
    """A daemon that has said this, and what it said."""
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    process = subprocess.Popen(
        [
            Path(spec.origin).parent / "bin" / "spark-class",
            f"org.apache.spark.deploy.{name}",
            *words,
        ],
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
    )
    assert process.stderr is not None
    rest = threading.Thread(target=deque, args=(process.stderr, 0))  # or it would wait for a reader
    try:
        said = _heard(process.stderr, says)
        rest.start()
        yield process.pid, said
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        if rest.ident is not None:
            rest.join()
        process.stderr.close()


def _heard(lines: Iterator[str], says: str) -> str:
    so_far = []
    for line in lines:
        so_far.append(line)
        found = re.search(says, line)
        if found is not None:
            return found[1]
    raise AssertionError("it ended without a word of that:\n" + "".join(so_far))


def environment() -> dict[str, str]:
    """Of daemons and drivers: this tree's package, this Python, nothing beyond the loopback."""
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "JAVA_HOME": home_for_spark(find_java(), default_directory()),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": HOST,
    }
