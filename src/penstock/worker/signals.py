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
import threading
from types import FrameType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.worker.worker import Worker

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def _hear_as_usual() -> None:
    """As a process does that nobody has told otherwise: what a handler forks is no worker, and has to
    end when its parent says so."""
    signal.set_wakeup_fd(-1)  # of a loop that is not ours
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def hear_nothing() -> None:
    """Of a process to which signals are somebody else's business. They are not ignored, as what it
    starts, or forks, would ignore them, too."""
    for number in SIGNALS:
        signal.signal(number, _nothing)
    _born_as_usual()


def _born_as_usual() -> None:
    """What is forked here hears signals as usual, from its first instant: one that comes before we
    can say so waits until we have."""
    held = threading.local()

    def hold() -> None:
        held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)

    def let_go() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, held.mask)

    def born() -> None:
        _hear_as_usual()
        let_go()

    os.register_at_fork(before=hold, after_in_parent=let_go, after_in_child=born)


def _nothing(number: int, frame: FrameType | None) -> None:
    pass


class Signals:
    def __init__(self, worker: "Worker") -> None:
        self._worker = worker
        self._counted = 0

    def listen(self) -> None:
        for number in SIGNALS:
            signal.signal(number, self._told)
        _born_as_usual()

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
