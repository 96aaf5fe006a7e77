"""The errors of attempts that nobody ended in time, in the same words whoever tells of them."""

from typing import Final

from penstock.model.duration import say_ms
from penstock.model.job import JobError

LEASE_EXPIRED: Final = JobError(kind="lease_expired", message="the lease ended before the job did")


def timed_out(timeout_ms: int) -> JobError:
    return JobError(kind="timeout", message=f"the attempt ran longer than {say_ms(timeout_ms)}")
