"""A claim that waits on the handlers' own loop, while nothing runs there.

A job that comes to an idle worker then starts in the turn of the loop in which it arrives, and the
home thread hears of it afterwards: a change of threads less on the way from a push to its start.
While anything runs, claims wait on the home thread, where no handler can keep a lease from being
noticed; so this is for loops that run handlers and nothing else, and for servers. (A store on a path
or in memory is the home thread's: the way there is as long as the way back.)
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final

from penstock.client.app import Penstock
from penstock.model.errors import PenstockError
from penstock.model.job import Lease, jobs_of
from penstock.worker.held import LEASE_MS, Held, Work
from penstock.worker.needs import needy
from penstock.worker.pools.async_ import AsyncPool

LOOKS: Final = 6  # within the shortest lease


class Front:
    """Lives on the home thread, but for what says otherwise."""

    def __init__(
        self,
        app: Penstock,
        handlers: asyncio.AbstractEventLoop,
        pool: AsyncPool,
        lease_ms: int | None,
        *,
        take: Callable[[Lease], None],
        adopt: Callable[[Held, list[Work]], None],
    ) -> None:
        self._app = app
        self._handlers = handlers
        self._home = asyncio.get_running_loop()
        self._pool = pool
        self._lease_ms = lease_ms
        shortest = lease_ms or min(
            each.plan.job.lease_ms or LEASE_MS for each in app.tasks.values()
        )
        self._look_s = shortest / LOOKS / 1_000
        # What can be begun here; all others have a thread, a batch, or nobody that knows them.
        self._tasks = {
            name: task for name, task in app.tasks.items() if task.is_async and task.batch is None
        }
        self._take = take  # what has to be looked at first
        self._adopt = adopt  # what has begun

    async def claim(self, **said: Any) -> Lease | None:
        """A lease that was claimed and dealt with. Cancelled, it answers once it is known that
        nothing more will come of it."""
        there = _There(self._ask, said, self._tell)
        self._handlers.call_soon_threadsafe(there.begin)
        try:
            await self._heard(there)
        except asyncio.CancelledError:
            self._handlers.call_soon_threadsafe(there.cancel)
            await self._heard(there)
            raise
        if there.error is not None:
            raise there.error
        return there.lease

    async def _heard(self, there: "_There") -> None:
        """Until it has come to its end. A handler that was begun may hold up the loop before that
        could tell us: so we look, too."""
        while not there.heard.is_set():
            if there.found:
                self._hear(there)
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(self._look_s):
                    await there.heard.wait()

    def _hear(self, there: "_There") -> None:
        if there.heard.is_set():
            return
        there.heard.set()
        if there.begun:
            self._adopt(there.begun[0].held, there.begun)
        elif there.lease is not None:
            self._take(there.lease)

    # -- on the handlers' loop -------------------------------------------------------------------

    async def _ask(self, there: "_There") -> None:
        begun = None
        try:
            store = await self._app.home.store()
            there.lease = lease = await store.claim(self._app.tenant, **there.said)
            if lease is not None:
                there.begun = begun = self._works(lease)
        except PenstockError as error:
            there.error = error
        finally:
            there.found = True
            if begun is None:
                there.tell()
        if begun is not None:
            # In this task, in the turn in which they came. The home thread is told behind the first
            # step: it would want the interpreter at the very moment at which the handler does.
            await self._pool.run(begun, there.tell)

    def _tell(self, there: "_There") -> None:
        """At the end of this turn of the loop."""
        self._handlers.call_soon(self._home.call_soon_threadsafe, self._hear, there)

    def _works(self, lease: Lease) -> list[Work] | None:
        """The calls, if all of them can be made here and now."""
        held, tasks = Held(lease, self._lease_ms), self._tasks
        works: list[Work] = []
        for run in lease.runs:
            for job in jobs_of(run, lease.queue):
                task = tasks.get(job.options.task)
                if task is None:
                    return None
                work = Work(held, task, job)
                if job.depends_on and needy(work):
                    return None
                works.append(work)
        return works


class _There:
    """A claim on the handlers' loop, and what has come of it."""

    def __init__(
        self,
        ask: "Callable[[_There], Coroutine[Any, Any, None]]",
        said: Mapping[str, Any],
        tell: "Callable[[_There], None]",
    ) -> None:
        self._ask = ask
        self.said = said
        self._tell = tell
        self._task: asyncio.Task[None] | None = None
        self.found = False  # set when what follows is
        self.lease: Lease | None = None
        self.begun: list[Work] | None = None  # of that lease, all of it
        self.error: PenstockError | None = None
        self.heard = asyncio.Event()  # of the home thread: it knows

    def begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._ask(self))
        self._task.add_done_callback(self._over)

    def _over(self, _: "asyncio.Task[None]") -> None:
        """Cancelled before its first step, it takes none and tells nobody."""
        if not self.found:
            self.found = True
            self.tell()

    def tell(self) -> None:
        self._tell(self)

    def cancel(self) -> None:
        if self._task is not None and not self.found:
            self._task.cancel()
