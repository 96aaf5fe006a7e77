"""The audit: what the kernel carries along, held against a recount. `penstock doctor --check`.

Every sentence that comes out is something that must not be. It reads whole columns where it can,
so that a look at ten million jobs takes seconds.
"""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.kernel.blocks import Block
from penstock.kernel.codes import ACTIVE, COUNTER_OF, ENDED, GONE, HELD, STATES
from penstock.kernel.queue import Queue

if TYPE_CHECKING:
    from penstock.kernel.kernel import Kernel


def findings(kernel: "Kernel") -> Iterator[str]:
    """What is wrong; nothing, normally."""
    yield from _places(kernel)
    for queue in _queues(kernel):
        yield from _counters(queue)
        yield from _keys(kernel, queue)
        yield from _groups(queue)
    yield from _leases(kernel)
    yield from _chunks(kernel)


def _queues(kernel: "Kernel") -> Iterator[Queue]:
    for tenant in kernel.tenants.values():
        yield from tenant.queues.values()


def _named(queue: Queue) -> str:
    return f"queue {queue.name!r} of tenant {queue.tenant.name!r}"


def _places(kernel: "Kernel") -> Iterator[str]:
    """One place per job: every block belongs to one queue, which knows it."""
    owners: Counter[int] = Counter()
    for queue in _queues(kernel):
        for number, block in queue.blocks.items():
            owners[number] += 1
            if kernel.blocks.get(number) is not block:
                yield f"block {number} of {_named(queue)} is not where ids are looked up"
            if not len(block.codes) == len(block.opts) == len(block.ends):
                yield f"block {number} of {_named(queue)} has columns of different lengths"
            stray = [offset for offset in block.sides if block.codes[offset] == GONE]
            if stray:
                yield f"job {block.base + stray[0]} is gone, and something is known of it"
    for number in kernel.blocks:
        if owners[number] != 1:
            yield f"block {number} belongs to {owners[number]} queues"


def _counters(queue: Queue) -> Iterator[str]:
    counts: Counter[int] = Counter()
    for block in queue.blocks.values():
        counters = block.codes.translate(COUNTER_OF)
        for code in STATES:
            counts[code] += counters.count(code)
        if block.live != len(block.codes) - block.codes.count(GONE):
            yield f"block {block.number} of {_named(queue)} miscounts its jobs"
    for code, state in STATES.items():
        if queue.counts[code] != counts[code]:
            yield f"{_named(queue)} counts {queue.counts[code]} {state} jobs and has {counts[code]}"


def _keys(kernel: "Kernel", queue: Queue) -> Iterator[str]:
    for key, record in queue.keys.records.items():
        if isinstance(record.keep, int):
            continue  # kept whatever became of the job
        found = kernel.locate(queue.tenant.name, record.id)
        if found is None:
            yield f"key {key!r} of {_named(queue)} stands for job {record.id}, which is not known"
        elif record.keep != "retained" and COUNTER_OF[found[0].codes[found[1]]] in ENDED:
            yield f"key {key!r} of {_named(queue)} stands for job {record.id}, which has ended"


def _groups(queue: Queue) -> Iterator[str]:
    jobs: Counter[str] = Counter()
    used: Counter[str] = Counter()
    for block in queue.blocks.values():
        for offset, side in block.sides.items():
            counter = COUNTER_OF[block.codes[offset]]
            if side.group is not None and counter not in ENDED and counter != HELD:
                jobs[side.group] += 1
                used[side.group] += counter == ACTIVE or side.owns_slot
    for name in jobs.keys() | queue.groups.keys():
        group = queue.groups.get(name)
        kept = (group.jobs, group.used) if group is not None else (0, 0)
        if kept != (jobs[name], used[name]):
            yield (
                f"group {name!r} of {_named(queue)} counts {kept[0]} jobs and {kept[1]} slots,"
                f" and has {jobs[name]} and {used[name]}"
            )


def _leases(kernel: "Kernel") -> Iterator[str]:
    """Each lease holds only active jobs; each active job is held once."""
    held: Counter[int] = Counter()
    for lease in kernel.leases.values():
        for run in lease.runs:
            for offset in run.offsets():
                job_id = run.block.base + offset
                held[job_id] += 1
                if COUNTER_OF[run.block.codes[offset]] != ACTIVE:
                    yield f"lease {lease.token[:8]}… holds job {job_id}, which is not active"
    for job_id, n in held.items():
        if n > 1:
            yield f"job {job_id} is held by {n} leases"
    for block in kernel.blocks.values():
        counters = block.codes.translate(COUNTER_OF)
        for job_id in _active(block, counters):
            if not held[job_id]:
                yield f"job {job_id} is active, and no lease holds it"


def _active(block: Block, counters: bytearray) -> Iterator[int]:
    at = counters.find(ACTIVE)
    while at >= 0:
        yield block.base + at
        at = counters.find(ACTIVE, at + 1)


def _chunks(kernel: "Kernel") -> Iterator[str]:
    """Each payload chunk is kept for exactly those who need it."""
    needed: Counter[int] = Counter()
    for block in kernel.blocks.values():
        bounds = [*block.pay_pos, len(block.codes)]
        for index, chunk in enumerate(block.pay_chunk):
            lo, hi = bounds[index], bounds[index + 1]
            needed[chunk] += hi - lo - block.codes.count(GONE, lo, hi)
        for side in block.sides.values():
            places = [side.payload, side.result, side.next.payload if side.next else None]
            needed.update(place[0] for place in places if place is not None)
    for chunk in kernel.chunks.keys() | needed.keys():
        if kernel.chunks.get(chunk, 0) != needed[chunk]:
            yield (
                f"payload chunk {chunk} is kept for {kernel.chunks.get(chunk, 0)} jobs,"
                f" and {needed[chunk]} need it"
            )
