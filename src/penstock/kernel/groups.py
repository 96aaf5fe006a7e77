"""Groups: jobs that run one at a time (or a few), in order, and take turns with other groups.

A group holds its ready jobs in two heaps: those that own a slot (started, failed, ready for their
next attempt) and the others, which need a free one. The group's seat in a lane's ring says that
the next turn there can serve it; `Queue.seat` keeps seats true after every change.
"""

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from penstock.kernel.blocks import MASK, SHIFT
from penstock.kernel.codes import GROUPED
from penstock.kernel.limits import Meter

if TYPE_CHECKING:
    from penstock.kernel.queue import Queue


class Group:
    __slots__ = ("jobs", "meter", "name", "owned", "queue", "ready", "seat", "used")

    def __init__(self, queue: "Queue", name: str) -> None:
        self.queue = queue
        self.name = name
        self.jobs = 0  # members that have not ended, in any state
        self.used = 0  # slots: active members, and started ones in backoff
        self.ready: list[tuple[int, int]] = []  # heap of (ready, id); may be outdated
        self.owned: list[tuple[int, int]] = []  # the same, of those that own a slot
        self.meter: Meter | None = None  # unset until a group rate applies
        self.seat: int | None = None  # the priority in whose ring it sits

    def put(self, ready: int, job_id: int, owns_slot: bool) -> None:
        heappush(self.owned if owns_slot else self.ready, (ready, job_id))

    def clear(self) -> None:
        """Its members are gone, and the ring with its seat; what its rate remembers stays."""
        self.jobs = self.used = 0
        self.ready.clear()
        self.owned.clear()
        self.seat = None

    def head(self) -> tuple[int, int] | None:
        """(ready, id) of the job to serve next, slots considered, rate not."""
        self._trim(self.owned, owns_slot=True)
        first = self.owned[0] if self.owned else None
        if self.used < self.queue.config.limits.group_concurrency:
            self._trim(self.ready, owns_slot=False)
            if self.ready and (first is None or self.ready[0] < first):
                first = self.ready[0]
        return first

    def oldest(self) -> int | None:
        """The earliest ready instant of a ready job of this group, slots or not."""
        self._trim(self.owned, owns_slot=True)
        self._trim(self.ready, owns_slot=False)
        return min((heap[0][0] for heap in (self.owned, self.ready) if heap), default=None)

    def _trim(self, heap: list[tuple[int, int]], *, owns_slot: bool) -> None:
        blocks = self.queue.blocks
        while heap:
            ready, job_id = heap[0]
            block = blocks.get((job_id - 1) >> SHIFT)
            if block is not None:
                offset = (job_id - 1) & MASK
                side = block.sides.get(offset)
                if (
                    side is not None
                    and block.codes[offset] == GROUPED
                    and side.group == self.name
                    and side.owns_slot is owns_slot
                    and block.due_at(offset) == ready
                ):
                    return
            heappop(heap)
