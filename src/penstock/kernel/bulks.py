"""Two-phase bulks: what was pushed into each part, and the names of those that are finished."""

from collections.abc import Sequence

import msgspec


class HeldPush(msgspec.Struct):
    """One run of one push into a part. Its jobs lie in the queue's blocks, held."""

    queue: str
    first: int
    count: int
    delay_ms: int | Sequence[int | None] | None
    run_at: int | Sequence[int | None] | None


class Bulk(msgspec.Struct):
    name: str
    deadline_ms: int
    expires: int  # elapsed; renewed by each push
    parts: dict[str, list[HeldPush]] = {}

    def holds(self, job_id: int) -> bool:
        return any(
            held.first <= job_id < held.first + held.count
            for helds in self.parts.values()
            for held in helds
        )


class FinishedBulk(msgspec.Struct, frozen=True):
    committed: bool
    jobs: int
    dropped: int
    at: int
