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
from asyncio import get_running_loop
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from penstock.model import checks
from penstock.model.answers import (
    Acked,
    BulkInfo,
    Durability,
    Explanation,
    Extended,
    Failed,
    Health,
    Page,
    Pushed,
    Released,
    Result,
    Standing,
    WaitingClaims,
)
from penstock.model.errors import Invalid, Overloaded, PenstockError, Unavailable
from penstock.model.event import Event, EventKind
from penstock.model.job import MAX_PAYLOAD, Codec, Job, JobError, JobOptions, Lease, LogLine, Run
from penstock.model.lifecycle import State
from penstock.model.policy import BULK_DEADLINE_MS
from penstock.model.store import UNNUMBERED, Ack, Number, run_of_one
from penstock.protocol import (
    native,
    native_look,
    native_own,
    native_push,
    native_work,
)
from penstock.protocol.runs import Single, packed_plain, packed_run
from penstock.stores.forking import connects_anew
from penstock.stores.joining import is_plain, joinable
from penstock.stores.link import Link, Lost
from penstock.stores.remote_managing import RemoteManaging, named_ids
from penstock.stores.target import Target
from penstock.stores.watching import Watcher

PATIENCE_S: Final = 30.0  # how long a call waits for a server that cannot be reached


class RemoteStore(RemoteManaging):
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
        self._closed = False
        self._last_tenant: str | None = None  # of the last push that was looked at closely …
        self._last_options: JobOptions | None = None  # … and its first options
        connects_anew(self)

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
        link = self._links.get(get_running_loop())
        return self._new_link() if link is None else link

    def forked(self) -> None:
        # Letting go of the other process's connections would touch its loops.
        self._inherited.append(self._links)
        self._links = {}

    def _new_link(self) -> Link:
        if self._closed:
            raise Unavailable("the store is closed")
        loop = get_running_loop()
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
            and sequence is None
            and content is None
            and bulk is None
            and durability is None
            and part == ""
            and is_plain(runs)
        )
        if not plain or tenant != self._last_tenant or runs[0].options[0] is not self._last_options:
            checks.check_push(
                tenant, runs, producer, sequence, bulk, part, durability, content, contents=False
            )
            self._last_tenant, self._last_options = tenant, runs[0].options[0]
        if plain and link.busy() and joinable(runs[0]):
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
            answer = await self._unnumbered(link, request)
        return answer.pushed()  # type: ignore[no-any-return]

    async def push_one(
        self,
        tenant: str,
        queue: str,
        payload: bytes,
        options: tuple[JobOptions, ...],
        number: Number = UNNUMBERED,
    ) -> int:
        if number is not UNNUMBERED:
            return await super().push_one(tenant, queue, payload, options, number)
        answer = self.push_begun(tenant, queue, payload, options)
        if answer is None:
            link, run = self._link(), run_of_one(queue, payload, options)
            checks.check_push(tenant, [run], None, None, None, "", None, None, contents=False)
            answer = link.push_at_once(link.kinds.of(tenant, queue, options), payload)
            if answer is None:
                return (await link.joined.push(tenant, run)).runs[0].first
        try:
            return await answer
        except Overloaded as error:
            if error.field != "producer":
                raise
        packed = packed_plain(run_of_one(queue, payload, options))
        request = native_push.PushRun(tenant=tenant, runs=(packed,))
        return (await self._unnumbered(self._link(), request)).first  # type: ignore[no-any-return]

    def push_begun(
        self, tenant: str, queue: str, payload: bytes, options: tuple[JobOptions, ...]
    ) -> Awaitable[int] | None:
        # No coroutine, and the loop is asked for once: a caller at rest waits for each call here.
        link = self._links.get(get_running_loop())
        if link is None:
            return None
        kind = link.kinds.last
        if (
            kind is None
            or options is not kind.options
            or queue is not kind.queue
            or tenant is not kind.tenant
            or type(payload) is not bytes
            or len(payload) > MAX_PAYLOAD
        ):
            return None
        # What was said last, by the very same objects, need not be looked at again; what may be
        # wrong with the payload alone is told by the server in the same words.
        return link.push_at_once(kind, payload)

    async def _unnumbered(self, link: Link, request: native_push.PushRun) -> Any:
        """The server remembers as many producers as it can: ours has to do without."""
        request.producer = request.sequence = request.content = None
        return await link.ask(request, push=True)

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
        given = await self.claim_bare(
            tenant, queues, n, lease_ms=lease_ms, worker=worker, wait_ms=wait_ms
        )
        return given.lease() if isinstance(given, Single) else given

    async def claim_bare(
        self,
        tenant: str,
        queues: Sequence[str],
        n: int = 1,
        *,
        lease_ms: int | None = None,
        worker: str = "",
        wait_ms: int = 0,
    ) -> Lease | Single | None:
        """The same; one plain job that came in a short frame is left as it was said there."""
        checks.check_tenant(tenant)
        checks.check_claim(queues, n, lease_ms, worker, wait_ms)
        link = self._link()

        def give_back(answer: native_work.Claimed | Single) -> None:
            token = answer.token if isinstance(answer, Single) else answer.lease
            if token is not None:
                link.post(native_work.Release(tenant=tenant, lease=token))

        request = native_work.Claim(
            tenant=tenant,
            queues=list(queues),
            n=n,
            lease_ms=lease_ms,
            worker=worker,
            wait_ms=wait_ms,
        )
        # As `ask_waiting` does, without another coroutine that each lease would come through.
        entry = link.submit(request, repeat=True)
        entry.late = give_back
        try:
            answer = await entry.future
            return answer if type(answer) is Single else answer.claimed()
        except asyncio.CancelledError:
            link.give_up(entry)
            raise

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
        named, ranges = named_ids(ids)
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
        named, ranges = named_ids(ids)
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
        named, ranges = named_ids(ids)
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
        newest: bool = False,
    ) -> Page:
        checks.check_tenant(tenant)
        checks.check_queue(queue)
        checks.check_find(state, task, tag, cursor, limit, newest)
        request = native_look.Find(
            tenant=tenant,
            queue=queue,
            state=state,
            task=task,
            tag=tag,
            cursor=cursor,
            limit=limit,
            newest=newest,
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

    async def waiting(self, tenant: str, *, limit: int = 1_000) -> WaitingClaims:
        checks.check_tenant(tenant)
        checks.check_waiting(limit)
        told = await self._link().ask(native_look.Waiting(tenant=tenant, limit=limit), repeat=True)
        return WaitingClaims(told.claims, told.complete)

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
        link = self._links.pop(get_running_loop(), None)
        if link is not None:
            await link.close()

    async def close(self) -> None:
        self._closed = True
        here = get_running_loop()
        for loop, link in list(self._links.items()):
            if loop is here:
                await link.close()
            elif not loop.is_closed():
                loop.call_soon_threadsafe(link.shut)
