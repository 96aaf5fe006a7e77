"""Instants of things that are few: one heap per clock, entries checked when they come up."""

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from penstock.kernel.timers import FOREVER
from penstock.model.policy import PRODUCER_IDLE_MS

if TYPE_CHECKING:
    from penstock.kernel.kernel import Kernel


class _Heap:
    __slots__ = ("_heap", "_kernel", "_serial", "due")

    def __init__(self, kernel: "Kernel") -> None:
        self._kernel = kernel
        self._heap: list[tuple[int, int, int, Any]] = []
        self._serial = 0  # orders ties
        self.due = FOREVER

    def _push(self, instant: int, rank: int, entry: Any) -> None:
        self._serial += 1
        heappush(self._heap, (instant, rank, self._serial, entry))
        self.due = min(self.due, instant)

    def head(self, upto: int) -> int:
        """The earliest instant not after `upto`, or FOREVER."""
        heap = self._heap
        if heap and heap[0][0] <= upto:
            return heap[0][0]
        self.due = heap[0][0] if heap else FOREVER
        return FOREVER

    def pop(self) -> tuple[int, Any]:
        instant, _, _, entry = heappop(self._heap)
        return instant, entry


class Calls(_Heap):
    """By elapsed time: attempts that time out, groups whose rate has room, bulks that run out."""

    __slots__ = ()

    def add(self, instant: int, rank: int, entry: tuple[str, str, Any]) -> None:
        self._push(instant, rank, entry)
        self._kernel.elapsed_due = min(self._kernel.elapsed_due, instant)

    def carry_out(self, instant: int, entry: tuple[str, str, Any]) -> int:
        """Answers how many jobs that changed."""
        from penstock.kernel import bulk_ops, settle

        kernel = self._kernel
        at = kernel.now - (kernel.elapsed - instant)
        kind, name, what = entry
        if kind == "timeout":
            lease = kernel.leases.get(name)
            # One that ended earlier fails of that; it comes up right after.
            if lease is not None and lease.expires >= instant:
                return settle.time_out(kernel, lease, what, at)
        elif kind == "bulk":
            bulk = kernel.bulks.get((name, what))
            if bulk is not None and bulk.expires == instant:
                return bulk_ops.abort(kernel, name, bulk, at).dropped
        else:
            tenant = kernel.tenants.get(name)
            queue = tenant.queues.get(what[0]) if tenant is not None else None
            group = queue.groups.get(what[1]) if queue is not None else None
            if queue is not None and group is not None:
                if not group.jobs and queue.drop_group(group):
                    return 0
                kernel.unseated[group] = None
                queue.stir()
        return 0


class Calendar(_Heap):
    """By wall clock: what is old enough to be forgotten."""

    __slots__ = ()

    def add(self, instant: int, kind: str, what: Any) -> None:
        self._push(instant, 0, (kind, what))
        self._kernel.wall_due = min(self._kernel.wall_due, instant)

    def carry_out(self, instant: int, entry: tuple[str, Any]) -> int:
        """Answers how many jobs that changed."""
        from penstock.kernel import ending

        kernel = self._kernel
        kind, what = entry
        if kind == "retention":
            return ending.retention(kernel, what, instant)
        if kind == "forget":
            return ending.forget_run(kernel, what)
        if kind == "key":
            queue, key = what
            record = queue.keys.records.get(key)
            if record is not None and record.until == instant:
                queue.keys.strike(key)
        elif kind == "bulk":
            if what in kernel.finished_bulks and what not in kernel.bulks:
                kernel.changes.finished_bulks.drop(what)
                del kernel.finished_bulks[what]
        elif kind == "producer":
            producer = kernel.producers.get(what)
            if producer is not None:
                idle_at = producer.used_at + PRODUCER_IDLE_MS
                if idle_at <= instant:
                    kernel.changes.producers.drop(what)
                    del kernel.producers[what]
                else:
                    self.add(idle_at, "producer", what)
        return 0
