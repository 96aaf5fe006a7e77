"""How a worker comes to its store, if that is a server which is not there yet.

Whoever starts a worker together with its server, a supervisor or a compose file, cannot know which
comes first. So a server that does not answer is waited for, as one is that goes away later; what no
waiting mends (a token, a url, a store on a path that cannot be opened) is said at once.
"""

import asyncio
import logging
from typing import Any, Final

from penstock.client.app import Penstock
from penstock.model.duration import about_ms
from penstock.model.errors import Overloaded, Unavailable
from penstock.model.store import Store
from penstock.stores.again import Again

log: Final = logging.getLogger("penstock.worker")

REMIND_S: Final = 60.0  # how often it is said that there is still nobody


async def reached(app: Penstock, told: asyncio.Event, *, alone: bool) -> Store | None:
    """The store, once there is one; None if the worker was told to end before. One that is being
    opened is opened for everybody in the process: a worker that is not alone there lets it be."""
    ending = asyncio.ensure_future(told.wait())
    try:
        return await _reached(app, ending, alone)
    finally:
        ending.cancel()


async def _reached(app: Penstock, ending: "asyncio.Future[Any]", alone: bool) -> Store | None:
    now = asyncio.get_running_loop().time
    began, said_at, again = now(), None, Again(now)
    while not ending.done():
        again.begin()
        opening = asyncio.ensure_future(app.home.store())
        await asyncio.wait([opening, ending], return_when=asyncio.FIRST_COMPLETED)
        if not opening.done():
            opening.cancel()
            if alone:
                app.home.give_up()
            break
        error = opening.exception()
        if error is None:
            if said_at is not None:
                log.info("the store answers")
            return opening.result()
        if not isinstance(error, Unavailable | Overloaded) or not app.url.startswith("penstock"):
            raise error
        if said_at is None or now() - said_at >= REMIND_S:
            since = "" if said_at is None else f" for {about_ms((now() - began) * 1_000)}"
            log.warning("the worker waits for its store%s: %s", since, error)
            said_at = now()
        await asyncio.wait([ending], timeout=again.pause_s())
    return None
