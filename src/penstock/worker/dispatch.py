"""From a lease to calls of handlers and back: who runs, who waits for a slot, who is stopped.

Lives on the home thread and runs no handler. Pools are given work and answer with the same work and
its outcome; they are told to stop what has lost its meaning.

Claimed and not started is only what will start within milliseconds at the present pace: enough that
handlers never wait for a claim, and nothing that an idle worker elsewhere could be doing.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, Final, Protocol

from penstock.client.app import Penstock
from penstock.client.execute import INTERRUPTED
from penstock.client.task import Task
from penstock.model.errors import PenstockError
from penstock.model.job import MAX_BATCH, ClaimedRun, Job, Lease
from penstock.model.overdue import timed_out
from penstock.model.store import Store
from penstock.worker.acking import Acker
from penstock.worker.counts import Counts
from penstock.worker.held import BatchWork, Held, Why, Work, facts_of
from penstock.worker.needs import needy, supply, with_holes
from penstock.worker.owned import Owned

log: Final = logging.getLogger("penstock.worker")

AHEAD_S: Final = 0.02  # what will have started by then may be claimed now
PACE_S: Final = 0.05  # over which the pace is measured
STOPS_S: Final = 5.0  # in which a handler ends that is stopped, or it is told of

AnyTask = Task[..., Any, Any]


class Pool(Protocol):
    """Where handlers run. It is called on the home thread, and calls back there."""

    def start(self, works: list[Work]) -> None:
        """Run them all, now: there is a slot for each."""

    def interrupt(self, work: Work) -> None:
        """Stop it, as well as that can be done; it still ends by coming back."""

    async def close(self) -> None:
        """Nothing will be started any more; what is left running is left behind."""


class Pace:
    """How many calls end in a second, as of late."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since = now()
        self._ended = 0
        self._rate = 0.0

    def count(self, ended: int) -> None:
        self._ended += ended

    def within(self, seconds: float) -> int:
        now = self._now()
        passed = now - self._since
        if passed >= PACE_S:
            self._rate = self._ended / passed
            self._since, self._ended = now, 0
        return int(self._rate * seconds)


class Dispatch:
    def __init__(
        self,
        app: Penstock,
        store: Store,
        acker: Acker,
        pools: Callable[[AnyTask], Pool],
        park: Callable[[Held, list[Job]], None],
        *,
        slots: int,
        lease_ms: int | None,
        most: int | None,
        counts: Counts,
        owned: Owned,
    ) -> None:
        self._app = app
        self._store = store
        self._acker = acker
        self._pool_of = pools
        self._park = park
        self._slots = slots
        self._lease_ms = lease_ms
        self._most = most  # jobs that may be claimed in all
        self._counts = counts
        self._owned = owned
        self._loop = asyncio.get_running_loop()
        self._pace = Pace(self._loop.time)
        self._waiting: deque[Work] = deque()
        self.running: set[Work] = set()
        self.idle = asyncio.Event()  # nothing runs
        self.idle.set()
        self.claimed = asyncio.Event()  # something was
        self.stopping = False  # nothing is started any more
        self.keep: Callable[[Held], None]  # set when everything is wired together
        self.wake: Callable[[], None]
        self.settle: Callable[[], None]

    # -- taking in -------------------------------------------------------------------------------

    @property
    def enough(self) -> bool:
        """Whether as many jobs were claimed as ever may be."""
        return self.left() <= 0

    def room(self) -> int:
        """How many more calls of handlers to take in."""
        ahead = min(self._pace.within(AHEAD_S), self._slots)
        return self._slots - len(self.running) + ahead - len(self._waiting)

    def left(self) -> int:
        """How many jobs may be claimed before the process has to be replaced."""
        return MAX_BATCH if self._most is None else self._most - self._counts.claimed

    def take(self, lease: Lease) -> None:
        """Begin with what there are slots for; the rest waits."""
        held = Held(lease, self._lease_ms)
        self._keep(held)
        unknown: list[Job] = []
        if self._batched(lease):
            self._take_batches(held, unknown)
        else:
            self._take_jobs(held, lease.jobs, unknown)
        if unknown:
            held.decided += len(unknown)
            self._park(held, unknown)
        self._start()

    def adopt(self, held: Held, works: list[Work]) -> None:
        """Jobs that have begun already, all of them."""
        held.works.update(works)
        self._keep(held)
        self.running.update(works)
        self.idle.clear()

    def _keep(self, held: Held) -> None:
        self._counts.claimed += held.count
        self.claimed.set()
        self.keep(held)
        self._watch_timeouts(held)
        if log.isEnabledFor(logging.DEBUG):
            queue = held.lease.queue
            facts = {"queue": queue, "count": held.count}
            log.debug("claimed %d jobs of %s", held.count, queue, extra=facts)

    def _batched(self, lease: Lease) -> bool:
        names = {each.task for run in lease.runs for each in run.options}
        tasks = self._app.tasks
        return any(name in tasks and tasks[name].batch is not None for name in names)

    def _take_jobs(self, held: Held, jobs: Iterable[Job], unknown: list[Job]) -> None:
        tasks, add, wait = self._app.tasks, held.works.add, self._waiting.append
        options, task = None, None
        for job in jobs:
            if job.options is not options:  # jobs that were pushed together share them
                options = job.options
                task = tasks.get(options.task)
            if task is None:
                unknown.append(job)
            else:
                work = Work(held, task, job)
                add(work)
                wait(work)

    def _take_batches(self, held: Held, unknown: list[Job]) -> None:
        """Jobs of one batch task run together, those of other tasks by themselves."""
        gathered: dict[tuple[str, str], tuple[list[int], list[bytes]]] = {}
        alone: list[int] = []
        tasks = self._app.tasks
        for run in held.lease.runs:
            for option, ids, payloads in _alike(run):
                options = run.options[option]
                task = tasks.get(options.task)
                if task is None or task.batch is None:
                    alone += ids
                else:
                    place = gathered.setdefault((options.task, options.codec), ([], []))
                    place[0].extend(ids)
                    place[1].extend(payloads)
        holes = with_holes(held.lease)
        for (name, _), (ids, payloads) in gathered.items():
            task = tasks[name]
            assert task.batch is not None
            for begin, end in _portions(ids, task.batch, holes):
                first = held.lease.job(ids[begin])
                work = BatchWork(
                    held, task, first, ids=ids[begin:end], payloads=payloads[begin:end]
                )
                held.works.add(work)
                self._waiting.append(work)
        if alone:
            named = set(alone)
            jobs = [job for job in held.lease.jobs if job.id in named]
            self._take_jobs(held, jobs, unknown)

    def _watch_timeouts(self, held: Held) -> None:
        """The store fails an attempt at its timeout; its handler is stopped then. One timer for
        all jobs of the lease that have the same."""
        limits = {each.timeout_ms for run in held.lease.runs for each in run.options}
        for limit in limits - {None}:
            assert limit is not None
            held.timers.append(self._loop.call_later(limit / 1_000, self._timed_out, held, limit))

    def _timed_out(self, held: Held, limit: int) -> None:
        for work in list(held.works):
            if work.why is None and work.job.options.timeout_ms == limit:
                self._counts.timed_out += len(work)
                for job in work.jobs():
                    self._note_timeout(job)
                self._stop(work, Why.TIMEOUT)

    def _note_timeout(self, job: Job) -> None:
        """The store tells nobody; but whether another attempt is left was said with the job."""
        options = job.options
        dead = bool(options.max_attempts) and job.attempt >= options.max_attempts
        self._acker.note(dead, timed_out(options.timeout_ms or 0), facts_of(job))

    # -- running ---------------------------------------------------------------------------------

    def _start(self) -> None:
        waiting, running = self._waiting, self.running
        ready: dict[int, tuple[Pool, list[Work]]] = {}
        while waiting and len(running) < self._slots and not self.stopping:
            work = waiting.popleft()
            running.add(work)
            if needy(work):
                self._owned.start(self._supply(work))
                continue
            pool = self._pool_of(work.task)
            ready.setdefault(id(pool), (pool, []))[1].append(work)
        if running:
            self.idle.clear()
        for pool, works in ready.values():
            pool.start(works)

    async def _supply(self, work: Work) -> None:
        tenant = self._app.tenant
        try:
            work.outcome = await self._acker.repeated(lambda: supply(self._store, tenant, work))
        except PenstockError as error:  # not for us to see: no reason to hold the slot for ever
            work.broke(error)
        if work.outcome is None and work.why is None:
            self._pool_of(work.task).start([work])
            return
        if work.outcome is None:
            work.outcome = INTERRUPTED
        self.ended([work])

    def ended(self, works: list[Work]) -> None:
        """Hear from a pool how its work ended."""
        running, note = self.running, self._acker.ended
        touched: dict[Held, None] = {}
        for work in works:
            if work not in running and work.outcome is not None:
                continue  # given up before it came to its end
            running.discard(work)
            held = work.held
            held.works.discard(work)
            touched[held] = None
            note(work)
        self._pace.count(len(works))
        for held in touched:
            self._acker.flush(held)
        self._start()
        if not running:
            self.idle.set()
            self.settle()
        self.wake()

    # -- stopping --------------------------------------------------------------------------------

    def lost(self, held: Held, ids: Iterable[int] | None) -> None:
        """Jobs were taken away: all of a lease, or those that are named."""
        gone = None if ids is None else set(ids)
        for work in list(held.works):
            if work.why is None and (gone is None or gone.issuperset(work.ids)):
                self._counts.lost += len(work)
                for job in work.jobs():
                    log.warning("job %d was taken away", job.id, extra=facts_of(job))
                self._stop(work, Why.LOST)

    def _stop(self, work: Work, why: Why) -> None:
        if work.why is not None:
            return
        work.why = why
        if work in self.running:
            self._pool_of(work.task).interrupt(work)
            if why is not Why.SHUTDOWN:  # else the end tells of it
                self._loop.call_later(STOPS_S, self._look_after, work)
        else:
            self._waiting.remove(work)
            self.ended([work])

    def _look_after(self, work: Work) -> None:
        """Its handler should have stopped by now. One in a thread that waits in C does not: its slot
        is gone until it does, and whoever looks for why nothing runs has to be told."""
        if work not in self.running or self.stopping:
            return
        kept = sum(each.why is not None for each in self.running)
        for job in work.jobs():
            log.warning(
                "job %d was stopped %.0f s ago, and its handler does not end: %d of %d slots are kept so",
                *(job.id, STOPS_S, kept, self._slots),
                extra=facts_of(job),
            )

    def give_back_waiting(self) -> None:
        """What has not been started goes back at once."""
        self.stopping = True
        waiting, self._waiting = list(self._waiting), deque()
        self._give_back(waiting)

    def give_back_for(self, pool: Pool, unbegun: list[Work]) -> None:
        """The same for one pool that cannot begin with anything for a while, nor with what it has."""
        waiting, self._waiting = self._waiting, deque()
        for work in waiting:
            (unbegun if self._pool_of(work.task) is pool else self._waiting).append(work)
        self._give_back(unbegun)
        self._start()
        if not self.running:
            self.idle.set()

    def _give_back(self, works: list[Work]) -> None:
        by_lease: dict[Held, list[int]] = {}
        for work in works:
            self.running.discard(work)
            by_lease.setdefault(work.held, []).extend(work.ids)
            work.held.works.discard(work)
        for held, ids in by_lease.items():
            held.decided += len(ids)
            self._acker.release(held, ids)

    def interrupt_all(self) -> None:
        for work in list(self.running):
            self._stop(work, Why.SHUTDOWN)

    def abandon(self) -> bool:
        """Give back what cannot be stopped: it runs on, and nobody will hear how it ends. Answers
        whether there is any."""
        left = list(self.running)
        for work in left:
            for job in work.jobs():
                log.warning("job %d does not stop", job.id, extra=facts_of(job))
            self.running.discard(work)
            work.held.works.discard(work)
            work.held.decided += len(work)
            if work.why is Why.SHUTDOWN:
                self._acker.release(work.held, work.ids)
        self.idle.set()
        return bool(left)


def _alike(run: ClaimedRun) -> Iterable[tuple[int, list[int], list[bytes]]]:
    """The jobs of a run by their options: which, ids and payloads."""
    data, ends = run.data, run.ends
    ids = list(run.ids)
    payloads = [data[begin:end] for begin, end in zip(chain((0,), ends), ends, strict=False)]
    if run.option_of is None:
        yield 0, ids, payloads
        return
    for option in set(run.option_of):
        places = [place for place, each in enumerate(run.option_of) if each == option]
        yield option, [ids[place] for place in places], [payloads[place] for place in places]


def _portions(ids: list[int], size: int, alone: frozenset[int]) -> Iterable[tuple[int, int]]:
    """From where to where each batch goes: up to `size` jobs, those in `alone` by themselves."""
    begin = 0
    if alone:
        for place, job_id in enumerate(ids):
            if job_id in alone:
                yield from _portions_of(begin, place, size)
                yield place, place + 1
                begin = place + 1
    yield from _portions_of(begin, len(ids), size)


def _portions_of(begin: int, end: int, size: int) -> Iterable[tuple[int, int]]:
    return ((at, min(at + size, end)) for at in range(begin, end, size))
