"""The workload in a process of its own, to be killed at any moment.

    python -m tests.history.process --url URL --log FILE --seed N --operations M

Prints READY when the store is open and DONE when the calls are made; with `--tell-after N`, also
TOLD when N lines of history are written. The history goes to FILE, at its end: run it again with
the same FILE after a crash, and the history goes on.
"""

import argparse
import asyncio
from pathlib import Path
from unittest.mock import patch

from penstock.model.answers import Durability
from penstock.open import open_store
from penstock.stores import keeper, stored_payloads
from penstock.stores.journal import sqlite
from tests.history.record import FileLog, Line
from tests.history.recorder import Recorder
from tests.history.workload import work


class TellingLog(FileLog):
    def __init__(self, path: Path, tell_after: int) -> None:
        super().__init__(path)
        self._left = tell_after

    def append(self, line: Line) -> None:
        super().append(line)
        self._left -= 1
        if not self._left:
            print("TOLD", flush=True)


async def run(
    url: str,
    log: Path,
    seed: int,
    operations: int,
    durability: Durability | None,
    tell_after: int,
) -> None:
    store = await open_store(url, share=False)
    with TellingLog(log, tell_after) as lines:
        recorder = Recorder(store, lines)
        print("READY", flush=True)
        await work(recorder, seed=seed, operations=operations, durability=durability)
    await store.close()
    print("DONE", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--log", required=True, type=Path)
    parser.add_argument("--seed", required=True, type=int)
    parser.add_argument("--operations", required=True, type=int)
    parser.add_argument("--durability", choices=("fsync", "os"), default=None)
    parser.add_argument("--tell-after", type=int, default=0)
    said = parser.parse_args()
    # A WAL that is moved and begun anew again and again, in a short run. To move it is to sync it,
    # and a store that is told not to sync is there to lose something.
    if said.seed % 4 < 2 and "durability=os" not in said.url:
        patch.multiple(sqlite, MOVE_AT=2, FINISH_AT=8).start()
    # Batches that are handed over before those in front of them are written: nearly all of them.
    if said.seed % 4 in (1, 2):
        patch.object(keeper, "AHEAD", 1).start()
        patch.object(stored_payloads, "SMALL", 64).start()
    asyncio.run(run(**vars(said)))


if __name__ == "__main__":
    main()
