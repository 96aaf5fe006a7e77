"""Replace: a keyed job gets a new version under the same id.

Not active: at once. Active: the version waits in the job's side until the running attempt ends,
whichever way, and then starts.
"""

from typing import TYPE_CHECKING

from penstock.kernel import tell
from penstock.kernel.blocks import RELATIVE, Block, Side, Version
from penstock.kernel.codes import ACTIVE, BLOCKED, COUNTER_OF, HELD, READY, SCHEDULED
from penstock.kernel.ending import drop_version, pin, size_of, unpin
from penstock.kernel.flows import die_of_dependency, resolve
from penstock.model.job import KeyClaim

if TYPE_CHECKING:
    from penstock.kernel.kernel import Kernel


def same(block: Block, offset: int, version: Version) -> bool:
    """Whether the job, or the version that waits in it, says just what this version says."""
    side = block.sides.get(offset)
    if side is None or version.said_run_at == RELATIVE:
        return False
    before = side.next
    if before is not None:
        return words(version) == words(before)
    if block.priority_of(offset) != version.options.priority:
        return False  # edited since
    return words(version) == (
        side.digest,
        block.options_of(offset),
        side.said_run_at,
        side.group,
        side.headers,
        side.depends_on,
    )


def words(version: Version) -> tuple[object, ...]:
    """What must be equal for two versions to be one."""
    return (
        version.digest,
        version.options,
        version.said_run_at,
        version.group,
        version.headers,
        version.depends_on,
    )


def replace(
    kernel: "Kernel", block: Block, offset: int, version: Version, claims: tuple[KeyClaim, ...]
) -> None:
    """Put a new version in the place of a job that has not ended."""
    queue = block.queue
    side = block.side(offset)
    job_id = block.base + offset
    kernel.chunks[version.payload[0]] = kernel.chunks.get(version.payload[0], 0) + 1
    if queue.bounded:
        size = version.payload[2] - version.payload[1] - size_of(block, offset, offset + 1, None)
        queue.bytes += size
        queue.tenant.bytes += size
    mine = queue.keys.open_to(claims, job_id, kernel.now, new=False)
    renewed = {claim.key: claim for claim in (*side.keys, *mine)}
    side.keys = tuple(renewed.values())
    kernel.take_keys(queue, job_id, mine, version.digest, kernel.now)
    for known in side.keys:
        record = queue.keys.records.get(known.key)
        if record is not None and record.id == job_id:
            queue.keys.touch(known.key)
            record.digest = version.digest
    if kernel.events is not None:
        tell.one(kernel, "replaced", block, offset, kernel.now, run_at=version.run_at or 0)
    if block.codes[offset] == ACTIVE:
        if side.claimed is False:
            side.claimed, side.attempts = True, 1
        drop_version(kernel, queue.tenant.name, side)
        pin(kernel, queue.tenant.name, version.depends_on)
        side.next = version
        return
    adopt(kernel, block, offset, side, version, kernel.now)


def restart(kernel: "Kernel", block: Block, offset: int, side: Side, at: int) -> None:
    """The running attempt of a replaced job ended; it has left its lease."""
    version = side.next
    assert version is not None
    block.touch()
    side.next = None
    adopt(kernel, block, offset, side, version, at, pinned=True)
    # The new version has not started: a key that is kept until then is taken again.
    for claim in side.keys:
        if claim.keep_key == "started" and claim.key not in block.queue.keys.records:
            block.queue.keys.take(claim, block.base + offset, side.digest, at)


def adopt(
    kernel: "Kernel",
    block: Block,
    offset: int,
    side: Side,
    version: Version,
    at: int,
    *,
    pinned: bool = False,
) -> None:
    """The job becomes that version, as if pushed at this instant under its old id."""
    queue = block.queue
    job_id = block.base + offset
    before = COUNTER_OF[block.codes[offset]]
    queue.counts[before] -= 1
    stays = side.group == version.group and before != HELD
    if side.group is not None and before != HELD:
        block.codes[offset] = BLOCKED  # no longer ready: its group must not count on it
        freed = before == ACTIVE or side.owns_slot
        side.owns_slot = False
        queue.leave_group(side.group, freed=freed, ended=not stays)
    if side.depends_on and before != HELD:
        unpin(kernel, queue.tenant.name, side.depends_on)
    for place in (side.payload, side.result):
        if place is not None:
            kernel.drop_chunk(place[0], 1)
    side.options, side.payload, side.digest = version.options, version.payload, version.digest
    side.said_run_at, side.group = version.said_run_at, version.group
    side.headers, side.depends_on = version.headers, version.depends_on
    side.created_at = at
    side.run_at = side.ready_at = side.priority = side.progress = side.progress_message = None
    side.result = side.result_codec = side.started_at = side.worker = side.logs = None
    side.attempts = side.failures = 0
    side.unmet = ()
    side.claimed = side.no_ttl = False
    side.errors = ()
    if side.group is not None and not stays:
        queue.group(side.group).jobs += 1
    if version.options.ttl_ms is not None:
        kernel.expire_at(at + version.options.ttl_ms, job_id, 1)
    _stand(kernel, block, offset, side, version.run_at, at, pinned)


def _stand(
    kernel: "Kernel",
    block: Block,
    offset: int,
    side: Side,
    until: int | None,
    at: int,
    pinned: bool,
) -> None:
    """Blocked, scheduled or ready, by its dependencies and its run_at."""
    queue = block.queue
    failed = resolve(kernel, block, offset, side, pinned=pinned) if side.depends_on else 0
    if side.unmet or failed:
        queue.counts[BLOCKED] += 1
        block.codes[offset] = BLOCKED
        side.run_at = until if until is not None and until > at else None
        if failed:
            die_of_dependency(kernel, block, offset, failed, at)
    elif until is not None and until > at:
        queue.counts[SCHEDULED] += 1
        block.codes[offset] = SCHEDULED
        side.run_at = side.ready_at = until
        kernel.promote_at(until, block.base + offset, 1)
    else:
        queue.counts[READY] += 1
        side.run_at = at
        side.ready_at = queue.clamp(at)
        queue.make_ready(block, offset, side.ready_at)
