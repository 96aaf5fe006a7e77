"""Looking at jobs and queues. Changes nothing; time must have been advanced before.

Payload and result bytes are not here: whoever asks is given their places.
"""

from bisect import bisect_right
from collections.abc import Iterator
from itertools import chain, compress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.kernel.blocks import Block, Place
from penstock.kernel.codes import (
    ACTIVE,
    COMPLETED,
    COUNTER_BY_STATE,
    COUNTER_OF,
    DEAD,
    ENDED,
    GONE,
    STATES,
)
from penstock.kernel.leases import HeldRun
from penstock.model.answers import QueueInfo, Standing
from penstock.model.job import Codec, IdRun, Individual, JobError, JobOptions
from penstock.model.lifecycle import DeadReason, State
from penstock.model.policy import DEFAULT_CONFIG

if TYPE_CHECKING:
    from penstock.kernel.kernel import Kernel
    from penstock.kernel.queue import Queue

SCAN: Final = 65_536  # jobs that one `find` looks at, at most
APART: Final = 16  # jobs of a push, on average, from which on a claim is cut push by push


class JobView(msgspec.Struct, kw_only=True):
    """Everything known of a job but the bytes of its payload and result."""

    facts: dict[str, Any]
    payload: Place
    result: Place | None


class End(msgspec.Struct, kw_only=True):
    """How a job ended, taken at that moment: it may be forgotten at once."""

    state: State
    result: Place | None = None
    codec: Codec | None = None
    error: JobError | None = None
    dead_reason: DeadReason | None = None


def result_of(block: Block, offset: int) -> End | None:
    """None while the job has not ended."""
    code = COUNTER_OF[block.codes[offset]]
    if code not in ENDED:
        return None
    side = block.sides.get(offset)
    if side is None:
        return End(state=STATES[code])
    return End(
        state=STATES[code],
        result=side.result if code == COMPLETED else None,
        codec=side.result_codec if code == COMPLETED else None,
        error=side.errors[-1] if side.errors and code == DEAD else None,
        dead_reason=side.dead_reason,
    )


def view(kernel: "Kernel", block: Block, offset: int) -> JobView:
    code = COUNTER_OF[block.codes[offset]]
    side = block.sides.get(offset)
    options = block.options_of(offset)
    created_at = block.created_at(offset)
    facts: dict[str, Any] = {
        "id": block.base + offset,
        "queue": block.queue.name,
        "options": options,
        "created_at": created_at,
        "run_at": block.run_at(offset),
        "attempt": 1 if code in (ACTIVE, COMPLETED) else 0,
        "state": STATES[code],
        "priority": block.priority_of(offset),
    }
    if side is not None:
        facts |= {
            "attempt": side.attempts,
            "key": side.keys[0].key if side.keys else None,
            "more_keys": tuple(claim.key for claim in side.keys[1:]),
            "group": side.group,
            "headers": side.headers,
            "depends_on": side.depends_on,
            "dead_reason": side.dead_reason if code == DEAD else None,
            "progress": side.progress,
            "progress_message": side.progress_message,
            "errors": side.errors,
            "started_at": side.started_at,
            "worker": side.worker,
            "dependants": tuple(
                job_id
                for job_id in dict.fromkeys(side.dependants or ())
                if kernel.locate(block.queue.tenant.name, job_id) is not None
            ),
            "result_codec": side.result_codec,
        }
    if code == ACTIVE:
        run = block.holder_of(offset)
        assert run is not None, "an active job is held"
        lease = run.lease
        facts |= {
            "lease_expires_at": kernel.now + lease.expires - kernel.elapsed,
            "last_heartbeat": lease.extended_at or lease.claimed_at,
            "worker": lease.worker,
            "started_at": lease.claimed_at,
        }
    elif code in ENDED:
        end = block.end_of(offset)
        if end is not None:
            facts["finished_at"] = end.at
            if end.started_at:
                facts |= {"started_at": end.started_at, "worker": end.worker}
    return JobView(facts=facts, payload=block.place(offset), result=side.result if side else None)


def standing(block: Block, offset: int) -> Standing:
    """The part of a view that needs no look at what the job says."""
    code = COUNTER_OF[block.codes[offset]]
    if code != ACTIVE:
        return Standing(block.queue.name, STATES[code])
    run = block.holder_of(offset)
    assert run is not None, "an active job is held"
    return Standing(block.queue.name, State.ACTIVE, run.lease.token)


def reach(
    kernel: "Kernel", tenant: str, token: str | None, bulk_name: str | None
) -> frozenset[str]:
    """The queues of a lease or an open bulk; none if it is not known."""
    if token is not None:
        lease = kernel.leases.get(token)
        if lease is None or lease.queue.tenant.name != tenant:
            return frozenset()
        return frozenset((lease.queue.name,))
    assert bulk_name is not None, "one of them is named"
    bulk = kernel.bulks.get((tenant, bulk_name))
    if bulk is None:
        return frozenset()
    return frozenset(held.queue for helds in bulk.parts.values() for held in helds)


# -- what a claim hands out ------------------------------------------------------------------------


class Cut(msgspec.Struct, kw_only=True):
    """One run of a lease, as it was claimed: what `ClaimedRun` needs but the bytes."""

    ids: IdRun
    places: "list[Place] | None"  # one each; None: one stretch
    stretch: Place | None  # chunk, begin, end of payloads that lie end to end …
    ends: list[int]  # … with their ends, relative to begin
    options: tuple[JobOptions, ...]
    option_of: bytes | list[int] | None
    created_at: int | list[int]
    run_at: int | list[int]
    individual: dict[int, Individual]


def cuts(run: HeldRun) -> list[Cut]:
    """A run of a lease; where it goes through several pushes, one cut for each of them.

    What a push brought lies end to end and is alike; only of pushes of a few jobs is it cheaper to
    look at each job.
    """
    block, lo, hi, mask = run.block, run.lo, run.hi, run.mask
    if hi - lo == 1 and lo not in block.sides and not block.commits:
        return [_cut_single(block, lo)]
    first = bisect_right(block.pay_pos, lo)
    last = bisect_right(block.pay_pos, hi - 1)
    if first == last or hi - lo < (last - first + 1) * APART:
        return [_cut(block, lo, hi, mask)]
    found = []
    start = lo
    for end in (*block.pay_pos[first:last], hi):
        part = None if mask is None else mask[lo - start : end - start]
        if part is None or 1 in part:
            found.append(_cut(block, lo, end, part))
        lo = end
    return found


def _cut_single(block: Block, offset: int) -> Cut:
    """The hot path of one plain job, which an idle worker is given; `_cut` says what it means."""
    # It is mostly the newest one.
    newest = offset >= block.created_pos[-1]
    created_at = block.created_ms[-1] if newest else block.created_at(offset)
    place = block.pushed_place(offset)
    return Cut(
        ids=IdRun(block.base + offset, 1),
        places=None,
        stretch=place,
        ends=[place[2] - place[1]],
        options=(block.options[block.opts[offset]],),
        option_of=None,
        created_at=created_at,
        run_at=block.run_at(offset) if block.due_ms else created_at,
        individual={},
    )


def _cut(block: Block, lo: int, hi: int, mask: bytes | None) -> Cut:
    offsets = range(lo, hi) if mask is None else list(compress(range(lo, hi), mask))
    sides = block.sides
    own = [o for o in offsets if o in sides] if block.has_sides(lo, hi) else []
    individual = {}
    for offset in own:
        side = sides[offset]
        individual[block.base + offset] = Individual(
            attempt=side.attempts,
            priority=side.priority,
            key=side.keys[0].key if side.keys else None,
            more_keys=tuple(claim.key for claim in side.keys[1:]),
            group=side.group,
            headers=side.headers,
            depends_on=side.depends_on,
        )
    plain = not own
    record = bisect_right(block.pay_pos, lo) - 1
    one_record = bisect_right(block.pay_pos, hi - 1) - 1 == record
    places: list[Place] | None = None
    stretch: Place | None = None
    ends: list[int] = []
    if plain and one_record:
        chunk, origin = block.pay_chunk[record], block.pay_origin[record]
        first = lo == block.pay_pos[record]
        begin = block.pay_begin[record] if first else block.ends[lo - 1]
        if mask is None:
            ends = [end - begin for end in block.ends[lo:hi]]
            stretch = (chunk, origin + begin, origin + begin + ends[-1])
        else:
            bounds = zip(chain((begin,), block.ends[lo:hi]), block.ends[lo:hi], strict=False)
            places = [(chunk, origin + b, origin + e) for b, e in compress(bounds, mask)]
    else:
        places = [block.place(offset) for offset in offsets]
    options, option_of = _options(block, offsets, plain)
    alike = plain and block.same_ready_until(lo) >= hi and not block.commits
    return Cut(
        ids=IdRun(block.base + lo, hi - lo, mask),
        places=places,
        stretch=stretch,
        ends=ends,
        options=options,
        option_of=option_of,
        created_at=block.created_at(lo) if alike else [block.created_at(o) for o in offsets],
        run_at=block.run_at(lo) if alike else [block.run_at(o) for o in offsets],
        individual=individual,
    )


def chunks_behind(run: HeldRun, n: int) -> list[int]:
    """The payload chunks that claims after this one will want next, as far as one can tell."""
    block = run.block
    record = bisect_right(block.pay_pos, run.hi - 1)
    found = list(block.pay_chunk[record : record + n])
    if len(found) < n:
        queue = block.queue
        lane = queue.lanes[-queue.order[0]] if queue.order else None
        for entry in lane.entries if lane is not None else ():
            if entry.block is not block:
                found += entry.block.pay_chunk[: n - len(found)]
                break
    return found


def _options(
    block: Block, offsets: "range | list[int]", plain: bool
) -> tuple[tuple[JobOptions, ...], list[int] | None]:
    if plain:
        whole = block.opts[offsets[0] : offsets[-1] + 1]
        numbers = whole if isinstance(offsets, range) else [block.opts[o] for o in offsets]
        if numbers.count(numbers[0]) == len(numbers):
            return (block.options[numbers[0]],), None
    table: dict[JobOptions, int] = {}
    option_of = [table.setdefault(block.options_of(o), len(table)) for o in offsets]
    return tuple(table), option_of if len(table) > 1 else None


# -- find ----------------------------------------------------------------------------------------


def find(
    kernel: "Kernel",
    tenant: str,
    name: str,
    state: State | None,
    task: str | None,
    tag: str | None,
    cursor: int,
    limit: int,
    newest: bool,
) -> tuple[list[tuple[Block, int]], int | None]:
    """Places of jobs from that id on (`newest`: from there back), and the id to go on from."""
    queue = _queue(kernel, tenant, name)
    if queue is None:
        return [], None
    found: list[tuple[Block, int]] = []
    scanned = 0
    for number in sorted(queue.blocks, reverse=newest):
        block = queue.blocks[number]
        offsets = _offsets(block, cursor, newest)
        if not offsets:
            continue
        for offset in _matching(block, offsets, state):
            if len(found) == limit:
                return found, block.base + offset
            options = block.options_of(offset)
            if (task is None or options.task == task) and (tag is None or tag in options.tags):
                found.append((block, offset))
            elif scanned > SCAN:
                return found, (block.base + offset + offsets.step) or None  # no id is 0
            scanned += 1
        scanned += 64  # looking through a block costs something, whatever it holds
        if scanned > SCAN:
            return found, (block.base + offsets[-1] + offsets.step) or None
    return found, None


def _offsets(block: Block, cursor: int, newest: bool) -> range:
    """Of the jobs of a block from the cursor on, or from there back."""
    if not newest:
        return range(max(cursor - block.base, 0), len(block.codes))
    last = min(cursor - block.base, len(block.codes) - 1) if cursor else len(block.codes) - 1
    return range(last, -1, -1)


def _matching(block: Block, offsets: range, state: State | None) -> Iterator[int]:
    if state is None:
        return (o for o in offsets if block.codes[o] != GONE)
    wanted = COUNTER_BY_STATE[state]
    counters = block.codes.translate(COUNTER_OF)
    return _positions(counters, wanted, offsets)


def _positions(counters: bytearray, wanted: int, offsets: range) -> Iterator[int]:
    if offsets.step < 0:
        at = counters.rfind(wanted, 0, offsets[0] + 1)
        while at >= 0:
            yield at
            at = counters.rfind(wanted, 0, at)
        return
    at = counters.find(wanted, offsets[0])
    while at >= 0:
        yield at
        at = counters.find(wanted, at + 1)


def _queue(kernel: "Kernel", tenant: str, name: str) -> "Queue | None":
    known = kernel.tenants.get(tenant)
    return known.queues.get(name) if known is not None else None


# -- queues --------------------------------------------------------------------------------------


def queues(kernel: "Kernel", tenant: str, names: list[str] | None) -> list[QueueInfo]:
    known = kernel.tenants.get(tenant)
    existing = known.queues if known is not None else {}
    if names is None:
        names = sorted(name for name, queue in existing.items() if queue.exists(kernel.now))
    return [queue_info(kernel, name, existing.get(name)) for name in names]


def totals(kernel: "Kernel") -> dict[str, int]:
    """How many jobs of the whole store are in each state that there are any in."""
    counts = {
        state: sum(q.counts[code] for t in kernel.tenants.values() for q in t.queues.values())
        for code, state in STATES.items()
    }
    return {str(state): n for state, n in counts.items() if n}


def queue_info(kernel: "Kernel", name: str, queue: "Queue | None") -> QueueInfo:
    if queue is None:
        counts = dict.fromkeys(State, 0)
        return QueueInfo(queue=name, config=DEFAULT_CONFIG, counts=counts, oldest_ready_ms=None)
    oldest = oldest_ready(queue)
    return QueueInfo(
        queue=name,
        config=queue.config,
        counts={state: queue.counts[COUNTER_BY_STATE[state]] for state in State},
        oldest_ready_ms=None if oldest is None else max(kernel.now - oldest, 0),
        groups=sum(
            1 for group in queue.groups.values() if group.used or group.ready or group.owned
        ),
    )


def oldest_ready(queue: "Queue") -> int | None:
    """The earliest ready instant of a ready job, whatever stands before it in the line."""
    heads = [lane.oldest() for lane in queue.lanes.values()]
    heads += [group.oldest() for group in queue.groups.values()]
    return min((head for head in heads if head is not None), default=None)
