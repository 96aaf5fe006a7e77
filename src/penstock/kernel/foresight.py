"""Foresight: how each job of a push, or of a commit, will find the keys when its turn comes.

A push is decided whole before it changes anything, yet its jobs count like jobs of as many pushes.
So what stands in the store is overlaid here with what the jobs decided so far will do: take keys,
renew them, or free them again, because a job will be dead at once of a dependency that has failed,
and with it those that wait for it.

Jobs are numbers: the id of one that stands in the store, −(place + 1) for one of the push.
"""

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from penstock.kernel.blocks import RELATIVE, Block, Version
from penstock.kernel.codes import ACTIVE, BLOCKED, COMPLETED, COUNTER_OF, ENDED, HELD
from penstock.kernel.flows import has_failed
from penstock.kernel.keys import KeyRecord, outlives
from penstock.kernel.replace import same, words
from penstock.model.errors import Conflict, Overloaded
from penstock.model.job import CREATED, IGNORED, UPDATED, KeyClaim
from penstock.model.policy import KeepKey

if TYPE_CHECKING:
    from penstock.kernel.kernel import Kernel

Spot = tuple[str, str]  # queue, key


class Foresight:
    def __init__(
        self,
        kernel: "Kernel",
        tenant: str,
        say: Callable[[int], Version],
        unborn: AbstractSet[int] = frozenset(),
    ) -> None:
        self._kernel = kernel
        self._tenant = tenant
        known = kernel.tenants.get(tenant)
        self._queues = known.queues if known is not None else {}
        self._say = say  # what a job of the push says
        self._unborn = unborn  # ids that fare like cancelled ones
        self._records: dict[Spot, KeyRecord | None] = {}  # None: free by then
        self._taken: dict[int, list[Spot]] = {}  # by job, what it took so far
        self._latest: dict[int, int] = {}  # a job that was replaced → whose version it has by then
        self._over: set[int] = set()  # dead by then
        self.stand_in: dict[int, int] = {}  # a job that was not created → the one it stands for
        self.followers: dict[int, list[int]] = {}  # a job → those decided that depend on it
        self.fresh_keys = 0  # how many more keys may outlive their jobs

    def decide(
        self,
        job: int,
        queue: str,
        claims: tuple[KeyClaim, ...],
        digest: bytes,
        refs: tuple[int, ...],
    ) -> tuple[int, int]:
        """What becomes of a job with these keys, and of which: the first taken key decides."""
        free = True
        for claim in claims:
            record = self._record((queue, claim.key))
            if record is None:
                continue
            free = False
            owner = record.id
            if claim.on_conflict == "reject":
                whose = f"job {owner}" if owner > 0 else "another of this push"
                raise Conflict(f"key {claim.key!r} is taken by {whose}", "key")
            if claim.on_conflict == "match" and record.digest != digest:
                raise Conflict(f"key {claim.key!r} stands for another payload", "key")
            if claim.on_conflict == "replace":
                if self._ended(owner):
                    break
                if not self._same(owner, job):
                    return self._replace(owner, job, queue, claims, digest, refs)
            self.stand_in[job] = owner
            return IGNORED, owner
        if free:
            for claim in claims:
                self._put((queue, claim.key), job, claim.keep_key, digest)
        else:
            self._take(job, queue, claims, digest, new=True)
        if refs:
            self._depend(job, refs)
        return CREATED, 0

    def check_room(self) -> None:
        """May as many keys outlive their jobs as will by then?"""
        most = self._kernel.caps.kept_keys
        if self.fresh_keys > 0 and self._kernel.kept_keys + self.fresh_keys > most:
            raise Overloaded(f"{most} keys are kept beyond their jobs", "key")

    def _replace(
        self,
        owner: int,
        job: int,
        queue: str,
        claims: tuple[KeyClaim, ...],
        digest: bytes,
        refs: tuple[int, ...],
    ) -> tuple[int, int]:
        self.stand_in[job] = owner
        self._latest[owner] = job
        self._take(owner, queue, claims, digest, new=False)
        for spot, record in self._keys_of(owner):
            self._records[spot] = KeyRecord(owner, record.keep, record.until, digest)
        if refs:
            self._depend(owner, refs)
        return UPDATED, owner

    # -- keys --------------------------------------------------------------------------------------

    def _record(self, spot: Spot) -> KeyRecord | None:
        if spot in self._records:
            return self._records[spot]
        queue = self._queues.get(spot[0])
        return queue.keys.find(spot[1], self._kernel.now) if queue is not None else None

    def _take(
        self, job: int, queue: str, claims: tuple[KeyClaim, ...], digest: bytes, *, new: bool
    ) -> None:
        """As `KeyTable.open_to` says of what stands in the store."""
        for claim in claims:
            spot = (queue, claim.key)
            record = self._record(spot)
            if record is not None and record.id != job:
                over = new and claim.on_conflict == "replace" and self._ended(record.id)
                if not over:
                    continue
            if record is not None and outlives(record.keep):
                self.fresh_keys -= 1
            self._put(spot, job, claim.keep_key, digest)

    def _put(self, spot: Spot, job: int, keep: KeepKey, digest: bytes) -> None:
        if outlives(keep):
            self.fresh_keys += 1
        self._records[spot] = KeyRecord(job, keep, 0, digest)
        if job in self._taken:
            self._taken[job].append(spot)
        else:
            self._taken[job] = [spot]

    def _keys_of(self, job: int) -> list[tuple[Spot, KeyRecord]]:
        """The keys that stand for a job by now."""
        spots = list(self._taken.get(job, ()))
        found = self._locate(job)
        side = found[0].sides.get(found[1]) if found is not None else None
        if found is not None and side is not None:
            spots += [(found[0].queue.name, claim.key) for claim in side.keys]
        records = [(spot, self._record(spot)) for spot in dict.fromkeys(spots)]
        return [(spot, each) for spot, each in records if each is not None and each.id == job]

    # -- jobs --------------------------------------------------------------------------------------

    def _locate(self, job: int) -> tuple[Block, int] | None:
        return self._kernel.locate(self._tenant, job) if job > 0 else None

    def _code(self, job: int) -> int:
        """The state of a job in the store; of one to come, HELD; of one forgotten, COMPLETED."""
        if job < 0:
            return HELD
        found = self._locate(job)
        return COUNTER_OF[found[0].codes[found[1]]] if found is not None else COMPLETED

    def _ended(self, job: int) -> bool:
        return job in self._over or self._code(job) in ENDED

    def _failed(self, job: int) -> bool:
        if job in self._over or job in self._unborn:
            return True
        return job > 0 and has_failed(self._kernel, self._tenant, job)

    def resolved(self, refs: Iterable[int]) -> tuple[int, ...]:
        """Whom these stand for by now, each once."""
        return tuple(dict.fromkeys(self.stand_in.get(ref, ref) for ref in refs))

    def _said(self, job: int) -> Version:
        version = self._say(job)
        version.depends_on = self.resolved(version.depends_on)
        return version

    def _same(self, owner: int, job: int) -> bool:
        """Whether the owner would not change if it were replaced by this job."""
        version = self._said(job)
        if version.said_run_at == RELATIVE:
            return False
        if owner in self._latest or self._code(owner) == HELD:
            return words(self._said(self._latest.get(owner, owner))) == words(version)
        found = self._locate(owner)
        return found is not None and same(*found, version)

    # -- dependencies --------------------------------------------------------------------------------

    def _depend(self, job: int, refs: tuple[int, ...]) -> None:
        """From now on the job waits for these; if one has failed, it may be dead at once."""
        for ref in self.resolved(refs):
            self.followers.setdefault(ref, []).append(job)
            if self._failed(ref) and self._falls_with(job, ref):
                self._die(job)

    def _falls_with(self, job: int, dependency: int) -> bool:
        """Whether a job of the push, or replaced by it, fails of that dependency now."""
        if self._code(job) == ACTIVE:
            return False  # the version waits for the running attempt
        version = self._said(self._latest.get(job, job))
        fails = version.options.on_dependency_failure == "fail"
        return fails and dependency in version.depends_on

    def _die(self, job: int) -> None:
        dying = [job]
        while dying:
            dead = dying.pop()
            if dead in self._over:
                continue
            self._over.add(dead)
            for spot, record in self._keys_of(dead):
                if not outlives(record.keep):
                    self._records[spot] = None
            dying += [job for job in self.followers.get(dead, ()) if self._falls_with(job, dead)]
            dying += self._blocked_by(dead)

    def _blocked_by(self, dependency: int) -> list[int]:
        """Jobs that stand in the store, are not touched by the push, and fail with that one."""
        found = self._locate(dependency)
        side = found[0].sides.get(found[1]) if found is not None else None
        failing = []
        for job in (side.dependants or ()) if side is not None else ():
            place = self._locate(job)
            if place is None or job in self._latest or place[0].codes[place[1]] != BLOCKED:
                continue
            fails = place[0].options_of(place[1]).on_dependency_failure == "fail"
            if fails and dependency in place[0].sides[place[1]].unmet:
                failing.append(job)
        return failing
