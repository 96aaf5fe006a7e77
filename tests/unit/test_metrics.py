"""Metrics: what Prometheus reads is what was counted, and a scrape is bounded."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.model.errors import LeaseLost, Unavailable
from penstock.model.job import JobError, JobSpec
from penstock.open import open_store
from penstock.server import metrics as metrics_module
from penstock.server.metrics import Metrics
from penstock.stores.clock import ManualClock
from penstock.telemetry.meter import OTHER, Meter
from penstock.telemetry.store import Telemetry
from tools.docs import ROOT

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parsed(text: str) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


async def opened(url: str = "memory://", clock: ManualClock | None = None) -> Telemetry:
    meter = Meter()
    return Telemetry(await open_store(url, observer=meter, clock=clock), meter)


def test_a_scrape_tells_what_happened() -> None:
    async def run() -> str:
        clock = ManualClock()
        store = await opened(clock=clock)
        await store.push_jobs("acme", "q", [JobSpec(max_attempts=1)] * 10)
        clock.advance(1_500)
        lease = await store.claim("acme", ["q"], 6, lease_ms=1_000)
        assert lease is not None
        clock.advance(300)
        await store.ack("acme", lease.token, lease.ids[:4])
        await store.fail("acme", lease.token, lease.ids[4:5], error=JobError())
        clock.advance(1_000)
        with pytest.raises(LeaseLost):
            await store.ack("acme", lease.token)
        text = await Metrics(store, connections=lambda: {"tcp": 3, "http": 0}).text()
        await store.close()
        return text

    samples = parsed(asyncio.run(run()))
    spot = {"tenant": "acme", "queue": "q"}
    assert value(samples, "penstock_jobs", **spot, state="ready") == 4
    assert value(samples, "penstock_jobs", **spot, state="completed") == 4
    assert value(samples, "penstock_jobs", **spot, state="active") == 0
    assert value(samples, "penstock_oldest_ready_seconds", **spot) == pytest.approx(2.8)
    assert value(samples, "penstock_jobs_pushed_total", **spot) == 10
    assert value(samples, "penstock_jobs_claimed_total", **spot) == 6
    assert value(samples, "penstock_jobs_completed_total", **spot) == 4
    assert value(samples, "penstock_jobs_dead_total", **spot, reason="max_attempts") == 2
    assert value(samples, "penstock_attempts_failed_total", **spot) == 2
    assert value(samples, "penstock_lease_expiries_total", **spot) == 1
    assert value(samples, "penstock_attempt_timeouts_total", **spot) == 0
    assert value(samples, "penstock_job_wait_seconds_bucket", **spot, le="1") == 0
    assert value(samples, "penstock_job_wait_seconds_bucket", **spot, le="2") == 6
    assert value(samples, "penstock_job_wait_seconds_bucket", **spot, le="+Inf") == 6
    assert value(samples, "penstock_job_wait_seconds_sum", **spot) == pytest.approx(9)
    assert value(samples, "penstock_job_wait_seconds_count", **spot) == 6
    assert value(samples, "penstock_job_run_seconds_sum", **spot) == pytest.approx(1.2)
    assert value(samples, "penstock_call_seconds_count", operation="push") == 1
    assert value(samples, "penstock_call_errors_total", operation="ack", code="lease_lost") == 1
    assert value(samples, "penstock_rate_limit_hits_total", limited="push") == 0
    assert value(samples, "penstock_rate_limit_hits_total", limited="claim") == 0
    assert value(samples, "penstock_store_retries_total") == 0
    assert value(samples, "penstock_store_up") == 1
    assert value(samples, "penstock_store_owned") == 1
    assert value(samples, "penstock_leases") == 0
    assert value(samples, "penstock_connections", transport="tcp") == 3


def test_a_store_on_a_disk_tells_how_the_disk_does(tmp_path: Path) -> None:
    async def run() -> str:
        store = await opened(f"sqlite:///{tmp_path}/store")
        await store.push_jobs("acme", "q", [JobSpec()])
        text = await Metrics(store).text()
        await store.close()
        return text

    samples = parsed(asyncio.run(run()))
    assert value(samples, "penstock_journal_lag_records") == 0
    assert value(samples, "penstock_fsync_seconds") > 0
    assert value(samples, "penstock_journal_syncs_total") >= 1
    assert value(samples, "penstock_disk_free_bytes") > 0


def test_names_that_callers_choose_are_escaped_and_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics_module, "MAX_SERIES", 5)

    async def run() -> str:
        store = await opened()
        for number in range(20):
            await store.push_jobs("acme", f"q{number}", [JobSpec()] * 2)
        text = await Metrics(store).text()
        await store.close()
        return text

    samples = parsed(asyncio.run(run()))
    depths = [labels for name, labels in samples if name == "penstock_oldest_ready_seconds"]
    assert len(depths) == 6
    assert value(samples, "penstock_jobs", tenant=OTHER, queue=OTHER, state="ready") == 30


def test_a_tenant_that_has_not_stirred_is_seen_if_it_is_known() -> None:
    async def run() -> tuple[str, str]:
        inner = await open_store("memory://")
        await inner.push_jobs("acme", "q", [JobSpec()])
        await inner.push_jobs("default", "q", [JobSpec()])
        store = Telemetry(inner, Meter())  # begins to count behind these
        texts = await Metrics(store).text(), await Metrics(store, tenants=["acme"]).text()
        await store.close()
        return texts

    unknown, known = map(parsed, asyncio.run(run()))
    acme = ("penstock_jobs", frozenset({"tenant": "acme", "queue": "q", "state": "ready"}.items()))
    assert acme not in unknown
    assert known[acme] == 1
    assert value(unknown, "penstock_jobs", tenant="default", queue="q", state="ready") == 1


def test_scrapes_at_the_same_time_share_one_answer() -> None:
    async def run() -> int:
        store = await opened()
        gathered = 0
        health = store.inner.health

        async def counted() -> Any:
            nonlocal gathered
            gathered += 1
            return await health()

        store.inner.health = counted  # type: ignore[method-assign]
        metrics = Metrics(store)
        texts = await asyncio.gather(*(metrics.text() for _ in range(50)))
        assert len(set(texts)) == 1
        await metrics.text()
        await metrics.close()
        await store.close()
        return gathered

    assert asyncio.run(run()) == 2


def test_a_scraper_that_goes_away_does_not_take_the_others_answer() -> None:
    async def run() -> None:
        store = await opened()
        metrics = Metrics(store)
        first = asyncio.ensure_future(metrics.text())
        second = asyncio.ensure_future(metrics.text())
        await asyncio.sleep(0)
        first.cancel()
        assert "penstock_store_up 1.0" in await second
        await store.close()

    asyncio.run(run())


def test_a_store_that_has_ended_is_told_as_such() -> None:
    async def run() -> str:
        store = await opened()
        await store.close()
        return await Metrics(store).text()

    assert value(parsed(asyncio.run(run())), "penstock_store_up") == 0


def test_without_the_library_the_answer_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import builtins

    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "prometheus_client":
            raise ModuleNotFoundError(f"No module named {name!r}", name="prometheus_client")
        return real(name, *args, **kwargs)

    async def run() -> None:
        store = await opened()
        monkeypatch.setattr(builtins, "__import__", without)
        with pytest.raises(Unavailable, match=r"penstock\[server\]"):
            await Metrics(store).text()
        monkeypatch.undo()
        await store.close()

    asyncio.run(run())


def test_every_metric_is_documented_and_every_documented_one_exists(tmp_path: Path) -> None:
    async def run() -> str:
        store = await opened(f"sqlite:///{tmp_path}/store?events={tmp_path}/events")
        text = await Metrics(store).text()
        await store.close()
        return text

    page = (ROOT / "docs" / "how-to" / "run-a-server.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"`(penstock_\w+)`", page))
    told = set()
    for line in asyncio.run(run()).splitlines():
        if line.startswith("# TYPE "):
            told.add(line.split()[2])
    assert documented == told
