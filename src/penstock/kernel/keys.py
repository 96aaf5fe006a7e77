"""Keys of one queue: a name that at most one live job may carry, and how long it is kept.

A record stands in the table exactly as long as its key is kept: whoever ends, claims or forgets a
job strikes out the keys that this frees. Only durations lapse by themselves, and are asked for
the time.
"""

import msgspec

from penstock.model.job import KeyClaim
from penstock.model.policy import KeepKey


class KeyRecord(msgspec.Struct):
    id: int
    keep: KeepKey
    until: int  # of a duration: the instant at which it lapses; else 0
    digest: bytes  # of the job's last codec and payload, for `match` after its end


class KeyTable:
    __slots__ = ("records",)

    def __init__(self) -> None:
        self.records: dict[str, KeyRecord] = {}

    def find(self, key: str, now: int) -> KeyRecord | None:
        record = self.records.get(key)
        if record is not None and record.until and record.until <= now:
            return None
        return record

    def take(self, claim: KeyClaim, job_id: int, digest: bytes, at: int) -> KeyRecord:
        keep = claim.keep_key
        until = at + keep if isinstance(keep, int) else 0
        record = self.records[claim.key] = KeyRecord(job_id, keep, until, digest)
        return record

    def free(self, claims: tuple[KeyClaim, ...], job_id: int, *keeps: str) -> None:
        """Strike out those of a job's keys that are kept in one of these ways."""
        for claim in claims:
            record = self.records.get(claim.key)
            if record is not None and record.id == job_id and record.keep in keeps:
                del self.records[claim.key]
