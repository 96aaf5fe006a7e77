"""Compatible commands about whole queues, and what is counted over them: STATS, METRICS.

This wire sets one thing at a time; a queue's configuration is one value. It is read, changed and
set again, without a pause in between where the store is in this process.
"""

from typing import ClassVar, Final

import msgspec
from msgspec.structs import replace

from penstock.model.answers import QueueInfo
from penstock.model.errors import Forbidden, Invalid
from penstock.model.lifecycle import State
from penstock.model.policy import DEFAULT_CONFIG, SECOND_MS, Limits, QueueConfig, Rate
from penstock.protocol.command import Answer, Request, Session
from penstock.protocol.compatible_jobs import state_of
from penstock.protocol.compatible_look import pending
from penstock.protocol.compatible_reach import (
    Caller,
    Counted,
    Done,
    in_their_words,
    queue_of,
    queues_of,
)

CLEANED: Final = 1_000  # jobs that one CLEAN takes, unless it says otherwise


class _QueueRequest(Request, kw_only=True):
    """An operator changes a queue."""

    audited: ClassVar[bool] = True
    queue: str

    async def configure(self, who: Caller, config: QueueConfig) -> Done:
        with in_their_words():
            await who.store.configure(who.tenant, self.queue, config)
        return Done()

    async def config_of(self, who: Caller) -> QueueConfig:
        who.principal.require("admin", self.queue)
        return (await queue_of(who, self.queue)).config

    async def limits_of(self, who: Caller) -> tuple[QueueConfig, Limits]:
        config = await self.config_of(who)
        return config, config.limits


class Pause(_QueueRequest, tag="PAUSE", kw_only=True):
    """No more jobs are pulled from a queue; pushes go on."""

    async def call(self, session: Session) -> Done:
        who = Caller.of(session)
        config = await self.config_of(who)
        return await self.configure(who, replace(config, paused=True))


class Resume(_QueueRequest, tag="RESUME", kw_only=True):
    """Jobs are pulled from a queue again."""

    async def call(self, session: Session) -> Done:
        who = Caller.of(session)
        config = await self.config_of(who)
        return await self.configure(who, replace(config, paused=False))


class Paused(Done, kw_only=True):
    paused: bool


class IsPaused(Request, tag="ISPAUSED", kw_only=True):
    """Whether a queue is paused."""

    answer: ClassVar[type[Answer]] = Paused
    queue: str

    async def call(self, session: Session) -> Paused:
        who = Caller.of(session)
        who.principal.require_sight(self.queue)
        return Paused(paused=(await queue_of(who, self.queue)).config.paused)


class RateLimit(_QueueRequest, tag="RATELIMIT", kw_only=True):
    """At most so many jobs a second are pulled from a queue, whoever pulls."""

    limit: int

    async def call(self, session: Session) -> Done:
        who = Caller.of(session)
        config, limits = await self.limits_of(who)
        rate = Rate(tokens=self.limit)
        return await self.configure(who, replace(config, limits=replace(limits, rate=rate)))


class RateLimitClear(_QueueRequest, tag="RATELIMITCLEAR", kw_only=True):
    """No limit to how many jobs a second are pulled."""

    async def call(self, session: Session) -> Done:
        who = Caller.of(session)
        config, limits = await self.limits_of(who)
        return await self.configure(who, replace(config, limits=replace(limits, rate=None)))


class SetConcurrency(_QueueRequest, tag="SETCONCURRENCY", kw_only=True):
    """At most so many jobs of a queue are worked on at once, whoever works."""

    limit: int

    async def call(self, session: Session) -> Done:
        who = Caller.of(session)
        config, limits = await self.limits_of(who)
        changed = replace(limits, concurrency=self.limit)
        return await self.configure(who, replace(config, limits=changed))


class ClearConcurrency(_QueueRequest, tag="CLEARCONCURRENCY", kw_only=True):
    """No limit to how many jobs are worked on at once."""

    async def call(self, session: Session) -> Done:
        who = Caller.of(session)
        config, limits = await self.limits_of(who)
        changed = replace(limits, concurrency=None)
        return await self.configure(who, replace(config, limits=changed))


class Drain(_QueueRequest, tag="DRAIN", kw_only=True):
    """Throw away every job that waits; those being worked on, and those that ended, stay."""

    answer: ClassVar[type[Answer]] = Counted

    async def call(self, session: Session) -> Counted:
        who = Caller.of(session)
        who.principal.require("admin", self.queue)
        return Counted(count=await who.store.drain(who.tenant, self.queue))


class Obliterate(_QueueRequest, tag="OBLITERATE", kw_only=True):
    """Throw away everything of a queue: jobs in any state, the crons that push into it, and its
    configuration. Answers how many jobs there were."""

    answer: ClassVar[type[Answer]] = Counted

    async def call(self, session: Session) -> Counted:
        who = Caller.of(session)
        who.principal.require("admin", self.queue)
        tenant = who.tenant
        for cron in await who.store.crons(tenant):
            if cron.spec.queue == self.queue:
                await who.store.drop_cron(tenant, cron.spec.name)
        count = await who.store.purge(tenant, self.queue)
        await self.configure(who, DEFAULT_CONFIG)
        return Counted(count=count)


class Clean(_QueueRequest, tag="CLEAN", kw_only=True):
    """Throw away jobs of one state that are older than `grace`, the oldest first: since their push
    where they wait, since their end where they ended."""

    answer: ClassVar[type[Answer]] = Counted
    grace: int  # ms
    state: str  # waiting, delayed, waiting-children, completed or failed
    limit: int | None = None  # 1000; 0: all

    async def call(self, session: Session) -> Counted:
        who = Caller.of(session)
        who.principal.require("admin", self.queue)
        state = state_of(self.state)
        if state is State.ACTIVE:
            raise Invalid("jobs that are being worked on cannot be cleaned away", "state")
        limit = CLEANED if self.limit is None else self.limit or None
        with in_their_words():
            count = await who.store.clean(
                who.tenant, self.queue, state, older_ms=self.grace, limit=limit
            )
        return Counted(count=count)


# -- looking ---------------------------------------------------------------------------------------


class WireQueue(msgspec.Struct, kw_only=True):
    name: str
    pending: int  # waiting, delayed, and waiting for children
    processing: int
    dlq: int
    paused: bool
    rate_limit: int | None  # jobs a second
    concurrency_limit: int | None


class WireQueues(Done, kw_only=True):
    queues: list[WireQueue]  # by name


def _wire_queue(info: QueueInfo) -> WireQueue:
    limits = info.config.limits
    rate = limits.rate
    return WireQueue(
        name=info.queue,
        pending=pending(info.counts),
        processing=info.counts[State.ACTIVE],
        dlq=info.counts[State.DEAD],
        paused=info.config.paused,
        rate_limit=None if rate is None else max(rate.tokens * SECOND_MS // rate.per_ms, 1),
        concurrency_limit=limits.concurrency,
    )


class ListQueues(Request, tag="LISTQUEUES", kw_only=True):
    """Every queue that there is."""

    answer: ClassVar[type[Answer]] = WireQueues

    async def call(self, session: Session) -> WireQueues:
        who = Caller.of(session)
        return WireQueues(queues=[_wire_queue(info) for info in await queues_of(who)])


class StatsOf(Done, kw_only=True):
    queued: int  # waiting, or waiting for children
    processing: int
    delayed: int
    dlq: int
    completed: int  # and still known


class Stats(Request, tag="STATS", kw_only=True):
    """How many jobs of all queues are in which state."""

    answer: ClassVar[type[Answer]] = StatsOf

    async def call(self, session: Session) -> StatsOf:
        who = Caller.of(session)
        queues = await queues_of(who)

        def total(*states: State) -> int:
            return sum(info.counts[state] for info in queues for state in states)

        return StatsOf(
            queued=total(State.READY, State.BLOCKED),
            processing=total(State.ACTIVE),
            delayed=total(State.SCHEDULED),
            dlq=total(State.DEAD),
            completed=total(State.COMPLETED),
        )


class WireMetrics(msgspec.Struct, kw_only=True):
    """Totals since the server started; rates over the last minute."""

    total_pushed: int
    total_completed: int
    total_failed: int  # attempts
    total_timed_out: int  # attempts whose time, or whose lease, ran out
    jobs_per_second: float
    avg_latency_ms: float  # from the push to the end
    queues: list[WireQueue]


class MetricsOf(Done, kw_only=True):
    metrics: WireMetrics


class Metrics(Request, tag="METRICS", kw_only=True):
    """What the server has counted of the tenant, and every queue that there is. For whoever has a
    scope over every queue: nothing is counted by queue."""

    answer: ClassVar[type[Answer]] = MetricsOf

    async def call(self, session: Session) -> MetricsOf:
        who = Caller.of(session)
        queues = await queues_of(who)
        if not who.principal.everywhere:
            raise Forbidden("this is about every queue; these credentials are not")
        figures = session.figures(who.tenant)
        return MetricsOf(
            metrics=WireMetrics(
                total_pushed=figures.pushed,
                total_completed=figures.completed,
                total_failed=figures.failed,
                total_timed_out=figures.timed_out,
                jobs_per_second=figures.jobs_per_second,
                avg_latency_ms=figures.latency_ms,
                queues=[_wire_queue(info) for info in queues],
            )
        )


QUEUES: Final = (
    Pause,
    Resume,
    IsPaused,
    RateLimit,
    RateLimitClear,
    SetConcurrency,
    ClearConcurrency,
    Drain,
    Obliterate,
    Clean,
    ListQueues,
    Stats,
    Metrics,
)
