"""Explain: why a job is not running. Looks only; the queue's turn order is not moved."""

from bisect import bisect_right
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from penstock.kernel.blocks import Block
from penstock.kernel.codes import (
    ACTIVE,
    BLOCKED,
    COUNTER_OF,
    ENDED,
    GROUPED,
    HELD,
    LATE,
    LIFO,
    READY,
    SCHEDULED,
    STATES,
)
from penstock.model.answers import Explanation
from penstock.model.lifecycle import State

if TYPE_CHECKING:
    from penstock.kernel.kernel import Kernel
    from penstock.kernel.queue import Queue

# That are asked for their rate at most: who asks has found nothing, and asks again and again.
GROUPS: Final = 100

# Where a rate makes a line of jobs that are due later they are counted by stretches: neighbours by
# their ids that are due at one instant, with one priority and order. A job with a side (a key, headers,
# an edit, a failure) is a stretch of its own. So many are counted at most: each takes one to two
# microseconds in which nobody else is served. In a block where to find them takes time as well, because
# of sides, option sets or commits, a stretch less is counted for each EFFORT of them. Whoever is behind
# that, with higher ids, is left out, so that the start that is predicted may be too early: it is not
# before that.
DELAYED: Final = 3_000
EFFORT: Final = 32

_PLAIN = {HELD: "held", ACTIVE: "active", **dict.fromkeys(ENDED, "ended")}


def explain(kernel: "Kernel", block: Block, offset: int) -> Explanation:
    job_id = block.base + offset
    code = COUNTER_OF[block.codes[offset]]
    state = STATES[code]
    if code in _PLAIN:
        return Explanation(id=job_id, state=state, reasons=(_PLAIN[code],))
    side = block.sides.get(offset)
    if code == BLOCKED:
        assert side is not None
        tenant = block.queue.tenant.name
        waiting = [
            dependency
            for dependency in side.depends_on
            if (known := kernel.locate(tenant, dependency)) is not None
            and COUNTER_OF[known[0].codes[known[1]]] not in ENDED
        ]
        detail = {"blocked": waiting}
        return Explanation(id=job_id, state=state, reasons=("blocked",), detail=detail)
    if code == SCHEDULED:
        reason = "backoff" if side is not None and side.failures else "delayed"
        due = block.due_at(offset)
        start_at = due
        if _metered(block.queue) and not _stopped(block.queue):
            start_at = _turn(kernel, block, offset, _ahead(block.queue, block, offset))
        return Explanation(
            id=job_id, state=state, reasons=(reason,), detail={reason: due}, start_at=start_at
        )
    return _explain_ready(kernel, block, offset)


def _explain_ready(kernel: "Kernel", block: Block, offset: int) -> Explanation:
    queue, job_id = block.queue, block.base + offset
    found, start_at = _limits(kernel, block, offset)
    if not found and _next(queue) == job_id:
        return Explanation(
            id=job_id, state=State.READY, reasons=("next",), ahead=0, start_at=kernel.now
        )
    ahead = _ahead(queue, block, offset)
    if not found:
        ahead = max(ahead, 1)
    if _metered(queue) and (start_at is not None or not found):
        turn = _turn(kernel, block, offset, ahead)
        if turn > kernel.now:
            start_at = turn
    return Explanation(
        id=job_id,
        state=State.READY,
        reasons=tuple(found) or ("line",),
        detail=found,
        ahead=ahead,
        start_at=start_at,
    )


def _limits(kernel: "Kernel", block: Block, offset: int) -> tuple[dict[str, Any], int | None]:
    """What forbids a ready job to be claimed whoever is before it, and when that ends, if known."""
    queue = block.queue
    limits = queue.config.limits
    found: dict[str, Any] = {}
    until: dict[str, int] = {}
    if queue.config.paused:
        found["paused"] = True
    if queue.meter is not None and not queue.meter.room(kernel.elapsed):
        until["rate"] = kernel.now + queue.meter.next_at(kernel.elapsed) - kernel.elapsed
        found["rate"] = until["rate"]
    if limits.concurrency is not None and queue.counts[ACTIVE] >= limits.concurrency:
        found["concurrency"] = limits.concurrency
    side = block.sides.get(offset)
    if side is not None and side.group is not None:
        group = queue.groups[side.group]
        if group.used >= limits.group_concurrency and not side.owns_slot:
            found["group"] = side.group
        if group.meter is not None and not group.meter.room(kernel.elapsed):
            until["group_rate"] = kernel.now + group.meter.next_at(kernel.elapsed) - kernel.elapsed
            found["group_rate"] = side.group
    start_at = max(until.values()) if found and len(until) == len(found) else None
    return found, start_at


def rate_limited(kernel: "Kernel", queue: "Queue") -> bool:
    """Whether a rate is what keeps the queue from giving a job now: its own, or that of a group."""
    limits, elapsed = queue.config.limits, kernel.elapsed
    if (queue.meter is None and limits.group_rate is None) or queue.config.paused:
        return False
    if limits.concurrency is not None and queue.counts[ACTIVE] >= limits.concurrency:
        return False
    if queue.meter is not None and not queue.meter.room(elapsed) and _next(queue) is not None:
        return True
    return limits.group_rate is not None and any(
        group.meter is not None and not group.meter.room(elapsed) and group.head() is not None
        for group in islice(queue.groups.values(), GROUPS)
    )


def _metered(queue: "Queue") -> bool:
    """Whether each job waits for the tokens of those before it, and it is known who they are: the
    turns of groups go by another order than `_rank`."""
    return queue.meter is not None and not queue.groups


def _stopped(queue: "Queue") -> bool:
    """Whether nobody knows when the next job of the queue may start, whatever its rate."""
    most = queue.config.limits.concurrency
    return queue.config.paused or (most is not None and queue.counts[ACTIVE] >= most)


def _turn(kernel: "Kernel", block: Block, offset: int, ahead: int) -> int:
    """The instant at which a job has its token, `ahead` of the ready jobs being before it: all who
    are due take theirs as soon as there is one, the best rank first.

    Until the job itself is due others take tokens, too; then only those with a better rank do,
    among them some who become due meanwhile.
    """
    queue = block.queue
    assert queue.meter is not None
    meter = queue.meter.ahead()
    lag = kernel.elapsed - kernel.now  # the meter goes by the time that passes
    at, due = kernel.now, max(block.due_at(offset), kernel.now)
    before, behind = ahead, queue.counts[READY] - ahead
    coming = _coming(queue, block, offset, due)
    for instant in sorted(coming.keys() | {due}):
        if instant > due and meter.next_at(at + lag, before) < instant + lag:
            break
        if instant > at:
            passed = meter.pass_until(at + lag, instant - 1 + lag, before + behind)
            behind -= max(passed - before, 0)
            before -= min(passed, before)
        better, worse = coming.get(instant, (0, 0))
        at, before = instant, before + better
        behind = behind + worse if instant < due else 0
    return meter.next_at(at + lag, before) - lag


def _coming(queue: "Queue", block: Block, offset: int, due: int) -> dict[int, tuple[int, int]]:
    """How many jobs become due when: those with a better rank than a job, and until it is due itself
    those with a worse one. Of all that is scheduled only so many stretches are looked at: see
    DELAYED."""
    found: dict[int, tuple[int, int]] = {}
    mine, left = _rank(block, offset), DELAYED
    for other in queue.blocks.values():
        codes = other.codes
        at = codes.find(SCHEDULED)
        if at < 0:
            continue
        stretches = _Stretches(other, offset if other is block else None)
        left -= stretches.effort
        each = 1 + len(other.commits) // EFFORT  # all are looked at for the instant
        while at >= 0:
            if left < each:
                return found
            left -= each
            until = stretches.end(at)
            rank, count = _rank(other, at), codes.count(SCHEDULED, at, until)
            instant = abs(rank[2])
            better, worse = found.get(instant, (0, 0))
            if rank < mine:
                found[instant] = better + count, worse
            elif instant < due:
                found[instant] = better, worse + count
            at = codes.find(SCHEDULED, until)
    return found


class _Stretches:
    """Where stretches of a block end whose jobs in one state nothing but their ids ranks apart: all
    of one are served before a job, or behind it. That job, if it is here, is one of its own."""

    __slots__ = ("_block", "_cuts", "_ranks", "effort")

    def __init__(self, block: Block, apart: int | None) -> None:
        cuts = [*block.sides, *_committed(block)]
        if apart is not None:
            cuts += apart, apart + 1
        cuts.sort()
        self._block = block
        self._cuts = cuts
        self._ranks = _ranks(block) if len(block.options) > 1 else None
        wide = 0 if isinstance(block.opts, bytearray) else len(block.opts)
        self.effort = (len(cuts) + len(block.commits) + len(block.options) + wide) // EFFORT

    def end(self, at: int) -> int:
        block, cuts, ranks = self._block, self._cuts, self._ranks
        if at in block.sides:
            return at + 1
        until = min(block.same_ready_until(at), len(block.codes))
        if cuts and (cut := bisect_right(cuts, at)) < len(cuts):
            until = min(until, cuts[cut])
        if ranks is not None and until - at > 1:
            if ranks[at] == _OTHERS:
                return at + 1
            alike = ranks[at:until]
            until -= len(alike.lstrip(alike[:1]))
        return until


def _committed(block: Block) -> list[int]:
    """Where jobs begin, and end, that were committed to be due at one instant."""
    cuts: list[int] = []
    before = -1
    for lo, hi, _, due in sorted(block.commits):
        if cuts and cuts[-1] == lo and before == due:
            cuts[-1] = hi
        else:
            cuts += lo, hi
        before = due
    return cuts


_OTHERS: Final = 255  # priorities beyond so many in one block: each job of them is a stretch


def _ranks(block: Block) -> bytes | None:
    """A number for each job that says its priority and order; None if all have the same."""
    known: dict[tuple[int, bool], int] = {}
    numbers = [
        min(known.setdefault((each.priority, each.lifo), len(known)), _OTHERS)
        for each in block.options
    ]
    if len(known) == 1:
        return None
    if isinstance(block.opts, bytearray):
        return bytes(block.opts).translate(bytes(numbers).ljust(256))
    return bytes([numbers[index] for index in block.opts])


def _next(queue: "Queue") -> int | None:
    """The job that a claim would take first, the queue's own limits aside."""
    for order in queue.order:
        lane = queue.lanes[-order]
        seats = lane.ring if lane.ring is not None else (None,)
        for seat in seats:
            head = lane.peek() if seat is None else queue.groups[seat].head()
            if head is not None:
                return head[1]
    return None


def _ahead(queue: "Queue", block: Block, offset: int) -> int:
    """Ready jobs of the queue with a better rank. The turns of groups are not played through.

    Jobs in order are counted by stretches of bytes; the others as they lie, those with a side, which
    are few in most queues, one by one.
    """
    mine = _rank(block, offset)
    priority, ready, job_id = block.priority_of(offset), block.due_at(offset), block.base + offset
    lifo = block.options_of(offset).lifo
    ahead = 0
    for other in queue.blocks.values():
        codes = other.codes
        for theirs, code in other.classes.items():
            if theirs > priority:
                ahead += codes.count(code)
            elif theirs == priority and not lifo:
                ahead += _before(other, code, ready, job_id)
        stretches: _Stretches | None = None
        for code in (LATE, GROUPED, LIFO):
            at = codes.find(code)
            while at >= 0:
                if stretches is None:
                    stretches = _Stretches(other, offset if other is block else None)
                until = stretches.end(at)
                if _rank(other, at) < mine:
                    ahead += codes.count(code, at, until)
                at = codes.find(code, until)
    return ahead


def _before(block: Block, code: int, ready: int, job_id: int) -> int:
    """Jobs in order of one block that rank before (ready, job_id)."""
    codes = block.codes
    count = at = 0
    while (at := codes.find(code, at)) >= 0:
        theirs = block.due_at(at)
        until = block.same_ready_until(at)
        if theirs > ready:
            break
        if theirs < ready:
            count += codes.count(code, at, until)
        else:
            count += codes.count(code, at, max(min(until, job_id - block.base), at))
        at = until
    return count


def _rank(block: Block, offset: int) -> tuple[int, int, int, int]:
    """Priority, then lifo, then ready instant, then id: lower is served first."""
    ready, job_id = block.due_at(offset), block.base + offset
    if block.options_of(offset).lifo:
        return -block.priority_of(offset), 0, -ready, -job_id
    return -block.priority_of(offset), 1, ready, job_id
