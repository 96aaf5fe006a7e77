"""A process that runs handlers, one job (or one batch) at a time, for the worker that started it.

    python -m penstock.worker.pools.child FD

What it runs is the first thing that it is told on its socket. It ends when the worker's end of that
is closed, however that came about. Signals are the worker's business: it asks by closing, and insists
by SIGKILL.
"""

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from types import FrameType
from typing import Any

from penstock.client.app import Penstock
from penstock.client.context import Context, Report
from penstock.client.errors import SoftTimeout
from penstock.client.execute import (
    INTERRUPTED,
    Batch,
    BatchOutcome,
    Outcome,
    Prepared,
    broken,
    gathered,
)
from penstock.client.home import Home
from penstock.descriptors import stand_in
from penstock.protocol.framing import LARGEST, Frames, Message
from penstock.telemetry import logs
from penstock.worker.limits import rss_mb
from penstock.worker.loading import load_app
from penstock.worker.looping import HandlersLoop
from penstock.worker.pools.running import SOON_S, runs
from penstock.worker.pools.wire import Do, Ended, Ready, Said, beginning, framed, to_child
from penstock.worker.signals import SIGNALS, hear_nothing


class Child:
    def __init__(
        self, app: Penstock, worker: str, sock: socket.socket, messages: Iterator[Message]
    ) -> None:
        self._app = app
        self._worker = worker
        self._sock = sock
        self._messages = messages
        self._lock = threading.Lock()  # a handler may speak from threads of its own
        self._runner: asyncio.Runner | None = None  # made for the first asynchronous handler

    def serve(self) -> None:
        self._send(Ready())
        outcome: Outcome | BatchOutcome
        for message in self._messages:
            do = to_child.decode(message)
            try:
                outcome = self._run(do)
            except BaseException as error:  # noqa: BLE001 - not the handler's: ours, or beside it
                outcome = broken(error)
            self._send(Ended.of(outcome, rss_mb()))

    def _send(self, message: Ready | Said | Ended) -> None:
        frame = framed(message)
        with self._lock:
            self._sock.sendall(frame)

    def _say(self, job_id: int, report: Report) -> None:
        with suppress(OSError):  # nobody listens any more: the end will be told so, too
            self._send(Said(job_id, report))

    def _run(self, do: Do) -> Outcome | BatchOutcome:
        job, results = do.jobs[0], do.results
        task = self._app.named(job.options.task)
        context = Context(
            job,
            worker=self._worker,
            say=self._say,
            results=None if results is None else lambda: results,
            jobs=tuple(do.jobs),
        )
        executor = self._app.executor
        call: Prepared | Batch | Outcome | BatchOutcome
        if task.batch is not None:
            payloads = [each.payload for each in do.jobs]
            call = gathered(task, job.options.codec, payloads, context)
        else:
            call = executor.prepare(task, context)
        if not isinstance(call, Prepared | Batch):
            return call
        if task.is_async:
            return self._awaited(call)
        outcome: Outcome | BatchOutcome | None = None
        try:
            with _SoftTimer(task.handler, task.plan.soft_timeout_ms):
                outcome = executor.run_here(call)
        except SoftTimeout as error:  # of a compiled handler: it may reach us behind its end
            if outcome is None:
                outcome = call.ended(executor.failed(task, error))
        return outcome

    def _awaited(self, call: Prepared | Batch) -> Outcome | BatchOutcome:
        if self._runner is None:
            self._runner = asyncio.Runner(loop_factory=partial(HandlersLoop, self._app))
        ended: list[Outcome | BatchOutcome] = []

        async def run() -> None:
            ended.append(await self._app.executor.run(call))

        # A handler may cancel its own task, and answer before it waits for anything: the task is
        # cancelled then, whatever it ended with.
        with suppress(asyncio.CancelledError):
            self._runner.run(run(), context=copy_context())  # else all of them have the runner's
        return ended[0] if ended else call.ended(INTERRUPTED)


class _SoftTimer:
    """Raises SoftTimeout in a handler that runs in the main thread, when the time is over: once it
    has begun, and not when it has ended, though what it answered is still being made up."""

    def __init__(self, handler: Callable[..., Any], soft_ms: int | None) -> None:
        self._handler = handler
        self._soft_s = 0.0 if soft_ms is None else soft_ms / 1_000

    def __enter__(self) -> None:
        if self._soft_s:
            signal.signal(signal.SIGALRM, self._over)
            signal.setitimer(signal.ITIMER_REAL, self._soft_s, SOON_S)

    def __exit__(self, *_: object) -> None:
        if self._soft_s:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _over(self, number: int, frame: FrameType | None) -> None:
        if runs(self._handler, frame):
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise SoftTimeout


def heard(sock: socket.socket) -> Iterator[Message]:
    """Messages, until the other end is closed."""
    frames = Frames(LARGEST)
    while data := sock.recv(1 << 16):
        frames.feed(data)
        while (message := frames.take()) is not None:
            yield message


def main() -> None:
    stand_in()
    hear_nothing()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    with socket.socket(fileno=int(sys.argv[1])) as sock, suppress(ConnectionError):
        sock.set_inheritable(False)
        # Nor is it for what a handler forks, which may outlive us: the worker would wait for its end.
        os.register_at_fork(after_in_child=sock.close)
        messages = heard(sock)
        first = next(messages, None)
        if first is None:  # the worker has ended before it could say anything
            return
        begin = beginning.decode(first)
        logs.configure(begin.log_format, begin.log_level)
        app = load_app(begin.where)
        if begin.url != app.url:
            app.home = Home(begin.url, app.tenant)
        Child(app, begin.worker, sock, messages).serve()


if __name__ == "__main__":
    main()
