"""A forked child keeps none of its parent's sockets: a connection ends with the process it is of.

Otherwise a child that outlives its parent would keep the parent's connections open, though nobody
speaks on them: its clients would not look for another owner of the path, and a server would hand
jobs to a worker that is dead.
"""

import os
from collections.abc import Iterable
from typing import Final, Protocol
from weakref import WeakSet


class Holder(Protocol):
    def sockets(self) -> Iterable[int]:
        """The descriptors of the sockets that it has open now."""
        ...


_holders: Final["WeakSet[Holder]"] = WeakSet()


def not_for_children(holder: Holder) -> None:
    """From now on its sockets are closed in every child."""
    _holders.add(holder)


def _close_in_child() -> None:
    holders = list(_holders)
    _holders.clear()
    if not holders:
        return
    # The objects that have these numbers stay, and close them when they go: so each number
    # remains taken, by nothing.
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for holder in holders:
        for number in holder.sockets():
            if number >= 0:
                os.dup2(nothing, number, inheritable=False)
    os.close(nothing)


os.register_at_fork(after_in_child=_close_in_child)
