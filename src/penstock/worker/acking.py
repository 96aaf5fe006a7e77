"""Tells the store how jobs ended: acks gathered per lease, failures and releases.

The first ack of a lease goes out at once; what ends while it is under way is told together when its
answer comes. So an idle worker never waits to fill a batch, and a busy one tells many jobs in one
call. A lease whose jobs all completed is acked whole, without naming any.

An ack whose answer was lost with the connection is repeated: the lease is alive, by the heartbeat,
for as long as it takes. A repeat that finds nothing held means that the first one was heard, or that
it came too late: `doubt.py` finds out which. One that is refused (`refusals.py`) is repeated for as
long as the lease is: extending it is refused as well, so by then it is over and others have the jobs.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence, Sized
from typing import Any, Final, TypeVar

from penstock.client.execute import (
    CANCELLED_ITSELF,
    DONE,
    BatchOutcome,
    Completed,
    Failed,
    Interrupted,
    Outcome,
)
from penstock.model.answers import Acked
from penstock.model.errors import (
    BatchTooLarge,
    Invalid,
    LeaseLost,
    PayloadTooLarge,
    PenstockError,
    Unavailable,
)
from penstock.model.job import Ids, Job, JobError
from penstock.model.lifecycle import State
from penstock.model.overdue import timed_out
from penstock.model.store import Store
from penstock.stores.again import Again
from penstock.worker.counts import Counts
from penstock.worker.doubt import Doubtful, Heard, ack_by, failure_by, hindsight, release_by
from penstock.worker.held import Held, Why, Work
from penstock.worker.owned import Owned
from penstock.worker.refusals import REFUSED, Refusals

T = TypeVar("T")

log: Final = logging.getLogger("penstock.worker")


class Acker:
    def __init__(
        self,
        store: Store,
        tenant: str,
        worker: str,
        counts: Counts,
        owned: Owned,
        over: Callable[[Held], None],
    ) -> None:
        self._store = store
        self._tenant = tenant
        self._worker = worker  # what the store knows us as
        self._counts = counts
        self._owned = owned
        self._over = over  # told when nothing about a lease is left to be told
        self._refusals = Refusals("the store refuses to hear how jobs ended")

    # -- what is decided -------------------------------------------------------------------------

    def ended(self, work: Work) -> None:
        """Note how it ended; `flush` then sends what can be told together."""
        held, outcome = work.held, work.outcome
        if outcome is DONE and work.why is None and len(work) == 1:  # nearly all are
            held.decided += 1
            held.done.append(work.job.id)
        elif work.why is Why.LOST:
            held.decided += len(work)
        elif work.why is Why.TIMEOUT:
            held.decided += len(work)
            held.telling += 1
            self._owned.start(self._time_out(work))
        elif isinstance(outcome, BatchOutcome):
            self._batch(work, outcome)
        else:
            held.decided += 1
            self._one(work, work.job.id, outcome)

    def _batch(self, work: Work, outcome: BatchOutcome) -> None:
        held = work.held
        held.decided += len(work)
        if outcome.all is not None:
            if isinstance(outcome.all, Completed):
                held.done += work.ids
            else:
                self._unfinished(work, work.ids, outcome.all)
            return
        each = outcome.each
        held.done += [job for place, job in enumerate(work.ids) if place not in each]
        for place, one in each.items():
            self._one(work, work.ids[place], one)

    def _one(self, work: Work, job_id: int, outcome: Outcome | None) -> None:
        if isinstance(outcome, Completed):
            work.held.done.append(job_id)
            if outcome.result is not None:
                work.held.results[job_id] = outcome.result
        else:
            self._unfinished(work, [job_id], outcome)

    def _unfinished(self, work: Work, ids: Sequence[int], outcome: Outcome | None) -> None:
        if work.why is Why.SHUTDOWN:
            self.release(work.held, ids)  # whatever it raised may be because it was stopped
        elif isinstance(outcome, Failed):
            self.fail(work.held, ids, outcome, work.task.name)
        else:
            assert isinstance(outcome, Interrupted)
            self.fail(work.held, ids, CANCELLED_ITSELF, work.task.name)

    # -- acks ------------------------------------------------------------------------------------

    def flush(self, held: Held) -> None:
        if held.done and not held.acking:
            held.acking = True
            held.telling += 1
            self._owned.start(self._acks(held))
        elif held.over:
            self._over(held)

    async def _acks(self, held: Held) -> None:
        try:
            while held.done:
                done, held.done = held.done, []
                results, held.results = held.results, {}
                await self._ack(held, done, results)
        finally:
            held.acking = False
            self.told(held)

    async def _ack(self, held: Held, ids: list[int], results: dict[int, bytes]) -> None:
        # Whole only where every job of the claim completed: a release of one of them might be
        # still on its way, or lost.
        whole = len(ids) == held.count
        try:
            acked = await self.repeated(
                lambda: self._store.ack(
                    self._tenant, held.token, None if whole else ids, results=results or None
                ),
                held.lease_s,
            )
        except Doubtful:
            heard = await self._heard(held, ids, ack_by(self._worker), "ack")
            acked = Acked(Ids.of(job.id for job in heard))
        except LeaseLost:
            acked = Acked(Ids(), Ids.of(ids))
        except REFUSED:
            self._unknown(ids, "ack")
            return
        except (Invalid, PayloadTooLarge, BatchTooLarge) as error:
            await self._too_large(held, ids, results, error)
            return
        self._counts.completed += len(acked.acked)
        if acked.lost:
            self.lost(acked.lost, _too_late("ack", acked.lost))

    async def _too_large(
        self, held: Held, ids: list[int], results: dict[int, bytes], error: PenstockError
    ) -> None:
        """A result is too large, or all of them together are: find out which."""
        if len(ids) == 1:
            failure = JobError(kind="ResultRefused", message=str(error))
            task = held.lease.job(ids[0]).options.task
            self.fail(held, ids, Failed(error=failure, dead=True), task)
            return
        middle = len(ids) // 2
        for half in (ids[:middle], ids[middle:]):
            await self._ack(held, half, {each: results[each] for each in half if each in results})

    # -- failures and releases -------------------------------------------------------------------

    def fail(self, held: Held, ids: Sequence[int], failed: Failed, task: str) -> None:
        held.telling += 1
        self._owned.start(self._fail(held, ids, failed, task))

    async def _fail(self, held: Held, ids: Sequence[int], failed: Failed, task: str) -> None:
        error = failed.error

        def note(job_id: int, state: State) -> None:
            facts = {"job": job_id, "task": task, "queue": held.lease.queue}
            self.note(state is State.DEAD, error, facts)

        try:
            told = await self.repeated(
                lambda: self._store.fail(
                    self._tenant,
                    held.token,
                    ids,
                    error=error,
                    retry_in_ms=failed.retry_in_ms,
                    dead=failed.dead,
                ),
                held.lease_s,
            )
        except Doubtful:
            heard = failure_by(self._worker, error.kind)
            for known in await self._heard(held, ids, heard, "failure"):
                self._counts.failed += 1
                note(known.id, known.state)
        except REFUSED:
            self._unknown(ids, "failure")
        except LeaseLost:
            self.lost(Ids.of(ids), _too_late("failure", ids))
        else:
            self._counts.failed += len(told.jobs)
            for job in told.jobs:
                note(job.id, job.state)
            if told.lost:
                self.lost(told.lost, _too_late("failure", told.lost))
        finally:
            self.told(held)

    async def _time_out(self, work: Work) -> None:
        """The store ends an attempt at its timeout by itself, and mostly has by now: for it, the job
        began before it did for us. It has not where it stood still meanwhile, which does not count
        there (docs/adr/0031). Then the job would be nobody's until its lease is over."""
        held, error = work.held, timed_out(work.job.options.timeout_ms or 0)
        try:
            await self.repeated(
                lambda: self._store.fail(self._tenant, held.token, work.ids, error=error),
                held.lease_s,
            )
        except (LeaseLost, *REFUSED):
            pass  # it has; or will, as it would have if we were gone
        finally:
            self.told(held)

    def note(self, dead: bool, error: JobError, facts: dict[str, Any]) -> None:
        """An attempt failed, and with it the job or not."""
        self._counts.dead += dead
        level, end = (logging.ERROR, "is dead") if dead else (logging.WARNING, "failed")
        what = (facts["job"], end, error.kind, error.message)
        log.log(level, "job %d %s: %s: %s", *what, extra=facts)

    def release(self, held: Held, ids: Sequence[int]) -> None:
        """Give jobs back unspent."""
        held.telling += 1
        self._owned.start(self._release(held, ids))

    async def _release(self, held: Held, ids: Sequence[int]) -> None:
        try:
            given = await self.repeated(
                lambda: self._store.release(self._tenant, held.token, ids), held.lease_s
            )
            self._counts.released += len(given.released)
        except Doubtful:
            heard = await self._heard(held, ids, release_by(self._worker), "release")
            self._counts.released += len(heard)
        except REFUSED:
            self._unknown(ids, "release")
        except LeaseLost:
            self.lost(Ids.of(ids), _too_late("release", ids))
        finally:
            self.told(held)

    def told(self, held: Held) -> None:
        held.telling -= 1
        if held.over:
            self._over(held)

    def lost(self, ids: Ids, why: str) -> None:
        self._counts.lost += len(ids)
        named = list(ids)
        log.warning(
            "%s not ended by this worker: %s. What is not cancelled runs again: %s",
            "1 job was" if len(named) == 1 else f"{len(named)} jobs were",
            why,
            named[:20],
            extra={"jobs": named[:100]},
        )

    # -- what nobody answers ---------------------------------------------------------------------

    async def _heard(self, held: Held, ids: Sequence[int], heard: Heard, what: str) -> list[Job]:
        """The jobs whose end was heard though nobody answered; the others are lost, or in doubt."""
        found = await hindsight(self._look, held, ids, heard)
        if found.heard:
            log.info("the %s had been heard", _of_jobs(what, found.heard))
        if found.lost:
            self.lost(Ids.of(found.lost), _too_late(what, found.lost))
        if found.unknown:
            self._unknown(found.unknown, what)
        return found.heard

    def _unknown(self, ids: Sequence[int], what: str) -> None:
        self._counts.doubtful += len(ids)
        log.warning(
            "whether the %s %s heard is not known: %s",
            _of_jobs(what, ids),
            "was" if len(ids) == 1 else "were",
            list(ids[:20]),
            extra={"jobs": list(ids[:100])},
        )

    async def _look(self, ids: Sequence[int]) -> Sequence[Job | None]:
        try:
            return await self.repeated(lambda: self._store.get(self._tenant, ids))
        except REFUSED:  # to whoever may only claim, or is not let in any more
            return [None] * len(ids)

    async def repeated(self, call: Callable[[], Awaitable[T]], refused_s: float = 0.0) -> T:
        """What the call answers, made again for as long as nobody answers, and for `refused_s` in
        which the answer is that we may not. Raises Doubtful where the store takes it for something
        that it may have heard before."""
        now = asyncio.get_running_loop().time
        again, doubt, said, refused_at = Again(now), False, "", None
        while True:
            again.begin()
            try:
                answer = await call()
            except LeaseLost as error:
                if doubt:
                    raise Doubtful(error.message, error.field) from error
                raise
            except (Invalid, PayloadTooLarge, BatchTooLarge):
                raise
            except REFUSED as error:
                if refused_at is None:
                    refused_at = now()
                if now() - refused_at >= refused_s:
                    raise
                self._refusals.say(error)
            except PenstockError as error:
                refused_at = None
                doubt = doubt or isinstance(error, Unavailable)  # the others changed nothing
                if said != error.code:
                    said = error.code
                    log.warning("the store does not answer, and is asked again: %s", error)
            else:
                if refused_s:
                    self._refusals.over()
                return answer
            await asyncio.sleep(again.pause_s())


def _of_jobs(what: str, jobs: Sized) -> str:
    return f"{what} of 1 job" if len(jobs) == 1 else f"{what}s of {len(jobs)} jobs"


def _too_late(what: str, jobs: Sized) -> str:
    return f"its {what} came too late" if len(jobs) == 1 else f"their {what}s came too late"
