"""`penstock serve` as a process of its own, seen from outside."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tests.server.hostile.wire import Address

ROOT: Final = Path(__file__).resolve().parents[3]
MIB: Final = 1 << 20


class Proc:
    """What the system says of a process, by its id."""

    def __init__(self, pid: int) -> None:
        self._proc = Path("/proc") / str(pid)

    def descriptors(self) -> int:
        return len(self._open())

    def sockets(self) -> int:
        """How many of the descriptors are sockets, those that it listens at included."""
        return self._leading_to("socket:")

    def files_in(self, directory: Path) -> int:
        """How many of the descriptors are files there, those that were deleted included."""
        return self._leading_to(f"{directory}/")

    def threads(self) -> int:
        return self._field("status", "Threads")

    def resident(self) -> int:
        """Bytes in memory now."""
        return self._field("status", "VmRSS") * 1024

    def most_resident(self) -> int:
        """Bytes in memory when it was most."""
        return self._field("status", "VmHWM") * 1024

    def own(self) -> int:
        """Bytes in memory that it wrote and shares with nobody."""
        return self._field("smaps_rollup", "Private_Dirty") * 1024

    def forget_most(self) -> None:
        """Measure the most anew from here on."""
        (self._proc / "clear_refs").write_text("5")

    def _open(self) -> list[Path]:
        return list((self._proc / "fd").iterdir())

    def _leading_to(self, start: str) -> int:
        found = 0
        for descriptor in self._open():
            with suppress(FileNotFoundError):  # closed meanwhile
                found += str(descriptor.readlink()).startswith(start)
        return found

    def _field(self, file: str, name: str) -> int:
        for line in (self._proc / file).read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1])
        raise LookupError(name)


class Process(Proc):
    def __init__(self, running: "subprocess.Popen[str]") -> None:
        super().__init__(running.pid)
        self._running = running
        assert running.stdout is not None
        said = json.loads(running.stdout.readline())
        self.tcp = address(said["tcp"])
        self.http = address(said["http"])

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


def address(said: str) -> Address:
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
