"""Every route of the HTTP interface, one file for each subject."""

from typing import Final

from penstock.server.routes import (
    bulks,
    command,
    crons,
    dead,
    events,
    health,
    jobs,
    leases,
    pages,
    queues,
)
from penstock.server.routing import Route

ROUTES: Final[tuple[Route, ...]] = (
    *jobs.ROUTES,
    *leases.ROUTES,
    *queues.ROUTES,
    *dead.ROUTES,
    *crons.ROUTES,
    *bulks.ROUTES,
    *events.ROUTES,
    *command.ROUTES,
    *health.ROUTES,
    *pages.ROUTES,
)
