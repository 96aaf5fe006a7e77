"""Somebody who looks at a queue all the time while something else happens to it."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.model.lifecycle import State
from penstock.open import open_store
from tests.spark.served import Served


class Depth:
    """Which numbers of visible jobs were seen, and how many were held meanwhile."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.most_held = 0


@contextmanager
def watched(server: Served, queue: str) -> Iterator[Depth]:
    """One question after the other, until the end of the block and once more."""
    depth, over = Depth(), threading.Event()

    async def watch() -> None:
        store = await open_store(server.url)
        try:
            last = False
            while not last:
                last = over.is_set()
                (info,) = await store.queues("default", [queue])
                held = info.counts.get(State.HELD, 0)
                depth.seen.add(sum(info.counts.values()) - held)
                depth.most_held = max(depth.most_held, held)
        finally:
            await store.close()

    thread = threading.Thread(target=lambda: asyncio.run(watch()))
    thread.start()
    try:
        yield depth
    finally:
        over.set()
        thread.join()
