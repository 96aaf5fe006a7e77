"""What changed since the last checkpoint, and what a running one has not yet written.

Every change to what a record says is announced before it happens (`touch`), every object that
vanishes before it does (`drop`). The first announcement since a checkpoint began saves the object
as that checkpoint must write it; the others cost a look-up, or on hot paths the comparison of two
numbers: the *era*, which begins with each checkpoint, and the one in which the object last changed.

Nobody announces a new lease, which every job has and few checkpoints see. It carries the era in
which it was granted, and a checkpoint looks for new ones where leases lie by their ends. Only when
an older one changes or ends is it noted like anything else.

A kernel that has never made a checkpoint notes nothing: its era is 0.
"""

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from penstock.kernel import records
from penstock.kernel.checkpoint import Checkpoint, Row
from penstock.kernel.leases import LeaseRecord
from penstock.kernel.records import KINDS, LEASES, Kind

if TYPE_CHECKING:
    from penstock.kernel.kernel import Kernel

# Of an object that a checkpoint is to write: whether an older row of it may exist, and whether it
# was written. Of one that changed since, only the first.
WRITTEN_BEFORE: Final = 1
DONE: Final = 2


class Dirty:
    """The objects of one kind whose newest row, if any, is outdated."""

    __slots__ = ("_kernel", "_saved", "kind", "noted", "taken")

    def __init__(self, kernel: "Kernel", kind: Kind, saved: deque[Row]) -> None:
        self._kernel = kernel
        self._saved = saved
        self.kind = kind
        self.noted: dict[Any, int] = {}  # changed in this era
        self.taken: dict[Any, int] = {}  # changed before: the running checkpoint's

    def touch(self, key: Any) -> None:
        """The object is about to change, or to come into being."""
        if key in self.noted or not self._kernel.era:
            return
        found = self.kind.find(self._kernel, key)
        if self.taken:
            row = self.take(key, found)
            if row is not None:
                self._saved.append(row)
        self.noted[key] = 0 if found is None else WRITTEN_BEFORE

    def drop(self, key: Any) -> None:
        """The object is about to vanish. One that came and went between checkpoints never was."""
        self.touch(key)
        if not self.noted.get(key, WRITTEN_BEFORE):
            del self.noted[key]

    def take(self, key: Any, found: Any) -> Row | None:
        """The row of an object that the running checkpoint has not yet written, as it is now."""
        known = self.taken.get(key, DONE)
        if known & DONE:
            return None
        self.taken[key] = known | DONE
        if found is None:
            return Row(self.kind.name, self.kind.place(key), None) if known else None
        return self.row(key, found, older=bool(known))

    def row(self, key: Any, found: Any, *, older: bool = True) -> Row:
        kind = self.kind
        return Row(kind.name, kind.place(key), records.encode(kind.record(key, found)), older)

    def put_back(self, taken: dict[Any, int]) -> None:
        """What a checkpoint took is to be written by the next one."""
        for key, known in taken.items():
            self.noted[key] = self.noted.get(key, 0) | (known & WRITTEN_BEFORE)


class Changes:
    __slots__ = (
        "_kernel",
        "blocks",
        "bulks",
        "crons",
        "dirty",
        "finished_bulks",
        "keys",
        "last",
        "leases",
        "producers",
        "queues",
        "saved",
        "since",
        "spent",
        "tenants",
    )

    def __init__(self, kernel: "Kernel") -> None:
        self._kernel = kernel
        self.saved: deque[Row] = deque()  # of objects that changed before they were written
        self.dirty = {kind.name: Dirty(kernel, kind, self.saved) for kind in KINDS}
        self.tenants = self.dirty["tenants"]
        self.queues = self.dirty["queues"]
        self.keys = self.dirty["keys"]
        self.blocks = self.dirty["blocks"]
        self.leases = self.dirty["leases"]
        self.bulks = self.dirty["bulks"]
        self.finished_bulks = self.dirty["finished_bulks"]
        self.producers = self.dirty["producers"]
        self.crons = self.dirty["crons"]
        self.since = 0  # the era that began with the last checkpoint that was given in full
        self.last: Checkpoint | None = None  # running, or given in full and not yet superseded
        self.spent: list[dict[Any, int]] = []  # what nobody needs, to be let go of bit by bit

    def track(self) -> None:
        """From now on changes are noted; all that is there has its row."""
        self._kernel.era = self.since = 1

    @property
    def era(self) -> int:
        return self._kernel.era

    def begin(self) -> Checkpoint:
        kernel = self._kernel
        if self.last is not None:
            if self.last.running:
                raise RuntimeError("a checkpoint is running")
            self.last.finish()
        if not kernel.era:
            kernel.era = 1
            for dirty in self.dirty.values():
                if dirty.kind is not LEASES:
                    dirty.noted = dict.fromkeys(dirty.kind.keys(kernel), 0)
        for dirty in self.dirty.values():
            dirty.taken, dirty.noted = dirty.noted, {}
        # An era is odd. The even number before it marks a lease that its checkpoint has written.
        kernel.era += 2
        self.last = Checkpoint(kernel, self)
        return self.last

    def shed(self, n: int) -> None:
        """Let go of n entries that are spent: a million at once would be a pause."""
        spent = self.spent
        while n and spent:
            if spent[-1]:
                spent[-1].popitem()
                n -= 1
            else:
                spent.pop()

    # -- leases ----------------------------------------------------------------------------------

    def touch_lease(self, lease: LeaseRecord) -> None:
        """The lease is about to change or to end; nobody cares if it was granted in this era."""
        era = self._kernel.era
        if lease.era in (era, -era):
            return
        if self.is_new(lease):
            self.saved.append(self.leases.row(lease.token, lease))
        self.leases.touch(lease.token)
        lease.era = -era

    def new_in(self, bucket: dict[str, LeaseRecord]) -> list[LeaseRecord]:
        """Those that the running checkpoint is to write, of leases in the order they came there."""
        found: list[LeaseRecord] = []
        since = self.since
        for lease in reversed(bucket.values()):
            if abs(lease.era) < since:
                break  # it, and all that came before it, have their rows or were noted
            if self.is_new(lease):
                found.append(lease)
        return found

    def is_new(self, lease: LeaseRecord) -> bool:
        """Whether the running checkpoint is to write a lease that no one before it has."""
        last = self.last
        return (
            last is not None
            and last.running
            and self.since <= lease.era < self._kernel.era - 1
            and lease.token not in self.leases.taken
        )
