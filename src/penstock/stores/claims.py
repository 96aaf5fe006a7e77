"""Claims: what can be had at once, and those who wait in line for what cannot.

A job that becomes ready is handed to the oldest waiter in the same turn. Whoever is given jobs gets
them when what they rest on is safe and their payloads are here; whoever is gone by then gives them
back.
"""

import asyncio
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from penstock.kernel import commands as c
from penstock.kernel import read
from penstock.kernel.codes import READY
from penstock.kernel.explain import rate_limited
from penstock.kernel.leases import LeaseRecord
from penstock.kernel.passing import passing
from penstock.kernel.queue import Queue
from penstock.model.answers import WaitingClaim, WaitingClaims
from penstock.model.errors import Overloaded, Unavailable
from penstock.model.job import JobOptions, Lease
from penstock.model.policy import LEASE_MS
from penstock.model.store import Number
from penstock.protocol.runs import TOKEN, Single
from penstock.stores.clock import Instant
from penstock.stores.granting import Grant, chunks_of, grant_of, lease_at_once, lease_of
from penstock.stores.journal.base import JournalError
from penstock.stores.prompt import Prompt, settle, tell
from penstock.stores.safety import WRITTEN
from penstock.stores.waiting import FAR, Line, Waiter

if TYPE_CHECKING:
    from penstock.stores.engine import Engine

WINDOW: Final = 4  # payload chunks read ahead of the claims


class Claims:
    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self.line = Line()
        self._serial = 0
        self.limited = 0  # claims that found jobs, and were held back by a rate
        self.served: list[tuple[Waiter, Lease | Grant]] = []  # and not told yet

    async def claim(
        self,
        tenant: str,
        queues: tuple[str, ...],
        n: int,
        lease_ms: int | None,
        worker: str,
        wait_ms: int,
    ) -> Lease | None:
        engine = self._engine
        if self.line:
            # What can be had now goes to those who waited for it.
            engine.look()
            self.serve_metered()
        command = c.Claim(tenant, queues, n, os.urandom(TOKEN // 2).hex(), lease_ms, worker)
        record = engine.apply(command)
        if record is not None:
            given = self._given(record)
            return await self._delivered(given, command) if isinstance(given, Grant) else given
        limited = self._is_limited(tenant, queues)
        if not wait_ms:
            return None
        if len(self.line) >= engine.kernel.caps.waiters:
            raise Overloaded(f"{engine.kernel.caps.waiters} claims are waiting", "wait_ms")
        # In line: not by a coroutine of its own, each of which costs an idle worker's job some time.
        future: Prompt[Lease | Grant | None] = Prompt(loop=asyncio.get_running_loop())
        self._serial += 1
        deadline = engine.callers.elapsed_ms() + wait_ms
        waiter = Waiter(command, deadline, future, self._serial, limited, engine.kernel.now)
        self.line.join(waiter)
        for name in queues:
            self._watch_queue(tenant, name, True)
        engine.arm(self._until_token(tenant, queues, wait_ms))
        try:
            gained = await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                gained = future.result()
                if gained is not None:
                    self._take_back(gained, command)
            raise
        finally:
            if not waiter.served:  # else whoever has served it sees to that
                self._leave(waiter)
        return await self._delivered(gained, command) if isinstance(gained, Grant) else gained

    # -- what is given -----------------------------------------------------------------------------

    def _given(self, record: LeaseRecord) -> Lease | Grant:
        """What a claim was given, as it is now; the bytes may come later."""
        engine = self._engine
        keeper, payloads = engine.keeper, engine.payloads
        if keeper is None:
            return lease_at_once(engine.kernel, record, payloads.everything)
        grant = grant_of(engine.kernel, record)
        grant.position = keeper.last
        grant.rests_on = keeper.safety.rest_of(record)
        chunks = chunks_of(grant)
        grant.chunks = payloads.at_hand(chunks)
        if grant.chunks is None:
            payloads.hold(chunks)
        payloads.ahead(read.chunks_behind(record.runs[-1], WINDOW))
        return grant

    async def _delivered(self, given: Grant, claim: c.Claim) -> Lease:
        """The lease, when what it rests on is safe and its payloads are here."""
        keeper, payloads = self._engine.keeper, self._engine.payloads
        assert keeper is not None
        wanted = chunks_of(given) if given.chunks is None else []
        try:
            await keeper.safe(given.rests_on[1], given.rests_on[0])
            await keeper.safe(WRITTEN, given.position)
            chunks = given.chunks
            return lease_of(given, await payloads.fetch(wanted) if chunks is None else chunks)
        except BaseException as error:
            # Whatever it is: who claimed it has nothing, and would not run it.
            self._give_back(claim)
            if isinstance(error, (JournalError, KeyError)):
                raise Unavailable(f"a payload cannot be read: {error}") from error
            raise
        finally:
            payloads.release(wanted)

    def _give_back(self, claim: c.Claim) -> None:
        """Whoever was to have these jobs is gone."""
        if self._engine.over is None:
            self._engine.apply(c.Release(claim.tenant, claim.token))

    # -- in line -----------------------------------------------------------------------------------

    def _take_back(self, given: Lease | Grant, claim: c.Claim) -> None:
        """It was handed over to somebody who is gone."""
        if isinstance(given, Grant) and given.chunks is None:
            self._engine.payloads.release(chunks_of(given))
        self._give_back(claim)

    def serve(self) -> None:
        """Hand what became ready to those who wait, in the order in which they came."""
        engine = self._engine
        kernel = engine.kernel
        while kernel.stirred:
            queue = next(iter(kernel.stirred))
            del kernel.stirred[queue]
            spot = (queue.tenant.name, queue.name)
            while (waiter := self.line.first(spot)) is not None:
                if waiter.served or waiter.future.done():
                    self._leave(waiter)
                    continue
                record = engine.serve(waiter.claim)
                if kernel.events:
                    engine.telling.take()
                if record is None:
                    waiter.limited = waiter.limited or self._is_limited(
                        waiter.tenant, waiter.queues
                    )
                    engine.arm(self._until_token(waiter.tenant, waiter.queues, FAR))
                    break
                waiter.served = True
                self.served.append((waiter, self._given(record)))
                if not queue.counts[READY]:
                    break  # there is nothing for the next one

    def foretell(
        self,
        tenant: str,
        queue: str,
        payload: bytes,
        options: tuple[JobOptions, ...],
        number: Number,
    ) -> Instant | None:
        """Tell the first in line of one plain job that is about to be pushed, if it is sure to get
        it: an idle worker has it before everything is written down that makes it so. Answers the
        instant at which that was said, and at which the push has to be made then; None: nothing
        was said."""
        waiter = self.line.first((tenant, queue))
        if waiter is None or waiter.served:
            return None
        future = waiter.future
        if future.ahead is None or future.done():
            return None
        engine, claim = self._engine, waiter.claim
        if engine.over is not None:
            return None  # and the push is refused
        now, elapsed = instant = engine.clock.instant()
        if elapsed > engine.heard_until:
            return None  # what time it is for a lease, the push finds out
        job_id = passing(engine.kernel, claim, queue, options[0], number, now, elapsed)
        if not job_id:
            return None
        lease_ms = claim.lease_ms or options[0].lease_ms or LEASE_MS
        single = Single(claim.token, queue, now + lease_ms, job_id, payload, options, now)
        if not future.ahead(single):
            return None
        waiter.foretold = single
        return instant

    def eat_words(self, tenant: str, queue: str) -> None:
        """What was foretold there has not come true. Whoever was told waits for nothing any more, and
        has a lease that is nobody's: its ack is refused."""
        for waiter in self.line.at((tenant, queue)):
            if waiter.foretold is not None:
                waiter.foretold = None
                self._leave(waiter)
                if not waiter.future.done():
                    waiter.future.set_exception(Unavailable("a job was told of that is not there"))

    def hand_over(self) -> None:
        """Those who were served hear of it: one alone at once, several in the next turn. They leave
        the line when it is on its way: an idle worker waits for nothing but its job. One that goes
        on at once may do so as somebody who waits no more, and may wait again."""
        served, self.served = self.served, []
        if len(served) == 1:
            ((waiter, given),) = served
            future = waiter.future
            if waiter.foretold is not None:
                if given != waiter.foretold.lease():
                    self.eat_words(waiter.tenant, given.queue)
                    self._take_back(given, waiter.claim)
                    raise RuntimeError("a job does not come as it was foretold")
            elif future.ahead is not None:
                future.ahead(given)
            self._leave(waiter)
            if not settle(future, given):
                self._take_back(given, waiter.claim)
        else:
            for waiter, given in served:
                self._leave(waiter)
                if not tell(waiter.future, given):
                    self._take_back(given, waiter.claim)
        for waiter, _ in served:
            # Who has left is found by the deadline, and jobs would be kept by it.
            del waiter.future
            waiter.foretold = None

    def lapse(self, elapsed: int) -> None:
        """Those who have waited as long as they wanted get their answer."""
        for waiter in self.line.lapsed(elapsed):
            if not waiter.future.done():
                waiter.future.set_result(None)

    def waiting(self, tenant: str, limit: int) -> WaitingClaims:
        """Those of a tenant that wait, but for whom nothing has come, and whose time is not over."""
        engine = self._engine
        engine.look()
        self.serve_metered()
        self.lapse(engine.callers.elapsed_ms())
        waiting = (
            WaitingClaim(
                worker=waiter.claim.worker,
                queues=tuple(waiter.queues),
                n=waiter.claim.n,
                since=waiter.since,
            )
            for waiter in self.line
            if waiter.tenant == tenant and not waiter.served and not waiter.future.done()
        )
        claims = tuple(islice(waiting, limit))
        return WaitingClaims(claims, next(waiting, None) is None)

    def end(self, error: Exception) -> None:
        for waiter in self.line:
            if not waiter.future.done():
                waiter.future.set_exception(error)

    def watch_again(self) -> None:
        """The kernel is another one, and knows nothing of those who wait."""
        for waiter in self.line:
            for name in waiter.queues:
                self._watch_queue(waiter.tenant, name, True)

    def _watch_queue(self, tenant: str, name: str, watched: bool) -> None:
        kernel = self._engine.kernel
        if watched:
            kernel.watching[tenant, name] = None
        else:
            kernel.watching.pop((tenant, name), None)
        queue = self._queue(tenant, name)
        if queue is not None:
            queue.watched = watched

    def _leave(self, waiter: Waiter) -> None:
        for tenant, name in self.line.leave(waiter):
            self._watch_queue(tenant, name, False)

    def _queue(self, tenant: str, name: str) -> Queue | None:
        known = self._engine.kernel.tenants.get(tenant)
        return known.queues.get(name) if known is not None else None

    # -- rate limits let jobs pass as time goes by -------------------------------------------------

    def _is_limited(self, tenant: str, queues: Sequence[str]) -> bool:
        """Whether a rate is why a claim of these queues found nothing; counts it if so. Asked of
        claims that found nothing, and looked into only where there would have been something."""
        kernel = self._engine.kernel
        known = kernel.tenants.get(tenant)
        if known is None:
            return False
        for name in queues:
            queue = known.queues.get(name)
            if queue is not None and queue.counts[READY] and rate_limited(kernel, queue):
                self.limited += 1
                return True
        return False

    def serve_metered(self) -> None:
        kernel = self._engine.kernel
        kernel.stirred |= dict.fromkeys(self._metered())
        if kernel.stirred:
            self._engine.look()
            self.serve()
            self.hand_over()
            self._engine.telling.pass_on()

    def until_metered(self, elapsed: int) -> list[int]:
        """How long each queue that somebody waits at holds its next job back."""
        return [queue.meter.next_at(elapsed) - elapsed for queue in self._metered() if queue.meter]

    def _metered(self) -> Iterator[Queue]:
        """Queues with a rate limit that have jobs, and somebody who waits for one."""
        for tenant, name in self._engine.kernel.watching:
            queue = self._queue(tenant, name)
            if queue is not None and queue.meter is not None and queue.counts[READY]:
                yield queue

    def _until_token(self, tenant: str, queues: Sequence[str], wait_ms: int) -> int:
        """How long a waiting claim may have to wait at most for a rate limit to let it go on."""
        elapsed = self._engine.clock.elapsed_ms()
        for name in queues:
            queue = self._queue(tenant, name)
            if queue is not None and queue.meter is not None:
                wait_ms = min(wait_ms, queue.meter.next_at(elapsed) - elapsed)
        return wait_ms
