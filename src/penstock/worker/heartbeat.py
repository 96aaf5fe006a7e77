"""Keeps every lease alive from the instant it arrives until all about its jobs has been told.

On the home thread, so that no handler can starve it: one that computes for minutes shares the
interpreter with it, but does not hold up its loop. What the store says was taken away meanwhile
(cancelled, timed out, purged) is passed on, so that the handler is stopped.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from random import uniform
from typing import Final

from penstock.model.errors import LeaseLost, PenstockError
from penstock.model.store import Store
from penstock.worker.held import Held
from penstock.worker.owned import Owned
from penstock.worker.refusals import REFUSED, Refusals

log: Final = logging.getLogger("penstock.worker")

SOON: Final = 0.25  # of a period: after how long a beat that was not answered is tried again


class Heartbeat:
    def __init__(
        self,
        store: Store,
        tenant: str,
        lost: Callable[[Held, Iterable[int] | None], None],
        owned: Owned,
    ) -> None:
        self._store = store
        self._tenant = tenant
        self._lost = lost  # told which jobs of a lease are gone; None: all
        self._owned = owned
        self._loop = asyncio.get_running_loop()
        self._refusals = Refusals("leases cannot be extended")

    def keep(self, held: Held) -> None:
        held.beat = self._loop.call_later(held.period_s, self.beat, held)

    def forget(self, held: Held) -> None:
        if held.beat is not None:
            held.beat.cancel()
            held.beat = None

    def beat(self, held: Held) -> None:
        """Extend the lease now."""
        if held.beat is not None:
            self.forget(held)
            self._owned.start(self._extend(held))

    async def _extend(self, held: Held) -> None:
        wait_s = held.period_s
        try:
            # Answered after the next beat would be due, it may have come too late.
            async with asyncio.timeout(2 * held.period_s):
                extended = await self._store.extend(self._tenant, held.token)
            self._refusals.over()
            if extended.lost:
                self._lost(held, extended.lost)
        except LeaseLost:
            self._lost(held, None)
            return
        except (PenstockError, TimeoutError) as error:
            # The lease may live, or the store may not: it tells when it can be reached again.
            if isinstance(error, REFUSED):
                self._refusals.say(error)
            else:
                log.warning("a lease could not be extended: %s", str(error) or "no answer in time")
            wait_s *= SOON * uniform(0.5, 1.5)  # noqa: S311
        if not held.over:
            held.beat = self._loop.call_later(wait_s, self.beat, held)
