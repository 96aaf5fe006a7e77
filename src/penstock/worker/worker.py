"""The worker as a whole: everything is wired together here, and lives and ends here.

Two threads. The app's home thread claims, extends, acks and decides; no handler ever runs there, so
none can keep it from extending a lease, telling an end, or letting the worker stop. Handlers run on
the loop that called `run`, in threads or in processes, and never speak to the store. Between them go
lists of work, so that crossing over costs little per job.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from difflib import get_close_matches
from typing import Any, Final

from penstock.client.app import Penstock
from penstock.client.task import Task
from penstock.cron.scheduler import Scheduler
from penstock.model.duration import say_ms
from penstock.model.errors import Invalid
from penstock.model.store import Store
from penstock.worker.acking import Acker
from penstock.worker.claiming import Claimer
from penstock.worker.contexts import Contexts
from penstock.worker.counts import Counts
from penstock.worker.dispatch import Dispatch, Pool
from penstock.worker.front import Front
from penstock.worker.heartbeat import Heartbeat
from penstock.worker.held import Held
from penstock.worker.limits import LOOK_S, rss_mb
from penstock.worker.owned import Owned
from penstock.worker.parking import Parking
from penstock.worker.pools.async_ import AsyncPool
from penstock.worker.pools.processes import ProcessPool
from penstock.worker.pools.threads import ThreadPool
from penstock.worker.pulse import Pulse
from penstock.worker.reaching import reached
from penstock.worker.reporting import Reports
from penstock.worker.settings import WorkerSettings

log: Final = logging.getLogger("penstock.worker")

# Of the time that is left at the end, the last quarter, but no more than this, is for handlers that
# are stopped to come to their end, and a quarter of that for the process to do so.
STOP_S: Final = 2.0
TIDY_S: Final = 0.1  # that they have in any case
LAST_S: Final = 1.0  # for the last words to the store, if it answers late


class Worker:
    """Made on any thread; `run` until `stop`, a signal to the process, or a limit."""

    def __init__(
        self,
        app: Penstock,
        settings: WorkerSettings | None = None,
        *,
        alone: bool = False,
        supervised: bool = False,
    ) -> None:
        """`alone`: nothing but handlers runs on the loop that `run` is called on."""
        self.app = app
        self.alone = alone
        self.supervised = supervised  # as long as a parent lives, which counts the signals
        self.settings = settings or WorkerSettings()
        self.counts = Counts()
        self.queues = self.settings.queues or dict.fromkeys(app.queues, 1)
        if not self.queues:
            raise Invalid("the app has no tasks, so there is no queue to work on", "queues")
        if self.settings.pool == "process" and not self.settings.where:
            raise Invalid("a pool of processes needs to be told where the app is", "where")
        self.outlived = False  # set when it ends because it reached a limit
        self.abandoned = False  # set when it ends without handlers that do not stop
        self.ended = threading.Event()  # nothing more is heard of it
        self.thread = 0  # of asynchronous handlers
        self.told = False  # to end
        self.insisted = False  # to end at once
        # Wakes the home thread. Signals come at any instant, so it takes no lock.
        self._hear: Callable[[], object] | None = None

    async def run(self) -> Counts:
        """Work until told to stop. Asynchronous handlers run on the loop that this is called on."""
        home = self.app.home
        self.thread = threading.get_ident()
        living = asyncio.run_coroutine_threadsafe(self._live(asyncio.get_running_loop()), home.loop)
        ended = asyncio.wrap_future(living)
        if self.alone:  # whoever cancels this is a handler, and means everything on its loop
            await self._unmoved(ended)
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            self.end(at_once=True)  # whoever cancels does not want to wait for handlers
            with suppress(asyncio.CancelledError):
                await ended
            raise
        return self.counts

    async def _unmoved(self, ended: "asyncio.Future[None]") -> None:
        told = False
        while not ended.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([ended])
                continue
            if not told:
                log.error("a handler cancelled what the worker waits in: it goes on")
            told = True

    def stop(self) -> None:
        """Finish what runs, give back the rest; called again: at once. From any thread."""
        self.end(at_once=self.told)

    def end(self, *, at_once: bool = False) -> None:
        """The same, for those who know whether it was said before: it may be said by many, and often."""
        self.told = True
        if at_once:
            self.insisted = True
        hear = self._hear
        if hear is not None:
            with suppress(RuntimeError):  # that loop has ended, and the worker with it
                hear()

    # -- on the home thread ----------------------------------------------------------------------

    async def _live(self, handlers: asyncio.AbstractEventLoop) -> None:
        loop, told = asyncio.get_running_loop(), asyncio.Event()
        self._hear = lambda: loop.call_soon_threadsafe(told.set)
        try:
            with self.app.home.worked():
                store = None if self.told else await reached(self.app, told, alone=self.alone)
                if store is not None:
                    await self._work(_Life(self, store, handlers))
        finally:
            self._hear = None
            self.ended.set()

    async def _work(self, life: "_Life") -> None:
        loop = asyncio.get_running_loop()
        self._hear = lambda: loop.call_soon_threadsafe(life.hear)
        try:
            if not self.told:
                await life.work()
            await life.end()
        finally:
            await life.close()


class _Life:
    """One run of a worker, on the home thread."""

    def __init__(self, worker: Worker, store: Store, handlers: asyncio.AbstractEventLoop) -> None:
        app, settings = worker.app, worker.settings
        self._worker = worker
        self._store = store
        self._settings = settings
        self._name = settings.called()
        self._told = asyncio.Event()
        self._insisted = asyncio.Event()
        owned = self._owned = Owned()
        self._acker = Acker(store, app.tenant, self._name, worker.counts, owned, self._over)
        self._parking = Parking(store, app, worker.counts, owned, self._acker)
        self.dispatch = Dispatch(
            app,
            store,
            self._acker,
            self._pool_of,
            self._parking.park,
            slots=settings.slots,
            lease_ms=settings.lease_ms,
            most=settings.max_jobs,
            counts=worker.counts,
            owned=owned,
        )
        self._heartbeat = Heartbeat(store, app.tenant, self.dispatch.lost, owned)
        self._reports = Reports(store, app.tenant, self._heartbeat.beat, owned)
        contexts = Contexts(app, self._name, self._reports.say)
        home = asyncio.get_running_loop()
        self._loop_pool = AsyncPool(app, contexts, loop=handlers, home=home, ended=self._ended)
        self._threads = ThreadPool(app, contexts, home=home, ended=self._ended)
        self._processes = ProcessPool(
            app,
            settings.where,
            self._name,
            slots=settings.slots,
            max_rss_mb=settings.max_rss_mb,
            log=(settings.log_format, settings.log_level),
            owned=owned,
            ended=self._ended,
            say=self._reports.say,
        )
        self._claimer = Claimer(
            store,
            app.tenant,
            worker.queues,
            batches=_batches(app),
            lease_ms=settings.lease_ms,
            worker=self._name,
            room=self.dispatch.room,
            left=self.dispatch.left,
            take=self.dispatch.take,
            idle=self.dispatch.idle,
            front=self._front(handlers) if worker.alone else None,
        )
        self._pulse = Pulse(
            app,
            handlers,
            worker.thread,
            runs=self._loop_runs,
            begun=lambda: self._loop_pool.begun,
            stuck=self._stuck,
        )
        self.dispatch.keep = self._keep
        self.dispatch.wake = self._claimer.wake
        self.dispatch.settle = self._claimer.settle
        self._parking.claimer = self._claimer

    def _front(self, handlers: asyncio.AbstractEventLoop) -> Front | None:
        app, settings = self._worker.app, self._settings
        if settings.pool != "async" or not app.url.startswith("penstock"):
            return None
        return Front(
            app,
            handlers,
            self._loop_pool,
            settings.lease_ms,
            take=self.dispatch.take,
            adopt=self.dispatch.adopt,
            follow=settings.max_jobs is None,
        )

    def _pool_of(self, task: Task[..., Any, Any]) -> Pool:
        """Plain functions would hold up the loop, so they have threads beside it."""
        if self._settings.pool == "process":
            return self._processes
        if self._settings.pool == "async" and task.is_async:
            return self._loop_pool
        return self._threads

    def _keep(self, held: Held) -> None:
        self._heartbeat.keep(held)
        if self._settings.pool == "async":
            self._pulse.watch()

    def _loop_runs(self) -> bool:
        return any(self._pool_of(work.task) is self._loop_pool for work in self.dispatch.running)

    def _stuck(self, stuck: bool) -> None:
        """The handlers' loop does not answer any more, or again."""
        queues = {each.plan.queue for each in self._worker.app.tasks.values() if each.is_async}
        self._claimer.shun(frozenset(queues if stuck else ()))
        if stuck:
            self.dispatch.give_back_for(self._loop_pool, self._loop_pool.take_back())

    def _ended(self, works: list[Any]) -> None:
        self._reports.listen()
        for work in works:
            self._reports.last_words(work)
        self.dispatch.ended(works)

    def _over(self, held: Held) -> None:
        held.stop_timers()
        self._heartbeat.forget(held)

    def hear(self) -> None:
        self._told.set()
        if self._worker.insisted:
            self._insisted.set()

    async def work(self) -> None:
        log.info(
            "%s works on %s",
            self._name,
            ", ".join(self._worker.queues),
            extra={
                "worker": self._name,
                "queues": list(self._worker.queues),
                "tasks": sorted(self._worker.app.tasks),
            },
        )
        for queue in self._worker.queues:
            self._wonder(queue)
        if self._settings.pool == "process":
            await self._processes.open()
        parts: list[Coroutine[Any, Any, Any]] = [
            self._claimer.run(),
            self._limits(),
            self._told.wait(),
        ]
        if self._settings.cron:
            app = self._worker.app
            parts.append(Scheduler(self._store, [app.tenant], app.crons.values()).run())
        tasks = [asyncio.ensure_future(part) for part in parts]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.dispatch.stopping = True
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()

    def _wonder(self, queue: str) -> None:
        """A queue that no task is pushed to by itself may be one that `options(queue=…)` names, or a
        slip: nothing would ever come of that, and nobody would say so."""
        known = self._worker.app.queues
        if queue not in known:
            near = get_close_matches(queue, known, 1)
            log.warning(
                "no task of the app is on the queue %s%s; it is served all the same",
                queue,
                f", but on {near[0]} some are" if near else "",
                extra={"queue": queue},
            )

    async def _limits(self) -> None:
        """Until the process has done, or grown to, what it may."""
        most_mb = self._settings.max_rss_mb
        while not self.dispatch.enough:
            self.dispatch.claimed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(None if most_mb is None else LOOK_S):
                    await self.dispatch.claimed.wait()
            if most_mb is not None and (mb := rss_mb()) > most_mb:
                log.info("%s has grown to %.0f MB and is replaced", self._name, mb)
                break
        self._worker.outlived = True

    async def end(self) -> None:
        """What was not started goes back; what runs may finish, as long as there is time."""
        now, shutdown_s = asyncio.get_running_loop().time, self._settings.shutdown_s
        until, stop_s = now() + shutdown_s, min(STOP_S, shutdown_s / 4)
        self.dispatch.give_back_waiting()
        if self._worker.insisted:
            self._insisted.set()
        elif running := sum(len(work.ids) for work in self.dispatch.running):
            log.info(
                "%s waits up to %s for %s; a second signal%s ends it at once",
                self._name,
                say_ms(round(shutdown_s * 1_000)),
                "1 job that runs" if running == 1 else f"{running} jobs that run",
                " to its parent" if self._worker.supervised else "",
                extra={"worker": self._name},
            )
        await _first(self.dispatch.idle, self._insisted, shutdown_s - stop_s)
        if not self.dispatch.idle.is_set():
            self.dispatch.interrupt_all()
            left = until - stop_s / 4 - now()
            await _first(self.dispatch.idle, None, min(max(left, TIDY_S), STOP_S))
            self._worker.abandoned = self.dispatch.abandon()
        if not await self._told_all(until - now()):
            log.error("the store did not answer in time: the leases left will run out")

    async def _told_all(self, within_s: float) -> bool:
        """Whether the store has heard everything; there is less time for whoever insists."""
        telling = asyncio.ensure_future(self._owned.settled(max(within_s, LAST_S)))
        insisted = asyncio.ensure_future(self._insisted.wait())
        await asyncio.wait([telling, insisted], return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait([telling], timeout=LAST_S)
        insisted.cancel()
        telling.cancel()
        await asyncio.wait([telling, insisted])
        return not telling.cancelled() and telling.result()

    async def close(self) -> None:
        self._pulse.close()
        await self._owned.end()
        await self._threads.close()
        await self._processes.close()
        counts = self._worker.counts
        facts = {"worker": self._name, "counts": counts}
        log.info("%s ends: %s", self._name, counts, extra=facts)


async def _first(event: asyncio.Event, other: asyncio.Event | None, within_s: float) -> None:
    """Wait for one of two events."""
    waits = [asyncio.ensure_future(each.wait()) for each in (event, other) if each is not None]
    await asyncio.wait(waits, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    for each in waits:
        each.cancel()
    await asyncio.wait(waits)


def _batches(app: Penstock) -> dict[str, int]:
    """The largest batch that a task of each queue takes."""
    found: dict[str, int] = {}
    for task in app.tasks.values():
        if task.batch is not None:
            queue = task.plan.queue
            found[queue] = max(found.get(queue, 0), task.batch)
    return found
