"""Somebody who shares a path with others, and is told to end, or killed, or replaced.

    python -m tests.faults.sharer web|worker --url URL --log FILE --seed N …

A web process pushes: one job, a batch, one with a key. A worker claims, and acks or gives back.
Both write down what they ask and are answered (`tests.history`), each answer before the next call,
and print a word per step: "step" when the store answered, "refused" or "unknown" when it did not.
SIGTERM ends them: they finish their step, close the store and print "closed".

`--silence S` makes them doubt a mute owner after S seconds; then they print "lost" whenever they
lose a connection. With `--hesitate`, whoever recovers the store says "recovering" and "recovered"
and waits after each word for a line on its standard input.
"""

import argparse
import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any, Final

from penstock.model.errors import PenstockError, Unavailable
from penstock.model.job import JobOptions, Run
from penstock.model.policy import Backoff
from penstock.open import open_store
from penstock.stores import connecting, durable, link
from penstock.stores.journal import recovery
from tests.history.record import FileLog
from tests.history.recorder import Recorder

QUEUE: Final = "work"
KEYS: Final = 5
LEASE_MS: Final = 1_000  # so that what a killed worker had comes back soon
WAIT_MS: Final = 300
ATTEMPTS: Final = 100  # more than owners are killed under one job
SOON: Final = Backoff(kind="fixed", base_ms=8, cap_ms=8, jitter="none")
# Kept for as long as anybody looks, however many there are.
LASTING: Final = JobOptions(max_attempts=ATTEMPTS, backoff=SOON, retain_ms=3_600_000)


def say(word: str) -> None:
    print(word, flush=True)


def doubt_after(seconds: float) -> None:
    """Have a mute owner doubted early, and say when a connection is lost."""
    link.SILENCE_S = connecting.CONNECT_S = seconds  # type: ignore[misc]
    lost = link.Link.lost

    def telling(self: link.Link) -> None:
        if self._ready:
            say("lost")
        lost(self)

    link.Link.lost = telling  # type: ignore[method-assign]


def hesitate() -> None:
    """Wait for a word before a recovery, and after it; the lock is ours meanwhile."""

    def hesitant(*said: Any, **more: Any) -> Any:
        say("recovering")
        sys.stdin.readline()
        found = recovery.recover(*said, **more)
        say("recovered")
        sys.stdin.readline()
        return found

    durable.recover = hesitant  # type: ignore[attr-defined]


class Web:
    def __init__(self, store: Recorder, draw: Random) -> None:
        self.store = store
        self.draw = draw

    async def step(self) -> None:
        count = self.draw.choice((1, 1, 1, 1, 5, 40))
        payloads = self.store.payloads(count)
        run = Run.pack(QUEUE, payloads, LASTING)
        if count == 1 and self.draw.random() < 0.03:  # the checker compares them pair by pair
            key = f"k{self.draw.randrange(KEYS)}"
            run = Run(
                queue=run.queue, data=run.data, ends=run.ends, options=run.options, keys=[key]
            )
        await self.store.push([run])
        await asyncio.sleep(self.draw.choice((0, 0.01, 0.03)))


class Worker:
    def __init__(self, store: Recorder, draw: Random) -> None:
        self.store = store
        self.draw = draw

    async def step(self) -> None:
        draw, store = self.draw, self.store
        lease = await store.claim(
            [QUEUE], draw.choice((1, 10, 60)), lease_ms=LEASE_MS, wait_ms=WAIT_MS
        )
        if lease is None:
            return
        await asyncio.sleep(draw.choice((0, 0, 0.005)))
        half = lease.ids[: (len(lease) + 1) // 2]
        await store.ack(lease.token, half if draw.random() < 0.3 else None)
        if draw.random() < 0.1:
            await store.release(lease.token)  # the other half; refused if there is none
        else:
            await store.ack(lease.token)


async def live(store: Recorder, step: Callable[[], Awaitable[None]]) -> None:
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    while not told.is_set():
        try:
            await step()
            say("step")
        except Unavailable:
            say("unknown")
        except PenstockError:
            say("refused")  # as the history tells; the checker says whether rightly
    await store.store.close()
    say("closed")


async def main(role: str, url: str, log: Path, seed: int) -> None:
    store = await open_store(url)
    with FileLog(log) as lines:
        recorder = Recorder(store, lines)
        draw = Random(seed)
        await live(recorder, (Web if role == "web" else Worker)(recorder, draw).step)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=("web", "worker"))
    parser.add_argument("--url", required=True)
    parser.add_argument("--log", required=True, type=Path)
    parser.add_argument("--seed", required=True, type=int)
    parser.add_argument("--silence", type=float, default=0.0)
    parser.add_argument("--hesitate", action="store_true")
    said = parser.parse_args()
    if said.silence:
        doubt_after(said.silence)
    if said.hesitate:
        hesitate()
    asyncio.run(main(said.role, said.url, said.log, said.seed))
