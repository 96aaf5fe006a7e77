"""The processes of the demo: a server and a worker as anybody would start them, ended by their ids."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

GRACE_S = 15


@contextmanager
def server(directory: Path) -> Iterator[dict[str, Any]]:
    """`penstock serve` on SQLite in that directory; gives what it says about itself."""
    command = [
        *_penstock("serve", "--json", "--port", "0", "--http-port", "0"),
        *("--url", f"sqlite:///{directory}/jobs.db", "--log-level", "warning"),
        *("--events", f"{directory}/events"),
    ]
    with (directory / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, cwd=directory)  # noqa: S603
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server did not start:\n{_tail(directory / 'server.log')}")
        yield json.loads(line)
    finally:
        _end(process)


@contextmanager
def worker(directory: Path, url: str, *flags: str) -> Iterator["subprocess.Popen[bytes]"]:
    """`penstock worker` for the demo's tasks."""
    command = [
        *_penstock("worker", "penstock.cli.demo.tasks:app", *flags),
        *("--lease", "3s", "--log-level", "warning"),
    ]
    environment = {**os.environ, "PENSTOCK_URL": url}
    with (directory / "worker.log").open("ab") as log:
        process = subprocess.Popen(  # noqa: S603
            command, stdout=log, stderr=log, cwd=directory, env=environment
        )
    try:
        yield process
    finally:
        _end(process)


def _penstock(*words: str) -> list[str]:
    return [sys.executable, "-m", "penstock.cli.main", *words]


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


def tail(directory: Path) -> str:
    """The last words of both."""
    logs = (directory / "server.log", directory / "worker.log")
    return "\n".join(_tail(path) for path in logs if path.exists())


def _tail(path: Path, lines: int = 20) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
