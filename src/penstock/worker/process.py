"""A process that is a worker: its signals, its log, its loop, its exit code.

    python -m penstock.worker.process SETTINGS     as a supervisor starts it, settings in JSON

Signals are heard between any two steps of a handler, and passed to the home thread, which can end
the worker even if the handlers' loop never comes back.
"""

import asyncio
import signal
import sys
from types import FrameType
from typing import Final

import uvloop

from penstock.client.home import Home
from penstock.worker.loading import load_app
from penstock.worker.settings import WorkerSettings
from penstock.worker.worker import Worker

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
# The home thread answers the network while handlers compute: with the usual 5 ms it would wait as
# long for the interpreter, each time, and a busy worker would starve for claims.
SWITCH_S: Final = 0.0005


def run(settings: WorkerSettings) -> int:
    """Work until a signal or a limit; answers the exit code."""
    app = load_app(settings.where)
    if settings.url is not None:
        app.home = Home(settings.url, app.tenant)
    worker = Worker(app, settings)

    def told(number: int, frame: FrameType | None) -> None:
        worker.stop()

    for number in SIGNALS:
        signal.signal(number, told)
    sys.setswitchinterval(SWITCH_S)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(worker.run())
    return 0
