"""How long the loop stands still, with frequent checkpoints beside a time without any.

One store with many queued jobs, some with a key and headers. While somebody pushes, claims, acks
and edits jobs all over the backlog without a pause, another task asks to be woken every
millisecond and notes how much later it was. Checkpoints are switched on and off in turn.
"""

import asyncio
import math
import random
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks._journal_push import SIZE, keeper_of, open_settled, push_all, run_of, url
from benchmarks._measure import Figure
from penstock.model.job import JobOptions, Run
from penstock.stores.embedded import EmbeddedStore

KEYED: Final = 10  # one in so many of the backlog has a key and headers
BATCH: Final = 100  # jobs pushed, claimed and acked at a time
EDITED: Final = 4  # jobs drawn from the backlog and edited meanwhile
EVERY_BYTES: Final = 256 << 10  # of log between two checkpoints
NEVER: Final = 1 << 60
NEVER_BY: Final = ("checkpoint_bytes", "checkpoint_records", "checkpoint_replay_s")
TICK_S: Final = 0.001
SHARES: Final = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1.0}


def quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[max(math.ceil(len(ordered) * share) - 1, 0)]


def _keyed_run(first: int, n: int) -> Run:
    return Run(
        queue="backlog",
        data=b"".join(b"%044d" % number for number in range(first, first + n)),
        ends=array("I", range(SIZE, SIZE * n + 1, SIZE)),
        options=(JobOptions(codec="bytes"),),
        keys=[f"key-{number}" for number in range(first, first + n)],
        headers=[{"trace": f"{number:032x}"} for number in range(first, first + n)],
    )


async def _fill(store: EmbeddedStore, jobs: int) -> None:
    plain = run_of(1_000)
    backlog = Run(queue="backlog", data=plain.data, ends=plain.ends, options=plain.options)
    await push_all(store, lambda: backlog, jobs // 1_000 - jobs // 1_000 // KEYED, 8)
    for first in range(0, jobs // KEYED, 1_000):
        await store.push("default", [_keyed_run(first, 1_000)])
    await keeper_of(store).checkpoint()


@dataclass
class Sample:
    lags: list[float]  # how much later than asked the loop came
    answers: list[float]  # how long pushes took
    checkpoints: int = 0


class _Load:
    """Work without a pause, and how late the loop was meanwhile."""

    def __init__(self, store: EmbeddedStore, jobs: int) -> None:
        self.store = store
        self._jobs = jobs
        self._draw = random.Random(1)
        self._run = run_of(BATCH)
        self._working = False

    async def _work(self, answers: list[float]) -> None:
        store = self.store
        while self._working:
            began = time.perf_counter()
            await store.push("default", [self._run])
            answers.append(time.perf_counter() - began)
            lease = await store.claim("default", ["work"], n=BATCH)
            if lease is not None:
                await store.ack("default", lease.token)

    async def _edit(self) -> None:
        while self._working:
            job_id = self._draw.randint(1, self._jobs)
            await self.store.edit("default", job_id, priority=self._draw.randint(0, 9))

    async def _watch(self, lags: list[float]) -> None:
        while self._working:
            asked = time.perf_counter()
            await asyncio.sleep(TICK_S)
            lags.append(max(time.perf_counter() - asked - TICK_S, 0.0))

    async def take(self, every: int, seconds: float) -> Sample:
        checkpointer = keeper_of(self.store).checkpointer
        checkpointer.every_bytes, number = every, checkpointer.last.number
        sample = Sample([], [])
        self._working = True
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(self._work(sample.answers))
            for _ in range(EDITED):
                group.create_task(self._edit())
            group.create_task(self._watch(sample.lags))
            await asyncio.sleep(seconds)
            self._working = False
        checkpointer.every_bytes = NEVER
        sample.checkpoints = checkpointer.last.number - number
        while not keeper_of(self.store).idle:
            await keeper_of(self.store).turn()
        return sample


async def _measure(
    kind: str, jobs: int, directory: Path, rounds: int, seconds: float
) -> list[Figure]:
    never = dict.fromkeys(NEVER_BY, NEVER)
    store = await open_settled(url(kind, directory / f"{kind}-stalls", **never))
    await _fill(store, jobs)
    load = _Load(store, jobs)
    await load.take(NEVER, seconds / 4)  # whatever is made once is made now
    taken: dict[str, list[Sample]] = {"with": [], "without": []}
    for turn in range(rounds):
        order = ("with", "without") if turn % 2 else ("without", "with")
        for name in order:
            every = EVERY_BYTES if name == "with" else NEVER
            taken[name].append(await load.take(every, seconds))
    await store.close()
    figures = []
    for name, samples in taken.items():
        settings = {"subject": kind, "checkpoints": name, "jobs": jobs, "seconds": seconds}
        for what, ordered in (
            ("stall", [sorted(sample.lags) for sample in samples]),
            ("push", [sorted(sample.answers) for sample in samples]),
        ):
            for share, part in SHARES.items():
                figures.append(
                    Figure(
                        f"{kind} · {name} checkpoints · {what} {share}",
                        "ms",
                        tuple(quantile(values, part) * 1000 for values in ordered),
                        {**settings, "what": what, "share": share},
                    )
                )
        figures.append(
            Figure(
                f"{kind} · {name} checkpoints · written",
                "",
                tuple(float(sample.checkpoints) for sample in samples),
                {**settings, "what": "checkpoints"},
            )
        )
    return figures


def measure(kind: str, jobs: int, directory: Path, rounds: int, seconds: float) -> list[Figure]:
    return asyncio.run(_measure(kind, jobs, directory, rounds, seconds))
