"""Those who wait: claims in line for a job, and callers waiting for a job's end.

Pure bookkeeping on futures; when to serve whom is the store's business. Idle claimers are served
in the order in which they came, whichever queue a job turns up in.
"""

import asyncio
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Final

from penstock.kernel.commands import Claim
from penstock.protocol.runs import Single
from penstock.stores.prompt import Prompt

Spot = tuple[str, str]  # tenant, queue

FAR: Final = 1 << 62  # later than any deadline
MANY: Final = 64  # deadlines of those who are gone that may lie between the others'


class Waiter:
    """A claim that found nothing."""

    __slots__ = (
        "claim",
        "deadline",
        "foretold",
        "future",
        "limited",
        "queues",
        "serial",
        "served",
        "since",
        "tenant",
    )

    def __init__(
        self,
        claim: Claim,
        deadline: int,
        future: Prompt[Any],
        serial: int,
        limited: bool,
        since: int,
    ) -> None:
        self.claim = claim  # made again when there may be something, with the token that it has
        self.tenant = claim.tenant
        self.queues = claim.queues
        self.deadline = deadline  # elapsed
        self.future = future  # of what it is given, or None; unset once it has been told
        self.serial = serial
        self.limited = limited  # a rate has held it back, and that was counted
        self.since = since  # wall clock
        self.foretold: Single | None = None  # what it was told of, before it was given that
        self.served = False  # it has been given something, and is in line until it has heard of it


class Line:
    """Waiting claims by queue, oldest first."""

    def __init__(self) -> None:
        self._spots: dict[Spot, dict[Waiter, None]] = {}
        self._all: dict[Waiter, None] = {}
        self._deadlines: list[tuple[int, int, Waiter]] = []  # heap; those who left are skipped

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Waiter]:
        return iter(list(self._all))

    def join(self, waiter: Waiter) -> None:
        self._all[waiter] = None
        heappush(self._deadlines, (waiter.deadline, waiter.serial, waiter))
        for queue in waiter.queues:
            self._spots.setdefault((waiter.tenant, queue), {})[waiter] = None

    def leave(self, waiter: Waiter) -> list[Spot]:
        """Answers the spots where nobody waits any more."""
        if self._all.pop(waiter, waiter) is not None:
            return []  # it has left already
        if len(self._deadlines) > MANY + 2 * len(self._all):
            self._deadlines = [(each.deadline, each.serial, each) for each in self._all]
            heapify(self._deadlines)
        empty = []
        for queue in waiter.queues:
            spot = (waiter.tenant, queue)
            waiting = self._spots.get(spot)
            if waiting is not None:
                waiting.pop(waiter, None)
                if not waiting:
                    del self._spots[spot]
                    empty.append(spot)
        return empty

    def at(self, spot: Spot) -> list[Waiter]:
        return list(self._spots.get(spot, ()))

    def first(self, spot: Spot) -> Waiter | None:
        waiting = self._spots.get(spot)
        return next(iter(waiting)) if waiting else None

    def due(self) -> int:
        """The earliest deadline; FAR if nobody waits."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][2] not in self._all:
            heappop(deadlines)
        return deadlines[0][0] if deadlines else FAR

    def lapsed(self, elapsed: int) -> Iterator[Waiter]:
        """Those who have waited as long as they wanted."""
        while self.due() <= elapsed:
            yield heappop(self._deadlines)[2]


class Awaited:
    """Callers waiting for the end of a job, by id."""

    def __init__(self) -> None:
        self._futures: dict[int, dict[asyncio.Future[Any], None]] = {}
        self._deadlines: list[tuple[int, int, asyncio.Future[Any]]] = []  # heap
        self._settled: set[asyncio.Future[Any]] = set()  # their jobs have ended
        self._serial = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def join(self, job_id: int, deadline: int) -> "asyncio.Future[Any]":
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._futures.setdefault(job_id, {})[future] = None
        self._serial += 1
        self._count += 1
        heappush(self._deadlines, (deadline, self._serial, future))
        return future

    def leave(self, job_id: int, future: "asyncio.Future[Any]") -> bool:
        """True if nobody waits for this job any more."""
        self._count -= 1
        self._settled.discard(future)
        if len(self._deadlines) > MANY + 2 * self._count:
            self._deadlines = [each for each in self._deadlines if not each[2].done()]
            heapify(self._deadlines)
        waiting = self._futures.get(job_id)
        if waiting is None:
            return True
        waiting.pop(future, None)
        if not waiting:
            del self._futures[job_id]
            return True
        return False

    def settle(self, job_id: int) -> "list[asyncio.Future[Any]]":
        """The job has ended: these are to be told how, and no deadline comes before that."""
        settled = list(self._futures.pop(job_id, ()))
        self._settled.update(settled)
        return settled

    def fail(self, job_id: int, error: Exception) -> None:
        for future in self._futures.pop(job_id, {}):
            if not future.done():
                future.set_exception(error)

    def fail_all(self, error: Exception) -> None:
        for job_id in self.ids():
            self.fail(job_id, error)
        for future in self._settled:
            if not future.done():
                future.set_exception(error)

    def ids(self) -> list[int]:
        return list(self._futures)

    def due(self) -> int:
        """The earliest deadline; FAR if nobody waits."""
        deadlines = self._deadlines
        while deadlines and (deadlines[0][2].done() or deadlines[0][2] in self._settled):
            heappop(deadlines)
        return deadlines[0][0] if deadlines else FAR

    def lapsed(self, elapsed: int) -> "Iterator[asyncio.Future[Any]]":
        while self.due() <= elapsed:
            yield heappop(self._deadlines)[2]
