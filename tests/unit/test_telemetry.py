"""Telemetry: a wrapper that changes nothing, and counts that equal a recount."""

import asyncio
import inspect
from collections import Counter, defaultdict
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from penstock.model.errors import LeaseLost, PenstockError, RateLimited
from penstock.model.event import Event
from penstock.model.job import IdRun, Ids, JobError, JobSpec, Lease, Run
from penstock.model.lifecycle import State
from penstock.model.policy import Backoff, Bounds, QueueConfig, Rate
from penstock.model.store import Store
from penstock.open import open_store
from penstock.protocol.command import Figures
from penstock.stores.clock import ManualClock
from penstock.telemetry import meter as metering
from penstock.telemetry.meter import OTHER, POINTS, Histogram, Meter, Point
from penstock.telemetry.store import Telemetry

METHODS = sorted(Store.__abstractmethods__)
NOW = 1_700_000_000_000


def event(kind: Any, n: int = 1, *, tenant: str = "acme", queue: str = "q", **more: Any) -> Event:
    return Event(kind=kind, tenant=tenant, queue=queue, at=NOW, ids=Ids((IdRun(1, n),)), **more)


# -- the wrapper -----------------------------------------------------------------------------------


def recorder(told: list[tuple[str, dict[str, Any]]]) -> Store:
    """A store that answers each call with its name, and writes down what it was given."""

    def method(name: str) -> Callable[..., Any]:
        signature = inspect.signature(getattr(Store, name))

        async def call(self: Store, *args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(self, *args, **kwargs)
            bound.apply_defaults()
            given = dict(bound.arguments)
            del given["self"]
            told.append((name, given))
            return name

        return call

    kind = type("Recorder", (Store,), {name: method(name) for name in METHODS})
    return kind()  # type: ignore[no-any-return]


def timed(store: Telemetry) -> dict[str, int]:
    """How many calls were timed, by name."""
    counts = {name: operation.took.count for name, operation in store.operations.items()}
    return {name: count for name, count in counts.items() if count}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_the_signature_of_the_seam(name: str) -> None:
    ours, theirs = (inspect.signature(getattr(kind, name)) for kind in (Telemetry, Store))
    assert ours.parameters == theirs.parameters


@pytest.mark.parametrize("name", METHODS)
def test_every_method_passes_on_all_that_it_is_given(name: str) -> None:
    told: list[tuple[str, dict[str, Any]]] = []
    store = Telemetry(recorder(told), Meter())
    parameters = list(inspect.signature(getattr(Store, name)).parameters.values())[1:]
    given = {each.name: object() for each in parameters}
    positional = [given[p.name] for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    named = {p.name: given[p.name] for p in parameters if p.kind is p.KEYWORD_ONLY}

    async def call() -> Any:
        return await getattr(store, name)(*positional, **named)

    assert asyncio.run(call()) == name
    assert told == [(name, given)]
    if name not in ("watch", "close"):
        assert list(timed(store).values()) == [1]


def test_calls_that_may_wait_are_timed_by_themselves() -> None:
    async def run() -> Telemetry:
        store = Telemetry(recorder([]), Meter())
        await store.claim("acme", ["q"])
        await store.claim("acme", ["q"], wait_ms=10)
        await store.result("acme", 1, wait_ms=10)
        return store

    calls = timed(asyncio.run(run()))
    assert calls == {"claim": 1, "claim_waiting": 1, "result_waiting": 1}


def test_errors_are_counted_by_code_and_passed_on() -> None:
    async def run() -> Telemetry:
        meter = Meter()
        store = Telemetry(await open_store("memory://", observer=meter), meter)
        with pytest.raises(LeaseLost):
            await store.ack("acme", "0" * 32)
        bounds = Bounds(push_rate=Rate(tokens=1, per_ms=60_000))
        await store.configure("acme", "q", QueueConfig(bounds=bounds))
        await store.push_jobs("acme", "q", [JobSpec()])
        with pytest.raises(RateLimited):
            await store.push_jobs("acme", "q", [JobSpec()])
        await store.close()
        return store

    store = asyncio.run(run())
    assert dict(store.operations["ack"].errors) == {"lease_lost": 1}
    assert store.errors("rate_limited") == 1
    assert store.operations["push"].took.count == 2


def test_an_error_that_is_not_ours_is_counted_too() -> None:
    class Broken(Exception):
        pass

    async def run() -> Telemetry:
        store = recorder([])
        store.tick = fail  # type: ignore[method-assign]
        wrapped = Telemetry(store, Meter())
        with pytest.raises(Broken):
            await wrapped.tick()
        return wrapped

    async def fail() -> None:
        raise Broken

    assert dict(asyncio.run(run()).operations["tick"].errors) == {"internal": 1}


# -- counting --------------------------------------------------------------------------------------


class Recount:
    """What a caller can count by itself, job by job."""

    def __init__(self) -> None:
        self.kinds: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        self.waits: Counter[tuple[str, str]] = Counter()
        self.runs: Counter[tuple[str, str]] = Counter()


class Life:
    """A random life of jobs on a store in memory, through telemetry."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.clock = ManualClock()
        self.meter = Meter(self.clock.now_ms)
        self.counted = Recount()
        self.leases: list[tuple[str, Lease, int]] = []  # tenant, lease, claimed at
        self.errors: Counter[tuple[str, str, str]] = Counter()

    async def live(self, steps: int) -> Telemetry:
        inner = await open_store("memory://", clock=self.clock, observer=self.meter, seed=1)
        self.store = Telemetry(inner, self.meter)
        for tenant in ("acme", "other"):
            for queue in ("a", "b"):
                config = QueueConfig(retain_ms=10**12, retain_count=10**6, retain_dead_ms=10**12)
                await self.store.configure(tenant, queue, config)
        ways = [self.push, self.push, self.claim, self.claim, self.ack, self.ack]
        ways += [self.fail, self.release, self.cancel, self.wait]
        for _ in range(steps):
            await self.random.choice(ways)()
        return self.store

    def spot(self) -> tuple[str, str]:
        return self.random.choice(("acme", "acme", "other")), self.random.choice(("a", "b"))

    async def push(self) -> None:
        tenant, queue = self.spot()
        spec = JobSpec(
            max_attempts=self.random.choice((1, 2, 3)),
            backoff=Backoff(kind="fixed", base_ms=50, jitter="none"),
            delay_ms=self.random.choice((None, None, 30)),
            ttl_ms=self.random.choice((None, 400)),
            timeout_ms=self.random.choice((None, None, 120)),
            priority=self.random.choice((0, 5)),
        )
        n = self.random.choice((1, 1, 3, 200))
        pushed = await self.store.push(tenant, [Run.of(queue, [spec] * n)])
        self.counted.kinds[tenant, queue]["pushed"] += len(pushed.ids)

    async def claim(self) -> None:
        tenant, queue = self.spot()
        n = self.random.choice((1, 5, 100))
        lease = await self.store.claim(tenant, [queue], n, lease_ms=self.random.choice((80, 900)))
        if lease is None:
            return
        now = self.clock.now_ms()
        self.leases.append((tenant, lease, now))
        self.counted.kinds[tenant, queue]["claimed"] += len(lease)
        for job in await self.store.get(tenant, lease.ids):
            assert job is not None
            self.counted.waits[tenant, queue] += now - job.run_at

    def lease(self) -> tuple[str, Lease, int] | None:
        return self.random.choice(self.leases) if self.leases else None

    async def ack(self) -> None:
        held = self.lease()
        if held is None:
            return
        tenant, lease, at = held
        ids = self.random.choice((None, lease.ids[::2]))
        try:
            acked = await self.store.ack(tenant, lease.token, ids)
        except LeaseLost:
            return
        spot = tenant, lease.queue
        self.counted.kinds[spot]["completed"] += len(acked.acked)
        self.counted.runs[spot] += (self.clock.now_ms() - at) * len(acked.acked)

    async def fail(self) -> None:
        held = self.lease()
        if held is None:
            return
        tenant, lease, _ = held
        dead = self.random.random() < 0.2
        try:
            failed = await self.store.fail(
                tenant,
                lease.token,
                lease.ids[:3],
                error=JobError(kind=self.random.choice(("Boom", "timeout"))),
                dead=dead,
            )
        except LeaseLost:
            return
        self.counted.kinds[tenant, lease.queue]["said to fail"] += len(failed.jobs)

    async def release(self) -> None:
        held = self.lease()
        if held is None:
            return
        tenant, lease, _ = held
        try:
            released = await self.store.release(tenant, lease.token, lease.ids[-2:])
        except LeaseLost:
            return
        self.counted.kinds[tenant, lease.queue]["released"] += len(released.released)

    async def cancel(self) -> None:
        tenant, queue = self.spot()
        page = await self.store.find(tenant, queue, state=State.READY, limit=2)
        ids = [job.id for job in page.jobs]
        if ids:
            discard = self.random.random() < 0.3
            done = await self.store.cancel(tenant, ids, discard=discard)
            if not discard:
                self.counted.kinds[tenant, queue]["cancelled"] += len(done.acked)

    async def wait(self) -> None:
        self.clock.advance(self.random.choice((7, 20, 100)))
        await self.store.tick()


@pytest.mark.parametrize("seed", range(8))
def test_counts_equal_a_recount_over_a_random_history(seed: int) -> None:
    async def run() -> None:
        life = Life(seed)
        store = await life.live(300)
        tallies = dict(life.meter.tallies())
        for spot in [(tenant, queue) for tenant in ("acme", "other") for queue in ("a", "b")]:
            tally, counted = tallies[spot], life.counted.kinds[spot]
            for kind in ("pushed", "claimed", "completed", "released", "cancelled"):
                assert tally.kinds[kind] == counted[kind], (spot, kind)
            assert tally.wait.count == counted["claimed"]
            assert tally.wait.sum == life.counted.waits[spot]
            assert tally.run.count == counted["completed"]
            assert tally.run.sum == life.counted.runs[spot]
            # The ends of jobs, as the store knows them.
            (info,) = await store.queues(spot[0], [spot[1]])
            reasons: Counter[str] = Counter()
            failures = unsaid = 0
            cursor: int | None = 0
            while cursor is not None:
                page = await store.find(spot[0], spot[1], cursor=cursor, limit=1_000)
                cursor = page.cursor
                for job in page.jobs:
                    failures += len(job.errors)
                    unsaid += sum(error.message != "" for error in job.errors)
                    if job.dead_reason is not None:
                        reasons[job.dead_reason.value] += 1
            assert tally.kinds["expired"] == info.counts[State.EXPIRED]
            assert tally.kinds["dead"] == info.counts[State.DEAD]
            assert dict(tally.reasons) == dict(reasons)
            assert tally.failed == failures  # no job has more than 10, so none is forgotten
            assert sum(tally.causes.values()) == unsaid == failures - counted["said to fail"]
        assert sum(tally.causes["lease_expired"] for tally in tallies.values())
        assert sum(tally.causes["timeout"] for tally in tallies.values())
        await store.close()

    asyncio.run(run())


def test_a_range_adds_to_one_bucket_whatever_its_length() -> None:
    meter = Meter(lambda: NOW)
    meter.write([event("claimed", 1_000, ready_at=NOW - 30)])
    ((_, tally),) = meter.tallies()
    assert sorted(tally.wait.counts)[-2:] == [0, 1_000]
    assert tally.wait.sum == 30_000
    masked = Event(
        kind="claimed",
        tenant="acme",
        queue="q",
        at=NOW,
        ready_at=NOW,
        ids=Ids((IdRun(1, 4, b"\1\0\1\0"), IdRun(9, 2))),
    )
    meter.write([masked])
    assert tally.kinds["claimed"] == 1_004


def test_a_value_falls_into_the_bucket_that_it_does_not_exceed() -> None:
    histogram = Histogram((1, 10))
    for value in (0, 1, 2, 10, 11, -5):
        histogram.add(value)
    assert histogram.counts == [3, 2, 1]
    assert (histogram.count, histogram.sum) == (6, 24)


def test_what_callers_name_does_not_make_it_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metering, "MAX_SERIES", 10)
    meter = Meter(lambda: NOW)
    for number in range(100):
        meter.write([event("pushed", queue=f"q{number}")])
    tallies = dict(meter.tallies())
    assert len(tallies) == 11
    assert tallies["acme", OTHER].kinds["pushed"] == 90
    assert meter.figures("acme").pushed == 100
    for number in range(100):
        meter.write([event("pushed", tenant=f"t{number}")])
    tallies = dict(meter.tallies())
    assert len(tallies) <= 10 + 10 + 1
    assert tallies[OTHER, OTHER].kinds["pushed"] == 91
    assert OTHER not in meter.tenants
    assert sum(tally.kinds["pushed"] for tally in tallies.values()) == 200


# -- figures and history ---------------------------------------------------------------------------


def test_figures_are_of_one_tenant_and_rates_of_the_last_minute() -> None:
    now = [NOW]
    meter = Meter(lambda: now[0])
    assert meter.figures("acme") == Figures()
    meter.write([event("pushed", 600), event("completed", 600, pushed_at=NOW - 40)])
    meter.write([event("retried", 2, cause="timeout"), event("retried", 1)])
    meter.write([event("dead", 1, reason="max_attempts", cause="lease_expired")])
    meter.write([event("dead", 5, reason="dependency_failed"), event("pushed", 9, tenant="b")])
    now[0] += 10_000
    assert meter.figures("acme") == Figures(
        pushed=600,
        completed=600,
        failed=4,
        timed_out=3,
        jobs_per_second=60.0,
        latency_ms=40.0,
    )
    for _ in range(14):
        now[0] += 5_000
        meter.sample()
    assert meter.figures("acme").completed == 600
    assert (meter.figures("acme").jobs_per_second, meter.figures("acme").latency_ms) == (0, 0)
    meter.write([event("completed", 120, pushed_at=NOW - 7)])
    assert meter.figures("acme").jobs_per_second == pytest.approx(2, rel=0.1)
    assert meter.figures("acme").latency_ms == 7


def test_the_history_has_a_point_per_sample_and_forgets_the_oldest() -> None:
    now = [NOW]
    meter = Meter(lambda: now[0])
    assert meter.history("acme") == []
    for number in range(POINTS + 10):
        if number % 2:
            meter.write([event("pushed", number), event("claimed", 2), event("completed", 1)])
            meter.write([event("dead", 3, reason="rejected")])
        now[0] += 5_000
        meter.sample()
    points = meter.history("acme")
    assert len(points) == POINTS
    last = POINTS + 9
    assert points[-1] == Point(
        at=NOW + 5_000 * (last + 1), pushed=last, claimed=2, completed=1, failed=3, dead=3
    )
    assert points[-2] == Point(at=NOW + 5_000 * last)
    assert points[0].at == NOW + 5_000 * 11
    assert [point.at for point in points] == sorted(point.at for point in points)
    assert meter.history("nobody") == [Point(at=point.at) for point in points]


def test_counting_does_not_wait_for_the_disk_nor_make_the_store_sync(tmp_path: Any) -> None:
    async def run() -> dict[str, int]:
        syncs = {}
        for name in ("alone", "observed", "kept"):
            meter = Meter()
            more: dict[str, Any] = {"observed": {"observer": meter}, "kept": {"events": meter}}
            url = f"sqlite:///{tmp_path}/{name}?durability=fsync"
            store = await open_store(url, **more.get(name, {}))
            await store.push_jobs("acme", "q", [JobSpec()] * 3)
            before = (await store.health()).detail["syncs"]
            for _ in range(3):
                await store.claim("acme", ["q"])
            syncs[name] = (await store.health()).detail["syncs"] - before
            if name != "alone":
                assert dict(meter.tallies())["acme", "q"].kinds["pushed"] == 3
            await store.close()
        return syncs

    syncs = asyncio.run(run())
    assert syncs["alone"] == syncs["observed"] == 0
    assert syncs["kept"] > 0


def test_errors_of_the_tree_have_codes() -> None:
    assert all(kind.code for kind in PenstockError.__subclasses__())
