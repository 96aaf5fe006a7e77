"""A parent of worker processes: starts them, watches them, replaces those that end.

A process that reached a limit (`--max-jobs`, `--max-rss`) is replaced at once, one that died after a
pause that grows while they die young. Signals are counted here and passed on as bytes on the workers'
standard input, one each: the first asks every worker to end gracefully, the second to end at once.
What signals reach a worker itself is no count of ours (`penstock.worker.signals`). Workers see their
parent's end by the same pipe, so that none is left behind, whatever became of it.
"""

import asyncio
import logging
import os
import signal
import sys
from asyncio.subprocess import Process
from contextlib import suppress
from random import uniform
from typing import BinaryIO, Final

import msgspec
import uvloop
from msgspec.structs import replace

from penstock.model.duration import about_ms
from penstock.worker.loading import load_app
from penstock.worker.settings import WorkerSettings

log: Final = logging.getLogger("penstock.supervisor")

REPLACE: Final = 75  # the exit code of a worker that reached a limit
FIRST_BACKOFF_S: Final = 0.1
LAST_BACKOFF_S: Final = 10.0
YOUNG_S: Final = 10.0  # whoever lives longer has not died of how it was started


def supervise(settings: WorkerSettings, processes: int) -> int:
    load_app(settings.where)  # or say what is wrong with it, once
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(Supervisor(settings, processes).run())
    return 0


class Supervisor:
    def __init__(self, settings: WorkerSettings, processes: int) -> None:
        self._settings = settings
        self._count = processes
        self._living: dict[Process, BinaryIO] = {}  # and our end of the pipe to each
        self._told = asyncio.Event()
        self._times = 0  # that we were told to end

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._pass_on)
        async with asyncio.TaskGroup() as group:
            for place in range(self._count):
                group.create_task(self._keep(place))

    def _pass_on(self) -> None:
        self._told.set()
        self._times += 1
        for process in self._living:
            self._tell(process, 1)

    async def _keep(self, place: int) -> None:
        """Have a worker in this place until told otherwise."""
        name = self._settings.name
        settings = replace(self._settings, name=f"{name}-{place + 1}") if name else self._settings
        said = msgspec.json.encode(settings).decode()
        loop, backoff_s = asyncio.get_running_loop(), 0.0
        while not self._told.is_set():
            began = loop.time()
            code = await self._one(said)
            if self._told.is_set():
                return
            if code == REPLACE:
                backoff_s = 0.0
                continue
            young = loop.time() - began < YOUNG_S
            backoff_s = min(2 * backoff_s or FIRST_BACKOFF_S, LAST_BACKOFF_S) if young else 0.0
            how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
            log.error("a worker ended (%s); another starts in %s", how, about_ms(backoff_s * 1_000))
            with suppress(TimeoutError):
                async with asyncio.timeout(backoff_s * uniform(0.5, 1.0)):  # noqa: S311
                    await self._told.wait()

    async def _one(self, said: str) -> int:
        # A session of its own: Ctrl-C in a terminal reaches the parent alone.
        theirs, ours = os.pipe()
        with os.fdopen(ours, "wb", buffering=0) as pipe:
            with os.fdopen(theirs, "rb") as end:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "penstock.worker.process",
                    said,
                    stdin=end,
                    start_new_session=True,
                )
            self._living[process] = pipe
            try:
                if self._told.is_set():  # while it was started
                    self._tell(process, self._times)
                return await process.wait()
            finally:
                del self._living[process]

    def _tell(self, process: Process, times: int) -> None:
        """Once it listens, it is the bytes that count; until then it has nothing to finish, and dies
        by the signal."""
        with suppress(BrokenPipeError):  # it has ended, and we hear of it soon
            self._living[process].write(bytes(times))
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
