"""Named points on the way to the disk, at which a test may end the process."""

from collections.abc import Callable
from typing import Final

hook: Callable[[str], None] | None = None

POINTS: Final = (
    "before write",
    "after write",
    "after sync",
    "before answer",
    "checkpoint begun",
    "checkpoint slice",
    "checkpoint final",
    "checkpoint done",
    "truncation slice",
)


def reach(point: str) -> None:
    if hook is not None:
        hook(point)
