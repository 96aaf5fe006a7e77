"""What tests do with stores on a disk: wait for the disk, and end them as no caller can."""

import asyncio
import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from penstock.kernel.kernel import Kernel
from penstock.model.job import JobOptions, Run
from penstock.model.store import Store
from penstock.open import open_store
from penstock.stores.clock import Clock
from penstock.stores.embedded import EmbeddedStore
from penstock.stores.journal import recovery
from penstock.stores.journal.frames import Record
from penstock.stores.remote import RemoteStore
from penstock.stores.stored_payloads import StoredPayloads

# Where behaviour is at stake and not the disk, stores lie in memory: no case waits for a real sync.
_SHARED_MEMORY: Final = Path("/dev/shm")

ROUNDS: Final = 3  # of a message and its answer: a call, what it leads to, and word of that
TURNS: Final = 20  # of the loop, after which every task has gone as far as it can


def scratch() -> "TemporaryDirectory[str]":
    """A directory for a store that is about behaviour."""
    where = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None
    return TemporaryDirectory(prefix="penstock-", dir=where)


async def settled(store: Store) -> None:
    """Let every task go as far as it can without time passing, answers from the disk included.

    That is when nothing has been under way for so many turns in a row: what the disk said in the
    last of them has not reached anybody yet. Whatever goes to the disk is seen here on its way, as
    it takes more than a turn.
    """
    if isinstance(store, RemoteStore):
        for _ in range(ROUNDS):
            await _turns()
            await store.ping()
        await _turns()
        return
    engine = store.engine if isinstance(store, EmbeddedStore) else None
    keeper = engine.keeper if engine is not None else None
    payloads = engine.payloads if engine is not None else None
    loading = payloads.loading if isinstance(payloads, StoredPayloads) else {}
    quiet = 0
    while quiet < TURNS:
        quiet += 1
        if loading:
            await asyncio.wait(loading.values())
            quiet = 0
        elif keeper is not None and not keeper.idle:
            await keeper.turn()
            quiet = 0
        else:
            await asyncio.sleep(0)


async def _turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def crash(store: EmbeddedStore) -> None:
    """End a store as its process's death does, once everything that was said has been written."""
    engine = store.engine
    keeper = engine.keeper
    assert keeper is not None, "a store on a disk"
    while keeper.lagging:
        await keeper.turn()
    engine.end("it crashed")
    await keeper.stop_sweeping()
    keeper.let_go()


async def crashed(url: str, records: int) -> None:
    """Have a store there with so many records in its log, and one for its opening."""
    store = await open_store(f"{url}?durability=os&checkpoint_replay_s=1000", share=False)
    assert isinstance(store, EmbeddedStore)
    run = Run.pack("q", [b"1"], JobOptions(codec="bytes"))
    for _ in range(records // 1_000):
        await asyncio.gather(*(store.push("default", [run]) for _ in range(1_000)))
    await crash(store)


async def replayed_digest(url: str, live: Kernel, clock: Clock) -> str:
    """The digest of what opening that store would restore, looked at when `live` was last."""
    looked_at = await open_store(f"{url}?mode=ro", clock=clock)
    assert isinstance(looked_at, EmbeddedStore)
    try:
        kernel = looked_at.kernel
        # Time passes for a kernel that is only looked at, too, and goes into no log.
        kernel.now, kernel.elapsed = live.now, live.elapsed
        return kernel.digest()
    finally:
        await looked_at.close()


def replay_slowly() -> None:
    """From now on a replay takes 10 ms a record in this process, and says when it has begun."""
    apply = recovery._apply

    def slowly(kernel: Kernel, record: Record) -> None:
        apply(kernel, record)
        if record.position == 1:
            print("replaying", flush=True)
        time.sleep(0.01)

    recovery._apply = slowly
