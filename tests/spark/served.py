"""A real `penstock serve` in a process of its own, and a plain client to look at it with."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from penstock.model.event import EventKind
from penstock.model.job import Job
from penstock.model.lifecycle import State
from penstock.model.store import Store
from penstock.open import open_store

T = TypeVar("T")
PATIENCE_S = 900  # with a Spark that starts on a busy machine
ROOT = Path(__file__).resolve().parents[2]


class Served(msgspec.Struct):
    """Where a server listens."""

    url: str
    pid: int

    def ask(self, call: Callable[[Store], Awaitable[T]]) -> T:
        async def made() -> T:
            store = await open_store(self.url)
            try:
                return await call(store)
            finally:
                await store.close()

        return asyncio.run(made())

    def counts(self, queue: str) -> dict[str, int]:
        """How many jobs of each state there are, where there are any."""

        async def counted(store: Store) -> dict[str, int]:
            (info,) = await store.queues("default", [queue])
            return {state.value: n for state, n in info.counts.items() if n}

        return self.ask(counted)

    def wait_for(self, queue: str, kind: EventKind, jobs: int) -> None:
        """Until that has happened to so many jobs of the queue, or one of them more than once."""

        async def watched(store: Store) -> None:
            events = store.watch("default", queues=[queue], kinds=[kind])
            (info,) = await store.queues("default", [queue])
            happened = sum(info.counts.values())
            while happened < jobs:
                happened += len((await anext(events)).ids)

        self.ask(lambda store: asyncio.wait_for(watched(store), PATIENCE_S))

    def jobs(self, queue: str, state: State | None = None) -> list[Job]:
        async def found(store: Store) -> list[Job]:
            return [job async for page in _pages(store, queue, state) for job in page]

        return self.ask(found)

    def times(self, queue: str, name: str, rows: int) -> set[int]:
        """How often each number below `rows` is what the payloads call so: {1}, if all is well.

        Millions of jobs are looked at without being kept.
        """

        async def counted(store: Store) -> set[int]:
            found = bytearray(rows)
            async for page in _pages(store, queue):
                for job in page:
                    found[msgspec.json.decode(job.payload)[name]] += 1
            return set(found)

        return self.ask(counted)

    def payloads(self, queue: str) -> list[object]:
        return [msgspec.json.decode(job.payload) for job in self.jobs(queue)]


async def _pages(
    store: Store, queue: str, state: State | None = None
) -> AsyncIterator[Sequence[Job]]:
    cursor: int | None = 0
    while cursor is not None:
        page = await store.find("default", queue, state=state, cursor=cursor, limit=1_000)
        yield page.jobs
        cursor = page.cursor


@contextmanager
def served(*words: str, url: str = "memory://") -> Iterator[Served]:
    """A server on a free port of the loopback, until the end of the block."""
    command = [sys.executable, "-m", "penstock.cli.main", "serve", "--url", url, "--json"]
    environ = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
    environ["PYTHONPATH"] = f"{ROOT / 'src'}"
    process = subprocess.Popen(
        [*command, "--port", "0", "--no-http", "--shutdown-s", "0", *words],
        stdout=subprocess.PIPE,
        env=environ,
        text=True,
    )
    try:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        yield Served(f"penstock://{said['tcp']}", process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()
