"""Handlers in processes of their own, one call each at a time.

For work that computes, and for work that must not take the worker down: a process that dies fails
the attempt of its job at once and is replaced; a job that is taken away or has timed out is stopped
by SIGKILL, which nothing can refuse. A process that has grown too large is replaced between two of
its jobs. Processes are started afresh, never forked, and import the app
as the worker did.

Lives on the home thread, all of it.
"""

import asyncio
import logging
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from penstock.client.app import Penstock
from penstock.client.context import Report
from penstock.client.execute import INTERRUPTED, Failed
from penstock.model.job import JobError
from penstock.protocol.framing import LARGEST, Frames
from penstock.settings import LogFormat, LogLevel
from penstock.worker.held import BatchWork, Work
from penstock.worker.owned import Owned
from penstock.worker.pools.wire import Begin, Do, Ready, Said, framed, from_child
from penstock.worker.signals import SIGNALS

log: Final = logging.getLogger("penstock.worker")

FIRST_BACKOFF_S: Final = 0.1  # before another is started, after one that never was ready
LAST_BACKOFF_S: Final = 10.0


class _Child(asyncio.Protocol):
    """A process of the pool, and the worker's end of the socket to it."""

    def __init__(self, pool: "ProcessPool") -> None:
        self._pool = pool
        self._frames = Frames(LARGEST)
        self._transport: asyncio.Transport
        self.process: subprocess.Popen[bytes]
        self.ready = False
        self.retired = False  # it has grown too large, and ends
        self.work: Work | None = None
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._frames.feed(data)
        while (frame := self._frames.take()) is not None:
            message = from_child.decode(frame)
            if isinstance(message, Ready):
                self.ready = True
                self._pool.free(self)
            elif isinstance(message, Said):
                # A thread that the handler left behind may speak of what has ended.
                if self.work is not None and message.job_id in self.work.ids:
                    self._pool.said(self.work, message)
            else:
                work, self.work = self.work, None
                assert work is not None
                batch = isinstance(work, BatchWork)
                work.outcome = message.batch_outcome() if batch else message.outcome()
                self._pool.done(self, work, message.rss_mb)

    def connection_lost(self, exc: Exception | None) -> None:
        self.process.kill()  # it has ended already, or can no longer be spoken to
        self.process.wait()
        self.gone.set_result(None)
        self._pool.died(self)

    def begin(self, begin: Begin) -> None:
        self._transport.write(framed(begin))

    def do(self, work: Work) -> None:
        self.work = work
        jobs = list(work.jobs()) if isinstance(work, BatchWork) else [work.job]
        self._transport.write(framed(Do(jobs, work.results)))

    def close(self) -> None:
        self._transport.close()


class ProcessPool:
    def __init__(
        self,
        app: Penstock,
        where: str,
        worker: str,
        *,
        slots: int,
        max_rss_mb: int | None = None,
        log: tuple[LogFormat, LogLevel],
        owned: Owned,
        ended: Callable[[list[Work]], None],
        say: Callable[[Work], Callable[[int, Report], None]],
    ) -> None:
        self._app = app
        self._where = where
        self._worker = worker
        self._slots = slots
        self._max_rss_mb = max_rss_mb
        self._log = log
        self._owned = owned
        self._tell = ended
        self._say = say
        self._loop = asyncio.get_running_loop()
        self._children: set[_Child] = set()
        self._free: list[_Child] = []
        self._queue: deque[Work] = deque()  # for want of a process that is ready
        self._backoff_s = 0.0
        self._closing = False

    async def open(self) -> None:
        for _ in range(self._slots):
            await self._hire()

    async def _hire(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            _, child = await self._loop.create_connection(lambda: _Child(self), sock=ours)
            argv = [sys.executable, "-m", "penstock.worker.pools.child", str(theirs.fileno())]
            # It has our mask, until it has said that signals are none of its business.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
            try:
                child.process = subprocess.Popen(  # noqa: ASYNC220, S603 - a millisecond, and ours
                    argv, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        child.begin(Begin(self._where, self._app.url, self._worker, *self._log))
        self._children.add(child)

    # -- work ------------------------------------------------------------------------------------

    def start(self, works: list[Work]) -> None:
        for work in works:
            if self._free:
                self._give(self._free.pop(), work)
            else:
                self._queue.append(work)

    def _give(self, child: _Child, work: Work) -> None:
        work.handle = child
        child.do(work)

    def interrupt(self, work: Work) -> None:
        if isinstance(work.handle, _Child):
            work.handle.process.kill()  # its end is heard like any other
        elif work in self._queue:
            self._queue.remove(work)
            work.outcome = INTERRUPTED
            self._loop.call_soon(self._tell, [work])

    def free(self, child: _Child) -> None:
        """It is ready for the next job."""
        self._backoff_s = 0.0
        if self._queue:
            self._give(child, self._queue.popleft())
        else:
            self._free.append(child)

    def said(self, work: Work, said: Said) -> None:
        self._say(work)(said.job_id, said.report)

    def done(self, child: _Child, work: Work, rss_mb: float) -> None:
        if self._max_rss_mb is not None and rss_mb > self._max_rss_mb:
            pid = child.process.pid
            log.info("process %d of the pool has grown to %.0f MB and is replaced", pid, rss_mb)
            child.retired = True
            child.close()
        else:
            self.free(child)
        self._tell([work])

    def died(self, child: _Child) -> None:
        """Fail what it was doing, unless it was stopped for that; start another."""
        self._children.discard(child)
        if child in self._free:
            self._free.remove(child)
        how = _ending(child.process.returncode)
        work = child.work
        if work is not None:
            error = JobError(kind="WorkerDied", message=f"the process that ran it {how}")
            work.outcome = INTERRUPTED if work.why is not None else Failed(error=error)
            self._tell([work])
        if self._closing:
            return
        if not child.retired and (work is None or work.why is None):
            log.error("process %d of the pool %s", child.process.pid, how)
        if not child.ready:
            self._backoff_s = min(2 * self._backoff_s or FIRST_BACKOFF_S, LAST_BACKOFF_S)
        self._owned.start(self._replace(self._backoff_s))

    async def _replace(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        if not self._closing:
            await self._hire()

    async def close(self) -> None:
        self._closing = True
        children = list(self._children)
        for child in children:
            if child.work is not None or not child.ready:
                child.process.kill()
            child.close()
        for child in children:
            await child.gone


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was killed by {signal.Signals(-code).name}"
