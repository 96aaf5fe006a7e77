"""The engine of an embedded store: one kernel, its payload bytes, and those who wait.

One event loop owns it; commands are applied in the order of the calls, there are no locks. A turn
is one command and everything that follows from it: results for those who await them, events for
those who watch, jobs for those who wait, bytes let go. The engine also lets time pass when nobody
calls. What callers say is checked before it gets here.
"""

import asyncio
import os
from collections.abc import Iterator, Sequence
from typing import Any, Final

from penstock.kernel import commands as c
from penstock.kernel import read
from penstock.kernel.codes import READY
from penstock.kernel.kernel import Kernel
from penstock.kernel.leases import LeaseRecord
from penstock.kernel.queue import Queue
from penstock.kernel.timers import FOREVER
from penstock.model.errors import (
    Deadline,
    NotFound,
    Overloaded,
    PenstockError,
    Unavailable,
)
from penstock.model.event import EventSink
from penstock.model.job import ClaimedRun, Lease
from penstock.model.policy import Caps
from penstock.model.store import Result
from penstock.stores.clock import Clock, ManualClock
from penstock.stores.payloads import Payloads
from penstock.stores.waiting import Awaited, Line, Waiter
from penstock.stores.watching import Watcher

TURN: Final = 1_000  # steps of time that one turn of the loop takes at most
NAP_MS: Final = 500  # we look at the clocks at least this often: the wall clock may jump


class Engine:
    def __init__(self, clock: Clock, caps: Caps, sink: EventSink | None, seed: int) -> None:
        self.clock = clock
        self.kernel = Kernel(seed, caps)
        self.payloads = Payloads()
        self._sink = sink
        self._watchers: dict[Watcher, None] = {}
        self._line = Line()
        self._awaited = Awaited()
        self._serial = 0
        self._closed = False
        self._paced = not isinstance(clock, ManualClock)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._armed_wall = self._armed_elapsed = FOREVER if self._paced else -1
        self._listen()

    # -- turns -----------------------------------------------------------------------------------

    def apply(self, command: c.Command) -> Any:
        if self._closed:
            raise Unavailable("the store is closed")
        clock = self.clock
        self.kernel.position += 1
        try:
            return self.kernel.apply(command, clock.now_ms(), clock.elapsed_ms())
        finally:
            self._follow_up()

    def _follow_up(self) -> None:
        kernel = self.kernel
        while kernel.ends or kernel.events or kernel.stirred:
            if kernel.ends:
                self._wake_awaited()
            if kernel.events:
                self._pass_on_events()
            if kernel.stirred:
                self._serve()
        if kernel.freed:
            for chunk in kernel.freed:
                if chunk not in kernel.chunks:  # else used again by the command that freed it
                    self.payloads.drop(chunk)
            kernel.freed.clear()
        if kernel.wall_due < self._armed_wall or kernel.elapsed_due < self._armed_elapsed:
            self._arm()

    def look(self) -> Kernel:
        """The kernel, brought to the present, for reading."""
        if self._closed:
            raise Unavailable("the store is closed")
        now, elapsed = self.clock.now_ms(), self.clock.elapsed_ms()
        kernel = self.kernel
        while kernel.is_due(now, elapsed):
            if self.apply(c.Tick(TURN)):
                break
        kernel.now = now
        kernel.elapsed = max(kernel.elapsed, elapsed)
        return kernel

    def apply_loads(self, command: c.Command, loads: Sequence[c.Load]) -> Any:
        """Apply a command whose payloads have been put down; take back those it did not want."""
        try:
            outcome = self.apply(command)
        except PenstockError:
            for load in reversed(loads):
                needed = load.chunk in self.kernel.chunks
                self.payloads.take_back(load.chunk, load.start, needed)
            raise
        for load in loads:
            if load.chunk not in self.kernel.chunks:
                self.payloads.drop(load.chunk)
        return outcome

    # -- claims in line ----------------------------------------------------------------------------

    async def claim(
        self,
        tenant: str,
        queues: tuple[str, ...],
        n: int,
        lease_ms: int | None,
        worker: str,
        wait_ms: int,
    ) -> Lease | None:
        if self._line:
            # What can be had now goes to those who waited for it.
            self.look()
            self._serve_metered()
        record = self.apply(c.Claim(tenant, queues, n, os.urandom(16).hex(), lease_ms, worker))
        if record is not None:
            return self._lease(record)
        if not wait_ms:
            return None
        if len(self._line) >= self.kernel.caps.waiters:
            raise Overloaded(f"{self.kernel.caps.waiters} claims are waiting", "wait_ms")
        return await self._wait_in_line(tenant, queues, n, lease_ms, worker, wait_ms)

    def _lease(self, record: LeaseRecord) -> Lease:
        kernel = self.kernel
        runs = []
        for held in record.runs:
            cut = read.cut(held)
            if cut.stretch is not None:
                data: bytes = self.payloads.get(cut.stretch)
                ends = cut.ends
            else:
                assert cut.places is not None
                pieces = [self.payloads.get(place) for place in cut.places]
                data = b"".join(pieces)
                ends, total = [], 0
                for piece in pieces:
                    total += len(piece)
                    ends.append(total)
            runs.append(
                ClaimedRun(
                    ids=cut.ids,
                    data=data,
                    ends=ends,
                    options=cut.options,
                    option_of=cut.option_of,
                    created_at=cut.created_at,
                    run_at=cut.run_at,
                    individual=cut.individual,
                )
            )
        expires_at = kernel.now + record.expires - kernel.elapsed
        return Lease(
            token=record.token, queue=record.queue.name, expires_at=expires_at, runs=tuple(runs)
        )

    async def _wait_in_line(
        self,
        tenant: str,
        queues: tuple[str, ...],
        n: int,
        lease_ms: int | None,
        worker: str,
        wait_ms: int,
    ) -> Lease | None:
        future: asyncio.Future[Lease | None] = asyncio.get_running_loop().create_future()
        self._serial += 1
        deadline = self.clock.elapsed_ms() + wait_ms
        waiter = Waiter(tenant, queues, n, lease_ms, worker, deadline, future, self._serial)
        self._line.join(waiter)
        for name in queues:
            self._watch_queue(tenant, name, True)
        self._arm(self._until_token(tenant, queues, wait_ms))
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and not self._closed:
                lease = future.result()
                if lease is not None:  # handed over to somebody who is gone
                    self.apply(c.Release(tenant, lease.token))
            raise
        finally:
            self._leave(waiter)

    def _until_token(self, tenant: str, queues: tuple[str, ...], wait_ms: int) -> int:
        """How long a waiting claim may have to wait at most for a rate limit to let it go on."""
        known = self.kernel.tenants.get(tenant)
        elapsed = self.clock.elapsed_ms()
        for name in queues:
            queue = known.queues.get(name) if known is not None else None
            if queue is not None and queue.meter is not None:
                wait_ms = min(wait_ms, queue.meter.next_at(elapsed) - elapsed)
        return wait_ms

    def _watch_queue(self, tenant: str, name: str, watched: bool) -> None:
        if watched:
            self.kernel.watching[tenant, name] = None
        else:
            self.kernel.watching.pop((tenant, name), None)
        known = self.kernel.tenants.get(tenant)
        queue = known.queues.get(name) if known is not None else None
        if queue is not None:
            queue.watched = watched

    def _leave(self, waiter: Waiter) -> None:
        for tenant, name in self._line.leave(waiter):
            self._watch_queue(tenant, name, False)

    def _serve(self) -> None:
        """Hand what became ready to those who wait, in the order in which they came."""
        kernel = self.kernel
        while kernel.stirred:
            queue = next(iter(kernel.stirred))
            del kernel.stirred[queue]
            spot = (queue.tenant.name, queue.name)
            while (waiter := self._line.first(spot)) is not None:
                if waiter.future.done():
                    self._leave(waiter)
                    continue
                command = c.Claim(
                    waiter.tenant,
                    waiter.queues,
                    waiter.n,
                    os.urandom(16).hex(),
                    waiter.lease_ms,
                    waiter.worker,
                )
                kernel.position += 1
                record = kernel.apply(command, self.clock.now_ms(), self.clock.elapsed_ms())
                if record is None:
                    self._arm(self._until_token(waiter.tenant, waiter.queues, NAP_MS))
                    break
                self._leave(waiter)
                waiter.future.set_result(self._lease(record))

    # -- ends awaited ------------------------------------------------------------------------------

    async def wait_for_end(self, job_id: int, wait_ms: int) -> Result:
        if len(self._awaited) >= self.kernel.caps.waiters:
            raise Overloaded(f"{self.kernel.caps.waiters} callers are waiting", "wait_ms")
        future = self._awaited.join(job_id, self.clock.elapsed_ms() + wait_ms)
        self.kernel.awaited[job_id] = 1
        self._arm(wait_ms)
        try:
            ended = await future
        finally:
            if self._awaited.leave(job_id, future):
                self.kernel.awaited.pop(job_id, None)
        if ended is None:
            raise Deadline(f"job {job_id} has not ended within {wait_ms} ms", "wait_ms")
        assert isinstance(ended, Result)
        return ended

    def _wake_awaited(self) -> None:
        ends = self.kernel.ends
        for job_id, end in ends.items():
            self.kernel.awaited.pop(job_id, None)
            if end is None:
                self._awaited.fail(job_id, NotFound(f"job {job_id} was purged", "job_id"))
            else:
                self._awaited.wake(job_id, self.result(end))
        ends.clear()

    def result(self, end: read.End) -> Result:
        value = None if end.result is None else self.payloads.get(end.result)
        return Result(
            state=end.state,
            value=value,
            codec=end.codec,
            error=end.error,
            dead_reason=end.dead_reason,
        )

    # -- events ------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Have the kernel tell events exactly while somebody hears them."""
        wanted = self._sink is not None or bool(self._watchers)
        if wanted and self.kernel.events is None:
            self.kernel.events = []
        elif not wanted:
            self.kernel.events = None

    def _pass_on_events(self) -> None:
        events = self.kernel.events
        if not events:
            return
        if self._sink is not None:
            self._sink.write(list(events))
        for watcher in list(self._watchers):
            watcher.offer(events)
        events.clear()

    def watch(self, watcher: Watcher) -> None:
        if len(self._watchers) >= self.kernel.caps.subscribers:
            raise Overloaded(f"{self.kernel.caps.subscribers} watchers are listening")
        self._watchers[watcher] = None
        self._listen()

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.pop(watcher, None)
        self._listen()

    # -- time --------------------------------------------------------------------------------------

    async def tick(self) -> None:
        done = self.apply(c.Tick(TURN))
        while not done:
            await asyncio.sleep(0)
            done = self.apply(c.Tick(TURN))
        self._end_waits()

    def _metered(self) -> Iterator[Queue]:
        """Queues in which somebody waits and a rate limit lets jobs pass as time goes by."""
        for tenant, name in self.kernel.watching:
            known = self.kernel.tenants.get(tenant)
            queue = known.queues.get(name) if known is not None else None
            if queue is not None and queue.meter is not None and queue.counts[READY]:
                yield queue

    def _serve_metered(self) -> None:
        self.kernel.stirred |= dict.fromkeys(self._metered())
        if self.kernel.stirred:
            self._serve()

    def _end_waits(self) -> None:
        """Those who have waited as long as they wanted get their answer."""
        elapsed = self.clock.elapsed_ms()
        self._serve_metered()
        for waiter in self._line.lapsed(elapsed):
            if not waiter.future.done():
                waiter.future.set_result(None)
        for future in self._awaited.lapsed(elapsed):
            if not future.done():
                future.set_result(None)

    def _arm(self, within_ms: int = NAP_MS) -> None:
        """Have the loop call us when something is due, and within that time, whoever calls or not.

        Nothing is done where an earlier call is set already; every command comes by here.
        """
        if not self._paced:
            return
        kernel, clock = self.kernel, self.clock
        now, elapsed = clock.now_ms(), clock.elapsed_ms()
        wait = max(min(kernel.wall_due - now, kernel.elapsed_due - elapsed, within_ms, NAP_MS), 0)
        loop = asyncio.get_running_loop()
        at = loop.time() + wait / 1000
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._armed_wall, self._armed_elapsed = now + wait, elapsed + wait
        self._timer = loop.call_at(at, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        if self._closed:
            return
        if self.kernel.is_due(self.clock.now_ms(), self.clock.elapsed_ms()):
            self.apply(c.Tick(TURN))
        self._end_waits()
        elapsed = self.clock.elapsed_ms()
        ahead = [deadline - elapsed for deadline in (self._line.due(), self._awaited.due())]
        ahead += [q.meter.next_at(elapsed) - elapsed for q in self._metered() if q.meter]
        self._arm(min(ahead, default=NAP_MS))

    # -- life --------------------------------------------------------------------------------------

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        gone = Unavailable("the store is closed")
        for waiter in self._line:
            if not waiter.future.done():
                waiter.future.set_exception(gone)
        self._awaited.fail_all(gone)
        for watcher in list(self._watchers):
            watcher.end(None)

    @property
    def waiting(self) -> int:
        return len(self._line)

    def rebuild(self) -> None:
        """Put a kernel made from its own encoded form in the place of the running one."""
        before = self.kernel
        self.kernel = Kernel.decode(before.encode(), before.caps)
        self.kernel.now, self.kernel.elapsed = before.now, before.elapsed
        self.kernel.awaited = dict.fromkeys(self._awaited.ids(), 1)
        for waiter in self._line:
            for name in waiter.queues:
                self._watch_queue(waiter.tenant, name, True)
        self._listen()
