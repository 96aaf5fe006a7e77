"""How far a store's history is safe, who waits for more of it, and what claims rest on.

Two levels: `WRITTEN` has reached the operating system and survives the process; `SYNCED` is on
stable storage. The keeper says what became safe; nothing here writes.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Final

from penstock.kernel import commands as c
from penstock.kernel.leases import LeaseRecord
from penstock.model.answers import Durability

UNSAFE: Final = 0
WRITTEN: Final = 1
SYNCED: Final = 2
LEVELS: Final[dict[Durability, int]] = {"os": WRITTEN, "fsync": SYNCED}

RESTS: Final = 10_000  # queues of which we remember what their claims rest on, before we forget

# Commands after which a claim may hand out something that is not safe yet.
_RESTING: Final = (c.Push, c.Edit, c.Redrive, c.CommitBulk, c.PutCron)


class Safety:
    def __init__(self, position: int) -> None:
        self.upto = [position, position, position]  # by level; the first one is not used
        self._waiting: list[list[tuple[int, int, asyncio.Future[None]]]] = [[], [], []]  # heaps
        self._serial = 0
        self._after: deque[tuple[int, int, Callable[[], None]]] = deque()
        self._rests: dict[tuple[str, str], tuple[int, int, int]] = {}  # position, level, floor

    def reached(self, position: int | None, *, synced: bool) -> None:
        """Records up to there were written (None: none were); and everything written is synced."""
        upto = self.upto
        if position is not None:
            upto[WRITTEN] = position
        if synced:
            upto[SYNCED] = upto[WRITTEN]
        for level in (WRITTEN, SYNCED):
            waiting = self._waiting[level]
            while waiting and waiting[0][0] <= upto[level]:
                future = heappop(waiting)[2]
                if not future.done():
                    future.set_result(None)
        while self._after and self._after[0][0] <= upto[self._after[0][1]]:
            self._after.popleft()[2]()

    def wait(self, level: int, position: int) -> "asyncio.Future[None]":
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._serial += 1
        heappush(self._waiting[level], (position, self._serial, future))
        return future

    def after(self, level: int, position: int, call: Callable[[], None]) -> None:
        """Call this when that position is safe; calls keep their order."""
        if self.upto[level] >= position and not self._after:
            call()
        else:
            self._after.append((position, level, call))

    def end(self, error: Exception) -> None:
        """Nothing becomes safe any more: everybody who waits is told so."""
        self._after.clear()
        for waiting in self._waiting:
            for _, _, future in waiting:
                if not future.done():
                    future.set_exception(error)
            waiting.clear()

    # -- what claims rest on ---------------------------------------------------------------------

    def note(self, command: c.Command, outcome: Any, position: int, level: int) -> None:
        """What is claimed of the queues of this command soon rests on its record."""
        if not isinstance(command, _RESTING):
            return
        upto = self.upto
        if isinstance(command, c.Push):
            for load, run in zip(command.loads, outcome.runs, strict=True):
                spot = (command.tenant, load.queue)
                before = self._rests.get(spot)
                floor = run.first if run.ids is None and command.bulk is None else 0
                if before is not None and upto[before[1]] < before[0]:
                    floor, level = min(floor, before[2]), max(level, before[1])
                self._rests[spot] = (position, level, floor)
        else:
            self._rests["", ""] = (position, level, 0)  # of any queue
        if len(self._rests) > RESTS:
            self._rests = {s: r for s, r in self._rests.items() if upto[r[1]] < r[0]}

    def rest_of(self, lease: LeaseRecord) -> tuple[int, int]:
        """(position, level) of what the jobs of a lease rest on."""
        position, level = 0, WRITTEN
        for spot in ((lease.queue.tenant.name, lease.queue.name), ("", "")):
            rest = self._rests.get(spot)
            if rest is None or self.upto[rest[1]] >= rest[0]:
                continue
            if any(run.block.base + run.hi > rest[2] for run in lease.runs):
                position, level = max(position, rest[0]), max(level, rest[1])
        return position, level
