"""Explain: why a job is not running. Looks only; the queue's turn order is not moved."""

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
    SCHEDULED,
    STATES,
)
from penstock.model.lifecycle import State
from penstock.model.store import Explanation

if TYPE_CHECKING:
    from penstock.kernel.kernel import Kernel
    from penstock.kernel.queue import Queue

# That are asked for their rate at most: who asks has found nothing, and asks again and again.
GROUPS: Final = 100

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
        return Explanation(
            id=job_id, state=state, reasons=(reason,), detail={reason: due}, start_at=due
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
    # Those before it need a token each. The turns of groups go by another order than `_ahead`.
    meter = queue.meter
    if meter is not None and not queue.groups and (start_at is not None or not found):
        turn = kernel.now + meter.next_at(kernel.elapsed, ahead) - kernel.elapsed
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

    Jobs in order are counted by stretches of bytes; the few that are not, one by one.
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
        for code in (LATE, GROUPED, LIFO):
            at = codes.find(code)
            while at >= 0:
                if _rank(other, at) < mine:
                    ahead += 1
                at = codes.find(code, at + 1)
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
