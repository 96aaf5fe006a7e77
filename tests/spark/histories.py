"""Random histories of a real store on a clock that the test moves, told into an event log."""

import random
from pathlib import Path

from penstock.events.log import EventLog
from penstock.events.segments import Rules
from penstock.model.errors import PenstockError
from penstock.model.job import JobError, JobOptions, Run
from penstock.model.policy import Backoff
from penstock.open import open_store
from penstock.stores.clock import ManualClock

START_MS = 1_794_787_200_000 - 1_800_000  # half an hour before midnight: some fifty commands
QUEUES = (("default", "emails"), ("default", "reports"), ("acme", "emails"))
MESSAGES = ("user 17 not found", "user 4711 not found", "connection refused", "it took 30 s")


async def happen(seed: int, directory: Path, commands: int = 150) -> None:
    """Some hours around a midnight, in segments of a few lines each."""
    draw = random.Random(seed)
    clock = ManualClock(START_MS)
    log = EventLog(directory, Rules(seal_bytes=4_000, seal_s=0, reserve_bytes=0))
    store = await open_store("memory://", clock=clock, events=log, seed=seed)
    options = [
        JobOptions(task="one", max_attempts=2, backoff=Backoff(kind="fixed", base_ms=90_000)),
        JobOptions(task="two", ttl_ms=1_800_000),
    ]
    leases: list[tuple[str, str, list[int]]] = []
    try:
        for _ in range(commands):
            tenant, queue = draw.choice(QUEUES)
            clock.advance(draw.choice((0, 3, 40, 700, 20_000, 200_000)))
            what = draw.randrange(10)
            if what < 4:
                payloads = [b"1"] * draw.choice((1, 1, 7, 50))
                await store.push(tenant, [Run.pack(queue, payloads, draw.choice(options))])
            elif what < 7:
                worker = draw.choice(("w1", "w2", ""))
                lease = await store.claim(
                    tenant, [queue], draw.choice((1, 5, 100)), lease_ms=600_000, worker=worker
                )
                if lease is not None:
                    leases.append((tenant, lease.token, lease.ids))
            elif leases:
                await _settle(store, draw, *leases.pop(draw.randrange(len(leases))))
            if draw.random() < 0.05:
                await store.redrive(tenant, queue)
        clock.advance(3_600_000)
        await store.tick()
    finally:
        await store.close()


async def _settle(store, draw, tenant: str, token: str, ids: list[int]) -> None:  # type: ignore[no-untyped-def]
    some = ids[: draw.randrange(1, len(ids) + 1)]
    try:
        if draw.random() < 0.6:
            await store.ack(tenant, token, some)
        elif draw.random() < 0.7:
            error = JobError(kind="Trouble", message=draw.choice(MESSAGES))
            await store.fail(tenant, token, some, error=error, dead=draw.random() < 0.3)
        elif draw.random() < 0.5:
            await store.release(tenant, token, some)
        else:
            await store.cancel(tenant, some)
    except PenstockError:
        pass  # the lease ended meanwhile: an event of its own


def in_six(told: Path) -> list[Path]:
    """The lines of a directory in six segments, however its writer cut them."""
    paths = sorted(told.glob("events-*.jsonl"))
    lines = [each for path in paths for each in path.read_text().splitlines(keepends=True)]
    cut = -(-len(lines) // 6)
    paths = [told / f"events-{'d' * 32}-{place:012d}.jsonl" for place in range(6)]
    for place, path in enumerate(paths):
        path.write_text("".join(lines[place * cut : (place + 1) * cut]))
    return paths
