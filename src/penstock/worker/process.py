"""A process that is a worker: its signals, its loop, its exit code.

    python -m penstock.worker.process SETTINGS     as a supervisor starts it, settings in JSON

Signals (`penstock.worker.signals`) are heard between any two steps of a handler and passed to the home
thread, which ends the worker even if the handlers' loop never comes back.
"""

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from functools import partial
from typing import Final, NoReturn

import msgspec

from penstock.client.home import CLOSE_S, Home
from penstock.descriptors import stand_in
from penstock.model.errors import PenstockError
from penstock.telemetry import logs
from penstock.worker.loading import load_app
from penstock.worker.looping import HandlersLoop
from penstock.worker.settings import WorkerSettings
from penstock.worker.signals import Signals
from penstock.worker.slices import ask_for_short_slices
from penstock.worker.supervisor import REPLACE
from penstock.worker.worker import Worker

log: Final = logging.getLogger("penstock.worker")

LEAVE_S: Final = 1.0  # for the handlers' loop to come back once the worker has ended …
STUCK_S: Final = 0.1  # … without any that did not stop, of which one may hold it up for ever
# The home thread answers the network while handlers compute: with the usual 5 ms it would wait as
# long for the interpreter, each time, and a busy worker would starve for claims.
SWITCH_S: Final = 0.0005


def run(settings: WorkerSettings, *, parent: int | None = None) -> int:
    """Work until a signal or a limit; answers the exit code. `parent`: the pipe that it speaks on."""
    ask_for_short_slices()  # first: threads have what their parent has
    app = load_app(settings.where)
    if settings.url is not None:
        app.home = Home(settings.url, app.tenant)
    if app.url == "memory://":
        log.warning(
            "memory:// is this process's own: nobody else can push to it; use sqlite:///path"
        )
    worker = Worker(app, settings, alone=True, supervised=parent is not None)
    signals = Signals(worker)
    signals.listen()
    sys.setswitchinterval(SWITCH_S)
    left = threading.Event()
    _start("penstock-leave", _leave, worker, left)
    if parent is not None:
        _start("penstock-parent", signals.follow, parent)
    try:
        with asyncio.Runner(loop_factory=partial(HandlersLoop, app)) as runner:
            runner.run(worker.run())
    finally:
        left.set()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Ctrl-C has been answered: see `cli/main.py`
    _start("penstock-gone", _gone, worker)
    app.close()  # or others wait for its path until everything here is over
    return _code(worker)


def _start(name: str, target: object, *args: object) -> None:
    threading.Thread(target=target, args=args, name=name, daemon=True).start()  # type: ignore[arg-type]


def _code(worker: Worker) -> int:
    return REPLACE if worker.outlived else 0


def _leave(worker: Worker, left: threading.Event) -> None:
    """End the process for a handler that holds up the loop and cannot be stopped."""
    worker.ended.wait()
    if not left.wait(STUCK_S if worker.abandoned else LEAVE_S):
        log.warning("a handler does not give up its loop: the process ends without it")
        worker.app.close()
        _exit(worker)


def _gone(worker: Worker) -> None:
    """End the process for what handlers have left behind: a thread, or a child, that Python waits for
    before it ends. It has had its time by then; a signal ends it before."""
    time.sleep(max(CLOSE_S, 0.0 if worker.insisted else worker.settings.shutdown_s))
    log.warning("something that a handler began does not end: the process ends without it")
    _exit(worker)


def _exit(worker: Worker) -> NoReturn:
    logging.shutdown()
    os._exit(_code(worker))


def _parent() -> int:
    """The pipe that the parent left at our standard input. Nothing is there from now on, so that
    what a handler starts cannot read the parent's words."""
    pipe = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return pipe


def main() -> int:
    stand_in()
    settings = msgspec.json.decode(sys.argv[1], type=WorkerSettings)
    logs.configure(settings.log_format, settings.log_level)
    try:
        return run(settings, parent=_parent())
    except PenstockError as error:
        log.error("%s", error)
        return 2


if __name__ == "__main__":
    sys.exit(main())
