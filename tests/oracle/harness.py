"""The stores that are held against the oracle: how each is opened and how it restarts."""

import itertools
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Self

from penstock.model.policy import DEFAULT_CAPS, Caps
from penstock.model.store import Store
from penstock.open import open_store
from penstock.stores.clock import ManualClock, SteadyClock
from penstock.stores.embedded import EmbeddedStore
from tests.durable import crash, replayed_digest, scratch
from tests.oracle.store import OracleStore
from tests.served import ServedStore

SEED: Final = 20_231_114  # of the jitter

# The oracle's ids are greater than any other number in a call, so that none is taken for another.
ORACLE_IDS: Final = 2**50

Open = Callable[[ManualClock, Caps], Awaitable[Store]]


@dataclass(frozen=True)
class Subject:
    """A kind of store that can be compared with the oracle."""

    name: str
    open: Open
    restart: Callable[[Any], Awaitable[Store]]  # with what it keeps, as after a crash
    forgets_callers: bool = False  # those who wait when it restarts


async def open_memory(clock: ManualClock, caps: Caps) -> Store:
    return await open_store("memory://", clock=clock, caps=caps, seed=SEED)


async def restart_memory(store: Any) -> Store:
    """The kernel is written out and read back; nothing else outlives the process."""
    store.rebuild()
    return store  # type: ignore[no-any-return]


async def open_twin(clock: ManualClock, caps: Caps) -> Store:
    """Another oracle, whose ids lie elsewhere."""
    return OracleStore(clock=clock, caps=caps, seed=SEED, first_id=1_000_001)


async def as_it_is(store: Any) -> Store:
    return store  # type: ignore[no-any-return]


class OnDisk(EmbeddedStore):
    """A store in a directory of its own, which goes with it."""

    directory: tempfile.TemporaryDirectory[str]
    ends: Iterator[str]  # how it will end next

    @classmethod
    async def there(cls, url: str, **options: Any) -> Self:
        opened = await open_store(url, **options, share=False)
        assert isinstance(opened, EmbeddedStore)
        return cls(opened.engine, url.partition(":")[0])

    async def close(self) -> None:
        await super().close()
        self.directory.cleanup()


def on_disk(scheme: str) -> Subject:
    def url(directory: tempfile.TemporaryDirectory[str]) -> str:
        return f"{scheme}:///{directory.name}/store"

    async def open_new(clock: ManualClock, caps: Caps) -> Store:
        directory = scratch()
        store = await OnDisk.there(url(directory), clock=clock, caps=caps, seed=SEED)
        store.directory = directory
        store.ends = itertools.cycle(("crash", "close", "checkpoint", "half a checkpoint"))
        return store

    async def restart(store: Any) -> Store:
        """What is read back is what was there, however it ended."""
        assert isinstance(store, OnDisk)
        keeper, steady = store.engine.keeper, store.engine.clock
        assert keeper is not None
        assert isinstance(steady, SteadyClock)
        end = next(store.ends)
        if end == "checkpoint":
            await keeper.checkpoint()
        elif end == "half a checkpoint":
            keeper.checkpointer.begin()
            await keeper.turn()
        await (store.engine.close() if end == "close" else crash(store))
        live, where = store.kernel, url(store.directory)
        assert await replayed_digest(where, live, steady.clock) == live.digest(), end
        again = await OnDisk.there(where, clock=steady.clock, caps=live.caps)
        again.directory, again.ends = store.directory, store.ends
        return again

    return Subject(scheme, open_new, restart, forgets_callers=True)


def served(how: str) -> Subject:
    """A store in memory behind a live server."""

    async def open_new(clock: ManualClock, caps: Caps) -> Store:
        return await ServedStore.open(how, clock=clock, caps=caps, seed=SEED)

    async def restart(store: Any) -> Store:
        """The kernel is written out and read back; connections stay."""
        assert isinstance(store, ServedStore)
        store.inner.rebuild()
        return store

    return Subject(how, open_new, restart)


SQLITE: Final = on_disk("sqlite")
ROCKSDB: Final = on_disk("rocksdb")
TCP: Final = served("tcp")
UNIX: Final = served("unix")
MEMORY: Final = Subject("memory", open_memory, restart_memory)
TWIN: Final = Subject("twin", open_twin, as_it_is)


async def open_oracle(clock: ManualClock, caps: Caps = DEFAULT_CAPS) -> OracleStore:
    return OracleStore(clock=clock, caps=caps, seed=SEED, first_id=ORACLE_IDS)
