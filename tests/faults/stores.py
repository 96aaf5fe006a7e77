"""The durable stores, as fault tests open them: often, and with everything small.

A checkpoint every few dozen records, so that one is always under way or its truncation is.
"""

import os
from pathlib import Path
from typing import Final

import pytest

from penstock.open import open_store
from penstock.stores.clock import Clock
from penstock.stores.embedded import EmbeddedStore
from tests.history import record as r
from tests.history.checker import Violation, check
from tests.history.final import settle
from tests.history.operations import History
from tests.history.recorder import Recorder

SCHEMES: Final = ("sqlite", "rocksdb")
LONG: Final = os.environ.get("PENSTOCK_LONG") == "1"
ROOT: Final = Path(__file__).resolve().parents[2]

# `make test` has a case with small numbers, `make test-long` the same one with large ones.
in_both_runs = [pytest.mark.long] if LONG else []
each_store = pytest.mark.parametrize("scheme", SCHEMES)


def url_of(scheme: str, directory: Path, **settings: object) -> str:
    """The store in that directory; nothing is asked of the disk's free space, unless said."""
    said = {"reserve_bytes": 0, "checkpoint_records": 25} | settings
    query = "&".join(f"{name}={value}" for name, value in said.items())
    return f"{scheme}:///{directory / 'store'}?{query}"


async def opened(url: str, clock: Clock | None = None) -> EmbeddedStore:
    store = await open_store(url, clock=clock, share=False)
    assert isinstance(store, EmbeddedStore)
    return store


async def settled(url: str, log: Path, **allowed: object) -> list[Violation]:
    """Open the store, finish what is left, and compare it with the history in that file."""
    store = await opened(url)
    with r.FileLog(log) as lines:
        final = await settle(Recorder(store, lines), known=History.read(log).ids())
    await store.close()
    return check(History.read(log), final, **allowed)  # type: ignore[arg-type]
