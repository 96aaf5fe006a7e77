"""Listings that stay bounded, however large the jobs are that they show."""

from typing import Any, Final

from penstock.model.checks import MAX_PAGE
from penstock.model.job import Job
from penstock.model.store import Store

PAGE_BYTES: Final = 16 * 1024 * 1024  # of payloads and results, after which a page ends
_FIRST: Final = 16  # jobs looked up at first; more at a time while they are small


async def page(
    store: Store, tenant: str, queue: str, cursor: int, limit: int, **chosen: Any
) -> tuple[list[Job], int | None]:
    """Up to `limit` jobs of a queue from the cursor on, and where to go on.

    Like `Store.find`, which it asks for few jobs at a time, it may find none and still go on: who
    asked decides whether a long scan is worth it.
    """
    found: list[Job] = []
    size, step = 0, min(_FIRST, limit)
    while True:
        answer = await store.find(
            tenant, queue, cursor=cursor, limit=min(step, limit - len(found)), **chosen
        )
        found += answer.jobs
        size += sum(len(job.payload) + len(job.result or b"") for job in answer.jobs)
        if answer.cursor is None or len(found) >= limit or size >= PAGE_BYTES or not answer.jobs:
            return found, answer.cursor
        cursor = answer.cursor
        step = min(step * 2, MAX_PAGE) if size < PAGE_BYTES // 16 else _FIRST
