"""Keys of one queue: a name that at most one live job may carry, and how long it is kept.

A record stands in the table exactly as long as its key is kept: whoever ends, claims or forgets a
job strikes out the keys that this frees. Only durations lapse by themselves, and are asked for
the time. The kernel counts the keys that may outlive their jobs: they are capped.
"""

from typing import TYPE_CHECKING

import msgspec

from penstock.kernel.codes import COUNTER_OF, ENDED
from penstock.model.job import KeyClaim
from penstock.model.policy import KeepKey

if TYPE_CHECKING:
    from penstock.kernel.kernel import Kernel


class KeyRecord(msgspec.Struct):
    id: int
    keep: KeepKey
    until: int  # of a duration: the instant at which it lapses; else 0
    digest: bytes  # of the job's last codec and payload, for `match` after its end


def outlives(keep: KeepKey) -> bool:
    """Whether a key kept this way may stand longer than its job lives."""
    return keep not in ("live", "started")


class KeyTable:
    __slots__ = ("_kernel", "_queue", "_tenant", "records")

    def __init__(self, kernel: "Kernel", tenant: str, queue: str) -> None:
        self._kernel = kernel
        self._tenant = tenant
        self._queue = queue
        self.records: dict[str, KeyRecord] = {}

    def find(self, key: str, now: int) -> KeyRecord | None:
        record = self.records.get(key)
        if record is not None and record.until and record.until <= now:
            return None
        return record

    def take(self, claim: KeyClaim, job_id: int, digest: bytes, at: int) -> KeyRecord:
        keep = claim.keep_key
        until = at + keep if isinstance(keep, int) else 0
        record = KeyRecord(job_id, keep, until, digest)
        self.put(claim.key, record)
        return record

    def open_to(
        self, claims: tuple[KeyClaim, ...], job_id: int, now: int, *, new: bool
    ) -> tuple[KeyClaim, ...]:
        """Those keys that a job may take, for what stands for another stays with it.

        A new one also takes what it may replace from a job that has ended.
        """
        if all(claim.key not in self.records for claim in claims):
            return claims
        return tuple(
            claim
            for claim in claims
            if (record := self.find(claim.key, now)) is None
            or record.id == job_id
            or (new and claim.on_conflict == "replace" and self._over(record.id))
        )

    def _over(self, job_id: int) -> bool:
        found = self._kernel.locate_any(job_id)
        return found is None or COUNTER_OF[found[0].codes[found[1]]] in ENDED

    def put(self, key: str, record: KeyRecord) -> None:
        self.strike(key)
        self.touch(key)
        self.records[key] = record
        self._kernel.key_count += 1
        if outlives(record.keep):
            self._kernel.kept_keys += 1

    def strike(self, key: str) -> None:
        record = self.records.get(key)
        if record is None:
            return
        kernel = self._kernel
        kernel.changes.keys.drop((self._tenant, self._queue, key))
        del self.records[key]
        kernel.key_count -= 1
        if outlives(record.keep):
            kernel.kept_keys -= 1

    def touch(self, key: str) -> None:
        """Comes before any change to a key's record."""
        self._kernel.changes.keys.touch((self._tenant, self._queue, key))

    def clear(self) -> None:
        for key in list(self.records):
            self.strike(key)

    def free(self, claims: tuple[KeyClaim, ...], job_id: int, *keeps: str) -> None:
        """Strike out those of a job's keys that are kept in one of these ways."""
        for claim in claims:
            record = self.records.get(claim.key)
            if record is not None and record.id == job_id and record.keep in keeps:
                self.strike(claim.key)
