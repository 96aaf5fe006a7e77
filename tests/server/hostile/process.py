"""`penstock serve` as a process of its own, seen from outside."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.server.hostile.wire import Address

ROOT: Final = Path(__file__).resolve().parents[3]
MIB: Final = 1 << 20


class Process:
    def __init__(self, running: "subprocess.Popen[str]") -> None:
        self._running = running
        assert running.stdout is not None
        said = json.loads(running.stdout.readline())
        self.tcp = _address(said["tcp"])
        self.http = _address(said["http"])
        self._proc = Path("/proc") / str(running.pid)

    def send(self, number: int) -> None:
        self._running.send_signal(number)

    def ended(self, within_s: float = 60.0) -> int:
        """The exit code, once there is one."""
        return self._running.wait(within_s)

    @property
    def runs(self) -> bool:
        return self._running.poll() is None

    def errors(self) -> str:
        """Everything that it complained about; it must have ended."""
        assert self._running.stderr is not None
        return self._running.stderr.read()

    def descriptors(self) -> int:
        return len(list((self._proc / "fd").iterdir()))

    def resident(self) -> int:
        """Bytes in memory now."""
        return self._status("VmRSS")

    def most_resident(self) -> int:
        """Bytes in memory when it was most."""
        return self._status("VmHWM")

    def forget_most(self) -> None:
        """Measure the most anew from here on."""
        (self._proc / "clear_refs").write_text("5")

    def _status(self, name: str) -> int:
        for line in (self._proc / "status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
        raise LookupError(name)


def _address(said: str) -> Address:
    host, _, port = said.rpartition(":")
    return host, int(port)


@contextmanager
def serving(url: str, directory: Path, **settings: object) -> Iterator[Process]:
    """Settings by their names in the environment, without the prefix."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    said = {f"PENSTOCK_{name.upper()}": str(value) for name, value in settings.items()}
    running = subprocess.Popen(
        [
            *(sys.executable, "-m", "penstock.cli.main", "serve", "--url", url, "--json"),
            *("--port", "0", "--http-port", "0", "--log-level", "error"),
        ],
        cwd=directory,
        env=kept | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"} | said,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with running:
        try:
            yield Process(running)
        finally:
            running.kill()
