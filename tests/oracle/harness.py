"""The stores that are held against the oracle: how each is opened and how it restarts."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from penstock.model.policy import DEFAULT_CAPS, Caps
from penstock.model.store import Store
from penstock.open import open_store
from penstock.stores.clock import ManualClock
from tests.oracle.store import OracleStore

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


MEMORY: Final = Subject("memory", open_memory, restart_memory)
TWIN: Final = Subject("twin", open_twin, as_it_is)


async def open_oracle(clock: ManualClock, caps: Caps = DEFAULT_CAPS) -> OracleStore:
    return OracleStore(clock=clock, caps=caps, seed=SEED, first_id=ORACLE_IDS)
