"""Bringing a queue to where its next ids cross from one block of ids into the next."""

from typing import Any

from penstock.model.job import JobOptions, Lease, Run
from tests.conformance.harness import BLOCK, Harness

DAY_MS = 86_400_000


async def push_assorted(h: Harness, queue: str, count: int, **times: Any) -> list[int]:
    """Push `count` jobs in one call whose neighbours differ in their task."""
    run = Run(
        queue=queue,
        data=b"1" * count,
        ends=list(range(1, count + 1)),
        options=(JobOptions(task="even"), JobOptions(task="odd")),
        option_of=[n % 2 for n in range(count)],
        **times,
    )
    return (await h.store.push(h.name, [run])).ids


async def fill_block(h: Harness, queue: str, room: int = 10) -> Lease:
    """Use up the queue's first block of ids but for `room`; one of its jobs stays, active."""
    ids = await push_assorted(h, queue, BLOCK - room)
    lease = await h.lease(queue, lease_ms=DAY_MS)
    assert lease.ids == ids[:1]
    assert await h.store.drain(h.name, queue) == BLOCK - room - 1
    await h.advance(1)
    return lease
