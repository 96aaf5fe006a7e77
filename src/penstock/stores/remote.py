"""A Penstock server as a Store: `penstock://host:port` and `penstock+unix:///path`.

Every call is checked here as at any other store's door, so that bad input never travels, and then
becomes one native command. Pushes that carry no number of their own are given one, so that a push
whose answer was lost can be repeated and is never a duplicate.

What is safe to repeat is repeated when the connection is lost. What is not (ack, fail, release …)
raises Unavailable once it has been sent, because nobody knows what became of it. A claim is
repeated: jobs that were handed over and never arrived are delivered again when their lease ends,
whether or not somebody asks.

One store may be used from many threads, each with its loop, and after a fork: each loop of each
process has a connection of its own.
"""

import asyncio
import os
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from penstock.model import checks
from penstock.model.errors import Invalid, Overloaded, PenstockError, Unavailable
from penstock.model.event import Event, EventKind
from penstock.model.job import Codec, Job, JobError, JobOptions, Lease, LogLine, Run
from penstock.model.lifecycle import State
from penstock.model.policy import BULK_DEADLINE_MS, Bounds, QueueConfig
from penstock.model.schedule import CronSpec
from penstock.model.store import (
    Ack,
    Acked,
    BulkInfo,
    CronInfo,
    Durability,
    Explanation,
    Extended,
    Failed,
    Health,
    Page,
    Pushed,
    QueueInfo,
    Redriven,
    Released,
    Result,
    Standing,
    Store,
)
from penstock.protocol import (
    native,
    native_look,
    native_manage,
    native_own,
    native_push,
    native_work,
)
from penstock.protocol.command import Answer
from penstock.protocol.runs import packed_plain, packed_run, spoken
from penstock.stores.joining import joinable
from penstock.stores.link import Link, Lost
from penstock.stores.target import Target
from penstock.stores.watching import Watcher

PATIENCE_S: Final = 30.0  # how long a call waits for a server that cannot be reached


class RemoteStore(Store):
    def __init__(
        self,
        target: Target,
        *,
        patience_s: float = PATIENCE_S,
        before: Callable[[], Awaitable[str]] | None = None,
        keep: bool = False,
    ) -> None:
        self.target = target
        self._patience_s = patience_s
        self._before = before  # done before each attempt to connect
        self._keep = keep  # connected, also while nobody says anything
        self._links: dict[asyncio.AbstractEventLoop, Link] = {}
        self._inherited: list[object] = []  # of the process that we were forked from: not ours
        self._pid = os.getpid()
        self._closed = False
        self._last_tenant: str | None = None  # of the last push that was looked at closely …
        self._last_options: JobOptions | None = None  # … and its first options

    async def connect(self) -> None:
        """Connect now, or raise: otherwise the first call does."""
        await self._link().connect()

    @property
    def tenant(self) -> str | None:
        """Whose the credentials are, once connected; None: they may name any tenant."""
        welcome = self._link().welcome
        return None if welcome is None else welcome.tenant

    def _link(self) -> Link:
        """The connection of this loop and process."""
        loop = asyncio.get_running_loop()
        link = self._links.get(loop)
        if link is None or self._pid != os.getpid():
            link = self._new_link(loop)
        return link

    def _new_link(self, loop: asyncio.AbstractEventLoop) -> Link:
        if self._closed:
            raise Unavailable("the store is closed")
        if self._pid != os.getpid():
            # Letting go of the other process's connections would touch its loops.
            self._inherited.append(self._links)
            self._links = {}
            self._pid = os.getpid()
        for other in [each for each in self._links if each.is_closed()]:
            del self._links[other]
        link = self._links[loop] = Link(
            self.target, loop, self._patience_s, self._before, self._keep
        )
        return link

    # -- producing -------------------------------------------------------------------------------

    async def push(
        self,
        tenant: str,
        runs: Sequence[Run],
        *,
        producer: str | None = None,
        sequence: int | None = None,
        content: bytes | None = None,
        bulk: str | None = None,
        part: str = "",
        durability: Durability | None = None,
    ) -> Pushed:
        link = self._link()
        plain = (
            producer is None
            and content is None
            and bulk is None
            and durability is None
            and part == ""
            and _plain(runs)
        )
        if not plain or tenant != self._last_tenant or runs[0].options[0] is not self._last_options:
            checks.check_push(
                tenant, runs, producer, sequence, bulk, part, durability, content, contents=False
            )
            self._last_tenant, self._last_options = tenant, runs[0].options[0]
        if plain and link.busy and joinable(runs[0]):
            return await link.joined.push(tenant, runs[0])
        request = native_push.PushRun(
            tenant=tenant,
            runs=(packed_plain(runs[0]),) if plain else tuple(map(packed_run, runs)),
            producer=producer,
            sequence=sequence,
            content=content,
            bulk=bulk,
            part=part,
            durability=durability,
        )
        if producer is None:
            link.number(request)
        try:
            answer = await link.submit(request, repeat=True, push=True).future
        except Overloaded as error:
            if producer is not None or error.field != "producer":
                raise
            # The server remembers as many producers as it can: ours has to do without.
            request.producer = request.sequence = request.content = None
            answer = await link.ask(request, push=True)
        return answer.pushed()  # type: ignore[no-any-return]

    async def open_bulk(
        self, tenant: str, name: str | None = None, *, deadline_ms: int = BULK_DEADLINE_MS
    ) -> BulkInfo:
        checks.check_tenant(tenant)
        checks.check_bulk(name, deadline_ms)
        # Named here, so that a repeat finds the one that it opened.
        bulk = os.urandom(16).hex() if name is None else name
        request = native_push.BulkOpen(tenant=tenant, name=bulk, deadline_ms=deadline_ms)
        return (await self._link().ask(request, repeat=True)).bulk  # type: ignore[no-any-return]

    async def commit_bulk(
        self, tenant: str, bulk: str, parts: Sequence[str] | None = None
    ) -> BulkInfo:
        checks.check_tenant(tenant)
        checks.check_name(bulk, "bulk")
        checks.check_parts(parts)
        named = None if parts is None else list(parts)
        request = native_push.BulkCommit(tenant=tenant, bulk=bulk, parts=named)
        return (await self._link().ask(request, repeat=True)).bulk  # type: ignore[no-any-return]

    async def abort_bulk(self, tenant: str, bulk: str) -> BulkInfo:
        checks.check_tenant(tenant)
        checks.check_name(bulk, "bulk")
        request = native_push.BulkAbort(tenant=tenant, bulk=bulk)
        return (await self._link().ask(request, repeat=True)).bulk  # type: ignore[no-any-return]

    # -- working ---------------------------------------------------------------------------------

    async def claim(
        self,
        tenant: str,
        queues: Sequence[str],
        n: int = 1,
        *,
        lease_ms: int | None = None,
        worker: str = "",
        wait_ms: int = 0,
    ) -> Lease | None:
        checks.check_tenant(tenant)
        checks.check_claim(queues, n, lease_ms, worker, wait_ms)
        link = self._link()

        def give_back(answer: Answer) -> None:
            assert isinstance(answer, native_work.Claimed)
            if answer.lease is not None:
                link.post(native_work.Release(tenant=tenant, lease=answer.lease))

        request = native_work.Claim(
            tenant=tenant,
            queues=list(queues),
            n=n,
            lease_ms=lease_ms,
            worker=worker,
            wait_ms=wait_ms,
        )
        return (await link.ask_waiting(request, give_back, repeat=True)).claimed()  # type: ignore[no-any-return]

    async def ack(
        self,
        tenant: str,
        lease: str,
        ids: Iterable[int] | None = None,
        *,
        results: Ack | None = None,
        codec: Codec = "json",
    ) -> Acked:
        checks.check_tenant(tenant)
        checks.check_lease(lease)
        named, ranges = _spoken(ids)
        values = checks.check_results(results, codec)
        request = native_work.Complete(
            tenant=tenant,
            lease=lease,
            ids=named,
            ranges=ranges,
            results=values or None,
            codec=codec,
        )
        done = await self._link().ask(request)
        return Acked(done.acked, done.lost)

    async def fail(
        self,
        tenant: str,
        lease: str,
        ids: Iterable[int] | None = None,
        *,
        error: JobError,
        retry_in_ms: int | None = None,
        dead: bool = False,
    ) -> Failed:
        checks.check_tenant(tenant)
        checks.check_lease(lease)
        named, ranges = _spoken(ids)
        error = checks.check_error(error)
        checks.check_fail(retry_in_ms, dead)
        request = native_work.Failed(
            tenant=tenant,
            lease=lease,
            ids=named,
            ranges=ranges,
            error=error,
            retry_in_ms=retry_in_ms,
            dead=dead,
        )
        done = await self._link().ask(request)
        return Failed(done.jobs, done.lost)

    async def release(self, tenant: str, lease: str, ids: Iterable[int] | None = None) -> Released:
        checks.check_tenant(tenant)
        checks.check_lease(lease)
        named, ranges = _spoken(ids)
        request = native_work.Release(tenant=tenant, lease=lease, ids=named, ranges=ranges)
        done = await self._link().ask(request)
        return Released(done.released, done.lost)

    async def extend(self, tenant: str, lease: str, lease_ms: int | None = None) -> Extended:
        checks.check_tenant(tenant)
        checks.check_lease(lease)
        checks.check_lease_ms(lease_ms)
        request = native_work.Extend(tenant=tenant, lease=lease, lease_ms=lease_ms)
        done = await self._link().ask(request, repeat=True)
        return Extended(done.expires_at, done.lost)

    async def report(
        self,
        tenant: str,
        lease: str,
        job_id: int,
        *,
        progress: int | None = None,
        message: str | None = None,
        logs: Sequence[LogLine] = (),
        partial: bytes | None = None,
    ) -> None:
        checks.check_tenant(tenant)
        checks.check_lease(lease)
        checks.check_job_id(job_id)
        checks.check_report(progress, message, logs, partial)
        request = native_work.Report(
            tenant=tenant,
            lease=lease,
            job_id=job_id,
            progress=progress,
            message=message,
            logs=tuple(logs),
            partial=partial,
        )
        await self._link().ask(request)

    # -- looking ---------------------------------------------------------------------------------

    async def get(self, tenant: str, ids: Sequence[int]) -> list[Job | None]:
        checks.check_tenant(tenant)
        wanted = checks.check_id_list(ids, empty_ok=True)
        request = native_look.Get(tenant=tenant, ids=wanted)
        return (await self._link().ask(request, repeat=True)).jobs  # type: ignore[no-any-return]

    async def standing(self, tenant: str, ids: Sequence[int]) -> list[Standing | None]:
        checks.check_tenant(tenant)
        wanted = checks.check_id_list(ids, empty_ok=True)
        request = native_look.WhereStanding(tenant=tenant, ids=wanted)
        return (await self._link().ask(request, repeat=True)).jobs  # type: ignore[no-any-return]

    async def reach(
        self, tenant: str, *, lease: str | None = None, bulk: str | None = None
    ) -> frozenset[str]:
        checks.check_tenant(tenant)
        checks.check_reach(lease, bulk)
        request = native_look.Reach(tenant=tenant, lease=lease, bulk=bulk)
        return frozenset((await self._link().ask(request, repeat=True)).queues)

    async def find(
        self,
        tenant: str,
        queue: str,
        *,
        state: State | None = None,
        task: str | None = None,
        tag: str | None = None,
        cursor: int = 0,
        limit: int = 100,
    ) -> Page:
        checks.check_tenant(tenant)
        checks.check_queue(queue)
        checks.check_find(state, task, tag, cursor, limit)
        request = native_look.Find(
            tenant=tenant, queue=queue, state=state, task=task, tag=tag, cursor=cursor, limit=limit
        )
        found = await self._link().ask(request, repeat=True)
        return Page(found.jobs, found.cursor)

    async def by_key(self, tenant: str, queue: str, key: str) -> int | None:
        checks.check_tenant(tenant)
        checks.check_queue(queue)
        checks.check_name(key, "key")
        request = native_look.ByKey(tenant=tenant, queue=queue, key=key)
        return (await self._link().ask(request, repeat=True)).id  # type: ignore[no-any-return]

    async def result(self, tenant: str, job_id: int, *, wait_ms: int = 0) -> Result:
        checks.check_tenant(tenant)
        checks.check_job_id(job_id)
        checks.check_wait_ms(wait_ms)
        request = native_look.AskResult(tenant=tenant, job_id=job_id, wait_ms=wait_ms)
        return (await self._link().ask_waiting(request, repeat=True)).result  # type: ignore[no-any-return]

    async def logs(self, tenant: str, job_id: int) -> list[LogLine]:
        checks.check_tenant(tenant)
        checks.check_job_id(job_id)
        request = native_look.Logs(tenant=tenant, job_id=job_id)
        return (await self._link().ask(request, repeat=True)).logs  # type: ignore[no-any-return]

    async def explain(self, tenant: str, job_id: int) -> Explanation:
        checks.check_tenant(tenant)
        checks.check_job_id(job_id)
        request = native_look.Explain(tenant=tenant, job_id=job_id)
        return (await self._link().ask(request, repeat=True)).explanation  # type: ignore[no-any-return]

    def watch(
        self,
        tenant: str,
        *,
        queues: Sequence[str] | None = None,
        kinds: Sequence[EventKind] | None = None,
    ) -> AsyncIterator[Event]:
        """A connection that is lost ends it with Unavailable: events may have been missed."""
        link = self._link()
        watcher = Watcher(link.unwatch, tenant, queues, kinds)
        try:
            checks.check_tenant(tenant)
            checks.check_watch(queues, kinds)
            request = native_look.Watch(
                tenant=tenant,
                queues=None if queues is None else list(queues),
                kinds=None if kinds is None else list(kinds),
            )
            link.watch(watcher, request)
        except PenstockError as error:
            watcher.end(error)  # told where every other call tells it: when it is awaited
        return watcher

    # -- changing --------------------------------------------------------------------------------

    async def cancel(self, tenant: str, ids: Iterable[int], *, discard: bool = False) -> Acked:
        checks.check_tenant(tenant)
        checks.check_bool(discard, "discard")
        named, ranges = spoken(checks.check_ids(ids))
        request = native_manage.CancelJobs(tenant=tenant, ids=named, ranges=ranges, discard=discard)
        done = await self._link().ask(request)
        return Acked(done.acked, done.lost)

    async def edit(
        self,
        tenant: str,
        job_id: int,
        *,
        priority: int | None = None,
        run_at: int | None = None,
        delay_ms: int | None = None,
        payload: bytes | None = None,
        codec: Codec | None = None,
    ) -> None:
        checks.check_tenant(tenant)
        checks.check_job_id(job_id)
        checks.check_edit(priority, run_at, delay_ms, payload, codec)
        request = native_manage.Edit(
            tenant=tenant,
            job_id=job_id,
            priority=priority,
            run_at=run_at,
            delay_ms=delay_ms,
            payload=payload,
            codec=codec,
        )
        await self._link().ask(request)

    async def redrive(
        self,
        tenant: str,
        queue: str,
        *,
        ids: Iterable[int] | None = None,
        limit: int | None = None,
        fingerprint: str | None = None,
    ) -> Redriven:
        checks.check_tenant(tenant)
        checks.check_queue(queue)
        checks.check_redrive(limit, fingerprint)
        named, ranges = _spoken(ids)
        request = native_manage.Redrive(
            tenant=tenant,
            queue=queue,
            ids=named,
            ranges=ranges,
            limit=limit,
            fingerprint=fingerprint,
        )
        done = await self._link().ask(request)
        return Redriven(done.ids, done.conflicts)

    async def purge_dead(self, tenant: str, queue: str, *, ids: Iterable[int] | None = None) -> int:
        checks.check_tenant(tenant)
        checks.check_queue(queue)
        named, ranges = _spoken(ids)
        request = native_manage.PurgeDead(tenant=tenant, queue=queue, ids=named, ranges=ranges)
        return (await self._link().ask(request)).count  # type: ignore[no-any-return]

    # -- queues ----------------------------------------------------------------------------------

    async def queues(self, tenant: str, names: Sequence[str] | None = None) -> list[QueueInfo]:
        checks.check_tenant(tenant)
        for name in names or ():
            checks.check_queue(name)
        wanted = None if names is None else list(names)
        request = native_manage.Queues(tenant=tenant, names=wanted)
        return (await self._link().ask(request, repeat=True)).queues  # type: ignore[no-any-return]

    async def configure(self, tenant: str, queue: str, config: QueueConfig) -> None:
        checks.check_tenant(tenant)
        checks.check_queue(queue)
        checks.check_config(config)
        request = native_manage.Configure(tenant=tenant, queue=queue, config=config)
        await self._link().ask(request, repeat=True)

    async def configure_tenant(self, tenant: str, bounds: Bounds) -> None:
        checks.check_tenant(tenant)
        checks.check_bounds(bounds)
        request = native_manage.ConfigureTenant(tenant=tenant, bounds=bounds)
        await self._link().ask(request, repeat=True)

    async def drain(self, tenant: str, queue: str) -> int:
        checks.check_tenant(tenant)
        checks.check_queue(queue)
        request = native_manage.DrainQueue(tenant=tenant, queue=queue)
        return (await self._link().ask(request)).count  # type: ignore[no-any-return]

    async def clean(
        self,
        tenant: str,
        queue: str,
        state: State,
        *,
        older_ms: int = 0,
        limit: int | None = None,
    ) -> int:
        checks.check_tenant(tenant)
        checks.check_queue(queue)
        checks.check_clean(state, older_ms, limit)
        request = native_manage.Clean(
            tenant=tenant, queue=queue, state=state, older_ms=older_ms, limit=limit
        )
        return (await self._link().ask(request)).count  # type: ignore[no-any-return]

    async def purge(self, tenant: str, queue: str) -> int:
        checks.check_tenant(tenant)
        checks.check_queue(queue)
        request = native_manage.Purge(tenant=tenant, queue=queue)
        return (await self._link().ask(request)).count  # type: ignore[no-any-return]

    # -- schedules -------------------------------------------------------------------------------

    async def put_cron(self, tenant: str, spec: CronSpec, *, refresh: bool = False) -> CronInfo:
        checks.check_tenant(tenant)
        checks.check_cron(spec)
        command = native_manage.RefreshCron if refresh else native_manage.PutCron
        request = command(tenant=tenant, spec=spec)
        return (await self._link().ask(request, repeat=True)).cron  # type: ignore[no-any-return]

    async def crons(self, tenant: str) -> list[CronInfo]:
        checks.check_tenant(tenant)
        request = native_manage.Crons(tenant=tenant)
        return (await self._link().ask(request, repeat=True)).crons  # type: ignore[no-any-return]

    async def drop_cron(self, tenant: str, name: str) -> bool:
        checks.check_tenant(tenant)
        checks.check_name(name, "name")
        request = native_manage.DropCron(tenant=tenant, name=name)
        return (await self._link().ask(request)).dropped  # type: ignore[no-any-return]

    # -- time and life ---------------------------------------------------------------------------

    async def tick(self) -> None:
        await self._link().ask(native.Tick(), repeat=True)

    async def health(self) -> Health:
        return (await self._link().ask(native.AskHealth(), repeat=True)).health  # type: ignore[no-any-return]

    async def backup(self, directory: Path, keep: int = 0) -> Path:
        """Have the owner of a path back it up; a server that is no owner refuses to."""
        request = native_own.TakeBackup(directory=str(directory), keep=keep)
        try:
            return Path((await self._link().ask(request)).path)
        except UnicodeEncodeError as error:
            raise Invalid(
                f"{str(directory)!r} is not UTF-8, and cannot be said", "directory"
            ) from error
        except Lost as error:
            raise Unavailable(
                f"the owner ended before it said that the backup in {directory} is whole: ask again"
            ) from error

    async def ping(self) -> None:
        """Answers when everything that was sent before has been begun."""
        await self._link().ask(native.Ping(), repeat=True)

    async def leave(self) -> None:
        """This loop needs the store no more; others go on."""
        if self._pid == os.getpid():
            link = self._links.pop(asyncio.get_running_loop(), None)
            if link is not None:
                await link.close()

    async def close(self) -> None:
        self._closed = True
        if self._pid != os.getpid():
            return
        here = asyncio.get_running_loop()
        for loop, link in list(self._links.items()):
            if loop is here:
                await link.close()
            elif not loop.is_closed():
                loop.call_soon_threadsafe(link.shut)


def _plain(runs: Sequence[Run]) -> bool:
    """Whether a push is of one run of jobs that differ in nothing but their payload.

    Whatever else may be wrong with such a run is told by the server in the same words, so that a
    loop of single pushes does not pay twice for being looked at.
    """
    if type(runs) not in (list, tuple) or len(runs) != 1:
        return False
    run = runs[0]
    return (
        type(run) is Run
        and type(run.queue) is str
        and type(run.data) is bytes
        and type(run.ends) is array
        and run.ends.typecode == "I"
        and type(run.options) is tuple
        and len(run.options) == 1
        and run.option_of is None
        and run.delay_ms is None
        and run.run_at is None
        and run.keys is None
        and run.more_keys is None
        and run.groups is None
        and run.headers is None
        and run.depends_on is None
    )


def _spoken(ids: Iterable[int] | None) -> tuple[Any, Any]:
    return (None, None) if ids is None else spoken(checks.check_ids(ids))
