"""Whether a handler is running at an instant, told by the stack of its thread.

A soft timeout is for the handler alone. Raised a step behind its end it would take away what the
handler has answered, and no flag can be lowered at that end without a step in between. The handler's
frame is on the stack from its first step to its last, and at no other. Looked at by the thread itself
it is exact; by another, true when it was looked at.
"""

from collections.abc import Callable
from types import FrameType, FunctionType, MethodType
from typing import Any, Final

SOON_S: Final = 0.001  # after which a handler is looked for again


def runs(handler: Callable[..., Any], frame: FrameType | None) -> bool:
    """Whether the handler is what led to this frame. One that is compiled has no frame of its own,
    and is taken to run wherever its call is made."""
    function = handler.__func__ if isinstance(handler, MethodType) else handler
    if not isinstance(function, FunctionType):
        return True
    code = function.__code__
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False
