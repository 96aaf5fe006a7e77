"""A little of everything that clients do to a server, at a steady pace, and a count of what they pushed.

Each habit is done again and again in a rhythm of its own, for as long as is said, and lets go of
whatever it took: when a spell is over, nothing of it should be left at the server.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from typing import Final

from penstock import group
from penstock.model.answers import Pushed
from penstock.model.job import JobSpec
from penstock.model.store import Store
from penstock.open import open_store
from tests.faults import chores
from tests.server.client import Client as HttpClient
from tests.server.client import events_of, written
from tests.server.hostile.wire import Address, Client, message

TENANT: Final = "default"
NOBODY: Final = "nobody"  # a queue without jobs, for those who wait in vain
LONG_MS: Final = 3_600_000
GIVEN_UP_S: Final = 0.02  # after so long
PATIENCE: Final = "60s"  # for results, which are known for as long
LEASE_MS: Final = 50
SINGLE: Final = JobSpec(payload=b'{"number":1}', task="single")
TEXT: Final = "x" * 2_000

# How the jobs of a queue end; those of any other are completed.
ENDS: Final = {
    "doomed": "dead",
    "abandoned": "dead",
    "cancelled": "cancelled",
    "expired": "expired",
}
QUEUES: Final = sorted({*chores.app.queues, *ENDS, "http"})

Habit = Callable[[int], Awaitable[None]]


class SteadyLoad:
    def __init__(self, store: Store, url: str, tcp: Address, http: Address) -> None:
        self.pushed: Counter[str] = Counter()  # by queue: the jobs that were acknowledged as new
        self.redriven: Counter[str] = Counter()
        self.purged: Counter[str] = Counter()
        self._store = store
        self._url = url
        self._tcp = tcp
        self._http = http
        self._numbers = count()
        self._habits: tuple[tuple[Habit, float], ...] = (
            (self._single_pushes, 0.1),
            (self._batches, 0.25),
            (self._delays, 0.1),
            (self._keys, 0.1),
            (self._failures, 0.1),
            (self._flows, 0.25),
            (self._ends_without_a_worker, 0.25),
            (self._dead_letters, 0.4),
            (self._abandoned_leases, 0.25),
            (self._waits_given_up, 0.2),
            (self._watchers, 0.2),
            (self._requests, 0.1),
            (self._wordless, 0.05),
            (self._visitors, 1.0),
        )

    async def spell(self, seconds: float) -> None:
        """All habits side by side, each of them at least once."""
        until = asyncio.get_running_loop().time() + seconds
        async with asyncio.TaskGroup() as habits:
            for habit, period_s in self._habits:
                habits.create_task(self._keep(habit, period_s, until))

    async def one_job(self) -> None:
        """Done by any worker."""
        job = await chores.single.options(retain=PATIENCE).apush(1)
        self.pushed["singles"] += 1
        assert await job.aresult(PATIENCE) == 1

    async def one_passing_job(self) -> None:
        """Done by a worker that came for it."""
        job = await chores.passing.options(retain=PATIENCE).apush()
        self.pushed[chores.PASSING] += 1
        await job.aresult(PATIENCE)

    async def _keep(self, habit: Habit, period_s: float, until: float) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            await habit(next(self._numbers))
            due = max(due + period_s, loop.time())
            if due >= until:
                return
            await asyncio.sleep(due - loop.time())

    async def _push(self, queue: str, job: JobSpec) -> int:
        return self._counted(queue, await self._store.push_jobs(TENANT, queue, [job]))

    def _counted(self, queue: str, pushed: Pushed) -> int:
        self.pushed[queue] += len(pushed.ids)
        return pushed.ids[0]

    # -- pushing ---------------------------------------------------------------------------------

    async def _single_pushes(self, number: int) -> None:
        jobs = await asyncio.gather(*(chores.single.apush(number) for _ in range(10)))
        self.pushed["singles"] += len(jobs)
        await self.one_job()
        await chores.threaded.apush(number)
        self.pushed["threads"] += 1

    async def _batches(self, number: int) -> None:
        await chores.batched.apush_many([TEXT] * 50, atomic=number % 8 == 0)
        self.pushed["batches"] += 50

    async def _delays(self, number: int) -> None:
        await chores.delayed.options(delay="50ms").apush(number)
        self.pushed["delayed"] += 1

    async def _keys(self, number: int) -> None:
        task = chores.keyed.options(
            key=f"key {number % 2}", on_conflict="replace", delay="150ms", keep_key="started"
        )
        for _ in range(3):
            job = await task.apush(number)
            self.pushed["keyed"] += job.outcome == "created"

    async def _failures(self, number: int) -> None:
        await chores.flaky.apush(number)
        await chores.doomed.apush(number)
        self.pushed += Counter(flaky=1, doomed=1)

    async def _flows(self, number: int) -> None:
        parts = group(*map(chores.part.s, range(number, number + 4)))
        flow = await parts.then(chores.whole.options(retain=PATIENCE).s()).apush()
        self.pushed["flows"] += len(flow)
        assert await flow.aresult(PATIENCE) == 4 * number + 6

    # -- ending otherwise ------------------------------------------------------------------------

    async def _ends_without_a_worker(self, number: int) -> None:
        await self._push("expired", JobSpec(ttl_ms=20))
        job_id = await self._push("cancelled", JobSpec(delay_ms=LONG_MS))
        assert job_id in (await self._store.cancel(TENANT, [job_id])).acked

    async def _dead_letters(self, number: int) -> None:
        redriven = await self._store.redrive(TENANT, "doomed", limit=3)
        self.redriven["doomed"] += len(redriven.ids)
        for queue in ("doomed", "abandoned"):
            self.purged[queue] += await self._store.purge_dead(TENANT, queue)

    async def _abandoned_leases(self, number: int) -> None:
        """Somebody takes a job and is not heard of again."""
        job_id = await self._push("abandoned", JobSpec(max_attempts=1))
        async with await Client.to(self._tcp) as client:
            claim = await client.say("CLAIM", queues=["abandoned"], lease_ms=LEASE_MS)
            assert [run["first"] for run in claim["runs"]] == [job_id]
            client.vanish()

    # -- coming and going ------------------------------------------------------------------------

    async def _waits_given_up(self, number: int) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(GIVEN_UP_S):
                await self._store.claim(TENANT, [NOBODY], wait_ms=LONG_MS)
        claim = {"cmd": "CLAIM", "queues": [NOBODY], "wait_ms": LONG_MS}
        async with await Client.to(self._tcp) as client, await HttpClient.to(self._http) as http:
            await client.send(message(claim, "msgpack"))
            await http.ask("POST", f"/v1/queues/{NOBODY}/claim", {"wait_ms": LONG_MS})
            await asyncio.sleep(GIVEN_UP_S)
            client.vanish()
            http.vanish()

    async def _watchers(self, number: int) -> None:
        """Each hears of a push and leaves, the last one without a word."""
        events = self._store.watch(TENANT, queues=["singles"])
        await self._push("singles", SINGLE)
        await anext(events)
        await events.aclose()  # type: ignore[attr-defined]
        async with events_of(self._http) as told:
            await self._push("singles", SINGLE)
            await told.event()
        async with await Client.to(self._tcp, "json") as client:
            await client.send(message({"cmd": "SUBSCRIBE", "queue": "singles"}, "json"))
            while "ok" not in await client.next():  # others push meanwhile
                pass
            await self._push("singles", SINGLE)
            await client.next()
            client.vanish()

    async def _requests(self, number: int) -> None:
        async with await HttpClient.to(self._http) as client:
            answer = await client.post("/v1/queues/http/jobs", {"payload": number})
            assert answer.status == 201, answer
            self.pushed["http"] += 1
            claimed = await client.post("/v1/queues/http/claim", {"wait_ms": 30_000})
            done = await client.post(f"/v1/leases/{claimed.json['lease']}/ack", {})
            assert done.status == 200, done
            for path in ("/metrics", "/healthz", "/v1/queues", "/v1/queues/doomed/dead"):
                assert (await client.get(path)).status == 200, path
            assert (await client.get("/v1/nothing")).status == 404

    async def _wordless(self, number: int) -> None:
        """Nothing is said, or half of something."""
        async with await Client.to(self._tcp) as client, await HttpClient.to(self._http) as http:
            if number % 2:
                await client.send(message({"cmd": "PING"}, "msgpack")[:-1])
                await http.send(written("GET", "/metrics")[:-2])
            client.vanish()
            http.vanish()

    async def _visitors(self, number: int) -> None:
        store = await open_store(self._url)
        try:
            self._counted("singles", await store.push_jobs(TENANT, "singles", [SINGLE]))
        finally:
            await store.close()
