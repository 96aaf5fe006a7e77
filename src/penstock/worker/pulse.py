"""Whether the handlers' loop answers: one that a handler holds up is given nothing more.

An `async def` that computes, or blocks, keeps every other handler of its loop from beginning. The
worker's leases are kept all the same, so jobs that came to it would wait there for as long as that
lasts, beside workers that have nothing to do. So while something runs on the loop it is asked for an
answer. Where none comes, and nothing has begun there meanwhile either, what was given to it and has
not begun goes back, unspent, and nothing more is claimed for it until it answers.

A turn in which many short handlers are run one after the other is not mistaken for that: each that
begins counts as an answer.
"""

import asyncio
import logging
import sys
from collections.abc import Callable
from traceback import walk_stack
from typing import Final

from penstock.client.app import Penstock
from penstock.worker.looping import LEFT_BEHIND, task_within

log: Final = logging.getLogger("penstock.worker")

LOOK_S: Final = 0.05
# Looks without an answer. They are counted, and not the time: of a machine that stood still, or a home
# thread that did, nothing follows for the loop.
STUCK: Final = 3
TOLD: Final = 20  # … before somebody should know


class Pulse:
    """Lives on the home thread, but for what says otherwise."""

    def __init__(
        self,
        app: Penstock,
        handlers: asyncio.AbstractEventLoop,
        thread: int,
        *,
        runs: Callable[[], bool],
        begun: Callable[[], int],
        stuck: Callable[[bool], None],
    ) -> None:
        self._app = app
        self._handlers = handlers
        self._thread = thread  # of that loop
        self._home = asyncio.get_running_loop()
        self._runs = runs  # whether anything is in that loop's hands
        self._begun = begun  # how many handlers were, so far
        self._tell = stuck  # told when it begins, and when it is over
        self._timer: asyncio.TimerHandle | None = None
        self._answered = True
        self._last = 0  # of `begun`
        self._since = 0.0  # it has answered, or begun something
        self._missed = 0  # looks, since then
        self._stuck = False
        self._said = False

    def watch(self) -> None:
        """Something was given to the loop."""
        if self._timer is None:
            self._timer = self._home.call_later(LOOK_S, self._look)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        now, begun = self._home.time(), self._begun()
        if self._answered or begun != self._last:
            self._since, self._last, self._missed = now, begun, 0
            self._free()
        else:
            self._missed += 1
        if self._missed >= STUCK and not self._stuck:
            self._stuck = True
            self._tell(True)
        if self._missed >= TOLD and not self._said:
            self._said = True
            self._say(now - self._since)
        if self._stuck or self._runs():
            if self._answered:
                self._answered = False
                self._handlers.call_soon_threadsafe(self._answer)
            self.watch()

    def _answer(self) -> None:
        """On the handlers' loop."""
        self._answered = True

    def _free(self) -> None:
        if self._stuck:
            self._stuck = False
            self._tell(False)
            if self._said:
                self._said = False
                log.info("the handlers' loop answers again")

    def _say(self, seconds: float) -> None:
        frame = sys._current_frames().get(self._thread)
        stack = [] if frame is None else [each.f_code for each, _ in walk_stack(frame)]
        log.warning(
            "%s has held up the handlers' loop for %.1f s: no async job begins here until it lets"
            " go, and others have them; what computes or blocks is a plain def, or for --pool process",
            task_within(self._app, stack) or LEFT_BEHIND,
            seconds,
        )
