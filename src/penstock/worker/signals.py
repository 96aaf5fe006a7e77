"""Who tells a worker process to end, and whose words count.

A signal may go to one process or to all of them, and nobody can see which: systemd sends it to a
worker and to its parent, which passes it on. So that one signal is not heard as two, a worker with a
parent leaves the counting to it, which tells on a pipe how often it has been told: once, to end
gracefully, more often, at once. A signal that reaches such a worker itself means to end gracefully,
however often it comes and whatever the parent says besides. A worker without a parent, or whose
parent has ended, counts for itself; what came before does not count then, as the signal that ended
the parent may have been one of those.
"""

import os
import signal
from types import FrameType
from typing import Final

from penstock.worker.worker import Worker

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Signals:
    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._counted = 0

    def listen(self) -> None:
        for number in SIGNALS:
            signal.signal(number, self._told)

    def _told(self, number: int, frame: FrameType | None) -> None:
        """Between any two steps of a handler: it takes no lock."""
        if not self._worker.supervised:
            self._counted += 1
        self._worker.end(at_once=self._counted > 1)

    def follow(self, parent: int) -> None:
        """On a thread of its own, until the parent ends, which closes the pipe."""
        said = 0
        while words := os.read(parent, 16):
            said += len(words)
            self._worker.end(at_once=said > 1)
        self._worker.supervised = False
        self._worker.end()
