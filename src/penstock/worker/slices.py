"""Has a worker's process run as soon as it is woken, and not when whoever woke it is done.

A job comes to an idle worker from a server that has a little more to do in the same turn: it writes
down what it has told, and answers the producer. Where both share a core, the worker waits for all of
that, unless the scheduler is told that it runs in shorter slices: then it goes first. It gets no
more of a core than before. With it a job starts after 69 µs in such a place, and after 125 without.

Linux has this since 6.12, by a call that Python and the C library have no name for. Where it is not
known nothing is asked, and nothing is lost but those microseconds.
"""

import ctypes
import os
import platform
import struct
from typing import Final

SLICE_NS: Final = 500_000  # shorter than what a kernel gives unasked, on any number of cores

_SETATTR: Final = {"x86_64": 314, "aarch64": 274, "riscv64": 274}  # by machine
# size, policy, flags, nice, priority, runtime (the slice), deadline, period
_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")


def ask_for_short_slices() -> bool:
    """For this thread, and those and the processes that it will start. False: nothing was asked, as
    there is nobody to ask, or somebody has said how this process is to be scheduled."""
    number = _SETATTR.get(platform.machine())
    if platform.system() != "Linux" or number is None:
        return False
    try:
        if os.sched_getscheduler(0) != os.SCHED_OTHER:
            return False
        nice = os.getpriority(os.PRIO_PROCESS, 0)
    except OSError:  # some C libraries know of the calls, and make none
        return False
    said = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, nice, 0, SLICE_NS, 0, 0)
    return ctypes.CDLL(None).syscall(number, 0, said, 0) == 0  # type: ignore[no-any-return]
