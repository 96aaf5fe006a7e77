"""Listings that stay bounded, however large the jobs are that they show."""

from typing import Annotated, Any, Final

from msgspec import Meta

from penstock.model.checks import MAX_PAGE, check_find
from penstock.model.job import MAX_ID, Job
from penstock.server.service import Call

Cursor = Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": MAX_ID})]
Limit = Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": MAX_PAGE})]

PAGE_BYTES: Final = 16 * 1024 * 1024  # of payloads and results, after which a page ends
_FIRST: Final = 16  # jobs looked up at first; more at a time while they are small


async def page(call: Call, cursor: int, limit: int, **chosen: Any) -> tuple[list[Job], int | None]:
    """Up to `limit` jobs of the path's queue from the cursor on, and where to go on."""
    check_find(None, None, None, cursor, limit)  # we ask for less than was asked for
    queue = call.params["queue"]
    found: list[Job] = []
    size, step = 0, min(_FIRST, limit)
    while True:
        answer = await call.store.find(
            call.tenant, queue, cursor=cursor, limit=min(step, limit - len(found)), **chosen
        )
        found += answer.jobs
        size += sum(len(job.payload) + len(job.result or b"") for job in answer.jobs)
        if answer.cursor is None or len(found) >= limit or size >= PAGE_BYTES:
            return found, answer.cursor
        if not answer.jobs:  # a long scan that found nothing: the client decides whether to go on
            return found, answer.cursor
        cursor = answer.cursor
        step = min(step * 2, MAX_PAGE) if size < PAGE_BYTES // 16 else _FIRST
