"""The subjects: what each is run with, and the environment that the other queues are installed in.

Settings of the others are the best that were found for a no-op on a machine with two cores.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from benchmarks._environments import python_of

BULK: Final = 1_000  # jobs of one call that pushes many

Broker = Literal["redis", "postgres", "postgres-late", "relay", "memory", "sqlite"]

MEMORY: Final = "none: Redis without persistence"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A subject as it is run."""

    name: str
    module: str  # or one and a name in it: see `_worker_adapter`
    environment: str  # peers-<environment>.txt says what is in it; "" is Penstock's own
    broker: Broker
    settings: str
    durability: str
    alone: int  # jobs of a round that are pushed one by one
    bulk: int = 0  # jobs of a round that are pushed by the thousand, where that is offered
    bulk_by: str = ""  # what pushes many
    spare: int = 0  # jobs pushed by the thousand when the worker is gone, if it is slow to drain

    @property
    def jobs(self) -> int:
        return self.alone + self.bulk

    def scaled(self, share: float) -> "Entry":
        """The same with fewer jobs, whole calls of many among them."""
        bulk = max(BULK, int(self.bulk * share) // BULK * BULK) if self.bulk else 0
        return replace(self, alone=max(2, int(self.alone * share)), bulk=bulk)


PEERS: Final[tuple[Entry, ...]] = (
    Entry(
        name="Celery",
        module="_worker_celery",
        environment="main",
        broker="redis",
        settings="solo pool, prefetch 64, results ignored, no gossip, mingle, heartbeat",
        durability=MEMORY,
        alone=700,
    ),
    Entry(
        name="Dramatiq",
        module="_worker_dramatiq",
        environment="main",
        broker="redis",
        settings="16 threads, of the middleware only retries",
        durability=MEMORY,
        alone=3_000,
    ),
    Entry(
        name="RQ",
        module="_worker_rq",
        environment="main",
        broker="redis",
        settings="SimpleWorker, result_ttl 0",
        durability=MEMORY,
        alone=200,
        bulk_by="enqueue_many",
        spare=2_000,
    ),
    Entry(
        name="arq",
        module="_worker_arq",
        environment="older-redis",
        broker="redis",
        settings="max_jobs 100, poll_delay 1 ms, keep_result 0, uvloop",
        durability=MEMORY,
        alone=500,
        bulk=1_000,
        bulk_by="gather",
    ),
    Entry(
        name="TaskIQ",
        module="_worker_taskiq",
        environment="main",
        broker="redis",
        settings="stream, max_async_tasks 100, prefetch 100, parameters not validated, uvloop",
        durability=MEMORY,
        alone=500,
        bulk=1_000,
        bulk_by="gather",
    ),
    Entry(
        name="SAQ",
        module="_worker_saq",
        environment="older-redis",
        broker="redis",
        settings="concurrency 10, ttl −1, uvloop",
        durability=MEMORY,
        alone=500,
        bulk=1_000,
        bulk_by="gather",
    ),
    Entry(
        name="Huey",
        module="_worker_huey",
        environment="main",
        broker="redis",
        settings="1 thread, blocking, results off",
        durability=MEMORY,
        alone=2_000,
    ),
    Entry(
        name="PgQueuer",
        module="_worker_pgqueuer",
        environment="main",
        broker="postgres",
        settings="asyncpg, batch_size 500, shared_buffers 256 MB, uvloop",
        durability="fsync at every commit",
        alone=500,
        bulk=12_000,
        bulk_by="enqueue of lists",
    ),
    Entry(
        name="PgQueuer late",
        module="_worker_pgqueuer",
        environment="main",
        broker="postgres-late",
        settings="as PgQueuer",
        durability="synchronous_commit off: fsync within 0.6 s",
        alone=500,
        bulk=12_000,
        bulk_by="enqueue of lists",
    ),
)

OURS: Final[tuple[Entry, ...]] = (
    Entry(
        name="Penstock",
        module="_worker_penstock:ASYNC",
        environment="",
        broker="memory",
        settings="async task, concurrency 100, result off",
        durability="none: memory://",
        alone=500,
        bulk=40_000,
        bulk_by="apush_many",
    ),
    Entry(
        name="Penstock SQLite",
        module="_worker_penstock:ASYNC",
        environment="",
        broker="sqlite",
        settings="as Penstock",
        durability="fsync before every answer",
        alone=500,
        bulk=40_000,
        bulk_by="apush_many",
    ),
    Entry(
        name="Penstock threads",
        module="_worker_penstock:THREADS",
        environment="",
        broker="memory",
        settings="plain function in threads, concurrency 100, result off",
        durability="none: memory://",
        alone=500,
        bulk=10_000,
        bulk_by="apush_many",
    ),
    Entry(
        name="Penstock batch",
        module="_worker_penstock:BATCHES",
        environment="",
        broker="memory",
        settings="async task with batch 1,000, result off",
        durability="none: memory://",
        alone=500,
        bulk=400_000,
        bulk_by="apush_many",
    ),
)

RELAY: Final = Entry(
    name="relay",
    module="_worker_relay",
    environment="",
    broker="relay",
    settings="three processes on uvloop pass bytes along",
    durability="none",
    alone=2,
)


def pythons(peers: Sequence[Entry]) -> dict[str, str]:
    """The interpreter of each environment that these need, which is made if it is not there."""
    names = dict.fromkeys(peer.environment for peer in peers)
    found = {}
    for name in names:
        members = ", ".join(peer.name for peer in peers if peer.environment == name)
        found[name] = python_of(name, members) if name else sys.executable
    return found
