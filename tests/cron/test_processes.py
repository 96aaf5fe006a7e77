"""Schedulers in processes of their own, one stopped, one killed; and the one in the server."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from subprocess import PIPE, Popen
from typing import Any

import pytest

from penstock.model.job import JobOptions
from penstock.model.schedule import CronSpec, Every, parse_key
from penstock.model.store import Store
from penstock.server.server import Server
from penstock.settings import Settings, Token

PERIOD_MS = 100
SPEC = CronSpec(
    name="often",
    queue="q",
    schedule=Every(every_ms=PERIOD_MS),
    options=JobOptions(retain_ms=0),
    missed="all",
)


async def started(url: str) -> "Popen[bytes]":
    process = Popen([sys.executable, "-m", "tests.cron.process", url], stdout=PIPE)  # noqa: ASYNC220
    assert process.stdout is not None
    assert await asyncio.to_thread(process.stdout.readline) == b"ready\n"
    return process


async def instants_of(store: Store, count: int, tenant: str = "default") -> list[int]:
    """The next so many instants that fire, as they fire."""
    seen: list[int] = []
    while len(seen) < count:
        lease = await store.claim(tenant, ["q"], 100, wait_ms=10_000)
        assert lease is not None, f"nothing fires any more after {len(seen)} of {count}"
        await store.ack(tenant, lease.token)
        seen += [parse_key(job.key or "")[2] for job in lease.jobs]
    return seen


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[Server]:
    server = await Server.open(Settings(url="memory://", port=0, no_http=True, **settings))
    await server.start()
    try:
        yield server
    finally:
        await server.stop(0)


def regular(seen: list[int]) -> bool:
    return seen == [seen[0] + n * PERIOD_MS for n in range(len(seen))]


@pytest.mark.long
async def test_of_two_schedulers_one_stopped_and_one_killed() -> None:
    async with serving(cron=False) as server:
        store = server.parts.gate
        url = f"penstock://{server.addresses['tcp']}"
        one, two = await started(url), await started(url)
        try:
            await store.put_cron("default", SPEC)
            seen = await instants_of(store, 10)
            one.send_signal(signal.SIGSTOP)
            seen += await instants_of(store, 50)  # more than are installed ahead
            one.send_signal(signal.SIGCONT)
            two.kill()
            seen += await instants_of(store, 50)
        finally:
            for process in (one, two):
                process.kill()
                with process:
                    process.wait()
        assert regular(seen)


async def test_a_server_keeps_the_crons_of_its_tenants_going() -> None:
    ada = Token(name="ada", hash="sha256:" + "0" * 64, tenant="ada")
    async with serving(tokens=(ada,)) as server:
        store = server.parts.gate
        for tenant in ("ada", "default"):
            await store.put_cron(tenant, SPEC)
        # Twenty are installed ahead.
        both = await asyncio.gather(instants_of(store, 24, "ada"), instants_of(store, 24))
        assert all(map(regular, both))


async def test_a_server_can_be_told_not_to() -> None:
    async with serving(cron=False) as server:
        assert server._scheduler is None
