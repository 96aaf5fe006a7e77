"""A seeded workload that uses everything whose promises the checker holds a store to.

Producers, workers and a canceller work at the same time on six queues until together they have
taken a given number of steps, each a call or nothing to do. What each draws depends on the seed alone; how they interleave is the
store's business. Leases and retries are short, on the system's clock, so that some run out on their
own. Nobody waits for anything that might not come: waits are bounded, and when the store says that
it is gone (`Unavailable`) everybody goes home.

What a queue is for:
  plain    batches, delays, priorities, sequences of idempotent producers, results, ttl
  keyed    keys with every on_conflict, some on jobs that lie an hour ahead
  line     groups, one job at a time
  pairs    groups, two at a time
  narrow   a concurrency limit
  paced    a rate limit
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from random import Random
from typing import Final

from penstock.model.answers import Durability, Pushed
from penstock.model.errors import PenstockError, Unavailable
from penstock.model.job import JobOptions, JobSpec, Lease, Run
from penstock.model.policy import Backoff, Limits, OnConflict, QueueConfig, Rate
from tests.history.final import FinalState, settle
from tests.history.recorder import Recorder

__all__ = ["CONFIGS", "QUEUES", "FinalState", "Workload", "settle", "work"]

CONFIGS: Final = {
    "plain": QueueConfig(),
    "keyed": QueueConfig(),
    "line": QueueConfig(),
    "pairs": QueueConfig(limits=Limits(group_concurrency=2)),
    "narrow": QueueConfig(limits=Limits(concurrency=4)),
    "paced": QueueConfig(limits=Limits(rate=Rate(tokens=150, burst=8))),
}
QUEUES: Final = tuple(CONFIGS)

SOON: Final = Backoff(kind="fixed", base_ms=8, cap_ms=8, jitter="none")
HOUR_MS: Final = 3_600_000
LEASES_MS: Final = (50, 60, 300, 700)
CONFLICTS: Final[tuple[OnConflict, ...]] = ("return", "match", "replace", "reject")

Step = Callable[[], Awaitable[object]]


class _Over(Exception):
    """The calls are used up."""


async def work(
    recorder: Recorder,
    *,
    seed: int,
    operations: int,
    producers: int = 3,
    workers: int = 4,
    leases_ms: Sequence[int] = LEASES_MS,
    durability: Durability | None = None,
) -> None:
    """Run the workload on a store; returns when the calls are made or the store is gone."""
    load = Workload(recorder, seed, operations, leases_ms, durability)
    await load.configure()
    people: list[_Person] = [Producer(load, f"producer{index}") for index in range(producers)]
    people += [Worker(load, f"worker{index}") for index in range(workers)]
    people.append(Canceller(load, "canceller"))
    async with asyncio.TaskGroup() as tasks:
        for person in people:
            tasks.create_task(person.live())


class Workload:
    """What the people share: the calls that are left, and the ids they have heard of."""

    def __init__(
        self,
        recorder: Recorder,
        seed: int,
        operations: int,
        leases_ms: Sequence[int],
        durability: Durability | None,
    ) -> None:
        self.store = recorder
        self.name = f"{recorder.name}-{seed}"  # of its producers and bulks: said once
        self.seed = seed
        self.left = operations
        self.leases_ms = leases_ms
        self.durability = durability
        self.heard: list[int] = []
        self.bulks = 0

    async def configure(self) -> None:
        for queue, config in CONFIGS.items():
            if config != QueueConfig():
                await self.store.configure(queue, config)

    def spend(self) -> None:
        if self.left <= 0:
            raise _Over
        self.left -= 1


class _Person:
    """Somebody who makes one call after the other, drawn by weight."""

    def __init__(self, load: Workload, name: str) -> None:
        self.load = load
        self.store = load.store
        self.name = f"{load.name}-{name}"
        self.draw = Random(f"{load.seed}-{name}")

    def steps(self) -> dict[Step, int]:
        raise NotImplementedError

    async def live(self) -> None:
        try:
            await self._work()
            await self.leave()
        except Unavailable:
            pass  # the store is gone, and so are we

    async def _work(self) -> None:
        steps = self.steps()
        choices, weights = list(steps), list(steps.values())
        try:
            while True:
                (step,) = self.draw.choices(choices, weights)
                await self.call(step)
                await asyncio.sleep(self.draw.choice((0, 0.001, 0.002, 0.008)))
        except _Over:
            pass

    async def leave(self) -> None:
        """What is still to be said when the calls are used up."""

    async def call(self, step: Step) -> None:
        self.load.spend()
        await self.attempt(step)

    async def attempt(self, step: Step) -> None:
        try:
            await step()
        except Unavailable:
            raise
        except PenstockError:
            pass  # refused, as the history tells; the checker says whether rightly


class Producer(_Person):
    def __init__(self, load: Workload, name: str) -> None:
        super().__init__(load, name)
        self.sequence = 0
        self.sent: list[tuple[int, list[Run]]] = []
        self.keyed: list[JobSpec] = []

    def steps(self) -> dict[Step, int]:
        return {
            self.push_one: 6,
            self.push_batch: 3,
            self.push_keyed: 8,
            self.push_groups: 5,
            self.push_limited: 3,
            self.push_sequence: 3,
            self.repeat_sequence: 3,
            self.push_bulk: 2,
        }

    async def push(self, runs: Sequence[Run]) -> Pushed:
        pushed = await self.store.push(runs, durability=self.load.durability)
        self.load.heard += pushed.ids[-5:]
        return pushed

    def specs(self, count: int, **said: object) -> list[JobSpec]:
        """Jobs with fresh serials and a few drawn options."""
        draw = self.draw
        said = {"backoff": SOON, "max_attempts": draw.choice((1, 2, 3, 5))} | said
        return [
            JobSpec(payload=payload, **said)  # type: ignore[arg-type]
            for payload in self.store.payloads(count)
        ]

    async def push_one(self) -> None:
        draw = self.draw
        delay = draw.choice((None, None, 5, 20, 60))
        ttl = draw.choice((None, None, None, 30, 500))
        if delay is not None and ttl is not None and ttl <= delay:
            ttl = None
        retain = draw.choice((None, None, None, 0))
        said = {"delay_ms": delay, "ttl_ms": ttl, "retain_ms": retain}
        specs = self.specs(1, priority=draw.choice((-1, 0, 0, 7)), **said)
        await self.push([Run.of("plain", specs)])

    async def push_batch(self) -> None:
        count = self.draw.choice((2, 10, 60))
        options = JobOptions(backoff=SOON, max_attempts=3)
        runs = [Run.pack("plain", self.store.payloads(count), options)]
        if self.draw.random() < 0.3:
            runs.append(Run.of("line", self.specs(2, group="g0")))
        await self.push(runs)

    async def push_keyed(self) -> None:
        draw = self.draw
        (spec,) = self.specs(
            1,
            key=f"k{draw.randrange(8)}",
            on_conflict=draw.choice(CONFLICTS),
            keep_key=draw.choice(("live", "live", "started", "retained", 40)),
            delay_ms=draw.choice((None, None, 15, HOUR_MS)),
        )
        if self.keyed and draw.random() < 0.2:
            spec = draw.choice(self.keyed)  # the same payload again: what `match` is for
        self.keyed.append(spec)
        await self.push([Run.of("keyed", [spec])])

    async def push_groups(self) -> None:
        draw = self.draw
        queue = draw.choice(("line", "line", "pairs"))
        specs = []
        for _ in range(draw.choice((1, 3, 6))):
            delay = draw.choice((None,) * 7 + (10,))
            specs += self.specs(1, group=f"g{draw.randrange(3)}", delay_ms=delay)
        await self.push([Run.of(queue, specs)])

    async def push_limited(self) -> None:
        queue = self.draw.choice(("narrow", "paced"))
        await self.push([Run.of(queue, self.specs(self.draw.choice((1, 5, 10))))])

    async def push_sequence(self) -> None:
        self.sequence += 1
        runs = [Run.of("plain", self.specs(self.draw.choice((1, 4))))]
        self.sent.append((self.sequence, runs))
        await self.store.push(runs, producer=self.name, sequence=self.sequence)

    async def repeat_sequence(self) -> None:
        if self.sent:
            sequence, runs = self.draw.choice(self.sent[-10:])
            await self.store.push(runs, producer=self.name, sequence=sequence)

    async def push_bulk(self) -> None:
        """A whole two-phase push, now and then left open, or with a part that is dropped."""
        draw, store, spend = self.draw, self.store, self.load.spend
        self.load.bulks += 1
        name = f"{self.load.name}-bulk{self.load.bulks}"
        await store.open_bulk(name)
        parts = [f"part{index}" for index in range(draw.randint(1, 3))]
        for part in parts:
            spend()
            queue = draw.choice(("plain", "line"))
            group = "bulk" if queue == "line" else None
            delay = draw.choice((None, None, 10))
            specs = self.specs(draw.randint(1, 5), group=group, delay_ms=delay)
            await store.push([Run.of(queue, specs)], bulk=name, part=part)
        spend()
        fate = draw.choice(("commit", "commit", "commit some", "abort", "leave open"))
        if fate.startswith("commit"):
            await store.commit_bulk(name, parts[:1] if fate == "commit some" else None)
        elif fate == "abort":
            await store.abort_bulk(name)


class Worker(_Person):
    def __init__(self, load: Workload, name: str) -> None:
        super().__init__(load, name)
        self.abandoned: list[Lease] = []

    def steps(self) -> dict[Step, int]:
        return {self.claim_and_work: 12, self.ack_late: 2}

    async def claim_and_work(self) -> None:
        draw = self.draw
        lease = await self.store.claim(
            draw.sample(QUEUES, draw.choice((1, 2, 6))),
            draw.choice((1, 1, 5, 20)),
            lease_ms=draw.choice(self.load.leases_ms),
            worker=self.name,
            wait_ms=draw.choice((0, 0, 5, 20)),
        )
        if lease is None:
            return
        if draw.random() < 0.1:
            await asyncio.sleep(0.002)
        ways: dict[Callable[[Lease], Awaitable[None]], int] = {
            self.ack_whole: 8,
            self.ack_part_and_more: 5,
            self.extend_and_ack: 2,
            self.fail_whole: 4,
            self.release_whole: 2,
            self.abandon: 3,
        }
        (way,) = draw.choices(list(ways), list(ways.values()))
        await way(lease)

    async def ack_whole(self, lease: Lease) -> None:
        self.load.spend()
        await self.store.ack(lease.token, results=self.results(lease.ids))

    async def ack_part_and_more(self, lease: Lease) -> None:
        """Some acked, the rest failed, released or let go; then once more what is done already."""
        half = lease.ids[: (len(lease) + 1) // 2]
        self.load.spend()
        await self.store.ack(lease.token, half, results=self.results(half[:3]))
        rest = self.draw.choice((self.fail_whole, self.release_whole, self.abandon))
        if len(lease) > len(half):
            await self.call(partial(rest, lease))
        self.load.spend()
        await self.store.ack(lease.token, half)

    async def extend_and_ack(self, lease: Lease) -> None:
        self.load.spend()
        await self.store.extend(lease.token, self.draw.choice(self.load.leases_ms))
        await asyncio.sleep(self.draw.choice((0.001, 0.005)))
        await self.ack_whole(lease)

    async def fail_whole(self, lease: Lease) -> None:
        self.load.spend()
        draw = self.draw
        await self.store.fail(
            lease.token,
            retry_in_ms=draw.choice((None, None, 0, 25)),
            dead=draw.random() < 0.15,
        )

    async def release_whole(self, lease: Lease) -> None:
        self.load.spend()
        await self.store.release(lease.token)

    async def abandon(self, lease: Lease) -> None:
        """Let it run out; perhaps come back to it, perhaps too late."""
        self.abandoned.append(lease)

    async def ack_late(self) -> None:
        if self.abandoned:
            lease = self.abandoned.pop(self.draw.randrange(len(self.abandoned)))
            await self.ack_whole(lease)

    async def leave(self) -> None:
        """Come back to what was abandoned, when the shortest of the leases must have run out."""
        if self.abandoned:
            await asyncio.sleep((min(self.load.leases_ms) + 1) / 1_000)
        for lease in self.abandoned:
            await self.attempt(partial(self.store.ack, lease.token))

    def results(self, ids: Sequence[int]) -> dict[int, bytes] | None:
        """Results for few: each names the job and the worker."""
        if len(ids) > 5 or self.draw.random() < 0.4:
            return None
        return {job_id: f'"{self.name} did {job_id}"'.encode() for job_id in ids}


class Canceller(_Person):
    """Cancels, redrives, forgets the dead, and looks."""

    def steps(self) -> dict[Step, int]:
        return {self.cancel: 4, self.redrive: 2, self.purge_dead: 1, self.look: 4, self.result: 3}

    def some(self, most: int) -> list[int]:
        heard = self.load.heard
        return sorted({self.draw.choice(heard) for _ in range(self.draw.randint(1, most))})

    async def cancel(self) -> None:
        if self.load.heard:
            await self.store.cancel(self.some(3), discard=self.draw.random() < 0.3)

    async def redrive(self) -> None:
        await self.store.redrive(self.draw.choice(QUEUES), limit=5)

    async def purge_dead(self) -> None:
        await self.store.purge_dead("narrow")

    async def look(self) -> None:
        if self.load.heard:
            await self.store.get(self.some(5))

    async def result(self) -> None:
        if self.load.heard:
            await self.store.result(self.draw.choice(self.load.heard))
