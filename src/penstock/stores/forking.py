"""What a forked child must not keep of its parent: sockets, and stores on a disk.

A connection ends with the process it is of.

Otherwise a child that outlives its parent would keep the parent's connections open, though nobody
speaks on them: its clients would not look for another owner of the path, and a server would hand
jobs to a worker that is dead.

A store's files stay open in the child, for to close them is not without effect: SQLite, which keeps
what is locked per process, would take itself for the last one there, and remove by its name the WAL
of whoever has opened the path since. So nothing of it is ever closed, nor used.
"""

import ctypes
import os
from collections.abc import Iterable
from typing import Final, Protocol
from weakref import WeakSet


class Holder(Protocol):
    def sockets(self) -> Iterable[int]:
        """The descriptors of the sockets that it has open now."""
        ...


class Connected(Protocol):
    def forked(self) -> None:
        """In a child: what is connected is the parent's; connect anew."""
        ...


class Inherited(Protocol):
    def disown(self, parent: int) -> None:
        """In a child of that process: be neither used nor closed any more."""
        ...


_holders: Final["WeakSet[Holder]"] = WeakSet()
_connected: Final["WeakSet[Connected]"] = WeakSet()
_stores: Final["WeakSet[Inherited]"] = WeakSet()


def not_for_children(holder: Holder) -> None:
    """From now on its sockets are closed in every child."""
    _holders.add(holder)


def connects_anew(store: Connected) -> None:
    """From now on it is told in every child that it is there: it need not ask the system at each
    of its calls which process it is in."""
    _connected.add(store)


def stays_with_the_parent(store: Inherited) -> None:
    """From now on it is disowned in every child."""
    _stores.add(store)


def _connect_in_child() -> None:
    for store in list(_connected):
        store.forked()


def _disown_in_child() -> None:
    for store in list(_stores):
        store.disown(os.getppid())
        # A reference that nobody takes back: to collect it as garbage would be to close it.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(store))
    _stores.clear()


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
os.register_at_fork(after_in_child=_connect_in_child)
os.register_at_fork(after_in_child=_disown_in_child)
