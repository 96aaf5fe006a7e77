"""The workload of the history checker in a process that kills itself on its way to the disk.

    python -m tests.faults.victim --point "after write" --nth 3 … as for tests.history.process

SIGKILL, at the n-th time that the named point is reached, on the thread that reaches it. With
`--replaying` a replay makes a checkpoint behind every group of records, however short it is.
"""

import argparse
import os
import signal
import sys
from unittest.mock import patch

from penstock.stores.journal import points, replaying
from tests.history import process


def die_at(point: str, nth: int) -> None:
    left = nth

    def hook(reached: str) -> None:
        nonlocal left
        if reached == point:
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    points.hook = hook


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--point", required=True, choices=points.POINTS)
    parser.add_argument("--nth", required=True, type=int)
    parser.add_argument("--replaying", action="store_true")
    said, sys.argv[1:] = parser.parse_known_args()
    die_at(said.point, said.nth)
    if said.replaying:
        patch.multiple(replaying, KEEP_S=0.0, SHARE=1.0).start()
    process.main()
