"""Where the subjects keep their jobs: a Redis, a PostgreSQL, a relay, each for one benchmark.

Each has a port of its own on the loopback and leaves nothing behind. Ready is what the server
says of itself, on its log.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

READY: Final = "ready to accept connections"


@contextmanager
def redis() -> Iterator[str]:
    """Nothing on a disk: the fastest that Redis can be."""
    port = _free_port()
    flags = ("--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
    with _running(["redis-server", *flags]):
        yield f"redis://127.0.0.1:{port}/0"


class Postgres:
    """A cluster in a directory, which one server at a time may serve.

    PostgreSQL refuses to run as root; then everything is done as the user that Debian's package
    made for it.
    """

    def __init__(self, directory: Path) -> None:
        self._data = directory / "postgres"
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            self._as = {"user": "postgres", "group": "postgres", "extra_groups": []}
            self._data.mkdir()
            shutil.chown(self._data, "postgres", "postgres")
            directory.chmod(0o711)  # for that user to pass through
        flags = ("--auth=trust", "--username=benchmark", "--encoding=UTF8", "--no-sync")
        command = [postgres_program("initdb"), "--pgdata", str(self._data), *flags]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, cwd="/", **self._as)
        except subprocess.CalledProcessError as failed:
            raise RuntimeError(f"initdb failed: {failed.stderr.strip()}") from failed

    @contextmanager
    def serve(self, *settings: str) -> Iterator[str]:
        port = _free_port()
        chosen = (
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            "shared_buffers=256MB",
            "log_min_messages=log",  # the line that says it is ready, and hardly another
            "log_checkpoints=off",
            *settings,
        )
        flags = [flag for setting in chosen for flag in ("-c", setting)]
        command = [postgres_program("postgres"), "-D", str(self._data), "-p", str(port), *flags]
        with _running(command, cwd="/", **self._as):
            yield f"postgresql://benchmark@127.0.0.1:{port}/postgres"


@contextmanager
def relay() -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks._worker_relay"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            yield child.stdout.readline().strip()
        finally:
            child.kill()


@contextmanager
def _running(command: Sequence[str], **options: Any) -> Iterator[None]:
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
    ) as child:
        try:
            assert child.stdout is not None
            _wait(command[0], child.stdout)
            yield
        finally:
            # PostgreSQL takes its children along only if it is asked to stop; this is its "fast"
            # way, and ends Redis as well.
            child.send_signal(signal.SIGINT)


def _wait(name: str, log: IO[str]) -> None:
    said = []
    for line in log:
        said.append(line)
        if READY in line.lower():
            return
    raise RuntimeError(f"{name} did not start:\n{''.join(said[-5:])}")


def postgres_program(program: str) -> str:
    newest = max(
        Path("/usr/lib/postgresql").glob(f"*/bin/{program}"),
        key=lambda path: int(path.parts[-3]),
        default=None,
    )
    return str(newest) if newest else program


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
