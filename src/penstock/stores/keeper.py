"""The keeper: between an engine's turns and its journal.

Every command that changed something becomes a record of the next batch. A batch is cut when the
writer is free, a large one before that, so that the writer need not wait for it; the answers that
rest on it go out when it is safe (`safety.py`).
"""

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from penstock.kernel import commands as c
from penstock.kernel.kernel import Kernel
from penstock.model.errors import StorageFull, Unavailable
from penstock.model.event import EventKeeper
from penstock.stores.backup import Backups
from penstock.stores.finishing import in_a_thread
from penstock.stores.journal import frames
from penstock.stores.journal.base import Batch, Group, Journal, JournalError
from penstock.stores.journal.checkpointer import Checkpointer
from penstock.stores.journal.ownership import Ownership
from penstock.stores.journal.recovery import Recovered
from penstock.stores.journal.settings import Settings
from penstock.stores.journal.space import Ballast
from penstock.stores.journal.writer import Writer, Written
from penstock.stores.safety import LEVELS, SYNCED, WRITTEN, Safety
from penstock.stores.stored_payloads import StoredPayloads
from penstock.stores.sweeping import Sweeper

log: Final = logging.getLogger("penstock.store")

RESERVED: Final = 1_024  # blocks of ids reserved at a time
SOON_S: Final = 0.2  # within which that is safe which only the event log waits for
# What is worth a checkpoint at the end, so that the next start is quick: records of log, or seconds
# of their replay.
WORTH: Final = 1_000
WORTH_S: Final = 0.1
LAST_S: Final = 5.0  # that it may take; without it the next start replays the log, as after a crash
CLOSED_BEFORE: Final = "the store was closed before this was safe"
AHEAD: Final = 256 << 10  # bytes of payloads that make a batch worth its own fsync
FADING: Final = 0.9  # of what was in flight, from one batch to the next
ROOM_CHECK_S: Final = 0.2  # how long we trust what we know of the disk's free space


class Keeper:
    def __init__(
        self,
        journal: Journal,
        recovered: Recovered,
        payloads: StoredPayloads,
        ballast: Ballast,
        settings: Settings,
        ownership: Ownership,
        fail: Callable[[Exception], None],
        events: EventKeeper | None = None,
    ) -> None:
        self.journal = journal
        self.payloads = payloads
        self.durability = settings.durability
        self.level = LEVELS[settings.durability]
        self._kernel: Kernel = recovered.kernel
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._ballast = ballast
        self._spare = 0
        self._spare_until = 0.0
        self._refusing = False  # jobs, for want of room
        self.checkpointer = Checkpointer(
            recovered.kernel,
            recovered.checkpoint,
            recovered.log_bytes,
            recovered.records,
            recovered.replay_s,
        )
        self.checkpointer.every_bytes = settings.checkpoint_bytes
        self.checkpointer.every_records = settings.checkpoint_records
        self.checkpointer.every_s = settings.checkpoint_replay_s
        self.checkpointer.spared = self._events_kept
        self._events = events
        self._events_upto = 0  # the position up to which the event log has everything
        self._events_whole = True  # … or has not, and the facts say so
        self._events_asked = False
        self._soon: asyncio.TimerHandle | None = None
        self._rested: asyncio.TimerHandle | None = None  # when a checkpoint may begin
        self.began = 0.0  # when the kernel was given the present command
        position = recovered.kernel.position
        self.last = position  # of the last record
        self._first = position + 1  # of the first record that no batch has taken
        self.safety = Safety(position)
        self._frames: list[bytes] = []
        self._sync = False
        self._facts: dict[str, Any] = {}
        self._reserved = recovered.reserved
        self._scheduled = False
        self._writing: deque[tuple[Batch, int]] = deque()  # cut, with what was staged of them
        self._staged = 0  # bytes of payloads that the writer has of the next batch
        self._flight = 0.0  # most of them that lately were not safe
        self._turns: list[asyncio.Future[None]] = []  # of those who wait for the next batch
        self._closing = False
        self._gone = False  # nothing is written any more
        self._broken: Exception | None = None
        self._interval_s = settings.commit_interval_ms / 1000
        self._commit_max = settings.commit_max
        self._gathered = 0
        self.recovered = recovered
        self._ownership = ownership
        self.backups = Backups(journal)
        if settings.backup_every_s:
            directory = Path(settings.backup_dir)
            self.backups.every(settings.backup_every_s, directory, settings.backup_keep)
        self._sweeper = Sweeper(recovered.kernel, payloads)
        self._sweeping: asyncio.Task[None] | None = None
        self._swept = recovered.checkpoint.number  # the checkpoint after which we last swept
        self._hollow: dict[int, bytes] = {}
        witness = partial(ownership.witness, recovered.store)
        ownership.know_again()
        there = ownership.check_there
        self.writer = Writer(journal, ballast, self._written, witness, there)

    # -- records ---------------------------------------------------------------------------------

    def note(self, now: int, elapsed: int, command: c.Command, outcome: Any, level: int) -> None:
        """The kernel carried out this command, at its present position."""
        kernel = self._kernel
        position = self.last = kernel.position
        if kernel.next_block > self._reserved:
            self._reserved = kernel.next_block + RESERVED
            self._facts["reserved"] = self._reserved
            self._sync = True
        frame = frames.encode(position, now, elapsed, command, frames.decision(outcome))
        self._frames.append(frame)
        self._gathered += len(frame)
        # A replay reads what we encoded. By the wall clock, which costs a tenth of the processor's:
        # what others took of it makes a checkpoint come too early, never too late.
        self.checkpointer.noted(len(frame), perf_counter() - self.began)
        if level == SYNCED:
            self._sync = True
            if isinstance(command, c.Push):
                self._stage(command.loads)
        self.safety.note(command, outcome, position, level)
        self._schedule()

    def _stage(self, loads: Sequence[c.Load]) -> None:
        for load in loads:
            data = self.payloads.whole(load.chunk)
            if data is not None:
                self.writer.stage(load.chunk, data)
                self._staged += len(data)

    def put(self, **facts: Any) -> None:
        """Facts that the next batch writes, durably."""
        self._facts |= facts
        self._sync = True
        self._schedule()

    def _schedule(self) -> None:
        if self._scheduled or self._writing:
            return
        self._scheduled = True
        if self._interval_s and self._gathered < self._commit_max and not self._closing:
            self._loop.call_later(self._interval_s, self._cut_scheduled)
        else:
            self._loop.call_soon(self._cut_scheduled)

    def _cut_scheduled(self) -> None:
        self._scheduled = False
        if not self._writing:
            self._cut()

    def _cut_large(self) -> None:
        """A large batch goes to the writer while that still writes the one before: neither waits
        for the other then. It waits for half of what is in flight: while the writer has one half,
        the other comes together."""
        if self._staged < AHEAD or self._interval_s:
            return
        self._flight = max(self._flight, self._staged + sum([size for _, size in self._writing]))
        if len(self._writing) < 2 and (not self._writing or 2 * self._staged >= self._flight):
            self._cut()

    def _cut(self) -> None:
        """Hand everything that has gathered to the writer."""
        if self._broken is not None or self._gone:
            return
        batch = Batch(sync=self._sync, facts=self._facts)
        self._sync, self._facts = False, {}
        if self._frames:
            batch.group = Group(self._first, self.last, b"".join(self._frames))
            batch.facts["head"] = self.last
            self._frames = []
            self._gathered = 0
            self._first = self.last + 1
        batch.chunks, batch.dropped = self.payloads.seal()
        swept, self._hollow = self._hollow, {}
        if swept:
            needed = self._kernel.chunks
            batch.hollow = [each for each in swept.items() if each[0] in needed]
        if not self._closing:
            self.checkpointer.feed(batch)
        if not batch.empty:
            self._writing.append((batch, self._staged))
            self._staged = 0
            self.writer.submit(batch)
        elif swept:  # of what nobody needs any more
            self._take_turns()

    def _written(self, written: Written) -> None:
        batch = self._writing.popleft()[0]
        self._flight *= FADING
        self._take_turns()
        if self._broken is not None:
            return
        if written.error is not None:
            self.fail(written.error)
            return
        self.payloads.written(batch.chunks)
        self.checkpointer.written(batch, written.more, written.seconds)
        self.safety.reached(batch.group.last if batch.group else None, synced=batch.sync)
        if self._pending:
            self._schedule()
            return
        if self._rested is None and (rest_s := self.checkpointer.rest_s):
            self._rested = self._loop.call_later(rest_s, self._rest_over)
        if self.checkpointer.last.number != self._swept and not self._closing:
            self.sweep()

    def _take_turns(self) -> None:
        turns, self._turns = self._turns, []
        for turn in turns:
            if not turn.done():
                turn.set_result(None)

    def _rest_over(self) -> None:
        """A checkpoint that had to wait begins, though nobody has anything to write."""
        self._rested = None
        if self._broken is None and not self._closing:
            self._schedule()

    def sweep(self) -> "asyncio.Task[None]":
        """Have chunks that are mostly needless written anew."""
        if self._sweeping is None or self._sweeping.done():
            self._swept = self.checkpointer.last.number
            self._sweeping = self._loop.create_task(self._sweep())
        return self._sweeping

    async def _sweep(self) -> None:
        try:
            async for chunk, data in self._sweeper.sweep():
                self._hollow[chunk] = data
                await self.turn()
        except (Unavailable, JournalError, KeyError) as error:
            log.warning("chunks could not be swept: %s", error)

    async def stop_sweeping(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)

    @property
    def _pending(self) -> bool:
        """Whether there is something for another batch."""
        if self._frames or self._facts or self._hollow or not self.payloads.idle:
            return True
        return self.checkpointer.busy and not self._closing

    # -- safety ----------------------------------------------------------------------------------

    async def safe(self, level: int, position: int | None = None) -> None:
        """Wait until everything up to that position (the present one) is safe in that sense."""
        if position is None:
            position = self.last
        if self.safety.upto[level] >= position:
            return
        self._check_goes_on()
        if level == SYNCED:
            self._have_synced(position)
            self._cut_large()
        await self.safety.wait(level, position)

    def _check_goes_on(self) -> None:
        if self._broken is not None:
            raise Unavailable(f"the store has ended: {self._broken}")
        if self._gone:
            raise Unavailable(CLOSED_BEFORE)

    def _have_synced(self, position: int) -> None:
        """Whatever it was noted with: that position is wanted on stable storage."""
        if position >= self._first:
            self._sync = True  # the next batch has it
        elif not self._writing or not self._writing[-1][0].sync:
            self.put(head=self._first - 1)  # it is, or is being, written without

    def after(self, call: Callable[[], None]) -> None:
        """Call this when the present position is safe; calls keep their order."""
        self.safety.after(self.level, self.last, call)

    def soon(self) -> None:
        """The present position is to become safe, though nobody waits for it."""
        if self._soon is None and self.safety.upto[self.level] < self.last:
            self._soon = self._loop.call_later(SOON_S, self._have_safe)

    def _have_safe(self) -> None:
        self._soon = None
        if self._broken is None and not self._closing and self.level == SYNCED:
            position = self.last
            if self.safety.upto[SYNCED] < position:
                self._have_synced(position)

    # -- the event log -----------------------------------------------------------------------------

    def _events_kept(self, position: int) -> bool:
        """Whether the event log has everything up to there: what it lacks, the log tells again."""
        if self._events is None or self._events_upto >= position:
            return True
        upto = self.safety.upto[self.level]  # what it was told
        if upto < position:
            self._have_synced(position)
        elif not self._events_asked:
            self._events_asked = True
            self._events.sync(partial(self._events_answered, upto))
        return False

    def _events_answered(self, upto: int, whole: bool) -> None:
        """By the event log's thread."""
        with suppress(RuntimeError):  # the loop is gone
            self._loop.call_soon_threadsafe(self._events_synced, upto, whole)

    def _events_synced(self, upto: int, whole: bool) -> None:
        """Or it has given up: the log must not grow for ever, so the next opening tells a gap."""
        self._events_asked = False
        self._events_upto = upto
        if self._broken is None and not self._closing:
            if whole != self._events_whole:
                self._events_whole = whole
                self.put(events=whole)
            self._schedule()

    # -- room ------------------------------------------------------------------------------------

    def admit(self, size: int) -> None:
        """Raise StorageFull if there is no room for that many more bytes.

        They take it twice: where the journal writes first, and where it keeps things.
        """
        self._spare -= 2 * size
        at = self._loop.time()
        if self._spare < 0 or at >= self._spare_until:
            self._ballast.fill()
            coming = size + self.payloads.unwritten + self._gathered
            self._spare = self._ballast.spare - 2 * coming
            self._spare_until = at + ROOM_CHECK_S
        if self._spare < 0:
            full = "the disk is nearly full: no jobs are taken in until there is room"
            if not self._refusing:
                log.warning("%s", full)
            self._refusing = True
            raise StorageFull(full)
        if self._refusing:
            self._refusing = False
            log.info("there is room on the disk again: jobs are taken in")

    def health(self) -> dict[str, Any]:
        """How the disk is doing."""
        return {
            "owner": os.getpid(),  # of the path
            "position": self.last,
            "journal_lag": self.last - self.safety.upto[self.level],  # records not yet safe
            "commit_ms": round(self.writer.write_ms, 3),  # of a synced batch, smoothed
            "batches": self.writer.batches,
            "syncs": self.writer.syncs,
            "checkpoint": self.checkpointer.last.position,
            "log_records": self.checkpointer.records,
            "replay_s": round(self.checkpointer.opening_s, 3),
            "free_bytes": self._ballast.free(),
            "bytes": self.journal.sizes(),
            "replayed": self.recovered.replayed,
            "recovery_s": round(self.recovered.seconds, 3),
            "cut_bytes": self.recovered.cut,
            "backup": None if self.backups.last is None else self.backups.last.name,
            "backup_failed": self.backups.failed,
        }

    # -- life ------------------------------------------------------------------------------------

    def fail(self, error: Exception) -> None:
        """The journal cannot go on: nobody is told again that something is safe."""
        self._broken = error if str(error) else RuntimeError(repr(error))
        log.error("the store has ended: %s", self._broken)
        self.safety.end(Unavailable(f"the store has ended: {self._broken}"))
        self._take_turns()
        self._fail(self._broken)

    @property
    def idle(self) -> bool:
        """Whether there is nothing left to write, or no way to."""
        return self._broken is not None or (not self._writing and not self._pending)

    @property
    def lagging(self) -> bool:
        """Whether something that was said has not reached the operating system."""
        return self._broken is None and self.safety.upto[WRITTEN] < self.last

    async def checkpoint(self) -> None:
        """Write a checkpoint of the present state, and wait for it."""
        while self.checkpointer.busy:  # with the one before
            await self.turn()
        number = self.checkpointer.last.number
        self.checkpointer.begin()
        while self.checkpointer.last.number == number:
            await self.turn()

    async def turn(self) -> None:
        """Wait for the next batch."""
        self._check_goes_on()
        turn: asyncio.Future[None] = self._loop.create_future()
        self._turns.append(turn)
        self._schedule()
        await turn

    async def close(self) -> None:
        """Everything that was said is on stable storage, and that it was said to the end.

        Cancelled, we let go at once, and the next opening finds a store that was not closed.
        """
        try:
            await self.backups.stop()
            await self._last_checkpoint()
            self._closing = True
            await self.stop_sweeping()
            if self._broken is None:
                self.put(closed=True)
            while not self.idle:
                await self.turn()
            if self._events is not None:
                await in_a_thread(self._events.close)
        finally:
            self.let_go()

    async def _last_checkpoint(self) -> None:
        checkpointer = self.checkpointer
        worth = checkpointer.records >= WORTH or checkpointer.replay_s >= WORTH_S
        if self._broken is None and worth:
            with suppress(TimeoutError, Unavailable):
                async with asyncio.timeout(LAST_S):
                    await self.checkpoint()

    def _end_waits(self) -> None:
        self.safety.end(Unavailable(CLOSED_BEFORE))
        self._take_turns()

    def let_go(self) -> None:
        """Of the threads, the files and the path, in whatever state they are."""
        self._closing = True  # nothing begins when the last batch's answer comes
        for timer in (self._soon, self._rested):
            if timer is not None:
                timer.cancel()
        self._gone = True
        try:
            self.writer.close()
            with suppress(RuntimeError):  # the loop is gone, and with it everybody who waits
                # Behind what the writer has told: whoever waits for more waits in vain.
                self._loop.call_soon_threadsafe(self._end_waits)
            if self._events is not None:
                self._events.close()
            self.payloads.close()
            self.journal.close()
        finally:
            self._ownership.leave()
