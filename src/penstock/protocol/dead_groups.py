"""Dead letters by what they died of: one grouping for the HTTP interface and the command line."""

from collections.abc import Iterable
from typing import Final

import msgspec

from penstock.model.fingerprint import fingerprint
from penstock.model.job import Job, JobError
from penstock.protocol.http_shown_queues import DeadGroup

_NO_ERROR: Final = JobError(kind="", message="")  # of jobs that were discarded unattempted


class Grouping:
    """Fed with dead jobs by ascending id, in as many helpings as it takes."""

    def __init__(self) -> None:
        self._groups: dict[str, DeadGroup] = {}

    def add(self, jobs: Iterable[Job]) -> None:
        groups = self._groups
        for job in jobs:
            error = job.errors[-1] if job.errors else _NO_ERROR
            mark = fingerprint(error)
            known = groups.get(mark)
            groups[mark] = (
                DeadGroup.begin(mark, error, job.id)
                if known is None
                else msgspec.structs.replace(
                    known,
                    count=known.count + 1,
                    last_id=job.id,
                    first_at=min(known.first_at, error.at),
                    last_at=max(known.last_at, error.at),
                )
            )

    @property
    def groups(self) -> tuple[DeadGroup, ...]:
        """The most frequent first."""
        return tuple(sorted(self._groups.values(), key=lambda one: (-one.count, one.first_id)))
