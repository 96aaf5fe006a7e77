"""One queue of one tenant: its blocks, lanes, groups, keys, counters and configuration."""

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from typing import TYPE_CHECKING

from penstock.kernel.blocks import MASK, SHIFT, SIZE, Block, EndRun
from penstock.kernel.codes import (
    ACTIVE,
    BLOCKED,
    COUNTERS,
    GROUPED,
    HELD,
    LATE,
    LIFO,
    READY,
    SCHEDULED,
)
from penstock.kernel.groups import Group
from penstock.kernel.keys import KeyTable
from penstock.kernel.lanes import Lane
from penstock.kernel.limits import Meter
from penstock.model.policy import DEFAULT_CONFIG, Bounds, QueueConfig

if TYPE_CHECKING:
    from penstock.kernel.kernel import Kernel


class Tenant:
    """What the queues of one tenant share."""

    __slots__ = ("bounds", "bytes", "live", "meter", "name", "queues")

    def __init__(self, name: str) -> None:
        self.name = name
        self.queues: dict[str, Queue] = {}
        self.bounds = Bounds()
        self.meter: Meter | None = None  # of the push rate
        self.live = 0  # jobs that have not ended; kept up only under a bound
        self.bytes = 0


class Queue:
    __slots__ = (
        "blocks",
        "bounded",
        "bytes",
        "config",
        "counts",
        "dead",
        "dead_due",
        "era",
        "finished",
        "finished_count",
        "groups",
        "kernel",
        "keys",
        "lanes",
        "limited",
        "meter",
        "name",
        "open",
        "order",
        "push_meter",
        "ready_clock",
        "retention_due",
        "tenant",
        "watched",
    )

    def __init__(self, kernel: "Kernel", tenant: Tenant, name: str) -> None:
        self.kernel = kernel
        self.tenant = tenant
        self.name = name
        self.era = kernel.era  # of its last change; see `touch`
        self.config: QueueConfig = DEFAULT_CONFIG
        self.blocks: dict[int, Block] = {}  # by number, ascending
        self.open: Block | None = None  # the newest block, the only one that grows
        self.lanes: dict[int, Lane] = {}  # by priority
        self.order: list[int] = []  # negated priorities, ascending: the highest first
        self.groups: dict[str, Group] = {}
        self.keys: KeyTable = KeyTable(kernel, tenant.name, name)
        self.counts = [0] * COUNTERS
        self.ready_clock = 0  # the latest instant at which a job was made ready; never goes back
        self.finished: deque[EndRun] = deque()  # completed, cancelled, expired: by the queue's rule
        self.finished_count = 0
        self.dead: deque[EndRun] = deque()
        self.retention_due = 0  # the instant that the kernel's calendar holds for us; 0: none
        self.dead_due = 0  # the one for dead letters; too early if the oldest have gone otherwise
        self.meter: Meter | None = None  # of the rate limit
        self.push_meter: Meter | None = None
        self.limited = False  # paused, or under a rate or a concurrency limit
        self.bounded = False  # under a bound of its own or its tenant's
        self.bytes = 0  # payload bytes of jobs that have not ended; kept up only if bounded
        self.watched = (tenant.name, name) in kernel.watching

    def touch(self) -> None:
        """Comes before any change to what its record says, unless a block's touch came already."""
        kernel = self.kernel
        if self.era != kernel.era:
            kernel.changes.queues.touch((self.tenant.name, self.name))
            self.era = kernel.era

    def exists(self, now: int) -> bool:
        """Whether it holds jobs, kept keys or configuration; else nobody can tell it was there."""
        return (
            any(self.counts)
            or self.config != DEFAULT_CONFIG
            or any(not r.until or r.until > now for r in self.keys.records.values())
        )

    @property
    def live(self) -> int:
        """Jobs that have not ended."""
        counts = self.counts
        return counts[HELD] + counts[BLOCKED] + counts[SCHEDULED] + counts[READY] + counts[ACTIVE]

    def lane(self, priority: int) -> Lane:
        lane = self.lanes.get(priority)
        if lane is None:
            lane = self.lanes[priority] = Lane(self, priority)
            insort(self.order, -priority)
        return lane

    def drop_lane(self, lane: Lane) -> None:
        """Forget an empty lane. One that still has entries or a seat stays."""
        if not (lane.entries or lane.heap or lane.late or lane.stack or lane.stack_heap) and (
            lane.ring is None
        ):
            del self.lanes[lane.priority]
            del self.order[bisect_left(self.order, -lane.priority)]

    def group(self, name: str) -> Group:
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = Group(self, name)
        return group

    # -- ids -------------------------------------------------------------------------------------

    def reserve(self, n: int) -> int:
        """The first of n contiguous ids; blocks for them are opened as they are filled."""
        block = self.open
        kernel = self.kernel
        if block is not None:
            used = len(block.codes)
            if used + n <= SIZE:
                return block.base + used
            if kernel.next_block == block.number + 1:
                # Nobody reserved behind us: the stretch goes on where this block ends.
                kernel.next_block += (used + n - 1) >> SHIFT
                return block.base + used
        number = kernel.next_block
        kernel.next_block = number + ((n + SIZE - 1) >> SHIFT)
        self._open(number)
        return number * SIZE + 1

    def _open(self, number: int) -> Block:
        before = self.open
        self.touch()
        self.kernel.changes.blocks.touch(number)
        block = self.open = self.blocks[number] = self.kernel.blocks[number] = Block(number, self)
        if before is not None and not before.live:
            self.drop_block(before)
        return block

    def block_for(self, job_id: int) -> Block:
        """The open block, which job_id goes into next; opened if the last one is full."""
        block = self.open
        number = (job_id - 1) >> SHIFT
        if block is None or block.number != number:
            block = self._open(number)
        if block.era != self.kernel.era:
            block.touch()
        return block

    def drop_block(self, block: Block) -> None:
        """Forget a block without jobs, unless it still grows."""
        if block is not self.open:
            self.kernel.changes.blocks.drop(block.number)
            self.blocks.pop(block.number, None)
            self.kernel.blocks.pop(block.number, None)

    def close_block(self) -> None:
        """The open block grows no more; the next push opens another."""
        block = self.open
        if block is None:
            return
        self.touch()
        self.open = None
        if not block.live:
            self.drop_block(block)

    # -- readiness -------------------------------------------------------------------------------

    def begin_anew(self) -> None:
        """Jobs are about to come into a queue that may have been empty."""
        if self.ready_clock and not self.exists(self.kernel.now):
            self.touch()
            self.ready_clock = 0

    def clamp(self, now: int) -> int:
        """The ready instant of a job made ready now."""
        if now > self.ready_clock or not self.exists(self.kernel.now):
            self.touch()
            self.ready_clock = now
        return self.ready_clock

    def make_ready(self, block: Block, offset: int, ready: int) -> None:
        """A job that is not where a cursor would find it becomes ready at that instant.

        Its side (if it has one that says otherwise) must already give `ready` as its due instant.
        Sets the code and the place to be found; counters are the caller's.
        """
        block.touch()
        side = block.sides.get(offset)
        job_id = block.base + offset
        if side is not None and side.group is not None:
            block.codes[offset] = GROUPED
            group = self.group(side.group)
            group.put(ready, job_id, side.owns_slot)
            self.kernel.unseated[group] = None
        elif block.options_of(offset).lifo:
            block.codes[offset] = LIFO
            self.lane(block.priority_of(offset)).put_lifo(ready, job_id)
        else:
            block.codes[offset] = LATE
            self.lane(block.priority_of(offset)).put(ready, job_id)
        if self.watched:
            self.kernel.stirred[self] = None

    def stir(self) -> None:
        """Something changed that may let a waiting claim go on."""
        if self.watched:
            self.kernel.stirred[self] = None

    def seat(self, group: Group, elapsed: int) -> None:
        """Give the group the seat it is entitled to at that instant, or none."""
        self.touch()
        head = group.head()
        wanted: int | None = None
        rate = self.config.limits.group_rate
        if rate is None:
            group.meter = None
        elif group.meter is None or group.meter.rate != rate:
            group.meter = Meter(rate)
        if head is not None:
            if group.meter is None or group.meter.room(elapsed):
                block = self.blocks[(head[1] - 1) >> SHIFT]
                wanted = block.priority_of((head[1] - 1) & MASK)
            else:
                self.kernel.calls.add(
                    group.meter.next_at(elapsed),
                    head[1],
                    ("group", self.tenant.name, (self.name, group.name)),
                )
        if wanted == group.seat:
            return
        if group.seat is not None:
            lane = self.lanes[group.seat]
            if lane.ring is not None:
                lane.ring.pop(group.name, None)
                if len(lane.ring) == 1:
                    lane.ring = None
        group.seat = wanted
        if wanted is not None:
            lane = self.lane(wanted)
            if lane.ring is None:
                lane.ring = OrderedDict({None: None})
            lane.ring[group.name] = None

    def drop_group(self, group: Group) -> bool:
        """Forget a group without members, as soon as its rate remembers nothing."""
        meter, kernel = group.meter, self.kernel
        if meter is not None and not meter.idle(kernel.elapsed):
            place = ("group", self.tenant.name, (self.name, group.name))
            kernel.calls.add(meter.idle_at(), 0, place)
            return False
        group.owned.clear()
        group.ready.clear()
        kernel.unseated.pop(group, None)
        self.seat(group, kernel.elapsed)
        del self.groups[group.name]
        return True

    def leave_group(self, name: str, *, freed: bool, ended: bool) -> None:
        """A member left: a slot is free, or it is no longer a member, or it is not ready."""
        group = self.groups[name]
        if freed:
            group.used -= 1
        if ended:
            group.jobs -= 1
        self.kernel.unseated[group] = None
        self.stir()
