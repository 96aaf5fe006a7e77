"""Instants that lie ahead, cheap to put down and cheap to strike out.

Two shapes for two needs:
- `Wheel` for leases: buckets of dicts, so that an ack deletes its lease's entry at once.
- `Agenda` for jobs (delays, ttl): coarse buckets of packed integers, 8 or 16 bytes an entry, so
  that a million distinct delays cost next to nothing. Entries are never struck out; whoever takes
  a due entry checks that it still means something.

Both answer `due`, a lower bound of the next instant, which is all that the hot path looks at.
"""

from array import array
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.kernel.leases import LeaseRecord

FOREVER: Final = 1 << 62


class Wheel:
    """Leases by the instant of their expiry, in buckets of 256 ms; at one instant by first id."""

    __slots__ = ("_near", "_numbers", "_opened", "buckets", "due")

    def __init__(self) -> None:
        self.buckets: dict[int, dict[str, LeaseRecord]] = {}
        self._numbers: list[int] = []  # heap of the buckets' numbers
        # Heap of (instant, first id, serial, lease); of buckets that time has reached.
        self._near: list[tuple[int, int, str, LeaseRecord]] = []
        self._opened = -1  # buckets up to this one are in `_near`
        self.due = FOREVER

    def add(self, lease: "LeaseRecord") -> None:
        instant = lease.expires
        number = instant >> 8
        bucket = self.buckets.get(number)
        if bucket is not None:
            bucket[lease.token] = lease
            lease.bucket = bucket
        elif number <= self._opened:
            heappush(self._near, (instant, lease.first, lease.token, lease))
            self.due = min(self.due, instant)
        else:
            self.buckets[number] = lease.bucket = {lease.token: lease}
            heappush(self._numbers, number)
            self.due = min(self.due, number << 8)

    def strike(self, lease: "LeaseRecord") -> None:
        """Forget a lease, if its bucket has not been reached; else whoever pops it finds out."""
        bucket = self.buckets.get(lease.expires >> 8)
        if bucket is not None:
            bucket.pop(lease.token, None)

    def lying(self) -> "tuple[list[dict[str, LeaseRecord]], list[LeaseRecord]]":
        """All leases: in buckets, oldest entry first, and those of buckets that time has reached.

        Among the latter may be some that have ended. A bucket stays what it is when its time comes.
        """
        return list(self.buckets.values()), [lease for _, _, _, lease in self._near]

    def head(self, upto: int) -> int:
        """The earliest instant not after `upto`, or FOREVER."""
        numbers, near = self._numbers, self._near
        while numbers and numbers[0] <= upto >> 8:
            number = heappop(numbers)
            near += [
                (lease.expires, lease.first, token, lease)
                for token, lease in self.buckets.pop(number).items()
            ]
            heapify(near)
            self._opened = number
        if near and near[0][0] <= upto:
            return near[0][0]
        self.due = min(near[0][0] if near else FOREVER, numbers[0] << 8 if numbers else FOREVER)
        return FOREVER

    def pop(self) -> "LeaseRecord":
        """The lease that `head` spoke of."""
        return heappop(self._near)[3]


class Agenda:
    """(instant, id, span) triples in packed coarse buckets, taken in (instant, id) order."""

    # Each level's buckets are 64 times as wide; level 0 is 1,024 ms.
    LEVELS: Final = (10, 16, 22, 28, 34, 40)

    __slots__ = ("_buckets", "_near", "_numbers", "_opened", "_size", "_spans", "due")

    def __init__(self) -> None:
        self._buckets: dict[tuple[int, int], array[int]] = {}
        self._numbers: list[tuple[int, int, int]] = []  # heap of (start, level, number)
        self._near: list[tuple[int, int]] = []  # sorted descending by (instant, id)
        self._opened = -1  # instants before this are in `_near`
        self._spans: dict[tuple[int, int], int] = {}  # for entries of more than one job
        self._size = 0
        self.due = FOREVER

    def __len__(self) -> int:
        return self._size

    def add(self, instant: int, first: int, span: int, now: int) -> None:
        self._size += 1
        if span > 1:
            self._spans[instant, first] = span
        if instant < self._opened:
            self._insert_near(instant, first)
            return
        self._file(instant, first, now)

    def _insert_near(self, instant: int, first: int) -> None:
        near = self._near
        entry = (instant, first)
        low, high = 0, len(near)
        while low < high:  # bisect in a descending list
            middle = (low + high) // 2
            if near[middle] > entry:
                low = middle + 1
            else:
                high = middle
        near.insert(low, entry)
        self.due = min(self.due, instant)

    def _file(self, instant: int, first: int, horizon: int) -> None:
        """Put into the finest bucket whose width suits the distance from `horizon`."""
        ahead = max(instant - horizon, 0)
        level = 0
        levels = self.LEVELS
        while ahead >> (levels[level] + 6) and level < 5:
            level += 1
        number = instant >> levels[level]
        bucket = self._buckets.get((level, number))
        if bucket is None:
            bucket = self._buckets[level, number] = array("q")
            start = number << levels[level]
            heappush(self._numbers, (start, level, number))
            self.due = min(self.due, start)
        if level:
            bucket.append(instant)
            bucket.append(first)
        else:
            # 10 bits of milliseconds and 53 of id share one word.
            bucket.append((instant & 1023) << 53 | first)

    def head(self, upto: int) -> int:
        """The earliest instant not after `upto`, or FOREVER."""
        near, numbers = self._near, self._numbers
        while numbers and numbers[0][0] <= upto:
            self._open_next()
        if near and near[-1][0] <= upto:
            return near[-1][0]
        self.due = min(near[-1][0] if near else FOREVER, numbers[0][0] if numbers else FOREVER)
        return FOREVER

    def pop(self) -> tuple[int, int, int]:
        """The (instant, first id, span) that `head` spoke of."""
        instant, first = self._near.pop()
        self._size -= 1
        span = self._spans.pop((instant, first), 1) if self._spans else 1
        return instant, first, span

    def _open_next(self) -> None:
        start, level, number = heappop(self._numbers)
        bucket = self._buckets.pop((level, number))
        if level == 0:
            low = (1 << 53) - 1
            self._near += [(start + (word >> 53), word & low) for word in bucket]
            self._near.sort(reverse=True)
            self._opened = max(self._opened, start + 1024)
            return
        for index in range(0, len(bucket), 2):
            instant = bucket[index]
            if instant < self._opened:
                self._insert_near(instant, bucket[index + 1])
            else:
                self._file(instant, bucket[index + 1], start)
