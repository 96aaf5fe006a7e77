"""Servers and workers as processes, told by signals and heard by what they print."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import TracebackType

from penstock import Penstock
from penstock.client.home import Home
from tests.faults.stores import ROOT
from tests.worker import shop

PATIENCE_S = 60


class Spawned:
    """A process whose standard output is read line by line, and whose log goes to a file."""

    def __init__(
        self, *argv: str, log: Path, module: str = "penstock.cli.main", **environ: str
    ) -> None:
        self.log = log
        self._errors = log.open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *argv],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environ},
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,  # and a group, which may be told as a whole
        )

    def __enter__(self) -> "Spawned":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
        self.tell_all(signal.SIGKILL)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process.wait(PATIENCE_S)
        self._errors.close()

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line, f"it ended: {self.log.read_text()}"
        return line

    async def hears(self, line: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            assert await asyncio.to_thread(self.line) == line

    def tell(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def tell_group(self, number: signal.Signals) -> None:
        """As a terminal does."""
        os.killpg(self.process.pid, number)

    def tell_all(self, number: signal.Signals) -> None:
        """As a service manager does: whatever was started, in whichever session."""
        for pid in (self.process.pid, *self.started()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def started(self) -> list[int]:
        """The processes that it has started, and those that they have."""
        parents = dict(_parents())
        found = [self.process.pid]
        for pid in found:
            found.extend(child for child, parent in parents.items() if parent == pid)
        return found[1:]

    async def end(self) -> int:
        return await asyncio.to_thread(self.process.wait, PATIENCE_S)


def _parents() -> Iterator[tuple[int, int]]:
    """Every process with its parent."""
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            _, _, said = (place / "stat").read_text().rpartition(")")
            yield int(place.name), int(said.split()[1])


@contextmanager
def serving(store: str, log: Path, port: int = 0, *flags: str) -> Iterator[tuple[Spawned, str]]:
    """A server, and the url that it is reached by."""
    more = ("--no-http", "--json", "--log-level", "warning", *flags)
    with Spawned("serve", "--url", store, "--port", str(port), *more, log=log) as server:
        address = json.loads(server.line())["tcp"]
        yield server, f"penstock://{address}"


def worker(url: str, log: Path, *flags: str, **environ: str) -> Spawned:
    argv = ("worker", "tests.worker.shop:app", "--url", url, "--no-cron", *flags)
    return Spawned(*argv, log=log, **environ)


@asynccontextmanager
async def reaching(url: str, app: Penstock = shop.app) -> AsyncIterator[None]:
    """The app's tasks are pushed there."""
    before, app.home = app.home, Home(url, "default")
    try:
        yield
    finally:
        await app.aclose()
        app.home = before
