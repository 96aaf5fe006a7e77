"""A lane: the ready jobs of one priority of one queue that belong to no group.

Four sources, each cheap for what it is for:
- entries: (block, code, cursor) in push order. Jobs pushed ready are found by one
  `bytearray.find` each time, whatever their options; a cursor never goes back.
- late: jobs that become ready in order but not where they stand (promotions, commits): packed.
- heap: the rest that comes out of order (releases, edits, redrives).
- stack: lifo jobs, before everything else of the lane, newest first.
Entries of `late`, `heap` and `stack` may be outdated; they are checked when they come up.

A lane hands out in rank order: ready instant, then id. It marks what it hands out as active and
does nothing else; leases, counters and limits are the claim's business.
"""

from array import array
from collections import OrderedDict, deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from penstock.kernel.blocks import MASK, SHIFT, SIZE, Entry
from penstock.kernel.codes import ACTIVE, BYTE, LATE, LIFO, MARK, TO_ACTIVE
from penstock.kernel.leases import HeldRun

if TYPE_CHECKING:
    from penstock.kernel.queue import Queue


class Late:
    """A FIFO of (ready instant, first id, span), ascending, packed in three arrays."""

    __slots__ = ("_first", "_head", "_ready", "_span")

    def __init__(self) -> None:
        self._ready = array("q")
        self._first = array("q")
        self._span = array("H")
        self._head = 0

    def __bool__(self) -> bool:
        return self._head < len(self._ready)

    def head(self) -> tuple[int, int, int]:
        at = self._head
        return self._ready[at], self._first[at], self._span[at]

    def append(self, ready: int, first: int, span: int) -> bool:
        """False if it would break the order."""
        if self and (ready, first) < (self._ready[-1], self._first[-1]):
            return False
        self._ready.append(ready)
        self._first.append(first)
        self._span.append(span)
        return True

    def drop(self, jobs: int) -> None:
        """Take that many jobs off the head entry."""
        at = self._head
        if jobs < self._span[at]:
            self._first[at] += jobs
            self._span[at] -= jobs
            return
        self._head = at = at + 1
        if at > 1024 and at * 2 > len(self._ready):
            del self._ready[:at], self._first[:at], self._span[:at]
            self._head = 0


class Lane:
    __slots__ = (
        "entries",
        "heap",
        "irregular",
        "late",
        "priority",
        "queue",
        "ring",
        "stack",
        "stack_heap",
    )

    def __init__(self, queue: "Queue", priority: int) -> None:
        self.queue = queue
        self.priority = priority
        self.entries: deque[Entry] = deque()
        self.irregular = False  # something may lie in the other three sources
        self.late = Late()
        self.heap: list[tuple[int, int]] = []  # (ready, id)
        self.stack: list[tuple[int, int, int]] = []  # (ready, first id, span); pushes in order
        self.stack_heap: list[tuple[int, int]] = []  # (-ready, -id)
        # Seats in serving order: a group's name, or None for the ungrouped jobs. None until used.
        self.ring: OrderedDict[str | None, None] | None = None

    # -- putting in ------------------------------------------------------------------------------

    def put(self, ready: int, first: int, span: int = 1) -> None:
        """Jobs with code LATE, ready at that instant."""
        self.irregular = True
        if self.late.append(ready, first, span):
            return
        for job_id in range(first, first + span):
            heappush(self.heap, (ready, job_id))

    def put_lifo(self, ready: int, first: int, span: int = 1) -> None:
        """Jobs with code LIFO."""
        self.irregular = True
        stack = self.stack
        if not stack or (ready, first) > (stack[-1][0], stack[-1][1] + stack[-1][2] - 1):
            stack.append((ready, first, span))
        else:
            for job_id in range(first, first + span):
                heappush(self.stack_heap, (-ready, -job_id))

    # -- looking ---------------------------------------------------------------------------------

    def _entry(self) -> tuple[Entry, int] | None:
        """The first entry with a ready job, and that job's offset."""
        entries = self.entries
        while entries:
            entry = entries[0]
            block = entry.block
            position = block.codes.find(entry.code, entry.cursor)
            if position >= 0:
                entry.cursor = position
                return entry, position
            if block is self.queue.open:
                entry.cursor = len(block.codes)
                return None
            entries.popleft()
        return None

    def _valid(self, ready: int, job_id: int, code: int) -> bool:
        block = self.queue.blocks.get((job_id - 1) >> SHIFT)
        if block is None:
            return False
        offset = (job_id - 1) & MASK
        return (
            block.codes[offset] == code
            and block.due_at(offset) == ready
            and block.priority_of(offset) == self.priority
        )

    def _late(self) -> tuple[int, int] | None:
        """(ready, id) of the first job among the late sources; outdated entries are dropped."""
        late, heap = self.late, self.heap
        while heap and not self._valid(*heap[0], LATE):
            heappop(heap)
        while late:
            ready, first, _ = late.head()
            if self._valid(ready, first, LATE):
                return min((ready, first), heap[0]) if heap else (ready, first)
            late.drop(1)
        return heap[0] if heap else None

    def _top(self) -> tuple[int, int] | None:
        """(ready, id) of the newest lifo job."""
        stack, heap = self.stack, self.stack_heap
        while heap and not self._valid(-heap[0][0], -heap[0][1], LIFO):
            heappop(heap)
        while stack:
            ready, first, span = stack[-1]
            last = first + span - 1
            if self._valid(ready, last, LIFO):
                if heap and (-heap[0][0], -heap[0][1]) > (ready, last):
                    break
                return ready, last
            stack.pop()
            if span > 1:
                stack.append((ready, first, span - 1))
        return (-heap[0][0], -heap[0][1]) if heap else None

    def peek(self) -> tuple[int, int] | None:
        """(ready, id) of the job that would be handed out next."""
        top = self._top()
        if top is not None:
            return top
        late = self._late()
        found = self._entry()
        if found is None:
            return late
        entry, offset = found
        head = (entry.block.due_at(offset), entry.block.base + offset)
        return head if late is None else min(head, late)

    def oldest(self) -> int | None:
        """The earliest ready instant of a job in this lane."""
        instants = [-ready for ready, job in self.stack_heap if self._valid(-ready, -job, LIFO)]
        for ready, first, span in self.stack:
            if any(self._valid(ready, job_id, LIFO) for job_id in range(first, first + span)):
                instants.append(ready)
                break
        late = self._late()
        if late is not None:
            instants.append(late[0])
        found = self._entry()
        if found is not None:
            instants.append(found[0].block.due_at(found[1]))
        return min(instants, default=None)

    # -- handing out -----------------------------------------------------------------------------

    def take(self, n: int, out: list[HeldRun]) -> int:
        """Hand out up to n jobs in rank order, marked active; answers how many."""
        if self.irregular:
            return self._take_irregular(n, out)
        taken = 0
        while taken < n:
            found = self._entry()
            if found is None:
                break
            taken += self._take_run(*found, n - taken, SIZE, out)
        return taken

    def _take_irregular(self, n: int, out: list[HeldRun]) -> int:
        taken = 0
        while taken < n:
            if self.stack or self.stack_heap:
                got = self._take_lifo(out)
                if got:
                    taken += got
                    continue
            if self.heap or self.late:
                late = self._late()
                if late is not None:
                    got = self._take_before(late, n - taken, out) or self._take_late(
                        late, n - taken, out
                    )
                    taken += got
                    continue
            self.irregular = bool(self.stack or self.stack_heap)
            found = self._entry()
            if found is None:
                break
            taken += self._take_run(*found, n - taken, SIZE, out)
        return taken

    def _take_lifo(self, out: list[HeldRun]) -> int:
        top = self._top()
        if top is None:
            return 0
        self._hand_out(top[1], out)
        return 1

    def _hand_out(self, job_id: int, out: list[HeldRun]) -> None:
        """One job; whatever entry pointed to it is outdated by its new code."""
        block = self.queue.blocks[(job_id - 1) >> SHIFT]
        offset = (job_id - 1) & MASK
        block.touch()
        block.codes[offset] = ACTIVE
        out.append(HeldRun(block, offset, offset + 1))

    def _take_late(self, head: tuple[int, int], n: int, out: list[HeldRun]) -> int:
        ready, job_id = head
        if not self.late or self.late.head()[:2] != head:
            self._hand_out(job_id, out)
            return 1
        _, first, span = self.late.head()
        block = self.queue.blocks[(first - 1) >> SHIFT]
        lo = (first - 1) & MASK
        want = min(n, span, SIZE - lo)
        if self.heap and self.heap[0] < (ready, first + want - 1):
            want = 1
        if want > 1 and not block.has_sides(lo, lo + want):
            whole = block.codes[lo : lo + want]
            want -= len(whole.lstrip(BYTE[LATE]))
            block.touch()
            block.codes[lo : lo + want] = BYTE[ACTIVE] * want
            out.append(HeldRun(block, lo, lo + want, None, want))
        else:
            want = 1
            self._hand_out(job_id, out)
        self.late.drop(want)
        return want

    def _take_before(self, late: tuple[int, int], n: int, out: list[HeldRun]) -> int:
        """In-order jobs that rank before `late`: at most the run with one ready instant."""
        found = self._entry()
        if found is None:
            return 0
        entry, offset = found
        block = entry.block
        ready = block.due_at(offset)
        if (ready, block.base + offset) > late:
            return 0
        limit = block.same_ready_until(offset)
        if ready == late[0]:
            limit = min(limit, max(late[1] - block.base, offset + 1))
        return self._take_run(entry, offset, n, limit, out)

    def _take_run(self, entry: Entry, lo: int, n: int, limit: int, out: list[HeldRun]) -> int:
        """Up to n jobs of one entry from offset lo on, below `limit`. The hot path of claims."""
        block, code = entry.block, entry.code
        codes = block.codes
        if block.era != self.queue.kernel.era:
            block.touch()
        if n == 1:
            codes[lo] = ACTIVE
            entry.cursor = lo + 1
            out.append(HeldRun(block, lo, lo + 1))
            return 1
        hi = min(lo + n, limit, len(codes))
        stretch = codes[lo:hi]
        alike = len(stretch) - len(stretch.lstrip(BYTE[code]))
        if alike == hi - lo:
            codes[lo:hi] = BYTE[ACTIVE] * alike
            entry.cursor = hi
            out.append(HeldRun(block, lo, hi, None, alike))
            return alike
        # Other jobs lie in between: take those of this code by mask, in one pass over the bytes.
        hi = min(limit, len(codes))
        count = codes.count(code, lo, hi)
        if count > n:
            below = lo + n
            while below < hi:  # the lowest end that includes n of them
                middle = (below + hi) // 2
                if codes.count(code, lo, middle) < n:
                    below = middle + 1
                else:
                    hi = middle
            count = n
        stretch = codes[lo:hi]
        codes[lo:hi] = stretch.translate(TO_ACTIVE[code])
        entry.cursor = hi
        out.append(HeldRun(block, lo, hi, bytes(stretch.translate(MARK[code])), count))
        return count
