"""`penstock worker`: run an app's tasks until a signal says otherwise."""

import sys
from collections.abc import Mapping
from typing import Any

from penstock.model.errors import PenstockError
from penstock.telemetry import logs
from penstock.worker import process
from penstock.worker.settings import said


def work(flags: Mapping[str, Any], processes: int | None) -> int:
    """Answers the exit code: 0 after a graceful end, 2 if it could not begin."""
    try:
        settings = said(flags)
        logs.configure(settings.log_format, settings.log_level)
        return process.run(settings)
    except PenstockError as error:
        print(error.message if error.field == "app" else error, file=sys.stderr)
        return 2
