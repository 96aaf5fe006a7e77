"""The one way in which conformance cases touch a store, and the list of stores.

A store joins the suite by adding its URL to `STORES` and, if it keeps anything, its way to restart
to `_restarted`. Cases know neither the URL nor the class: they say `h.push(…)`, `h.claim(…)`, and
move time with `h.advance(…)`. Nothing else moves the clock, so a case that needs distinct instants
says so. What has no helper here is called on `h.store` with `h.name` as the tenant.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from tempfile import TemporaryDirectory
from typing import Any, Final, Self, TypeVar

from penstock.model.answers import Acked, Extended, Failed, Pushed, QueueInfo, Released, Result
from penstock.model.event import Event, EventKind
from penstock.model.job import Codec, Job, JobError, JobOptions, JobSpec, Lease, LogLine, Run
from penstock.model.lifecycle import State
from penstock.model.policy import DEFAULT_CAPS, Backoff, Caps, QueueConfig
from penstock.model.store import Store
from penstock.open import open_store
from penstock.stores.clock import ManualClock, SystemClock
from penstock.stores.embedded import EmbeddedStore
from tests.durable import scratch, settled
from tests.served import SERVED, ServedStore, behind

STORES: Final = ["memory://", "sqlite://", "rocksdb://", "tcp://", "unix://", "oracle://"]
DURABLE: Final = ["sqlite://", "rocksdb://"]
REAL_STORES: Final = [url for url in STORES if url != "oracle://"]  # with timers, and quick

SEED: Final = 20_231_114  # of the jitter: the same on every store
BOOM: Final = JobError(kind="Boom", message="it broke")
PATIENCE_S: Final = 10.0  # how long a case waits for what must come; it is told, so it never does
BLOCK: Final = 4_096  # ids are reserved in stretches of this many
AT_ONCE: Final = Backoff(kind="none")

T = TypeVar("T")
C = TypeVar("C", bound=Callable[..., object])


def after(ms: int) -> Backoff:
    """Every retry waits exactly this long."""
    return Backoff(kind="fixed", base_ms=ms, cap_ms=ms, jitter="none")


def many_jobs(case: C) -> C:
    """Mark a case as too large for the oracle, whose every call looks at every job."""
    case.many_jobs = True  # type: ignore[attr-defined]
    return case


class _World:
    """What the views of several tenants share: the store and its clock."""

    def __init__(self, url: str, clock: ManualClock | SystemClock) -> None:
        self.url = url
        self.clock = clock
        self.caps = DEFAULT_CAPS
        self.store: Store | None = None
        self.tenants: set[str] = set()
        self.directory: TemporaryDirectory[str] | None = None

    async def open(self) -> None:
        """Open a new, empty store."""
        if self.url == "oracle://":
            from tests.oracle.store import OracleStore

            self.store = OracleStore(clock=self.clock, caps=self.caps, seed=SEED)
            return
        how = self.url.partition(":")[0]
        if how in SERVED:
            self.store = await ServedStore.open(how, clock=self.clock, caps=self.caps, seed=SEED)
            return
        if self.url in DURABLE:
            self.directory = scratch()
        await self._open()

    async def _open(self) -> None:
        """Open the store that is there."""
        url = self.url
        if self.directory is not None:
            url = f"{url}/{self.directory.name}/store"
        self.store = await open_store(url, clock=self.clock, caps=self.caps, seed=SEED, share=False)

    async def close(self) -> None:
        if self.store is not None:
            await self.store.close()
            self.store = None
        if self.directory is not None:
            self.directory.cleanup()
            self.directory = None

    async def restart(self) -> None:
        """The store as it is after its process ended and began anew, from what it keeps."""
        inner = None if self.store is None else behind(self.store)
        if self.directory is None and isinstance(inner, EmbeddedStore):
            inner.engine.rebuild()
        elif self.directory is not None:
            assert self.store is not None
            await self.store.close()
            await self._open()
        elif self.url != "oracle://":
            raise ValueError(f"how does {self.url} restart?")


class Harness:
    """A store as one tenant sees it, with time in the case's hand."""

    def __init__(self, world: _World, name: str) -> None:
        self._world = world
        self.name = name
        world.tenants.add(name)

    @classmethod
    def on(cls, url: str, *, live: bool = False) -> Self:
        return cls(_World(url, SystemClock() if live else ManualClock()), "default")

    # -- life ------------------------------------------------------------------------------------

    async def open(self) -> None:
        await self._world.open()

    async def close(self) -> None:
        await self._world.close()

    async def reopen(self, **caps: int) -> None:
        """Throw the store away and open a new, empty one with other caps."""
        await self.close()
        self._world.caps = Caps(**caps)
        await self.open()

    async def restart(self) -> None:
        """End the store's process and begin anew with what it keeps."""
        await self._world.restart()

    def tenant(self, name: str) -> "Harness":
        """The same store and clock as another tenant sees them."""
        return type(self)(self._world, name)

    @property
    def url(self) -> str:
        return self._world.url

    @property
    def store(self) -> Store:
        assert self._world.store is not None, "the store is not open"
        return self._world.store

    # -- time ------------------------------------------------------------------------------------

    @property
    def clock(self) -> ManualClock:
        """Move it directly to let time pass without the store being told."""
        assert isinstance(self._world.clock, ManualClock), "the machine's clock cannot be moved"
        return self._world.clock

    @property
    def now(self) -> int:
        """The wall clock, in ms."""
        return self._world.clock.now_ms()

    async def advance(self, ms: int) -> None:
        """Time passes, and the store notices."""
        self.clock.advance(ms)
        await self.store.tick()

    async def jump(self, ms: int) -> None:
        """Somebody sets the wall clock, no time passes, and the store notices."""
        self.clock.jump(ms)
        await self.store.tick()

    async def settle(self) -> None:
        """Let every task go as far as it can without time passing."""
        await settled(self.store)

    async def start(self, call: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Begin a call that is expected to wait, and let it get there."""
        task = asyncio.ensure_future(call)
        await self.settle()
        return task

    async def told(self, task: "asyncio.Task[T]") -> T:
        """What a begun call answers; it must answer now."""
        return await asyncio.wait_for(task, PATIENCE_S)

    # -- producing -------------------------------------------------------------------------------

    async def push(self, queue: str, payload: bytes = b"null", **spec: Any) -> int:
        """Push one job said by JobSpec's fields; answers the id that it got."""
        return (await self.push_many(queue, [JobSpec(payload=payload, **spec)])).ids[0]

    async def push_many(
        self, queue: str, jobs: Iterable[JobSpec | Mapping[str, Any]], **more: Any
    ) -> Pushed:
        """Push jobs in one call; `more` are `Store.push`'s own options (bulk, producer …)."""
        specs = [job if isinstance(job, JobSpec) else JobSpec(**job) for job in jobs]
        return await self.store.push(self.name, [Run.of(queue, specs)], **more)

    async def push_alike(self, queue: str, count: int, **options: Any) -> list[int]:
        """Push `count` jobs that differ in nothing but their payload (`0`, `1`, …), in one call.

        `options` are JobOptions' fields, or `delay_ms`/`run_at` for all of them.
        """
        shared = {name: options.pop(name) for name in ("delay_ms", "run_at") if name in options}
        payloads = [b"%d" % index for index in range(count)]
        run = Run.pack(queue, payloads, JobOptions(**options), **shared)
        return (await self.store.push(self.name, [run])).ids

    # -- working ---------------------------------------------------------------------------------

    async def claim(self, queues: str | Sequence[str], n: int = 1, **more: Any) -> Lease | None:
        names = [queues] if isinstance(queues, str) else list(queues)
        return await self.store.claim(self.name, names, n, **more)

    async def lease(self, queues: str | Sequence[str], n: int = 1, **more: Any) -> Lease:
        """`claim` where there must be something to claim."""
        lease = await self.claim(queues, n, **more)
        assert lease is not None, f"nothing to claim from {queues}"
        return lease

    async def claimed(self, queues: str | Sequence[str], n: int = 1, **more: Any) -> list[int]:
        """The ids that a claim takes, in its order; empty if it takes nothing."""
        lease = await self.claim(queues, n, **more)
        return [] if lease is None else lease.ids

    async def ack(
        self,
        lease: Lease | str,
        ids: Iterable[int] | None = None,
        *,
        results: Mapping[int, bytes] | None = None,
        codec: Codec = "json",
    ) -> Acked:
        return await self.store.ack(self.name, _token(lease), ids, results=results, codec=codec)

    async def fail(
        self,
        lease: Lease | str,
        ids: Iterable[int] | None = None,
        *,
        error: JobError = BOOM,
        retry_in_ms: int | None = None,
        dead: bool = False,
    ) -> Failed:
        return await self.store.fail(
            self.name, _token(lease), ids, error=error, retry_in_ms=retry_in_ms, dead=dead
        )

    async def release(self, lease: Lease | str, ids: Iterable[int] | None = None) -> Released:
        return await self.store.release(self.name, _token(lease), ids)

    async def extend(self, lease: Lease | str, lease_ms: int | None = None) -> Extended:
        return await self.store.extend(self.name, _token(lease), lease_ms)

    async def report(
        self,
        lease: Lease | str,
        job_id: int,
        *,
        progress: int | None = None,
        message: str | None = None,
        logs: Sequence[LogLine] = (),
        partial: bytes | None = None,
    ) -> None:
        await self.store.report(
            self.name,
            _token(lease),
            job_id,
            progress=progress,
            message=message,
            logs=logs,
            partial=partial,
        )

    async def finish(self, queue: str, **job: Any) -> int:
        """Push a job, claim it and ack it; the queue must have nothing else to give."""
        job_id = await self.push(queue, **job)
        lease = await self.lease(queue)
        assert lease.ids == [job_id]
        await self.ack(lease)
        return job_id

    async def cancel(self, *ids: int, discard: bool = False) -> Acked:
        return await self.store.cancel(self.name, ids, discard=discard)

    # -- looking ---------------------------------------------------------------------------------

    async def get(self, job_id: int) -> Job | None:
        return (await self.store.get(self.name, [job_id]))[0]

    async def job(self, job_id: int) -> Job:
        job = await self.get(job_id)
        assert job is not None, f"job {job_id} is not known"
        return job

    async def state(self, job_id: int) -> State | None:
        """Its state; None if the job is not known."""
        job = await self.get(job_id)
        return None if job is None else job.state

    async def states(self, ids: Sequence[int]) -> dict[str, int]:
        """How many of these jobs are in which state; `forgotten` are those not known."""
        jobs = await self.store.get(self.name, ids)
        return dict(Counter("forgotten" if job is None else job.state.value for job in jobs))

    async def result(self, job_id: int, wait_ms: int = 0) -> Result:
        return await self.store.result(self.name, job_id, wait_ms=wait_ms)

    async def info(self, queue: str) -> QueueInfo:
        (info,) = await self.store.queues(self.name, [queue])
        return info

    async def counts(self, queue: str) -> dict[str, int]:
        """The queue's counters, without the zeros."""
        info = await self.info(queue)
        assert set(info.counts) == set(State), "counts name every state"
        return {state.value: count for state, count in info.counts.items() if count}

    async def scan(self, queue: str) -> list[Job]:
        """Every known job of the queue, by `find`, page after page."""
        jobs: list[Job] = []
        cursor: int | None = 0
        while cursor is not None:
            page = await self.store.find(self.name, queue, cursor=cursor, limit=1_000)
            jobs += page.jobs
            assert page.cursor is None or page.cursor > cursor, "a cursor moves on"
            cursor = page.cursor
        return jobs

    async def configure(self, queue: str, **config: Any) -> None:
        await self.store.configure(self.name, queue, QueueConfig(**config))

    async def check_counters(self) -> None:
        """Counters equal a full scan, in every queue of every tenant that the case touched."""
        for name in sorted(self._world.tenants):
            view = self.tenant(name)
            for info in await self.store.queues(name):
                scanned = Counter(job.state.value for job in await view.scan(info.queue))
                counted = await view.counts(info.queue)
                assert counted == dict(scanned), f"{name}/{info.queue}: counters against a scan"

    # -- watching --------------------------------------------------------------------------------

    @asynccontextmanager
    async def watch(
        self, *, queues: Sequence[str] | None = None, kinds: Sequence[EventKind] | None = None
    ) -> AsyncIterator["Watcher"]:
        """Collect this tenant's events while the block runs."""
        watcher = Watcher(self)
        async with aclosing(self.store.watch(self.name, queues=queues, kinds=kinds)) as events:  # type: ignore[type-var]
            task = await self.start(watcher.follow(events))
            try:
                yield watcher
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


class Watcher:
    """The events that came so far."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self._came: list[Event] = []
        self._news = asyncio.Event()

    async def follow(self, events: AsyncIterator[Event]) -> None:
        async for event in events:
            self._came.append(event)
            self._news.set()

    async def events(self) -> list[Event]:
        """All so far."""
        await self._harness.settle()
        return list(self._came)

    async def take(self) -> list[Event]:
        """All since the last take."""
        events = await self.events()
        self._came.clear()
        return events

    async def upto(self, count: int) -> list[Event]:
        """All so far, once there are `count` of them."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self._came) < count:
                self._news.clear()
                await self._news.wait()
        return list(self._came)

    async def told(self) -> list[tuple[str, list[int]]]:
        """What happened to which jobs, since the last take."""
        return [(event.kind, list(event.ids)) for event in await self.take()]


def _token(lease: Lease | str) -> str:
    return lease if isinstance(lease, str) else lease.token
