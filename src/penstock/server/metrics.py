"""`/metrics`: what telemetry counted and how full the queues are, as Prometheus reads it.

A scrape first gathers, on the loop, by copying numbers; what is costly, making text of them, goes
on beside it in a thread. Scrapes that come meanwhile share the answer. The number of series is
bounded by the meter, and queues beyond that bound are one.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.model.answers import Health
from penstock.model.errors import Unavailable
from penstock.model.lifecycle import State
from penstock.protocol.access import DEFAULT_TENANT
from penstock.telemetry.meter import MAX_SERIES, OTHER, Histogram
from penstock.telemetry.store import Telemetry

if TYPE_CHECKING:
    from prometheus_client.core import Metric

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

# Counters by kind of event: what each says of jobs.
COUNTED: Final[dict[str, str]] = {
    "pushed": "Jobs pushed, those of bulks included.",
    "claimed": "Jobs claimed.",
    "completed": "Jobs completed.",
    "retried": "Attempts that failed and will be repeated.",
    "released": "Jobs given back unspent.",
    "cancelled": "Jobs cancelled.",
    "expired": "Jobs that nobody claimed within their ttl.",
    "redriven": "Dead jobs made ready again.",
}

Spot = tuple[str, str]  # tenant, queue


class Depth(msgspec.Struct):
    """How full a queue is, or those together that have no series of their own."""

    counts: dict[State, int]
    oldest_ready_ms: int = 0


class Copied(msgspec.Struct, frozen=True):
    """A histogram as it was when a scrape began."""

    bounds: tuple[float, ...]  # upper ends, in seconds
    counts: tuple[int, ...]
    sum: float

    @classmethod
    def of(cls, histogram: Histogram, per_s: float) -> "Copied":
        return cls(
            tuple(bound / per_s for bound in histogram.bounds),
            tuple(histogram.counts),
            histogram.sum / per_s,
        )

    def buckets(self) -> list[tuple[str, int]]:
        ends = [*(f"{bound:g}" for bound in self.bounds), "+Inf"]
        return list(zip(ends, accumulate(self.counts), strict=True))


class Queue(msgspec.Struct, frozen=True):
    """What happened in a queue, as it was when a scrape began."""

    kinds: dict[str, int]
    reasons: dict[str, int]
    causes: dict[str, int]
    failed: int
    wait: Copied
    run: Copied


class Gathered(msgspec.Struct, frozen=True, kw_only=True):
    """All that a scrape says."""

    queues: dict[Spot, Queue]
    depths: dict[Spot, Depth]
    calls: dict[str, Copied]
    errors: dict[tuple[str, str], int]  # by operation and code
    health: Health | None  # None: the store did not answer
    connections: dict[str, int]
    owned: bool  # the store is this process's
    gaps: dict[str, int]  # by tenant: how often watching it was interrupted


class Metrics:
    """Answers scrapes. `connections` says how many are open, by transport; `gaps` of which tenants
    events may be missing, how many times over."""

    def __init__(
        self,
        telemetry: Telemetry,
        *,
        connections: Callable[[], Mapping[str, int]] = dict,
        tenants: Iterable[str] = (),
        gaps: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._telemetry = telemetry
        self._connections = connections
        self._tenants = (DEFAULT_TENANT, *tenants)  # those that have a queue before they stir
        self._gaps = gaps
        self._running: asyncio.Task[str] | None = None

    async def text(self) -> str:
        if self._running is None:
            self._running = asyncio.create_task(self._scrape())
            self._running.add_done_callback(self._done)
        return await asyncio.shield(self._running)

    def _done(self, task: "asyncio.Task[str]") -> None:
        self._running = None
        if not task.cancelled():
            task.exception()  # those who wait for it are told; if nobody does, nobody is

    async def close(self) -> None:
        """Wait for a scrape that is under way."""
        if self._running is not None:
            await asyncio.gather(self._running, return_exceptions=True)

    async def _scrape(self) -> str:
        gathered = await self.gather()
        return await asyncio.to_thread(render, gathered)

    async def gather(self) -> Gathered:
        health: Health | None
        try:
            health = await self._telemetry.inner.health()
            depths = await self._depths()
        except Unavailable:
            health, depths = None, {}
        operations = self._telemetry.operations
        return Gathered(
            queues={
                spot: Queue(
                    dict(tally.kinds),
                    dict(tally.reasons),
                    dict(tally.causes),
                    tally.failed,
                    Copied.of(tally.wait, 1_000),
                    Copied.of(tally.run, 1_000),
                )
                for spot, tally in self._telemetry.meter.tallies()
            },
            depths=depths,
            calls={name: Copied.of(each.took, 1) for name, each in operations.items()},
            errors={
                (name, code): n
                for name, each in operations.items()
                for code, n in each.errors.items()
            },
            health=health,
            connections=dict(self._connections()),
            owned=self._telemetry.inner.owned,
            gaps=dict(self._gaps),
        )

    async def _depths(self) -> dict[Spot, Depth]:
        found: dict[Spot, Depth] = {}
        for tenant in dict.fromkeys((*self._tenants, *self._telemetry.meter.tenants)):
            for info in await self._telemetry.inner.queues(tenant):
                spot = (tenant, info.queue)
                if len(found) < MAX_SERIES:
                    found[spot] = Depth(dict(info.counts), info.oldest_ready_ms or 0)
                    continue
                rest = found.setdefault((OTHER, OTHER), Depth(dict.fromkeys(State, 0)))
                for state, n in info.counts.items():
                    rest.counts[state] += n
                rest.oldest_ready_ms = max(rest.oldest_ready_ms, info.oldest_ready_ms or 0)
            await asyncio.sleep(0)  # others have a turn between two tenants
        return found


# -- text ------------------------------------------------------------------------------------------


def render(gathered: Gathered) -> str:
    """Text for Prometheus. Touches nothing that changes: any thread may do it."""
    try:
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.registry import Collector
    except ModuleNotFoundError as error:
        if error.name != "prometheus_client":
            raise
        raise Unavailable(
            "/metrics needs prometheus-client: pip install 'penstock[server]'"
        ) from None

    class Once(Collector):
        def collect(self) -> "Iterator[Metric]":
            yield from _of_jobs(gathered)
            yield from _of_calls(gathered)
            yield from _of_store(gathered)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Once())
    return generate_latest(registry).decode()


def _of_jobs(gathered: Gathered) -> "Iterator[Metric]":
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    spot_labels = ["tenant", "queue"]
    jobs = GaugeMetricFamily("penstock_jobs", "Jobs by state.", labels=[*spot_labels, "state"])
    oldest = GaugeMetricFamily(
        "penstock_oldest_ready_seconds",
        "How long the oldest ready job has been ready.",
        labels=spot_labels,
    )
    for spot, depth in gathered.depths.items():
        for state, n in depth.counts.items():
            jobs.add_metric([*spot, state.value], n)
        oldest.add_metric(spot, depth.oldest_ready_ms / 1000)
    yield jobs
    yield oldest

    for kind, meaning in COUNTED.items():
        counter = CounterMetricFamily(f"penstock_jobs_{kind}", meaning, labels=spot_labels)
        for spot, queue in gathered.queues.items():
            counter.add_metric(spot, queue.kinds.get(kind, 0))
        yield counter
    dead = CounterMetricFamily(
        "penstock_jobs_dead", "Jobs that became dead letters.", labels=[*spot_labels, "reason"]
    )
    failed = CounterMetricFamily(
        "penstock_attempts_failed", "Attempts that ended in failure.", labels=spot_labels
    )
    expiries = CounterMetricFamily(
        "penstock_lease_expiries",
        "Attempts that ended because their lease did.",
        labels=spot_labels,
    )
    timeouts = CounterMetricFamily(
        "penstock_attempt_timeouts", "Attempts that took too long.", labels=spot_labels
    )
    wait = HistogramMetricFamily(
        "penstock_job_wait_seconds", "From ready to claimed.", labels=spot_labels
    )
    run = HistogramMetricFamily(
        "penstock_job_run_seconds", "From claimed to completed.", labels=spot_labels
    )
    for spot, queue in gathered.queues.items():
        for reason, n in queue.reasons.items():
            dead.add_metric([*spot, reason], n)
        failed.add_metric(spot, queue.failed)
        expiries.add_metric(spot, queue.causes.get("lease_expired", 0))
        timeouts.add_metric(spot, queue.causes.get("timeout", 0))
        wait.add_metric(spot, queue.wait.buckets(), queue.wait.sum)
        run.add_metric(spot, queue.run.buckets(), queue.run.sum)
    yield from (dead, failed, expiries, timeouts, wait, run)


def _of_calls(gathered: Gathered) -> "Iterator[Metric]":
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    took = HistogramMetricFamily(
        "penstock_call_seconds", "Calls of the store, by operation.", labels=["operation"]
    )
    for name, histogram in gathered.calls.items():
        took.add_metric([name], histogram.buckets(), histogram.sum)
    errors = CounterMetricFamily(
        "penstock_call_errors", "Calls that were refused.", labels=["operation", "code"]
    )
    for (name, code), n in gathered.errors.items():
        errors.add_metric([name, code], n)
    yield took
    yield errors


def _of_store(gathered: Gathered) -> "Iterator[Metric]":
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    connections = GaugeMetricFamily(
        "penstock_connections", "Open connections.", labels=["transport"]
    )
    for transport, n in gathered.connections.items():
        connections.add_metric([transport], n)
    yield connections
    health = gathered.health
    up = GaugeMetricFamily("penstock_store_up", "Whether the store answers.")
    up.add_metric([], 1 if health is not None and health.ok else 0)
    yield up
    owned = "Whether it is this process's: everything is counted; else what is seen by watching it."
    yield GaugeMetricFamily("penstock_store_owned", owned, value=gathered.owned)
    gaps = CounterMetricFamily(
        "penstock_watch_gaps",
        "Times that watching another process's store ended; what happens meanwhile is not counted.",
        labels=["tenant"],
    )
    for tenant, n in gathered.gaps.items():
        gaps.add_metric([tenant], n)
    yield gaps
    detail = {} if health is None else health.detail
    hits = CounterMetricFamily(
        "penstock_rate_limit_hits",
        "Pushes that a rate refused, and claims that one held back from jobs that were ready.",
        labels=["limited"],
    )
    for limited, key in (("push", "limited_pushes"), ("claim", "limited_claims")):
        if key in detail:
            hits.add_metric([limited], detail[key])
    yield hits
    for name, meaning, key, per_s in (
        ("penstock_leases", "Leases that are held.", "leases", 1),
        ("penstock_waiting_claims", "Claims that wait for work.", "waiting_claims", 1),
        ("penstock_journal_lag_records", "Records that are not safe yet.", "journal_lag", 1),
        ("penstock_fsync_seconds", "A synced write of the journal, smoothed.", "commit_ms", 1000),
        ("penstock_disk_free_bytes", "Free space where the store lies.", "free_bytes", 1),
        ("penstock_events_buffered_bytes", "Event lines not written yet.", "events_buffered", 1),
    ):
        if key in detail:
            yield GaugeMetricFamily(name, meaning, value=detail[key] / per_s)
    for name, meaning, key in (
        ("penstock_store_retries", "Attempts to reach the store that were repeated.", "retries"),
        ("penstock_journal_syncs", "Synced writes of the journal.", "syncs"),
        ("penstock_journal_batches", "Writes of the journal.", "batches"),
        ("penstock_events_dropped", "Events that the event log lost.", "events_dropped"),
    ):
        if key in detail or key == "retries":  # an embedded store has nobody to reach
            yield CounterMetricFamily(name, meaning, value=detail.get(key, 0))
