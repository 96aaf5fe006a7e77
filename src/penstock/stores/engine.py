"""The engine of an embedded store: one kernel, its payload bytes, and those who wait.

One event loop owns it; commands are applied in the order of the calls, there are no locks. A turn
is one command and everything that follows from it: results for those who await them, events for
those who watch, jobs for those who wait, bytes let go. The engine also lets time pass when nobody
calls. What callers say is checked before it gets here.

With a keeper, every turn goes into its journal, and whatever leaves the engine leaves it when what
it rests on is safe. Without one (`memory://`) nothing waits.
"""

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any, Final

from penstock.kernel import commands as c
from penstock.kernel import read
from penstock.kernel.codes import READY
from penstock.kernel.kernel import Kernel
from penstock.kernel.leases import LeaseRecord
from penstock.kernel.queue import Queue
from penstock.kernel.timers import FOREVER
from penstock.model.errors import (
    Conflict,
    Deadline,
    Invalid,
    NotFound,
    Overloaded,
    PenstockError,
    Unavailable,
)
from penstock.model.event import Event, EventKeeper, EventSink
from penstock.model.job import Lease
from penstock.model.store import Durability, Result
from penstock.stores.clock import Clock
from penstock.stores.finishing import in_a_thread
from penstock.stores.granting import Grant, chunks_of, grant_of, lease_of
from penstock.stores.journal.base import Journal, JournalError
from penstock.stores.keeper import Keeper
from penstock.stores.payloads import Chunks, Payloads, piece
from penstock.stores.safety import LEVELS, WRITTEN
from penstock.stores.waiting import Awaited, Line, Waiter
from penstock.stores.watching import Watcher

TURN: Final = 1_000  # steps of time that one turn of the loop takes at most
NAP_MS: Final = 500  # we look at the clocks at least this often: the wall clock may jump
WINDOW: Final = 4  # payload chunks read ahead of the claims


class Engine:
    def __init__(
        self,
        clock: Clock,
        kernel: Kernel,
        payloads: Payloads,
        sink: EventSink | None,
        *,
        paced: bool,
        observer: EventSink | None = None,
    ) -> None:
        self.clock = clock
        self.kernel = kernel
        self.payloads = payloads
        self.keeper: Keeper | None = None
        self.read_only: Journal | None = None  # where what we look at came from
        self._sink = sink
        self._kept = sink if isinstance(sink, EventKeeper) else None
        self._observer = observer
        self._heard = False  # somebody waits for events to be safe
        self._watchers: dict[Watcher, None] = {}
        self._line = Line()
        self._awaited = Awaited()
        self._serial = 0
        self._ended: str | None = None  # why nothing is done any more
        self._let_go = False
        self._paced = paced
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._armed_wall = self._armed_elapsed = FOREVER if self._paced else -1
        self._listen()

    # -- turns -----------------------------------------------------------------------------------

    def admit(self, durability: Durability | None, size: int) -> int | None:
        """Before jobs come in: how safe they must become. Raises if there is no room for them."""
        if self.keeper is None:
            if durability is not None:
                raise Invalid("a store in memory keeps nothing beyond its process", "durability")
            return None
        self.keeper.admit(size)
        return None if durability is None else LEVELS[durability]

    def apply(self, command: c.Command, level: int | None = None) -> Any:
        """Carry out a command; what it leads to is not safe yet."""
        if self._ended is not None:
            raise Unavailable(self._ended)
        if self.read_only is not None and not isinstance(command, c.Tick):
            raise Conflict("this store is open for reading only", "url")
        try:
            return self._step(command, level)
        finally:
            self._follow_up()

    async def do(self, command: c.Command, level: int | None = None) -> Any:
        """Carry out a command, and answer when that is safe."""
        keeper = self.keeper
        if keeper is None:
            return self.apply(command)
        if level is None:
            level = keeper.level
        try:
            return self.apply(command, level)
        finally:
            # A refusal, too, may rest on what is not safe yet.
            await keeper.safe(level)

    def _step(self, command: c.Command, level: int | None = None) -> Any:
        kernel, clock, keeper = self.kernel, self.clock, self.keeper
        kernel.position += 1
        now, elapsed = clock.now_ms(), clock.elapsed_ms()
        if keeper is None:
            return kernel.apply(command, now, elapsed)
        due = kernel.is_due(now, elapsed)
        keeper.began = perf_counter()
        try:
            outcome = kernel.apply(command, now, elapsed)
        except PenstockError:
            self._note_time(keeper, now, elapsed, due)
            raise
        except BaseException as error:
            # Half a command has no place in a log, and what follows would rest on it.
            keeper.fail(error if isinstance(error, Exception) else RuntimeError(repr(error)))
            raise
        if (outcome is None and isinstance(command, c.Claim)) or (
            not due and isinstance(command, c.Tick)
        ):
            self._note_time(keeper, now, elapsed, due)
        else:
            keeper.note(now, elapsed, command, outcome, max(level or WRITTEN, self._least(keeper)))
        return outcome

    def _note_time(self, keeper: Keeper, now: int, elapsed: int, due: bool) -> None:
        """The command changed nothing; the passing of time before it may have."""
        if due:
            keeper.note(now, elapsed, c.Tick(FOREVER), True, self._least(keeper))
        else:
            self.kernel.position -= 1

    def _least(self, keeper: Keeper) -> int:
        """How safe a turn must become for which nobody waits."""
        rests = self.kernel.ends or (self._heard and self.kernel.events)
        return keeper.level if rests else WRITTEN

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
        if self._ended is not None:
            raise Unavailable(self._ended)
        now, elapsed = self.clock.now_ms(), self.clock.elapsed_ms()
        kernel = self.kernel
        while kernel.is_due(now, elapsed):
            if self.apply(c.Tick(TURN)):
                break
        kernel.now = now
        kernel.elapsed = max(kernel.elapsed, elapsed)
        return kernel

    async def do_loads(
        self, command: c.Command, loads: Sequence[c.Load], level: int | None = None
    ) -> Any:
        """The same for a command whose payloads have been put down; unwanted ones are taken back."""
        keeper = self.keeper
        if keeper is None:
            return self.put(command, loads)
        if level is None:
            level = keeper.level
        try:
            outcome = self.put(command, loads, level)
        except PenstockError:
            await keeper.safe(keeper.level)
            raise
        await keeper.safe(level)
        return outcome

    def put(self, command: c.Command, loads: Sequence[c.Load], level: int | None = None) -> Any:
        """The same at once; what it leads to is not safe yet."""
        try:
            outcome = self.apply(command, level)
        except PenstockError:
            for load in reversed(loads):
                needed = load.chunk in self.kernel.chunks
                self.payloads.take_back(load.chunk, load.start, needed)
            raise
        for load in loads:
            if load.chunk not in self.kernel.chunks:
                self.payloads.drop(load.chunk)
        return outcome

    def _when_safe(self, call: Callable[[], None]) -> None:
        if self.keeper is None:
            call()
        else:
            self.keeper.after(call)

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
        command = c.Claim(tenant, queues, n, os.urandom(16).hex(), lease_ms, worker)
        record = self.apply(command)
        if record is not None:
            return await self._deliver(self._grant(record))
        if not wait_ms:
            return None
        if len(self._line) >= self.kernel.caps.waiters:
            raise Overloaded(f"{self.kernel.caps.waiters} claims are waiting", "wait_ms")
        return await self._wait_in_line(tenant, queues, n, lease_ms, worker, wait_ms)

    def _grant(self, record: LeaseRecord) -> Grant:
        """What a claim was given, as it is now; the bytes may come later."""
        grant = grant_of(self.kernel, record)
        keeper = self.keeper
        if keeper is None:
            return grant
        grant.position = keeper.last
        grant.rests_on = keeper.safety.rest_of(record)
        chunks = chunks_of(grant)
        grant.chunks = self.payloads.at_hand(chunks)
        if grant.chunks is None:
            self.payloads.hold(chunks)
        self.payloads.ahead(read.chunks_behind(record.runs[-1], WINDOW))
        return grant

    async def _deliver(self, grant: Grant) -> Lease:
        """The lease, when what it rests on is safe and its payloads are here."""
        keeper = self.keeper
        if keeper is None:
            return lease_of(grant, self.payloads.everything)
        wanted = chunks_of(grant) if grant.chunks is None else []
        try:
            await keeper.safe(grant.rests_on[1], grant.rests_on[0])
            await keeper.safe(WRITTEN, grant.position)
            chunks = grant.chunks
            return lease_of(grant, await self.payloads.fetch(wanted) if chunks is None else chunks)
        except asyncio.CancelledError:
            self._give_back(grant)
            raise
        except (JournalError, KeyError) as error:
            self._give_back(grant)
            raise Unavailable(f"a payload cannot be read: {error}") from error
        finally:
            self.payloads.release(wanted)

    def _give_back(self, grant: Grant) -> None:
        """Whoever was to have these jobs is gone."""
        if self._ended is None:
            self.apply(c.Release(grant.tenant, grant.token))

    async def _wait_in_line(
        self,
        tenant: str,
        queues: tuple[str, ...],
        n: int,
        lease_ms: int | None,
        worker: str,
        wait_ms: int,
    ) -> Lease | None:
        future: asyncio.Future[Grant | None] = asyncio.get_running_loop().create_future()
        self._serial += 1
        deadline = self.clock.elapsed_ms() + wait_ms
        waiter = Waiter(tenant, queues, n, lease_ms, worker, deadline, future, self._serial)
        self._line.join(waiter)
        for name in queues:
            self._watch_queue(tenant, name, True)
        self._arm(self._until_token(tenant, queues, wait_ms))
        try:
            grant = await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                grant = future.result()
                if grant is not None:  # handed over to somebody who is gone
                    if grant.chunks is None:
                        self.payloads.release(chunks_of(grant))
                    self._give_back(grant)
            raise
        finally:
            self._leave(waiter)
        return None if grant is None else await self._deliver(grant)

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
                record = self._step(command)
                self._pass_on_events()  # a command's events are numbered by themselves
                if record is None:
                    self._arm(self._until_token(waiter.tenant, waiter.queues, NAP_MS))
                    break
                self._leave(waiter)
                waiter.future.set_result(self._grant(record))

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
            self._when_safe(self._wake(job_id, end))
        ends.clear()

    def _wake(self, job_id: int, end: read.End | None) -> Callable[[], None]:
        """What tells those who wait for this job how it ended."""
        error, result = None, None
        if end is None:
            error = NotFound(f"job {job_id} was purged", "job_id")
        else:
            value = None
            if end.result is not None:
                # It came with the command that ended the job, so it is at hand.
                chunks = self.payloads.at_hand([end.result[0]])
                assert chunks is not None
                value = piece(chunks, end.result)
            result = _result(end, value)
        waiting = self._awaited.settle(job_id)
        return lambda: _tell_all(waiting, result, error)

    async def result(self, end: read.End) -> Result:
        """How a job ended, once that is safe."""
        value = None
        if end.result is not None:
            value = piece(await self.fetch([end.result[0]]), end.result)
        if self.keeper is not None:
            await self.keeper.safe(self.keeper.level)
        return _result(end, value)

    async def fetch(self, chunks: Sequence[int]) -> Chunks:
        """The bytes of these chunks, from wherever they are."""
        found = self.payloads.at_hand(chunks)
        if found is not None:
            return found
        try:
            return await self.payloads.fetch(chunks)
        except (JournalError, KeyError) as error:
            raise Unavailable(f"a payload cannot be read: {error}") from error

    # -- events ------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Have the kernel tell events exactly while somebody hears them."""
        self._heard = self._sink is not self._kept or bool(self._watchers)
        wanted = self._heard or self._kept is not None or self._observer is not None
        if wanted and self.kernel.events is None:
            self.kernel.events = []
        elif not wanted:
            self.kernel.events = None

    def _pass_on_events(self) -> None:
        events = self.kernel.events
        if not events:
            return
        self.kernel.events = []
        if self._observer is not None:
            self._observer.write(events)
        if self._heard or self._kept is not None:
            if self.keeper is None:
                self._tell(events)
                return
            self.keeper.after(lambda: self._tell(events))
            if not self._heard:
                self.keeper.soon()

    def _tell(self, events: list[Event]) -> None:
        if self._sink is not None:
            self._sink.write(events)
        if self._watchers:
            for watcher in list(self._watchers):
                watcher.offer(events)

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
        if self._ended is not None:
            return
        if self.kernel.is_due(self.clock.now_ms(), self.clock.elapsed_ms()):
            self.apply(c.Tick(TURN))
        self._end_waits()
        elapsed = self.clock.elapsed_ms()
        ahead = [deadline - elapsed for deadline in (self._line.due(), self._awaited.due())]
        ahead += [q.meter.next_at(elapsed) - elapsed for q in self._metered() if q.meter]
        self._arm(min(ahead, default=NAP_MS))

    # -- life --------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Finish what was begun, and let go of everything, however the store has ended."""
        self.end("the store is closed")
        if self._let_go:
            return
        self._let_go = True
        if self.keeper is not None:
            await self.keeper.close()
        elif self.read_only is not None:
            self.payloads.close()
            self.read_only.close()
        elif self._kept is not None:
            await in_a_thread(self._kept.close)

    def abandon(self) -> None:
        """Let go of everything as the end of the process would; its loop runs no more."""
        self._ended = self._ended or "the loop of the store has ended"
        if not self._let_go:
            self._let_go = True
            if self.keeper is not None:
                self.keeper.let_go()
            elif self._kept is not None:
                self._kept.close()

    def end(self, why: str) -> None:
        """Nothing is done any more; everybody who waits is told."""
        if self._ended is not None:
            return
        self._ended = why
        if self._timer is not None:
            self._timer.cancel()
        gone = Unavailable(why)
        for waiter in self._line:
            if not waiter.future.done():
                waiter.future.set_exception(gone)
        self._awaited.fail_all(gone)
        for watcher in list(self._watchers):
            watcher.end(None)

    @property
    def waiting(self) -> int:
        return len(self._line)

    def health(self) -> dict[str, Any]:
        """How what is beside the kernel is doing."""
        detail = {} if self.keeper is None else self.keeper.health()
        return detail if self._kept is None else detail | self._kept.health()

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


def _result(end: read.End, value: bytes | None) -> Result:
    return Result(
        state=end.state,
        value=value,
        codec=end.codec,
        error=end.error,
        dead_reason=end.dead_reason,
    )


def _tell_all(
    waiting: "list[asyncio.Future[Any]]", result: Result | None, error: Exception | None
) -> None:
    for future in waiting:
        if future.done():
            continue
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)
