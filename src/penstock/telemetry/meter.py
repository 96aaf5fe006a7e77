"""The meter: what happened to jobs, counted by tenant and queue.

It hears the store's events. An event speaks of a range of jobs with the same times, so a range of
any length costs one look-up and one addition per counter. Nothing here grows with what callers
name: tenants and queues beyond a bound are counted together.
"""

import time
from array import array
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from penstock.model.event import Event, EventKind
from penstock.protocol.command import Figures

MAX_SERIES: Final = 1_000  # pairs of tenant and queue; and tenants
OTHER: Final = "(other)"  # what is counted together; no tenant or queue can be called that

POINT_S: Final = 5
POINTS: Final = 1_000  # that the history keeps
MINUTE_MS: Final = 60_000

# Of which something is shown; whoever pays for each event that it is told asks for these.
COUNTED_KINDS: Final[tuple[EventKind, ...]] = (
    *("pushed", "claimed", "completed", "retried", "dead"),
    *("released", "cancelled", "expired", "redriven"),
)

# Upper ends, in ms. Jobs may wait for hours; a job that waits not at all is in the first one.
JOB_BUCKETS_MS: Final[tuple[float, ...]] = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(1_000, 2_000, 5_000, 10_000, 30_000, 60_000),
    *(300_000, 900_000, 3_600_000, 21_600_000),
)


class Histogram:
    """Counts by upper end, and the sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the last one is without end
        self.sum = 0.0

    def add(self, value: float, n: int = 1) -> None:
        if value < 0:  # the wall clock went back meanwhile
            value = 0
        self.counts[bisect_left(self.bounds, value)] += n
        self.sum += value * n

    @property
    def count(self) -> int:
        return sum(self.counts)


class Tally:
    """What happened to the jobs of one queue, since the meter was made."""

    __slots__ = ("age_ms", "causes", "failed", "kinds", "reasons", "run", "wait")

    def __init__(self) -> None:
        self.kinds: defaultdict[str, int] = defaultdict(int)  # jobs by kind of event
        self.failed = 0  # attempts that ended in failure
        self.causes: defaultdict[str, int] = defaultdict(int)  # of these: not said by a worker
        self.reasons: defaultdict[str, int] = defaultdict(int)  # of deaths
        self.wait = Histogram(JOB_BUCKETS_MS)  # from ready to claimed
        self.run = Histogram(JOB_BUCKETS_MS)  # from claimed to completed
        self.age_ms = 0  # from pushed to completed, of all together


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to one tenant's jobs in a few seconds."""

    at: int  # the end of these seconds, in wall-clock ms
    pushed: int = 0
    claimed: int = 0
    completed: int = 0
    failed: int = 0  # attempts
    timed_out: int = 0  # of these: attempts that no worker ended
    dead: int = 0


COLUMNS: Final = ("pushed", "claimed", "completed", "failed", "timed_out", "dead")


class _Total(msgspec.Struct, gc=False):
    """One tenant's counts at one instant."""

    pushed: int = 0
    claimed: int = 0
    completed: int = 0
    failed: int = 0
    timed_out: int = 0
    dead: int = 0
    age_ms: int = 0

    def add(self, tally: Tally) -> None:
        kinds = tally.kinds
        self.pushed += kinds["pushed"]
        self.claimed += kinds["claimed"]
        self.completed += kinds["completed"]
        self.failed += tally.failed
        self.timed_out += sum(tally.causes.values())
        self.dead += kinds["dead"]
        self.age_ms += tally.age_ms

    def columns(self) -> tuple[int, ...]:
        return (
            self.pushed,
            self.claimed,
            self.completed,
            self.failed,
            self.timed_out,
            self.dead,
        )


_NOTHING: Final = _Total()


class Meter:
    """An `EventSink` for a store's `observer`. `sample` wants to be called every `POINT_S`."""

    def __init__(self, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._now_ms = now_ms
        self._tallies: dict[tuple[str, str], Tally] = {}
        self._of_tenant: dict[str, list[Tally]] = {}
        # The totals of each tenant at the last samples, to see the last minute by.
        began: dict[str, _Total] = {}
        self._samples: deque[tuple[int, dict[str, _Total]]] = deque([(now_ms(), began)])
        self._instants = array("q")  # of the points; a ring, like each series
        self._points = 0  # so far
        self._series: dict[str, array[int]] = {}  # a ring of COLUMNS per tenant

    # -- counting --------------------------------------------------------------------------------

    def write(self, events: list[Event]) -> None:
        """Count what these tell. The hot path of everything that a server does."""
        tallies = self._tallies
        for event in events:
            tally = tallies.get((event.tenant, event.queue))
            if tally is None:
                tally = self._tally(event.tenant, event.queue)
            runs = event.ids.runs
            n = runs[0].span if len(runs) == 1 and runs[0].mask is None else len(event.ids)
            kind = event.kind
            tally.kinds[kind] += n
            if kind == "claimed":
                tally.wait.add(event.at - event.ready_at, n)
            elif kind == "completed":
                tally.run.add(event.at - event.claimed_at, n)
                tally.age_ms += (event.at - event.pushed_at) * n
            elif kind in ("retried", "dead"):
                self._count_failure(tally, event, n)

    def _count_failure(self, tally: Tally, event: Event, n: int) -> None:
        if event.kind == "dead":
            tally.reasons[event.reason] += n
            if event.reason not in ("max_attempts", "rejected"):
                return  # no attempt of its own failed
        tally.failed += n
        if event.cause:
            tally.causes[event.cause] += n

    def _tally(self, tenant: str, queue: str) -> Tally:
        """A place for the first event of a queue: its own while there is room."""
        if tenant not in self._of_tenant and len(self._of_tenant) >= MAX_SERIES:
            tenant = queue = OTHER
        elif len(self._tallies) >= MAX_SERIES:
            queue = OTHER
        tally = self._tallies.get((tenant, queue))
        if tally is None:
            tally = self._tallies[tenant, queue] = Tally()
            self._of_tenant.setdefault(tenant, []).append(tally)
        return tally

    # -- looking ---------------------------------------------------------------------------------

    def tallies(self) -> Iterable[tuple[tuple[str, str], Tally]]:
        """((tenant, queue), what happened there) of every queue with a count of its own."""
        return self._tallies.items()

    @property
    def tenants(self) -> list[str]:
        """Those with a count of their own."""
        return [tenant for tenant in self._of_tenant if tenant != OTHER]

    def _total(self, tenant: str) -> _Total:
        total = _Total()
        for tally in self._of_tenant.get(tenant, ()):
            total.add(tally)
        return total

    def figures(self, tenant: str) -> Figures:
        """What has been counted of that tenant; rates over the last minute, or since the start."""
        now, total = self._now_ms(), self._total(tenant)
        at, totals = self._a_minute_ago(now)
        before = totals.get(tenant, _NOTHING)
        completed = total.completed - before.completed
        age_ms = total.age_ms - before.age_ms
        return Figures(
            pushed=total.pushed,
            completed=total.completed,
            failed=total.failed,
            timed_out=total.timed_out,
            jobs_per_second=completed * 1000 / max(now - at, 1_000),
            latency_ms=age_ms / completed if completed else 0.0,
        )

    def _a_minute_ago(self, now: int) -> tuple[int, dict[str, _Total]]:
        """The newest sample that is a minute old, else the oldest there is."""
        found = self._samples[0]
        for sample in self._samples:
            if now - sample[0] < MINUTE_MS:
                break
            found = sample
        return found

    # -- history ---------------------------------------------------------------------------------

    def sample(self) -> None:
        """Another point of the history: what happened since the last call."""
        now = self._now_ms()
        before = self._samples[-1][1]
        totals = {tenant: self._total(tenant) for tenant in self._of_tenant}
        place = self._points % POINTS
        if place == len(self._instants):
            self._instants.append(now)
        else:
            self._instants[place] = now
        width = len(COLUMNS)
        for tenant, total in totals.items():
            series = self._series.get(tenant)
            if series is None:
                series = self._series[tenant] = array("I", bytes(4 * width * POINTS))
            old = before.get(tenant, _NOTHING).columns()
            row = [b - a for a, b in zip(old, total.columns(), strict=True)]
            series[place * width : (place + 1) * width] = array("I", row)
        self._points += 1
        self._samples.append((now, totals))
        while len(self._samples) > 1 and now - self._samples[1][0] >= MINUTE_MS:
            self._samples.popleft()

    def history(self, tenant: str) -> list[Point]:
        """The points so far, oldest first; at most `POINTS`."""
        series, width = self._series.get(tenant), len(COLUMNS)
        points = []
        for number in range(max(self._points - POINTS, 0), self._points):
            place = number % POINTS
            at = self._instants[place]
            if series is None:
                points.append(Point(at=at))
                continue
            row = series[place * width : (place + 1) * width]
            points.append(Point(at=at, **dict(zip(COLUMNS, row, strict=True))))
        return points
