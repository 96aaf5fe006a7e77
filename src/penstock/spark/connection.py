"""A store for Spark's Python workers, which are synchronous and short of time.

A task opens one, has a background loop do the talking while it turns Arrow into jobs, and closes
it. Nothing outlives the task: Spark forks, reuses and kills these processes as it likes, and a
connection costs a few milliseconds.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from penstock.client.home import Home
from penstock.model.errors import Unavailable
from penstock.model.store import Store
from penstock.open import open_store
from penstock.spark.where import Where

T = TypeVar("T")
Call = Callable[[Store, str], Coroutine[Any, Any, T]]  # of a store, for a tenant

DEFAULT_TENANT: Final = "default"
PATIENCE_S: Final = 30.0  # with a server that is busy or restarts: a whole write hangs on it
PAUSE_S: Final = 0.2


class Connection:
    """`patience_s`: for how long a store that cannot be reached is tried again, before it is said."""

    def __init__(self, where: Where, patience_s: float = PATIENCE_S) -> None:
        self._where = where
        self._patience_s = patience_s
        self._home = Home(where.url, where.tenant or DEFAULT_TENANT, self._open)

    async def _open(self) -> Store:
        until = time.monotonic() + self._patience_s
        while True:
            try:
                return await open_store(self._where.url)
            except Unavailable:
                if time.monotonic() >= until:
                    raise
            await asyncio.sleep(PAUSE_S)

    def begin(self, call: Call[T]) -> "Future[T]":
        """Have it called on the background loop; calls are sent in the order of their beginning."""
        return asyncio.run_coroutine_threadsafe(self._made(call), self._home.loop)

    def ask(self, call: Call[T]) -> T:
        """What it answers, or raises."""
        return self.begin(call).result()

    async def _made(self, call: Call[T]) -> T:
        store = await self._home.store()
        # A server says whose the token is; a store that does not has no tokens.
        tenant = self._where.tenant or getattr(store, "tenant", None) or DEFAULT_TENANT
        return await call(store, tenant)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._home.close()
