"""The engine of an embedded store: one kernel, its payload bytes, and turns in which it moves on.

One event loop owns it; commands are applied in the order of the calls, there are no locks. A turn
is one command and everything that follows from it: results for those who await them, events for
those who watch, jobs for those who wait, bytes let go. The engine also lets time pass when nobody
calls. What callers say is checked before it gets here.

Time in which the loop did not come round does not count against leases: nobody who extends one
could be heard. More than a second of it counts as half a second (docs/adr/0031).

With a keeper, every turn goes into its journal, and whatever leaves the engine leaves it when what
it rests on is safe. Without one (`memory://`) nothing waits.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Final

from penstock.kernel import commands as c
from penstock.kernel.kernel import Kernel
from penstock.kernel.timers import FOREVER
from penstock.model.answers import Durability
from penstock.model.duration import about_ms
from penstock.model.errors import Conflict, Invalid, PenstockError, RateLimited, Unavailable
from penstock.model.event import EventSink
from penstock.stores.claims import Claims
from penstock.stores.clock import Clock, Instant, SteadyClock
from penstock.stores.ends import Ends
from penstock.stores.finishing import in_a_thread
from penstock.stores.journal.base import Journal, JournalError
from penstock.stores.keeper import Keeper
from penstock.stores.payloads import Chunks, Payloads
from penstock.stores.safety import LEVELS, WRITTEN
from penstock.stores.telling import Telling

CLOSED: Final = "the store is closed"
TURN: Final = 1_000  # steps of time that one turn of the loop takes at most
NAP_MS: Final = 500  # we look at the clocks at least this often: the wall clock may jump
STOOD_MS: Final = 1_000  # since we last did: longer than any loop takes that hears its peers

log: Final = logging.getLogger("penstock.store")


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
        self.callers = clock  # by which they wait: for them the time counts in which we stood
        self._heard = 0  # elapsed, when the loop last came round
        self.heard_until = FOREVER  # elapsed, beyond which it should have by now
        self.kernel = kernel
        self.payloads = payloads
        self.keeper: Keeper | None = None
        self.read_only: Journal | None = None  # where what we look at came from
        self.claims = Claims(self)
        self.ends = Ends(self)
        self.telling = Telling(self, sink, observer)
        self.over: str | None = None  # why nothing is done any more
        self.limited = 0  # pushes that a rate refused
        self._let_go = False
        self._paced = paced
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._timer_of: asyncio.AbstractEventLoop | None = None
        self._armed_wall = self._armed_elapsed = FOREVER if self._paced else -1

    # -- turns -----------------------------------------------------------------------------------

    def admit(self, durability: Durability | None, size: int) -> int | None:
        """Before jobs come in: how safe they must become. Raises if there is no room for them."""
        if self.keeper is None:
            if durability is not None:
                raise Invalid("a store in memory keeps nothing beyond its process", "durability")
            return None
        self.keeper.admit(size)
        return None if durability is None else LEVELS[durability]

    def apply(
        self, command: c.Command, level: int | None = None, instant: Instant | None = None
    ) -> Any:
        """Carry out a command; what it leads to is not safe yet. `instant`: now, if a store in
        memory has said something of it already."""
        if self.over is not None:
            raise Unavailable(self.over)
        if self.read_only is not None and not isinstance(command, c.Tick):
            raise Conflict("this store is open for reading only", "url")
        try:
            if self.keeper is not None:
                return self.step(command, level)
            kernel = self.kernel
            kernel.position += 1
            if instant is not None:
                return kernel.apply(command, *instant)
            now, elapsed = self.clock.instant()
            if elapsed > self.heard_until:
                elapsed = self._late(elapsed)
            return kernel.apply(command, now, elapsed)
        except RateLimited:
            self.limited += 1
            raise
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

    def step(self, command: c.Command, level: int | None = None) -> Any:
        """The command by itself, within a turn."""
        kernel, clock, keeper = self.kernel, self.clock, self.keeper
        kernel.position += 1
        now, elapsed = clock.instant()
        if elapsed > self.heard_until:
            elapsed = self._late(elapsed)
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
            _break(keeper, error)
            raise
        try:
            if (outcome is None and isinstance(command, c.Claim)) or (
                not due and isinstance(command, c.Tick)
            ):
                self._note_time(keeper, now, elapsed, due)
            else:
                least = self._least(keeper)
                keeper.note(now, elapsed, command, outcome, max(level or WRITTEN, least))
        except BaseException as error:
            # The kernel is ahead of its log: nothing may be answered that rests on that.
            _break(keeper, error)
            raise
        return outcome

    def serve(self, claim: c.Claim) -> Any:
        """A claim that waits, within the turn that may have something for it and at its instant."""
        if self.keeper is not None:
            return self.step(claim)
        kernel = self.kernel
        kernel.position += 1
        return kernel.apply(claim, kernel.now, kernel.elapsed)

    def _note_time(self, keeper: Keeper, now: int, elapsed: int, due: bool) -> None:
        """The command changed nothing; the passing of time before it may have."""
        if due:
            keeper.note(now, elapsed, c.Tick(FOREVER), True, self._least(keeper))
        else:
            self.kernel.position -= 1

    def _least(self, keeper: Keeper) -> int:
        """How safe a turn must become for which nobody waits."""
        rests = self.kernel.ends or (self.telling.heard and self.kernel.events)
        return keeper.level if rests else WRITTEN

    def _follow_up(self) -> None:
        kernel = self.kernel
        while kernel.ends or kernel.events or kernel.stirred:
            if kernel.ends:
                self.ends.wake()
            if kernel.events:
                self.telling.take()
            if kernel.stirred:
                self.claims.serve()
        if kernel.freed:
            for chunk in kernel.freed:
                if chunk not in kernel.chunks:  # else used again by the command that freed it
                    self.payloads.drop(chunk)
            kernel.freed.clear()
        if kernel.wall_due < self._armed_wall or kernel.elapsed_due < self._armed_elapsed:
            self.arm()
        if self.claims.served:
            self.claims.hand_over()
        if self.telling.untold:
            self.telling.pass_on()

    def look(self) -> Kernel:
        """The kernel, brought to the present, for reading."""
        if self.over is not None:
            raise Unavailable(self.over)
        now, elapsed = self.clock.instant()
        if elapsed > self.heard_until:
            elapsed = self._late(elapsed)
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

    def put(
        self,
        command: c.Command,
        loads: Sequence[c.Load],
        level: int | None = None,
        instant: Instant | None = None,
    ) -> Any:
        """The same at once; what it leads to is not safe yet."""
        try:
            outcome = self.apply(command, level, instant)
        except PenstockError:
            for load in reversed(loads):
                needed = load.chunk in self.kernel.chunks
                self.payloads.take_back(load.chunk, load.start, needed)
            raise
        for load in loads:
            if load.chunk not in self.kernel.chunks:
                self.payloads.drop(load.chunk)
        return outcome

    def when_safe(self, call: Callable[[], None]) -> None:
        if self.keeper is None:
            call()
        else:
            self.keeper.after(call)

    async def fetch(self, chunks: Sequence[int]) -> Chunks:
        """The bytes of these chunks, from wherever they are."""
        found = self.payloads.at_hand(chunks)
        if found is not None:
            return found
        try:
            return await self.payloads.fetch(chunks)
        except (JournalError, KeyError) as error:
            raise Unavailable(f"a payload cannot be read: {error}") from error

    # -- time --------------------------------------------------------------------------------------

    async def tick(self) -> None:
        done = self.apply(c.Tick(TURN))
        while not done:
            await asyncio.sleep(0)
            done = self.apply(c.Tick(TURN))
        self._end_waits()

    def _end_waits(self) -> None:
        elapsed = self.callers.elapsed_ms()
        self.claims.serve_metered()
        self.claims.lapse(elapsed)
        self.ends.lapse(elapsed)

    def arm(self, within_ms: int = NAP_MS) -> None:
        """Have the loop call us when something is due, and within that time, whoever calls or not.

        Nothing is done where an earlier call is set already; every command comes by here.
        """
        if not self._paced:
            return
        kernel, clock = self.kernel, self.clock
        if self.heard_until == FOREVER:
            self._hear(kernel.elapsed)
        now, elapsed = clock.instant()
        wait = max(min(kernel.wall_due - now, kernel.elapsed_due - elapsed, within_ms, NAP_MS), 0)
        loop = asyncio.get_running_loop()
        at = loop.time() + wait / 1000
        if self._timer is not None and self._timer_of is loop:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at, self._timer_of = at, loop
        self._armed_wall, self._armed_elapsed = now + wait, elapsed + wait
        self._timer = loop.call_at(at, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        if self.over is not None:
            return
        elapsed = self.clock.elapsed_ms()
        if elapsed > self.heard_until:
            elapsed = self._go_on(elapsed)
        self._hear(elapsed)
        try:
            if self.kernel.is_due(*self.clock.instant()):
                self.apply(c.Tick(TURN))
            self._end_waits()
        finally:  # whatever somebody has raised who was told of it
            if self.over is None:
                self._arm_again()

    def _arm_again(self) -> None:
        waited = self.callers.elapsed_ms()
        deadlines = (self.claims.line.due(), self.ends.awaited.due())
        ahead = [deadline - waited for deadline in deadlines]
        self.arm(min(ahead + self.claims.until_metered(self.clock.elapsed_ms())))

    def _hear(self, elapsed: int) -> None:
        """The loop has come round: whoever had something to say by then could say it."""
        self._heard, self.heard_until = elapsed, elapsed + STOOD_MS

    def _late(self, elapsed: int) -> int:
        """How late it is for leases, to a command that comes when the loop should have come round."""
        if self._timer_of is asyncio.get_running_loop():
            return self._stood_at()
        # It never will: it is another one that runs now.
        elapsed = self._go_on(elapsed)
        self._hear(elapsed)
        self.arm()
        return elapsed

    def _stood_at(self) -> int:
        """How late it is for leases while the loop does not come round. Something counts each time,
        or a loop that is always late would end none."""
        return max(self._heard + NAP_MS, self.kernel.elapsed)

    def _go_on(self, elapsed: int) -> int:
        """Leave out of our clock what does not count, for good; answers what it shows then."""
        at = self._stood_at()
        steady = self.clock = SteadyClock.behind(self.clock, elapsed - at)
        if self.keeper is not None:
            self.keeper.put(offset=steady.offset)
        log.warning(
            "the store stood still for %s: leases and timeouts do not count it",
            about_ms(elapsed - at),
        )
        return at

    # -- life --------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Finish what was begun, and let go of everything, however the store has ended."""
        if self.telling.untold:  # of a turn that gave a job to whoever closes us
            self.telling.pass_on()
        self.end(CLOSED)
        if self._let_go:
            return
        self._let_go = True
        if self.keeper is not None:
            await self.keeper.close()
        elif self.read_only is not None:
            self.payloads.close()
            self.read_only.close()
        elif self.telling.kept is not None:
            await in_a_thread(self.telling.kept.close)

    def abandon(self) -> None:
        """Let go of everything as the end of the process would; its loop runs no more."""
        self.over = self.over or "the loop of the store has ended"
        if not self._let_go:
            self._let_go = True
            if self.keeper is not None:
                self.keeper.let_go()
            elif self.telling.kept is not None:
                self.telling.kept.close()

    def disown(self, parent: int) -> None:
        """We are in a child of the process that opened the store: everything here is its."""
        self.over = f"the store is process {parent}'s, from which this one was forked: open it anew"
        self._let_go = True

    def end(self, why: str) -> None:
        """Nothing is done any more; everybody who waits is told."""
        if self.over is not None:
            return
        self.over = why
        if self._timer is not None:
            self._timer.cancel()
        gone = Unavailable(why)
        self.claims.end(gone)
        self.ends.awaited.fail_all(gone)
        self.telling.end()

    @property
    def failed(self) -> str | None:
        """Why nothing is done any more, if nobody closed the store."""
        return None if self._let_go or self.over == CLOSED else self.over

    @property
    def waiting(self) -> int:
        """Claims that wait for a job."""
        return len(self.claims.line)

    def health(self) -> dict[str, Any]:
        """How what is beside the kernel is doing."""
        detail = {} if self.keeper is None else self.keeper.health()
        kept = self.telling.kept
        return detail if kept is None else detail | kept.health()

    def rebuild(self) -> None:
        """Put a kernel made from its own encoded form in the place of the running one."""
        before = self.kernel
        self.kernel = Kernel.decode(before.encode(), before.caps)
        self.kernel.now, self.kernel.elapsed = before.now, before.elapsed
        self.kernel.awaited = dict.fromkeys(self.ends.awaited.ids(), 1)
        self.claims.watch_again()
        self.telling.listen()


def _break(keeper: Keeper, error: BaseException) -> None:
    keeper.fail(error if isinstance(error, Exception) else RuntimeError(repr(error)))
