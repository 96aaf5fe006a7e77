"""The gate before a store that is served: it can be shut to claims while everything else goes on.

A server that stops hands out nothing new, lets workers finish what they hold, and only then ends.
All its transports share one gate, so that one word shuts them all.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from penstock.model.errors import PenstockError
from penstock.model.job import Lease
from penstock.model.lifecycle import State
from penstock.model.store import Store
from penstock.model.wrapper import Wrapper
from penstock.stores.eager import begin

LOOK_S: Final = 0.05  # how often we look whether anything is still active


class Gate(Wrapper):
    def __init__(self, store: Store) -> None:
        self._inner = store
        self._shut = False
        self._waiting: set[asyncio.Task[Lease | None]] = set()
        self._claimed: set[tuple[str, str]] = set()  # (tenant, queue) that claims were served from

    @property
    def inner(self) -> Store:
        return self._inner

    def shut(self) -> None:
        """From now on claims find nothing, and those that wait are told so."""
        self._shut = True
        for task in self._waiting:
            task.cancel()

    async def idle(self, within_s: float) -> bool:
        """Wait until nothing is active in the queues that were claimed from here.

        That may include what others claimed from a store that they share with us. False if
        something still is when the time is up.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while await self._active():
            left = deadline - loop.time()
            if left <= 0:
                return False
            await asyncio.sleep(min(LOOK_S, left))
        return True

    async def _active(self) -> bool:
        queues: dict[str, list[str]] = {}
        for tenant, queue in self._claimed:
            queues.setdefault(tenant, []).append(queue)
        for tenant, names in queues.items():
            for info in await self.inner.queues(tenant, names):
                if info.counts[State.ACTIVE]:
                    return True
                self._claimed.discard((tenant, info.queue))
        return False

    async def claim(
        self,
        tenant: str,
        queues: Sequence[str],
        n: int = 1,
        *,
        lease_ms: int | None = None,
        worker: str = "",
        wait_ms: int = 0,
    ) -> Lease | None:
        if self._shut:
            return None
        call = self.inner.claim(
            tenant, queues, n, lease_ms=lease_ms, worker=worker, wait_ms=wait_ms
        )
        lease = await self._unless_shut(tenant, begin(call)) if wait_ms else await call
        if lease is not None:
            self._claimed.add((tenant, lease.queue))
        return lease

    async def _unless_shut(
        self, tenant: str, claim: "Lease | asyncio.Task[Lease | None] | None"
    ) -> Lease | None:
        if not isinstance(claim, asyncio.Task):
            return claim
        self._waiting.add(claim)
        try:
            return await claim
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is None or not caller.cancelling():
                return None
            if claim.done() and not claim.cancelled() and claim.exception() is None:
                lease = claim.result()
                if lease is not None:  # handed over to somebody who is gone
                    with suppress(PenstockError):
                        await self.inner.release(tenant, lease.token)
            raise
        finally:
            self._waiting.discard(claim)
