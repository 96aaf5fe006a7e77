"""Many queued jobs: bytes of memory each, the time to open them again, files after they are gone.

Every step is a process of its own, so that nothing is warm but the machine's page cache:

    python -m benchmarks._journal_restart fill|open|drain URL JOBS

Each prints its findings as JSON. `fill` ends without closing the store, so that the first `open`
replays the log; it writes a checkpoint and closes, so that the second one begins with that.
"""

import asyncio
import ctypes
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

from benchmarks._journal_push import keeper_of, open_settled, push_all, run_of, url
from benchmarks._measure import Figure
from penstock.model.job import Run
from penstock.model.lifecycle import State
from penstock.stores.keeper import Keeper

BATCH: Final = 1_000
FLIGHT: Final = 8
CLAIMED: Final = 10_000  # jobs of a claim while draining
MIB: Final = 1 << 20
UNITS: Final = {
    "bytes_a_job": "B",
    "cached_bytes_a_job": "B",
    "jobs_a_second": "jobs/s",
    "opened_s": "s",
    "claim_ms": "ms",
    "full_mib": "MiB",
    "drained_mib": "MiB",
    "after_mib": "MiB",
    "closed_mib": "MiB",
}


def _private_bytes() -> int:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what the C library keeps for later is nobody's
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Private_Dirty:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("smaps_rollup does not say Private_Dirty")


def _sizes(keeper: Keeper) -> float:
    return sum(keeper.journal.sizes().values())


async def _settle(keeper: Keeper) -> None:
    while not keeper.idle:
        await keeper.turn()


def _fresh_run() -> Run:
    """With bytes of its own, as a producer's are."""
    return run_of(BATCH)


async def _fill(at: str, jobs: int) -> dict[str, float]:
    store = await open_settled(at)
    await push_all(store, _fresh_run, FLIGHT, FLIGHT)  # whatever is made once is made now
    before, began = _private_bytes(), time.perf_counter()
    await push_all(store, _fresh_run, jobs // BATCH - FLIGHT, FLIGHT)
    took = time.perf_counter() - began
    return {
        "bytes_a_job": (_private_bytes() - before) / jobs,
        "cached_bytes_a_job": store.engine.payloads.size / jobs,
        "jobs_a_second": jobs / took,
    }


async def _open(at: str, jobs: int) -> dict[str, float]:
    before, began = _private_bytes(), time.perf_counter()
    store = await open_settled(at)
    opened = time.perf_counter()
    lease = await store.claim("default", ["work"], n=1)
    claimed = time.perf_counter()
    assert lease is not None
    await store.release("default", lease.token)
    (info,) = await store.queues("default")
    assert info.counts[State.READY] == jobs, info
    keeper = keeper_of(store)
    found = {
        "opened_s": opened - began,
        "claim_ms": (claimed - opened) * 1000,
        "bytes_a_job": (_private_bytes() - before) / jobs,
        "replayed": keeper.recovered.replayed,
    }
    await keeper.checkpoint()
    await store.close()
    return found


async def _drain(at: str, jobs: int) -> dict[str, float]:
    store = await open_settled(at)
    keeper = keeper_of(store)
    before, left, began = _sizes(keeper), jobs, time.perf_counter()
    while left:
        lease = await store.claim("default", ["work"], n=CLAIMED)
        assert lease is not None
        left -= len(lease)
        await store.ack("default", lease.token)
    took = time.perf_counter() - began
    await _settle(keeper)
    drained = _sizes(keeper)
    await keeper.checkpoint()
    await _settle(keeper)
    after = _sizes(keeper)
    await store.close()
    return {
        "full_mib": before / MIB,
        "drained_mib": drained / MIB,
        "after_mib": after / MIB,
        "jobs_a_second": jobs / took,
    }


STEPS: Final[dict[str, Callable[[str, int], Coroutine[Any, Any, dict[str, float]]]]] = {
    "fill": _fill,
    "open": _open,
    "drain": _drain,
}


def _step(name: str, at: str, jobs: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks._journal_restart", name, at, str(jobs)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout))


def _bytes_on_disk(store: Path) -> int:
    if store.is_dir():
        return sum(path.stat().st_size for path in store.iterdir())
    return store.stat().st_size


def measure(kind: str, jobs: int, directory: Path, *, drain: bool) -> list[Figure]:
    """One run each: the steps take long, and are not compared with one another."""
    at = url(kind, directory / f"{kind}-{jobs}")
    found = {"fill": _step("fill", at, jobs), "replay": _step("open", at, jobs)}
    found["checkpoint"] = _step("open", at, jobs)
    if drain:
        found["drain"] = _step("drain", at, jobs)
        found["drain"]["closed_mib"] = _bytes_on_disk(directory / f"{kind}-{jobs}") / MIB
    return [
        Figure(
            f"{kind} · {jobs:,} jobs · {step} · {what}",
            UNITS.get(what, ""),
            (value,),
            {"subject": kind, "jobs": jobs, "step": step, "what": what, "pushed_by": BATCH},
        )
        for step, values in found.items()
        for what, value in values.items()
    ]


if __name__ == "__main__":
    step, where, count = sys.argv[1:]
    print(json.dumps(asyncio.run(STEPS[step](where, int(count)))), flush=True)
    os._exit(0)  # what `fill` did not close stays so
