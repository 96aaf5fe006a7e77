"""A claim that waits on the handlers' own loop, while nothing runs there.

A job that comes to an idle worker then starts in the turn of the loop in which it arrives, and the
home thread hears of it afterwards: a change of threads less on the way from a push to its start.
While anything runs, claims wait on the home thread, where no handler can keep a lease from being
noticed; so this is for loops that run handlers and nothing else, and for servers. (A store on a path
or in memory is the home thread's: the way there is as long as the way back.)

Where one job came and was over in its first step, nothing runs again: the next claim follows from
here, and the home thread, which tells the end of that job meanwhile, is not waited for. It would wake
this thread once more for that, on the core that it has, while whoever pushes next is on another: to
wake a core that sleeps takes longer than a job's whole way.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Final

from penstock.client.app import Penstock
from penstock.client.execute import Outcome, broken
from penstock.model.errors import PenstockError
from penstock.model.job import Lease, jobs_of
from penstock.protocol.runs import Single
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
        follow: bool = True,
    ) -> None:
        """`follow`: whether a claim may follow another before the home thread has counted its jobs."""
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
        # Of those, what nobody looks at but its handler.
        self._unseen = {
            name: task for name, task in self._tasks.items() if task.unseen and not app.middleware
        }
        self._run_unseen = app.executor.run_unseen
        self._take = take  # what has to be looked at first
        self._adopt = adopt  # what has begun
        self._follow = follow

    async def claim(
        self, served: "Callable[[Lease], Sequence[str]] | None" = None, /, **said: Any
    ) -> Lease | None:
        """The last of some leases that were claimed one after the other and dealt with; of each one
        before it `served` is told, and says the order of the queues from then on. Cancelled, it
        answers once it is known that nothing more will come of it."""
        there = _There(self, said)
        self._handlers.call_soon_threadsafe(there.begin)
        cancelled: asyncio.CancelledError | None = None
        while True:
            try:
                await self._heard(there)
            except asyncio.CancelledError as error:
                if cancelled is not None:
                    raise
                cancelled = error
                self._handlers.call_soon_threadsafe(there.cancel)
                continue
            if there.next is None:
                break
            assert there.lease is not None
            if served is not None:
                said["queues"] = served(there.lease)
            there = there.next
        if cancelled is not None:
            raise cancelled
        if there.error is not None:
            raise there.error
        return there.lease

    async def _heard(self, there: "_There") -> None:
        """Until it has come to its end. A handler that was begun may hold up the loop before that
        could tell us: so we look, too."""
        while not there.heard.is_set():
            if there.found:
                there.close()
                self._hear(there)
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(self._look_s):
                    await there.heard.wait()

    def _hear(self, there: "_There") -> None:
        if there.heard.is_set():
            return
        there.heard.set()
        if begun := there.made():
            if there.left is not None:
                self._pool.lend(there.left)
            self._adopt(begun[0].held, begun)
        elif there.lease is not None:
            self._take(there.lease)

    # -- on the handlers' loop -------------------------------------------------------------------

    async def ask(self, there: "_There") -> None:
        call = begun = None
        try:
            store = await self._app.home.store()
            claim = getattr(store, "claim_bare", store.claim)  # which servers' stores have
            given: Lease | Single | None = await claim(self._app.tenant, **there.said)
            if type(given) is Single and (call := self._alone(given)) is not None:
                there.single = given
            elif given is not None:
                there.lease = lease = given.lease() if isinstance(given, Single) else given
                there.begun = begun = self.works(lease)
        except PenstockError as error:
            there.error = error
        finally:
            there.found = True
            if call is None and begun is None:
                self.tell(there)
        # In this task, in the turn in which they came. The home thread is told behind the first step:
        # it would want the interpreter at the very moment at which the handler does.
        if call is not None:
            context = copy_context()
            awaited, outcome = None, None
            try:
                awaited = context.run(call.send, None)
            except StopIteration as done:
                outcome = done.value
            except GeneratorExit:  # the loop has ended, and there is nobody to tell
                raise
            except BaseException as error:  # noqa: BLE001 - not the handler's: ours, or beside it
                outcome = broken(error)
            await self._pool.go_on(there.begun_alone(outcome), call, awaited, context)
        elif begun is not None:
            there.left = deque(begun)
            await self._pool.run(there.left, partial(self.tell, there))

    def _alone(self, job: Single) -> Coroutine[Any, Any, Outcome] | None:
        """The call, not begun, of one plain job, if it can be made here and now."""
        options = job.options[0]
        task = self._unseen.get(options.task)
        return None if task is None else self._run_unseen(task, options.codec, job.payload)

    def tell(self, there: "_There") -> None:
        """At the end of this turn of the loop; and go on, where nothing is left to be done."""
        self._handlers.call_soon(self._home.call_soon_threadsafe, self._hear, there)
        begun = there.begun
        if self._follow and begun is not None and len(begun) == 1 and begun[0].outcome is not None:
            after = _There(self, there.said)
            if there.lead_to(after):
                self._handlers.call_soon(after.begin)

    def tell_of(self, there: "_There") -> None:
        """The same of one that has ended its first step, before its end is told."""
        self._pool.tell_first(partial(self.tell, there))

    def works(self, lease: Lease) -> list[Work] | None:
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
    """A claim on the handlers' loop, and what has come of it. Lives there, but for what says
    otherwise."""

    def __init__(self, front: Front, said: dict[str, Any]) -> None:
        self._front = front
        # Shared by those that follow each other. The home thread says in which order queues are next.
        self.said = said
        self._task: asyncio.Task[None] | None = None
        self._cancelled = False
        self.found = False  # set when what follows is
        self.single: Single | None = None  # of which lease and works are made when somebody asks
        self.lease: Lease | None = None
        self.begun: list[Work] | None = None  # of that lease, all of it …
        self.left: deque[Work] | None = None  # … and what of it has not begun; unset of a single
        self.error: PenstockError | None = None
        self.heard = asyncio.Event()  # of the home thread: it knows
        self._deciding = threading.Lock()
        self._closed = False  # the home thread waits for none that would follow
        self.next: _There | None = None  # which has followed, before the home thread is told

    def begin(self) -> None:
        if self._cancelled:
            self._over()
            return
        # A task of its own, though the one before has nothing left to do: handlers may ask for theirs.
        self._task = asyncio.get_running_loop().create_task(self._front.ask(self))
        self._task.add_done_callback(self._over)

    def _over(self, _: "asyncio.Task[None] | None" = None) -> None:
        """Cancelled before its first step, it takes none and tells nobody."""
        if not self.found:
            self.found = True
            self._front.tell(self)

    def begun_alone(self, outcome: Outcome | None) -> Work:
        """Its first step is over, and so is the job if there is an outcome."""
        (work,) = self.made()
        work.outcome = outcome
        self._front.tell_of(self)
        return work

    def made(self) -> list[Work]:
        """What has begun. Made by whoever asks first: the first step is over, or the home thread
        has looked while it lasts."""
        with self._deciding:
            if self.single is not None and self.begun is None:
                self.lease = self.single.lease()
                self.begun = self._front.works(self.lease)
        return self.begun or []

    def lead_to(self, after: "_There") -> bool:
        """Whether another may follow: then it has."""
        with self._deciding:
            if not self._closed and not self._cancelled:
                self.next = after
        return self.next is not None

    def close(self) -> None:
        """On the home thread, which has looked at what was found and goes on by itself."""
        with self._deciding:
            self._closed = True

    def cancel(self) -> None:
        self._cancelled = True
        if self.next is not None:
            self.next.cancel()
        elif self._task is not None and not self.found:
            self._task.cancel()
