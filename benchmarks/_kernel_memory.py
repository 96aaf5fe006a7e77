"""Bytes per queued job over its payload, at the memory store, each case in a process of its own.

Run as `python -m benchmarks._kernel_memory CASE METHOD JOBS`; prints one number. Two methods:
- `rss`: growth of private memory as the kernel of the machine counts it (`smaps_rollup`), which
  includes what the allocator wastes;
- `tracemalloc`: bytes that Python has allocated.
"""

import asyncio
import ctypes
import gc
import random
import subprocess
import sys
import tracemalloc
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from benchmarks._measure import Figure
from penstock.model.job import JobOptions, Run
from penstock.stores.clock import ManualClock
from penstock.stores.embedded import EmbeddedStore

SIZE: Final = 44  # bytes of a payload
BATCH: Final = 1_000
OPTIONS: Final = (JobOptions(codec="bytes"),)
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS

# case → (what it is, at most so many bytes a job)
CASES: Final[dict[str, tuple[str, float]]] = {
    "single": ("single pushes, the machine's clock", 60),
    "spaced": ("single pushes, each at a millisecond of its own", 60),
    "batch": ("batches of 1,000", 20),
    "single-delays": ("single pushes, every delay another", 80),
    "batch-delays": ("batches of 1,000, every delay another", 80),
}
METHODS: Final = ("rss", "tracemalloc")
TRACED: Final = 5  # tracing is slow, and what it counts does not need many jobs


def _delays(jobs: int) -> Iterator[int]:
    """Distinct delays within a day from an hour on, in no order."""
    step = DAY_MS // jobs
    order = array("I", range(jobs))
    random.Random(1).shuffle(order)
    return (HOUR_MS + at * step for at in order)


def _payload(number: int) -> bytes:
    return b"%044d" % number


async def _fill(
    store: EmbeddedStore,
    clock: ManualClock | None,
    case: str,
    numbers: range,
    delays: Iterator[int],
) -> None:
    delayed = case.endswith("-delays")
    if case.startswith("batch"):
        ends = array("I", range(SIZE, SIZE * BATCH + 1, SIZE))
        for start in numbers[::BATCH]:
            data = b"".join(map(_payload, range(start, start + BATCH)))
            delay = [next(delays) for _ in range(BATCH)] if delayed else None
            run = Run(queue="work", data=data, ends=ends, options=OPTIONS, delay_ms=delay)
            await store.push("default", [run])
        return
    for number in numbers:
        delay_ms = next(delays) if delayed else None
        run = Run(
            queue="work", data=_payload(number), ends=(SIZE,), options=OPTIONS, delay_ms=delay_ms
        )
        await store.push("default", [run])
        if clock is not None:
            clock.advance(1)


def _private_bytes() -> int:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what the C library keeps for later is nobody's
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Private_Dirty:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("smaps_rollup does not say Private_Dirty")


async def _measure(case: str, method: str, jobs: int) -> float:
    clock = ManualClock() if case == "spaced" else None
    store = EmbeddedStore.in_memory(clock=clock, seed=1)
    delays = _delays(jobs + BATCH)
    await _fill(store, clock, case, range(BATCH), delays)  # whatever is made once is made now
    if method == "tracemalloc":
        tracemalloc.start()
        await _fill(store, clock, case, range(BATCH, BATCH + jobs), delays)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
    else:
        before = _private_bytes()
        await _fill(store, clock, case, range(BATCH, BATCH + jobs), delays)
        grown = _private_bytes() - before
    await store.close()
    return grown / jobs - SIZE


def measure(jobs: int) -> list[Figure]:
    """One figure per case and method. Memory is not time: two run side by side."""

    counts = {"rss": jobs, "tracemalloc": jobs // TRACED}

    def run(case: str, method: str) -> float:
        count = str(counts[method])
        command = [sys.executable, "-m", "benchmarks._kernel_memory", case, method, count]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return float(done.stdout)

    wanted = [(case, method) for case in CASES for method in METHODS]
    with ThreadPoolExecutor(2) as pool:
        values = list(pool.map(lambda pair: run(*pair), wanted))
    return [
        Figure(
            f"{CASES[case][0]} · {method}",
            "B",
            (value,),
            {
                "case": case,
                "method": method,
                "jobs": counts[method],
                "payload_bytes": SIZE,
                "batch": BATCH if case.startswith("batch") else 1,
                "options": "default but codec bytes",
                "events": False,
            },
        )
        for (case, method), value in zip(wanted, values, strict=True)
    ]


if __name__ == "__main__":
    print(asyncio.run(_measure(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
