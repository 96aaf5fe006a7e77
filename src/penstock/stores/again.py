"""When to ask again a store that does not answer: one policy for everybody who asks.

Pauses grow from FIRST_S and stop growing at LAST_S: whoever waits for a server goes on within about
a second of its coming back, however long it was away. Up to a half of each is left out at random:
many clients lose one server at the same instant, and come back each at a time of its own.

A pause is counted from where the attempt before it began. A worker's claim asks through a link, which
itself asks again until its patience is over; what was waited there is not waited once more by whoever
stands behind it. So pauses never add up, and none of them has to know of the others.
"""

from collections.abc import Callable
from random import uniform
from typing import Final

FIRST_S: Final = 0.02
LAST_S: Final = 1.0


class Again:
    """The attempts of one who asks, and of nobody else."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._began = now()
        self._next_s = FIRST_S

    def begin(self) -> None:
        """An attempt begins."""
        self._began = self._now()

    def pause_s(self) -> float:
        """It failed: how long to wait before the next."""
        pause_s = self._next_s * uniform(0.5, 1.0)  # noqa: S311
        self._next_s = min(2 * self._next_s, LAST_S)
        return max(self._began + pause_s - self._now(), 0.0)

    def answered(self) -> None:
        self._next_s = FIRST_S
