"""`penstock_rate_limit_hits_total`: pushes that a rate refused, and claims that one held back."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.model.store import Store
from penstock.open import open_store
from penstock.server.server import Server
from penstock.settings import Settings
from tests.durable import scratch
from tests.server.client import Client

PATIENCE_S = 30.0
HOUR: dict[str, Any] = {"tokens": 1, "per_ms": 3_600_000}
SOON: dict[str, Any] = {"tokens": 1, "per_ms": 50}


class Up:
    """A server, and one who speaks to it over HTTP."""

    def __init__(self, server: Server, client: Client) -> None:
        self.server = server
        self.client = client

    async def configure(self, **config: Any) -> None:
        answer = await self.client.request("PUT", "/v1/queues/q/config", config)
        assert answer.status == 200

    async def push(self, n: int = 1, **options: Any) -> list[int]:
        said = {"payload": 1, **options}
        return [(await self.client.post("/v1/queues/q/jobs", said)).status for _ in range(n)]

    async def claim(self, n: int = 1, **options: Any) -> list[int]:
        said = {"lease_ms": 60_000, **options}
        return [(await self.client.post("/v1/queues/q/claim", said)).status for _ in range(n)]

    async def hits(self) -> dict[str, float]:
        async with await self.another() as client:
            text = (await client.get("/metrics")).body.decode()
        return {
            sample.labels["limited"]: sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == "penstock_rate_limit_hits_total"
        }

    async def another(self) -> Client:
        host, _, port = (self.server.addresses["http"] or "").rpartition(":")
        return await Client.to((host, int(port)))

    @property
    def store(self) -> Store:
        return self.server.parts.gate


@asynccontextmanager
async def serving(url: str = "memory://") -> AsyncIterator[Up]:
    server = await Server.open(Settings(url=url, port=0, http_port=0))
    await server.start()
    host, _, port = (server.addresses["http"] or "").rpartition(":")
    client = await Client.to((host, int(port)))
    try:
        yield Up(server, client)
    finally:
        await client.close()
        await server.stop(0)


def play(case: Callable[[Up], Awaitable[None]], url: str = "memory://") -> None:
    async def timed() -> None:
        async with asyncio.timeout(PATIENCE_S), serving(url) as up:
            await case(up)

    asyncio.run(timed())


def test_pushes_that_a_rate_refuses_are_counted() -> None:
    async def case(up: Up) -> None:
        assert await up.hits() == {"push": 0, "claim": 0}
        await up.configure(bounds={"push_rate": HOUR})
        assert await up.push(4) == [201, 429, 429, 429]
        assert await up.hits() == {"push": 3, "claim": 0}
        await up.configure(bounds={"jobs": 1})
        assert await up.push() == [503]
        assert await up.hits() == {"push": 3, "claim": 0}

    play(case)


def test_claims_that_a_rate_holds_back_are_counted() -> None:
    async def case(up: Up) -> None:
        await up.configure(limits={"rate": HOUR})
        assert await up.claim() == [204]  # there is nothing to be had
        await up.push(5)
        assert await up.claim(3) == [200, 204, 204]
        assert await up.hits() == {"push": 0, "claim": 2}
        await up.configure()
        assert await up.claim(5) == [200, 200, 200, 200, 204]
        assert await up.hits() == {"push": 0, "claim": 2}

    play(case)


def test_claims_that_the_rate_of_every_group_holds_back_are_counted() -> None:
    async def case(up: Up) -> None:
        await up.configure(limits={"group_rate": HOUR, "group_concurrency": 9})
        for group in ("a", "b"):
            await up.push(2, group=group)
        assert await up.claim(4) == [200, 200, 204, 204]
        assert await up.hits() == {"push": 0, "claim": 2}
        await up.push(1, group="c")
        assert await up.claim(2) == [200, 204]
        assert await up.hits() == {"push": 0, "claim": 3}

    play(case)


def test_a_claim_that_waits_for_a_token_is_counted_once() -> None:
    async def case(up: Up) -> None:
        await up.configure(limits={"rate": SOON})
        await up.push(2)
        assert await up.claim(2, wait_ms=20_000) == [200, 200]
        assert await up.hits() == {"push": 0, "claim": 1}
        await up.configure(limits={"rate": HOUR})
        await up.push(2)
        assert await up.claim(1) == [200]
        assert await up.claim(2, wait_ms=30) == [204, 204]
        assert await up.hits() == {"push": 0, "claim": 3}

    play(case)


def test_a_claim_that_waits_when_jobs_come_is_counted_if_the_rate_holds_them_back() -> None:
    async def case(up: Up) -> None:
        await up.configure(limits={"rate": HOUR})
        await up.push()
        await up.claim()
        async with await up.another() as other:
            await other.ask("POST", "/v1/queues/q/claim", {"wait_ms": 20_000})
            while (await up.store.health()).detail["waiting_claims"] != 1:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            assert await up.hits() == {"push": 0, "claim": 0}
            await up.push(3)
            assert await up.hits() == {"push": 0, "claim": 1}
            await up.configure()
            assert (await other.answer("POST")).status == 200
        assert await up.hits() == {"push": 0, "claim": 1}

    play(case)


@pytest.mark.parametrize("what", ["paused", "concurrency", "group", "elsewhere"])
def test_claims_that_something_else_holds_back_are_not_counted(what: str) -> None:
    async def case(up: Up) -> None:
        options = {"group": "a"} if what == "group" else {}
        await up.push(3, **options)
        if what == "concurrency":
            await up.configure(limits={"rate": HOUR, "concurrency": 1})
            assert await up.claim() == [200]
        elif what == "group":  # the next job of the group waits for its turn, and would anyhow
            await up.configure(limits={"rate": HOUR, "group_rate": HOUR})
            assert await up.claim() == [200]
        elif what == "paused":
            await up.configure(limits={"rate": HOUR})
            assert await up.claim() == [200]
            assert (await up.client.post("/v1/queues/q/pause")).status < 300
        else:
            await up.configure(limits={"rate": HOUR})
            assert await up.claim() == [200]
            said = {"queues": ["other"], "lease_ms": 60_000}
            assert (await up.client.post("/v1/claim", said)).status == 204
            assert await up.hits() == {"push": 0, "claim": 0}
            return
        assert await up.claim(2) == [204, 204]
        assert await up.hits() == {"push": 0, "claim": 0}

    play(case)


def test_a_server_that_does_not_own_the_store_tells_what_its_owner_counted() -> None:
    async def case(directory: str) -> None:
        url = f"sqlite:///{directory}/jobs"
        owner = await open_store(url)
        async with serving(url) as up:
            assert not up.store.owned
            await up.configure(limits={"rate": HOUR}, bounds={"push_rate": HOUR})
            assert await up.push(2) == [201, 429]
            assert await up.claim() == [200]
            await up.configure(limits={"rate": HOUR})
            assert await up.push(1) == [201]
            assert await owner.claim("default", ["q"]) is None
            assert await up.claim() == [204]
            assert await up.hits() == {"push": 1, "claim": 2}
        await owner.close()

    with scratch() as directory:
        asyncio.run(case(directory))
