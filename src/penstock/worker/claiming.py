"""Asks the store for work: as many jobs as there is room for, from queues in the order of weights.

One claim at a time, on the home thread: a lease is kept alive from the instant it arrives, however
busy the handlers are. While jobs run, the next claim is already asked for what is free by then.
While none runs, it may wait where the next one will (`front.py`).

A claim takes from the first queue of its list that has work. The list is ordered by stride
scheduling: every queue has run up jobs / weight, and the one that has run up least goes first, so
that over time each gets its share in jobs, whatever a claim gives. A queue that was empty does not
save up for later. Who goes first at the start is drawn by weight: a worker that is replaced after a
claim or two has no time to come round to the others.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from random import expovariate
from typing import Final

from penstock.model.errors import PenstockError
from penstock.model.job import MAX_BATCH, Lease
from penstock.model.store import Store
from penstock.stores.again import Again
from penstock.worker.front import Front
from penstock.worker.refusals import said

log: Final = logging.getLogger("penstock.worker")

WAIT_MS: Final = 30_000  # of one claim
SETTLED_S: Final = 0.001


class Shares:
    """Which queue is next."""

    def __init__(self, weights: Mapping[str, int]) -> None:
        self._weights = dict(weights)
        # Jobs / weight. At first a part of a job: the least of these is a queue's by its weight.
        self._used = {queue: expovariate(weight) for queue, weight in weights.items()}
        self._now = 0.0  # of the queue served last, before it was served

    def order(self) -> list[str]:
        return sorted(self._used, key=self._used.__getitem__)

    def served(self, queue: str, jobs: int) -> None:
        used = max(self._used[queue], self._now)
        self._now = used
        self._used[queue] = used + jobs / self._weights[queue]


class Claimer:
    def __init__(
        self,
        store: Store,
        tenant: str,
        queues: Mapping[str, int],
        *,
        batches: Mapping[str, int],
        lease_ms: int | None,
        worker: str,
        room: Callable[[], int],
        left: Callable[[], int],
        take: Callable[[Lease], None],
        idle: asyncio.Event,
        front: Front | None = None,
    ) -> None:
        self._store = store
        self._tenant = tenant
        self._shares = Shares(queues)
        self._batches = {queue: batches.get(queue, 0) for queue in queues}
        self._mixed = len(set(self._batches.values())) > 1
        self._lease_ms = lease_ms
        self._worker = worker
        self._room = room  # how many more calls of handlers may be taken in
        self._left = left  # how many more jobs may be claimed at all
        self._take = take
        self._idle = idle  # nothing runs
        # Batches are cut on the home thread, and not only from one lease at a time.
        self._front = None if any(self._batches.values()) else front
        self._fronting = False  # whether the claim under way is a front's
        self._freed = asyncio.Event()
        self._asking: asyncio.Task[Lease | None] | None = None
        self._held_back = 0  # by how many
        self._shunned: frozenset[str] = frozenset()  # queues
        self._again = Again(asyncio.get_running_loop().time)
        self._unanswered = ""  # why, as the log has it, while the store gives no answer

    def wake(self) -> None:
        """There may be room."""
        self._freed.set()

    def settle(self) -> None:
        """Nothing runs any more: if it stays so, the next claim waits at the front."""
        if self._front is not None:
            asyncio.get_running_loop().call_later(SETTLED_S, self._to_the_front)

    def _to_the_front(self) -> None:
        if self._idle.is_set() and self._asking is not None and not self._fronting:
            self._asking.cancel()

    def shun(self, queues: frozenset[str]) -> None:
        """Nothing is claimed from these, until others are said, or none."""
        self._shunned = queues
        if self._asking is not None and not self._fronting:
            self._asking.cancel()
        self.wake()

    def _order(self) -> list[str]:
        return [queue for queue in self._shares.order() if queue not in self._shunned]

    @asynccontextmanager
    async def held_back(self) -> AsyncIterator[None]:
        """Nothing is claimed here meanwhile; a claim that waits is taken back."""
        self._held_back += 1
        try:
            if self._asking is not None:
                self._asking.cancel()
                await asyncio.wait([self._asking])
            yield
        finally:
            self._held_back -= 1
            self.wake()

    async def run(self) -> None:
        """Until it is cancelled; what is handed over then, the store takes back."""
        while True:
            room = 0 if self._held_back or self._left() <= 0 else self._room()
            if room <= 0 or not self._order():
                self._freed.clear()
                await self._freed.wait()
                continue
            self._again.begin()
            try:
                answered = await self._ask(room)
            except PenstockError as error:
                self._complain(error)
                await asyncio.sleep(self._again.pause_s())
                continue
            if answered:
                self._answered()

    async def _ask(self, room: int) -> bool:
        """Whether there was an answer. A task of its own, so that the claim can be taken back without
        ending the rest."""
        idle = self._idle.is_set() and not self._shunned
        self._fronting = self._front is not None and idle
        claim = self._claim_at_front(room) if self._fronting else self._claim(room)
        asking = self._asking = asyncio.ensure_future(claim)
        try:
            await asyncio.wait([asking])
        finally:
            self._asking = None
            if not asking.done():
                asking.cancel()
                await asyncio.wait([asking])
            lease = None if asking.cancelled() or asking.exception() else asking.result()
            if lease is not None:
                self._shares.served(lease.queue, len(lease))
                if not self._fronting:
                    self._take(lease)
        if asking.cancelled():
            return False
        asking.result()
        return True

    async def _claim_at_front(self, room: int) -> Lease | None:
        assert self._front is not None
        n = min(room, self._left(), MAX_BATCH)
        lease = await self._front.claim(
            self._served,
            queues=self._shares.order(),
            n=n,
            lease_ms=self._lease_ms,
            worker=self._worker,
            wait_ms=WAIT_MS,
        )
        if lease is not None and len(lease) < n:
            # There was no more to be had. If this is done in no time, the next claim is a front's
            # again, and none has to be made here and taken back for it.
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLED_S):
                    await self._idle.wait()
        return lease

    def _served(self, lease: Lease) -> list[str]:
        """Of a claim behind which another has gone to the front by itself."""
        self._answered()
        self._shares.served(lease.queue, len(lease))
        return self._shares.order()

    async def _claim(self, room: int) -> Lease | None:
        order = self._order()
        if not self._mixed:
            return await self._call(order, room * (self._batches[order[0]] or 1), WAIT_MS)
        # A claim asks all its queues for the same number. Those with batch tasks are asked for a
        # batch per call, the others for a job: one after the other, and if none has anything, all
        # of them for whatever comes first.
        for queue in order:
            lease = await self._call([queue], room * (self._batches[queue] or 1), 0)
            if lease is not None:
                return lease
        return await self._call(order, room, WAIT_MS)

    async def _call(self, queues: list[str], n: int, wait_ms: int) -> Lease | None:
        return await self._store.claim(
            self._tenant,
            queues,
            min(n, self._left(), MAX_BATCH),
            lease_ms=self._lease_ms,
            worker=self._worker,
            wait_ms=wait_ms,
        )

    def _answered(self) -> None:
        if self._unanswered:
            log.info("the store answers again")
            self._unanswered = ""
            self._again.answered()

    def _complain(self, error: PenstockError) -> None:
        if self._unanswered != error.code:
            self._unanswered = error.code
            log.warning("no jobs can be claimed: %s", said(error), extra={"code": error.code})
