"""The cursor and the limit that listings of a queue take."""

from typing import Annotated, Any

from msgspec import Meta

from penstock.model import listing
from penstock.model.checks import MAX_PAGE, check_find
from penstock.model.job import MAX_ID, Job
from penstock.server.service import Call

Cursor = Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": MAX_ID})]
Limit = Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": MAX_PAGE})]


async def page(call: Call, cursor: int, limit: int, **chosen: Any) -> tuple[list[Job], int | None]:
    """Up to `limit` jobs of the path's queue from the cursor on, and where to go on."""
    check_find(None, None, None, cursor, limit)  # we ask for less than was asked for
    return await listing.page(
        call.store, call.tenant, call.params["queue"], cursor, limit, **chosen
    )
