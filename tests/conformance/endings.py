"""Every way in which a running job can leave `active`, for the cases that hold for all of them.

An `Ending` says how the job has to be pushed for it, how it is brought about, and what the job is
afterwards. `ENDINGS` are the ways that leave nothing of the attempt behind; `RETRIES` are the ways
into backoff, where a group's slot (and nothing else) is kept.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from penstock.model.job import JobSpec, Lease
from penstock.model.policy import Backoff
from tests.conformance.harness import Harness

WAIT_MS: Final = 600_000
SLOW: Final = Backoff(
    kind="fixed", base_ms=WAIT_MS, jitter="none"
)  # waits much longer than a lease
TIMEOUT_MS: Final = 7_000
LEASE_MS: Final = 30_000  # where neither the claim nor the job says
KEY: Final = "key-of-the-ending"


@dataclass(frozen=True)
class Ending:
    name: str
    leave: Callable[[Harness, Lease], Awaitable[object]]
    after: str | None  # the state that the job is in then; None = forgotten
    spec: dict[str, Any] = field(default_factory=dict)


async def _reject(h: Harness, lease: Lease) -> None:
    await h.fail(lease, dead=True)


async def _expire(h: Harness, lease: Lease) -> None:
    await h.advance(LEASE_MS)


async def _time_out(h: Harness, lease: Lease) -> None:
    await h.advance(TIMEOUT_MS)


async def _cancel(h: Harness, lease: Lease) -> None:
    await h.cancel(*lease.ids)


async def _discard(h: Harness, lease: Lease) -> None:
    await h.cancel(*lease.ids, discard=True)


async def _purge(h: Harness, lease: Lease) -> None:
    await h.store.purge(h.name, lease.queue)


async def _replace_and_ack(h: Harness, lease: Lease) -> None:
    later = JobSpec(payload=b'"later"', key=KEY, on_conflict="replace", delay_ms=WAIT_MS)
    await h.push_many(lease.queue, [later])
    await h.ack(lease)


ONCE: Final = {"max_attempts": 1}

ENDINGS: Final = (
    Ending("ack", lambda h, lease: h.ack(lease), "completed"),
    Ending("rejected", _reject, "dead"),
    Ending("last attempt failed", lambda h, lease: h.fail(lease), "dead", ONCE),
    Ending("last lease expired", _expire, "dead", ONCE),
    Ending("last attempt timed out", _time_out, "dead", ONCE | {"timeout_ms": TIMEOUT_MS}),
    Ending("cancel", _cancel, "cancelled"),
    Ending("discard", _discard, "dead"),
    Ending("release", lambda h, lease: h.release(lease), "ready"),
    Ending("purge", _purge, None),
    Ending("replaced, then ack", _replace_and_ack, "scheduled", {"key": KEY}),
)

RETRIES: Final = (
    Ending("failed", lambda h, lease: h.fail(lease), "scheduled", {"backoff": SLOW}),
    Ending("lease expired", _expire, "scheduled", {"backoff": SLOW}),
    Ending("timed out", _time_out, "scheduled", {"backoff": SLOW, "timeout_ms": TIMEOUT_MS}),
)


def each(endings: tuple[Ending, ...]) -> pytest.MarkDecorator:
    """Runs a case once for each of these endings."""
    return pytest.mark.parametrize("ending", endings, ids=lambda ending: ending.name)
