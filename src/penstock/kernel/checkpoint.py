"""A checkpoint: the state at one position, as rows, given in slices while the state moves on.

Only what changed since the checkpoint before is given: the newest row of each object, over all
checkpoints that were given in full, is the state. Beginning one costs next to nothing, however much
there is to write; which objects those are, `changes.py` knows.
"""

from collections.abc import Generator
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.kernel import records
from penstock.kernel.leases import LeaseRecord

if TYPE_CHECKING:
    from penstock.kernel.changes import Changes
    from penstock.kernel.kernel import Kernel

LOOK: Final = 16  # bytes that a row costs beside its data, and an object that needs none


class Row(NamedTuple):
    kind: str
    key: bytes
    data: bytes | None  # None: the object is gone, its older rows are void
    older: bool = True  # whether there may be some


class Checkpoint:
    """Ends by giving its last row. Until the next one begins it can be taken back."""

    __slots__ = (
        "_changes",
        "_since",
        "_taken",
        "_walk",
        "counts",
        "position",
        "running",
        "whole",
    )

    def __init__(self, kernel: "Kernel", changes: "Changes") -> None:
        self._changes = changes
        self._since = changes.since
        self._taken = {name: dirty.taken for name, dirty in changes.dirty.items()}
        self.position = kernel.position
        self.whole = not changes.since  # the first: it leans on no other
        self.running = True
        # Objects alive at that position.
        self.counts = {"meta": 1} | {kind.name: kind.count(kernel) for kind in records.KINDS}
        meta = Row("meta", b"", records.encode(records.meta(kernel)))
        buckets, near = kernel.expiries.lying()
        alive = [lease for lease in near if kernel.leases.get(lease.token) is lease]
        self._walk = _rows(kernel, changes, meta, buckets, alive)

    def rows(self, budget: int) -> list[Row]:
        """The next rows, about that many bytes of data and at least one; [] after the last."""
        given: list[Row] = []
        saved = self._changes.saved
        while self.running and (budget > 0 or not given):
            if saved:
                row: Row | None = saved.popleft()
            else:
                try:
                    row = next(self._walk)
                except StopIteration:
                    self._end(self._changes.era)
                    break
            budget -= LOOK
            self._changes.shed(2)
            if row is not None:
                given.append(row)
                budget -= len(row.data or b"")
        return given

    def finish(self) -> None:
        """It is safe: let go of what only taking it back would need. Beginning the next one does."""
        if self.running:
            raise RuntimeError("rows are still to be given")
        self._changes.spent += self._taken.values()
        self._taken = {}
        if self._changes.last is self:
            self._changes.last = None

    def abandon(self) -> None:
        """Whatever it gave, or has yet to give, is for the next one to give."""
        changes = self._changes
        if changes.last is not self:
            raise RuntimeError("another checkpoint leans on this one")
        self._end(self._since)
        for name, taken in self._taken.items():
            changes.dirty[name].put_back(taken)
        self._taken = {}
        changes.last = None

    def _end(self, since: int) -> None:
        changes = self._changes
        self.running = False
        self._walk.close()
        changes.since = since
        changes.saved.clear()
        for dirty in changes.dirty.values():
            dirty.taken = {}


def _rows(
    kernel: "Kernel",
    changes: "Changes",
    meta: Row,
    buckets: list[dict[str, LeaseRecord]],
    leases: list[LeaseRecord],
) -> Generator[Row | None, None, None]:
    """All rows but those that a change has saved; None for an object that turns out to need none.

    Between two of them commands are applied.
    """
    yield meta
    for dirty in changes.dirty.values():
        for key in dirty.taken:
            found = dirty.kind.find(kernel, key)
            if dirty is changes.leases and found is not None and found.era == kernel.era:
                found = None  # an ended one's token was used again since
            yield dirty.take(key, found)
    while leases or buckets:
        row = None
        if not leases:
            leases = changes.new_in(buckets.pop())
        elif changes.is_new(lease := leases.pop()):
            row = changes.leases.row(lease.token, lease)
            lease.era = kernel.era - 1
        yield row
