"""The scheduler: keeps the next instants of every cron installed.

Which instants a cron has is `model/schedule.py`'s, installing them the store's (`Store.put_cron`,
which plans by its own clock and lets each instant in once, by its key). What is left is to ask for
it in time, and that is all that happens here. So any number of schedulers may run side by side, be
stopped, killed or asleep, with whatever clocks: an instant fires once while at least one of them
comes round before the instants that are installed ahead have passed.

A look reads the crons of a store; only one that has fewer instants ahead than it should is written.
What was read is old when it is used, by minutes if the process was stopped in between. Therefore it
is put back as a refresh, which changes nothing if somebody changed or dropped the cron meanwhile.

An app's own crons are put once, at the start: a changed config replaces the old one, and the last
writer wins. One that the app no longer declares stays, for it may be another app's; the log names
it, and `penstock cron rm NAME` removes it. One that was removed while apps that declare it are
running comes back when one of them is started again.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Final

from penstock.model.answers import CronInfo
from penstock.model.errors import (
    Forbidden,
    Invalid,
    NotFound,
    PenstockError,
)
from penstock.model.policy import SECOND_MS
from penstock.model.schedule import MIN_REFRESH_MS, CronSpec, ahead_of, plan
from penstock.model.store import Store
from penstock.stores.clock import Clock, SystemClock

log: Final = logging.getLogger("penstock.cron")

# No cron needs to be refreshed more often than this, and any cron may have been put meanwhile.
LOOK_MS: Final = MIN_REFRESH_MS
SHARE: Final = 20  # a scheduler spends at most one part in so many of its time on looking
LONGEST_MS: Final = 30 * SECOND_MS  # between two attempts while the store does not answer
FOREVER: Final = 1 << 62

# Saying it again would not help. Whoever is not let in at all may be later.
_REFUSED: Final = (Invalid, Forbidden)


class Scheduler:
    """Owned by whoever runs it: `run` goes on until it is cancelled."""

    def __init__(
        self,
        store: Store,
        tenants: Sequence[str],
        specs: Iterable[CronSpec] = (),
        *,
        clock: Clock | None = None,
    ) -> None:
        """Refreshes every cron of `tenants`, and first puts `specs` for each of them."""
        self._store = store
        self._tenants = tuple(dict.fromkeys(tenants))
        self._clock = clock or SystemClock()
        self._specs = tuple(specs)
        self._to_put = [(tenant, spec) for tenant in self._tenants for spec in self._specs]
        self._to_name = set(self._tenants) if self._specs else set()
        # By tenant: crons with fewer instants than they should have for which nothing can be done,
        # and how long to leave them alone as long as they stay like this.
        self._settled: dict[str, dict[CronInfo, int]] = {}
        self._failures = 0  # of looks, since the last that went well

    async def run(self) -> None:
        while True:
            wait_ms = await self.turn()
            await asyncio.sleep(wait_ms / 1_000)

    async def turn(self) -> int:
        """Put and refresh whatever needs it; answers after how many ms to come again."""
        begin = self._clock.elapsed_ms()
        try:
            await self._put()
            for tenant in self._tenants:
                await self._refresh(tenant)
        except (PenstockError, OSError) as error:
            return self._failed(error)
        if self._failures:
            log.info("crons are scheduled again")
            self._failures = 0
        return max(LOOK_MS, SHARE * (self._clock.elapsed_ms() - begin))

    def _failed(self, error: Exception) -> int:
        """Say so once, and come again ever later; instants that pass meanwhile are missed ones."""
        if not self._failures:
            log.warning("crons cannot be scheduled, trying again: %s", error)
        wait = min(LOOK_MS << min(self._failures, 10), LONGEST_MS)
        self._failures += 1
        return wait

    async def _put(self) -> None:
        while self._to_put:
            tenant, spec = self._to_put[0]
            try:
                await self._store.put_cron(tenant, spec)
            except _REFUSED as error:
                log.error("cron %r cannot be put: %s", spec.name, error)
            del self._to_put[0]

    async def _refresh(self, tenant: str) -> None:
        try:
            known = await self._store.crons(tenant)
        except _REFUSED as error:
            # Who may not see crons refreshes none: that is left to others.
            log.warning("the crons of tenant %r are not refreshed from here: %s", tenant, error)
            self._tenants = tuple(each for each in self._tenants if each != tenant)
            return
        self._name_strangers(tenant, known)
        settled = self._settled.get(tenant, {})
        self._settled[tenant] = left = {}  # what was dropped or changed is not among them any more
        for info in known:
            if len(info.pending) >= ahead_of(info.spec.schedule):
                continue
            until = settled.get(info, 0)
            if until <= self._clock.elapsed_ms():
                until = await self._refresh_one(tenant, info)
            if until:
                left[info] = until

    async def _refresh_one(self, tenant: str, info: CronInfo) -> int:
        """Until when (by the elapsed time) it need not be tried again, if it stays as it is."""
        spec = info.spec
        try:
            if await self._store.put_cron(tenant, spec, refresh=True) != info:
                return 0
        except NotFound:
            log.debug("cron %r was changed or dropped meanwhile", spec.name)
            return 0
        except _REFUSED as error:
            log.warning("cron %r is not refreshed from here: %s", spec.name, error)
            return FOREVER
        # Nothing is missing: its limit is near, or somebody cancelled jobs of instants to come.
        now = self._clock.now_ms()
        return self._clock.elapsed_ms() + plan(spec, now_ms=now, installed_until_ms=None).refresh_ms

    def _name_strangers(self, tenant: str, known: Sequence[CronInfo]) -> None:
        """Once: which crons the store has that this app does not declare."""
        if tenant not in self._to_name:
            return
        self._to_name.discard(tenant)
        declared = {spec.name for spec in self._specs}
        strange = [info.spec.name for info in known if info.spec.name not in declared]
        if strange:
            log.info(
                "crons that this app does not declare go on: %s; one that nobody needs any more"
                " is removed by `penstock cron rm NAME`",
                ", ".join(map(repr, strange)),
            )
