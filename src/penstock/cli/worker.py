"""`penstock worker`: run an app's tasks until a signal says otherwise."""

import sys
from collections.abc import Mapping
from typing import Any

from penstock.model.errors import PenstockError
from penstock.telemetry import logs
from penstock.worker import process
from penstock.worker.settings import said
from penstock.worker.supervisor import supervise


def work(flags: Mapping[str, Any], processes: int | None) -> int:
    """Answers the exit code: 0 after a graceful end, 2 if it could not begin."""
    try:
        settings = said(flags)
        logs.configure(settings.log_format, settings.log_level)
        limited = settings.max_jobs is not None or settings.max_rss_mb is not None
        if processes is not None or limited:
            return supervise(settings, processes or 1)
        return process.run(settings)
    except PenstockError as error:
        print(error.message if error.field == "app" else error, file=sys.stderr)
        return 2
