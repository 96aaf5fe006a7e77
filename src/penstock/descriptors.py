"""The numbers 0, 1 and 2, which a process may be started without (`penstock serve <&-`, or a supervisor
that closes them). Whatever is opened next has them then: a loop, whose library aborts the process when
it closes such a number, or a file that somebody's `print` writes into. So before a loop of ours is
made, `/dev/null` is opened wherever nothing is.
"""

import os
import sys
from typing import Final

STANDARD: Final = (0, 1, 2)


def occupy_standard() -> None:
    """See that something is open at each of them. What is open already is left alone."""
    for number in STANDARD:
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free is given: this one, unless a thread has just taken it.
            given = os.open(os.devnull, os.O_RDWR)
            if given in STANDARD:
                os.set_inheritable(given, True)  # as they are: our processes have them, too
            else:
                os.close(given)


def stand_in() -> None:
    """Occupy them, and give Python's streams that there are none of (`None`) something to speak to:
    nothing comes in, and what goes out is gone. For programs of ours, not for those of others."""
    occupy_standard()
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # Not the number itself: something else may have been opened there since Python looked.
            nowhere = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(nowhere, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
