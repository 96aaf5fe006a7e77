"""`Store`: the seam. Memory, SQLite, RocksDB, Redis, PostgreSQL and a remote server are Stores.

Everything above (server, worker, CLI, Spark) speaks to this class and never knows which it has.
Every method is asynchronous and batch-first. No backend type stands in a signature.

Rules that hold for every method:
- `tenant` comes first and comes from the credentials. What another tenant owns does not exist.
- Bad input raises `Invalid` (or `PayloadTooLarge`, `BatchTooLarge`) with the field, and changes
  nothing. An unknown id raises `NotFound` where a single job is named.
- Whatever is due (leases, timeouts, ttl, retention, delays) takes effect before the call looks.
- Durations and instants are integer milliseconds. `lease` is a lease's token.
- A changing call answers when everything that its answer rests on is safe, in the sense of the
  store's durability.

What does not belong here: what answers consist of (`answers.py`), encodings (`protocol/`), metrics
(`telemetry/`), policy (`policy.py`).
"""

from abc import ABC, abstractmethod
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

from penstock.model.answers import (
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
    PushedInstead,
    QueueInfo,
    Redriven,
    Released,
    Result,
    Standing,
    WaitingClaims,
)
from penstock.model.event import Event, EventKind
from penstock.model.job import Codec, Job, JobError, JobOptions, JobSpec, Lease, LogLine, Run
from penstock.model.lifecycle import State
from penstock.model.policy import Bounds, QueueConfig
from penstock.model.schedule import CronSpec

# Which push of a producer this is: its name, its sequence, and what stands for the content.
Number = tuple[str | None, int | None, bytes | None]
UNNUMBERED: Final[Number] = (None, None, None)

Pusher = Callable[[bytes, int | None], int]  # of a payload and a sequence; answers the id


def run_of_one(queue: str, payload: bytes, options: tuple[JobOptions, ...]) -> Run:
    """One job as `push` takes it; what is wrong with it is for the checks there to say."""
    ends: Sequence[int] = array("I", (len(payload),)) if type(payload) is bytes else (0,)
    return Run(queue=queue, data=payload, ends=ends, options=options)


Ack = Mapping[int, bytes]  # results by id, in the codec that goes with them


class Store(ABC):
    """See the module's docstring; the meaning of every word is `1-semantics` of the docs."""

    @property
    def failed(self) -> str | None:
        """Why it does nothing any more, if it ended by itself: a disk that failed, as a rule."""
        return None

    @property
    def owned(self) -> bool:
        """Whether it is in this process and this loop: then its observer is told what happens."""
        return False

    # -- producing -------------------------------------------------------------------------------

    @abstractmethod
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
        """Add jobs, all or nothing. At most 10,000 in all.

        With `producer` and `sequence` a repeat gives the first answer and adds nothing; a sequence
        older than those remembered raises Conflict, the same one with other content Invalid.
        `content`: 16 bytes that stand for all that is said here, from whoever knows what is a
        repeat of what; without them, a digest of it does.
        With `bulk` the jobs are held until its commit; their keys are decided then, so all are
        answered `created`.
        Raises Conflict for a taken key with `reject`, or `match` and another payload; Overloaded
        and RateLimited where a bound says so; Invalid for a dependency above every reserved id, a
        cycle, or a held job of another bulk.
        """

    async def push_jobs(self, tenant: str, queue: str, jobs: Iterable[JobSpec]) -> Pushed:
        """`push` for jobs said one by one."""
        from penstock.model.checks import check_specs

        return await self.push(tenant, [Run.of(queue, check_specs(jobs))])

    async def push_one(
        self,
        tenant: str,
        queue: str,
        payload: bytes,
        options: tuple[JobOptions, ...],
        number: Number = UNNUMBERED,
    ) -> int:
        """`push` for one job of which nothing is said but its options, the one in the tuple;
        answers its id. For whoever pushes job by job: a store may have a shorter way for it."""
        producer, sequence, content = number
        run = run_of_one(queue, payload, options)
        pushed = await self.push(
            tenant, [run], producer=producer, sequence=sequence, content=content
        )
        return pushed.runs[0].first

    def push_begun(
        self, tenant: str, queue: str, payload: bytes, options: tuple[JobOptions, ...]
    ) -> Awaitable[int] | None:
        """`push_one` where that can be begun here and now: it is under way, and its id is what is
        awaited. None: nothing was done. Overloaded for `producer` is for `push_one` to deal with."""
        return None

    def pusher(
        self,
        tenant: str,
        queue: str,
        options: tuple[JobOptions, ...],
        producer: str | None = None,
        content: bytes | None = None,
    ) -> Pusher | None:
        """A `push_one` for jobs that share all this, which is looked at once: given a payload and
        the producer's sequence it answers the id at once. Made and called on the loop of the
        store. None: here nothing can be said of a push without waiting."""
        return None

    @abstractmethod
    async def open_bulk(
        self, tenant: str, name: str | None = None, *, deadline_ms: int = 3_600_000
    ) -> BulkInfo:
        """Begin a two-phase push, or find the one of that name: open as it is, or `committed`.

        Without a name one is made up. Each push into it renews the deadline, at which it aborts.
        The name of an aborted bulk may be opened again, empty.
        """

    @abstractmethod
    async def commit_bulk(
        self, tenant: str, bulk: str, parts: Sequence[str] | None = None
    ) -> BulkInfo:
        """Publish the named parts (None: all) at one instant and drop the rest. Idempotent.

        A key that is taken with `reject` or `match` raises Conflict and leaves the bulk open.
        """

    @abstractmethod
    async def abort_bulk(self, tenant: str, bulk: str) -> BulkInfo:
        """Drop everything held. Idempotent; Conflict if it was committed."""

    # -- working ---------------------------------------------------------------------------------

    @abstractmethod
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
        """Take up to `n` ready jobs of the first of `queues` that has any, on one lease.

        Waits up to `wait_ms` for the first job, in line with other waiting claims. The lease is as
        long as `lease_ms`, else as the longest that the jobs ask for, else 30 s. Cancelling the
        call releases what was handed over meanwhile.
        """

    @abstractmethod
    async def ack(
        self,
        tenant: str,
        lease: str,
        ids: Iterable[int] | None = None,
        *,
        results: Ack | None = None,
        codec: Codec = "json",
    ) -> Acked:
        """Complete jobs held by the lease; without `ids` every job it still holds.

        Raises LeaseLost, changing nothing, if the lease holds none of them (any more). Results are
        kept with their jobs; a job named by its result alone and not held is `lost` like one named
        in `ids`. A result for a job that is held but not among the `ids` is Invalid.
        """

    @abstractmethod
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
        """End the attempt of jobs in failure: retry by backoff (or `retry_in_ms`), or dead.

        `dead` ends them now, whatever attempts are left, with `rejected`.
        """

    @abstractmethod
    async def release(self, tenant: str, lease: str, ids: Iterable[int] | None = None) -> Released:
        """Give jobs back unspent: the attempt does not count, their place in line is kept."""

    @abstractmethod
    async def extend(self, tenant: str, lease: str, lease_ms: int | None = None) -> Extended:
        """Heartbeat: the lease now ends `lease_ms` (None: its original length) from now.

        `lost` names jobs that were taken from the lease (cancelled, timed out, purged), each time
        anew; those that its holder acked, failed or released are not among them.
        """

    @abstractmethod
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
        """Say something about a running job: progress 0..100, log lines (the last 100 are kept; an
        `at` of 0 becomes now), a partial result (an event only). LeaseLost if it is not held."""

    # -- looking ---------------------------------------------------------------------------------

    @abstractmethod
    async def get(self, tenant: str, ids: Sequence[int]) -> list[Job | None]:
        """The jobs of these ids, in this order; None for each that the tenant does not know."""

    @abstractmethod
    async def standing(self, tenant: str, ids: Sequence[int]) -> list[Standing | None]:
        """Queue, state and lease of these jobs, in this order, without their payloads; None for
        each that the tenant does not know. For servers whose clients name jobs and not leases:
        what a client is shown never has the token in it."""

    @abstractmethod
    async def reach(
        self, tenant: str, *, lease: str | None = None, bulk: str | None = None
    ) -> frozenset[str]:
        """The queues that a lease, or an open bulk, has jobs of; none if the tenant does not know
        it. For servers that let somebody into some queues only. Invalid unless one is named."""

    @abstractmethod
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
        """Jobs of a queue by ascending id, from `cursor` on; with `newest` by descending id, from
        `cursor` back, and from the last one if that is 0. The scan of one call is bounded, so a
        page may be short, even empty, and still have a cursor."""

    @abstractmethod
    async def by_key(self, tenant: str, queue: str, key: str) -> int | None:
        """The id that the key stands for now, or None if it is free."""

    @abstractmethod
    async def result(self, tenant: str, job_id: int, *, wait_ms: int = 0) -> Result:
        """How the job ended, waiting up to `wait_ms` for its end.

        Deadline if it still runs then; NotFound if it is not, or no longer, known.
        """

    @abstractmethod
    async def logs(self, tenant: str, job_id: int) -> list[LogLine]: ...

    @abstractmethod
    async def explain(self, tenant: str, job_id: int) -> Explanation: ...

    @abstractmethod
    async def waiting(self, tenant: str, *, limit: int = 1_000) -> WaitingClaims:
        """The claims that wait in line, those that came first of all first, at most `limit`: whoever
        has nothing to do, and whoever has room for more than they do."""

    @abstractmethod
    def watch(
        self,
        tenant: str,
        *,
        queues: Sequence[str] | None = None,
        kinds: Sequence[EventKind] | None = None,
    ) -> AsyncIterator[Event]:
        """Events as they happen, from now on. A watcher that falls behind by more than a bounded
        number of events is ended with Overloaded."""

    # -- changing --------------------------------------------------------------------------------

    @abstractmethod
    async def cancel(self, tenant: str, ids: Iterable[int], *, discard: bool = False) -> Acked:
        """Cancel jobs (`acked`); with `discard` they become dead with `discarded` instead.

        Active ones too: their worker learns by `lost`. Ended and unknown ones are `lost`.
        """

    @abstractmethod
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
        """Change a job that is neither active nor ended (Conflict). Promote is `delay_ms=0`."""

    @abstractmethod
    async def redrive(
        self,
        tenant: str,
        queue: str,
        *,
        ids: Iterable[int] | None = None,
        limit: int | None = None,
        fingerprint: str | None = None,
    ) -> Redriven:
        """Make dead jobs ready again, attempts afresh and without ttl, oldest first."""

    @abstractmethod
    async def purge_dead(self, tenant: str, queue: str, *, ids: Iterable[int] | None = None) -> int:
        """Forget dead jobs; answers how many."""

    # -- queues ----------------------------------------------------------------------------------

    @abstractmethod
    async def queues(self, tenant: str, names: Sequence[str] | None = None) -> list[QueueInfo]:
        """The queues that hold jobs, kept keys or configuration, by name. Named ones that do not
        exist are answered as empty."""

    @abstractmethod
    async def configure(self, tenant: str, queue: str, config: QueueConfig) -> None:
        """Set all of a queue's configuration. The default configuration removes it."""

    @abstractmethod
    async def configure_tenant(self, tenant: str, bounds: Bounds) -> None:
        """Set what the tenant may push in all its queues together."""

    @abstractmethod
    async def drain(self, tenant: str, queue: str) -> int:
        """Cancel and forget what is ready, scheduled or blocked; answers how many."""

    @abstractmethod
    async def clean(
        self,
        tenant: str,
        queue: str,
        state: State,
        *,
        older_ms: int = 0,
        limit: int | None = None,
    ) -> int:
        """Forget jobs of one state, however long they were to be kept; answers how many.

        Ready, scheduled and blocked ones that were pushed at least `older_ms` ago, by id, are
        cancelled and forgotten as by `drain`; completed, dead, cancelled and expired ones that
        ended as long ago, the oldest end first, then by id, are forgotten. At most `limit`.
        Active and held jobs are not to be cleaned away: Invalid.
        """

    @abstractmethod
    async def purge(self, tenant: str, queue: str) -> int:
        """Forget every job of the queue, leases too; configuration stays. Answers how many."""

    # -- schedules -------------------------------------------------------------------------------

    @abstractmethod
    async def put_cron(self, tenant: str, spec: CronSpec, *, refresh: bool = False) -> CronInfo:
        """Install, refresh or change a cron: plans the next instants and pushes them as keyed
        jobs. A changed config removes its old instants that have not started, atomically.

        With `refresh` it must be installed just as it is said: NotFound if it was changed or
        dropped meanwhile. So whoever read it long ago undoes nobody's change.
        """

    @abstractmethod
    async def crons(self, tenant: str) -> list[CronInfo]: ...

    @abstractmethod
    async def drop_cron(self, tenant: str, name: str) -> bool:
        """Remove a cron and its instants that have not started; False if there was none."""

    @abstractmethod
    async def put_instants(
        self, tenant: str, name: str, config_hash: str, run: Run, *, refresh: bool = False
    ) -> PushedInstead:
        """`put_cron` for instants that the caller made up, each with a payload of its own.

        `run` says a `run_at` for each job, and no key: the store makes it, `{name}/{config
        hash}/{instant}`, kept until a day after the instant. What is there under its key is left
        as it is. Those of other configs of this name in this queue that nobody has been given
        leave at the same instant, keys too; if what comes is refused, they stay. One that was
        redriven is out of all this: it stays. A run without jobs only removes. No record is kept:
        names are the queue's, and beside those of crons.

        With `refresh` nothing leaves. It goes on where another one left off: if none of these is
        there and waits, and instants of another config wait that were put after all that wait of
        this one, it raises NotFound.
        """

    @abstractmethod
    async def drop_instants(
        self, tenant: str, queue: str, name: str, config_hash: str | None = None
    ) -> int:
        """Remove instants that `put_instants` put and nobody has been given, of one config or of
        all of that name in the queue; answers how many."""

    # -- time and life ---------------------------------------------------------------------------

    @abstractmethod
    async def tick(self) -> None:
        """Let everything that is due by the store's clock take effect, and serve the waiting."""

    @abstractmethod
    async def health(self) -> Health: ...

    @abstractmethod
    async def close(self) -> None:
        """Finish what was begun, answer waiting calls with Unavailable, let go of resources."""
