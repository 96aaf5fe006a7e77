"""What became of jobs whose end was told when nobody answered.

An ack whose answer was lost with the connection is made again. If the first one was heard, the
lease holds nothing any more and the store refuses the second: that looks like a loss, and is none.
So the jobs themselves are looked at. One that is forgotten by then, or may not be seen, or has
become another version under its id, says nothing; then it is not known, and nothing is claimed. Nor
is it where the store did not let us in any more when we asked.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from penstock.model.errors import LeaseLost
from penstock.model.job import Job, JobError
from penstock.model.lifecycle import ENDED, State
from penstock.worker.held import Held

AT_ONCE: Final = 1_000  # jobs that are looked at in one call: they come with their payloads

# Whether the end of an attempt was heard, by the job as it was claimed and as it is now; None: that
# cannot be told from it.
Heard = Callable[[Job, Job], bool | None]
Look = Callable[[Sequence[int]], Awaitable[Sequence[Job | None]]]


class Doubtful(LeaseLost):
    """The store refuses what it may have heard before."""


class Hindsight(msgspec.Struct):
    heard: list[Job] = []  # as they are now
    lost: list[int] = []
    unknown: list[int] = []


async def hindsight(look: Look, held: Held, ids: Sequence[int], heard: Heard) -> Hindsight:
    found = Hindsight()
    claimed = {job.id: job for job in held.lease.jobs}
    for begin in range(0, len(ids), AT_ONCE):
        some = ids[begin : begin + AT_ONCE]
        for job_id, now in zip(some, await look(some), strict=True):
            was = claimed[job_id]
            told = heard(was, now) if now is not None and _same(was, now) else None
            if told and now is not None:
                found.heard.append(now)
            else:
                (found.unknown if told is None else found.lost).append(job_id)
    return found


def _same(was: Job, now: Job) -> bool:
    """A version that took its place has another payload, and was created when the first ended."""
    return (now.created_at, now.payload) == (was.created_at, was.payload)


def ack_by(worker: str) -> Heard:
    def heard(was: Job, now: Job) -> bool:
        ours = (now.attempt, now.worker) == (was.attempt, worker)
        return ours and now.state is State.COMPLETED

    return heard


def failure_by(worker: str, kind: str) -> Heard:
    def heard(was: Job, now: Job) -> bool | None:
        if any(error.kind == kind for error in _errors(was, now, worker)):
            return True
        # Where there are many errors, the oldest are gone.
        return None if now.errors and now.errors[0].attempt > was.attempt else False

    return heard


def release_by(worker: str) -> Heard:
    def heard(was: Job, now: Job) -> bool | None:
        """Whatever else ends an attempt leaves an error behind, or ends the job."""
        if _errors(was, now, worker):
            return False
        return None if now.state in ENDED else True

    return heard


def _errors(was: Job, now: Job, worker: str) -> list[JobError]:
    """Those that the attempt ended with."""
    ours = (was.attempt, worker)
    return [error for error in now.errors if (error.attempt, error.worker) == ours]
