"""Crons inside the kernel: installed instants, and what happens when one comes due.

Planning is `model/schedule.py`'s; its instants come in with the command. Each is an ordinary keyed
job; the record here only remembers which jobs those are. Instants that the store does not plan have
no record: see `instants.py`.
"""

from typing import TYPE_CHECKING

import msgspec

from penstock.kernel import instants, tell
from penstock.kernel.blocks import Block
from penstock.kernel.codes import CANCELLED, COUNTER_OF, SCHEDULED, WAITING
from penstock.kernel.commands import DropCron, Push, PutCron
from penstock.kernel.ending import end_one
from penstock.model.answers import CronInfo
from penstock.model.errors import NotFound, Overloaded
from penstock.model.schedule import CronSpec

if TYPE_CHECKING:
    from penstock.kernel.kernel import Kernel

LATE_MS = 60_000  # with missed="none": how late an instant may come due and still run


class CronRecord(msgspec.Struct):
    spec: CronSpec
    config_hash: str
    installed_until: int | None = None
    pending: dict[int, int] = {}  # id → instant: not yet due
    live: dict[int, int] = {}  # id → instant: came due and has not ended
    executions: int = 0


def put_cron(kernel: "Kernel", command: PutCron) -> CronInfo:
    from penstock.kernel.push import push_replacing

    spot = (command.tenant, command.spec.name)
    record = kernel.crons.get(spot)
    if command.refresh and (record is None or record.config_hash != command.config_hash):
        raise NotFound("was changed or dropped meanwhile", "name")
    if record is None and len(kernel.crons) >= kernel.caps.crons:
        raise Overloaded(f"the store holds {kernel.caps.crons} crons", "name")
    kernel.changes.crons.touch(spot)
    before = record
    if record is None or record.config_hash != command.config_hash:
        record = CronRecord(command.spec, command.config_hash)
    pushed = None
    if command.load is not None:
        # First what may be refused; the old instants, still there, do not count against bounds.
        whole = Push(tenant=command.tenant, loads=(command.load,))
        old = before if before is not record else None
        leaving = _not_started(kernel, command.tenant, old) if old is not None else []
        pushed = push_replacing(kernel, whole, leaving)
    if before is not None and before is not record:
        remove_pending(kernel, command.tenant, before)
        record.live = before.live
    kernel.crons[spot] = record
    if pushed is not None:
        for instant, (job_id, outcome) in zip(command.instants, pushed.jobs, strict=True):
            if outcome == "created":
                _adopt(kernel, command.tenant, record, job_id, instant)
            record.installed_until = max(record.installed_until or 0, instant)
    return info(record)


def _adopt(kernel: "Kernel", tenant: str, record: CronRecord, job_id: int, instant: int) -> None:
    found = kernel.locate(tenant, job_id)
    assert found is not None
    block, offset = found
    block.side(offset).cron = record.spec.name
    record.pending[job_id] = instant
    if block.codes[offset] != SCHEDULED:
        came_due(kernel, block, offset, kernel.now)


def came_due(kernel: "Kernel", block: Block, offset: int, at: int) -> bool:
    """An instant comes due; False if it was cancelled instead of made ready."""
    side = block.sides[offset]
    tenant = block.queue.tenant.name
    record = kernel.crons.get((tenant, side.cron or ""))
    job_id = block.base + offset
    if record is None or job_id not in record.pending:
        return True
    kernel.changes.crons.touch((tenant, record.spec.name))
    instant = record.pending.pop(job_id)
    spec = record.spec
    skipped = (
        (spec.overlap == "skip" and bool(record.live))
        or (spec.missed == "none" and kernel.now - instant > LATE_MS)
        or (
            spec.missed == "last"
            and any(instant < other <= kernel.now for other in record.pending.values())
        )
    )
    record.executions += 1
    if skipped:
        if kernel.events is not None:
            tell.one(kernel, "cancelled", block, offset, at)
        end_one(kernel, block, offset, CANCELLED, at)
    else:
        record.live[job_id] = instant
    if spec.limit is not None and record.executions >= spec.limit:
        remove_pending(kernel, tenant, record, started=False)
        kernel.changes.crons.drop((tenant, spec.name))
        kernel.crons.pop((tenant, spec.name), None)
    return not skipped


def remove_pending(
    kernel: "Kernel", tenant: str, record: CronRecord, *, started: bool = True
) -> None:
    """Instants that no worker has started vanish, keys too, so that they may be installed again."""
    instants.vanish(kernel, _not_started(kernel, tenant, record, started=started))
    record.pending.clear()


def _not_started(
    kernel: "Kernel", tenant: str, record: CronRecord, *, started: bool = True
) -> list[tuple[Block, int]]:
    """Instants that no worker has started; `started`: those that came due, too."""
    places = []
    for job_id in [*record.pending, *(record.live if started else ())]:
        found = kernel.locate(tenant, job_id)
        side = found[0].sides.get(found[1]) if found is not None else None
        if found is None or side is None or side.claimed:
            continue
        if COUNTER_OF[found[0].codes[found[1]]] in WAITING:
            places.append(found)
    return places


def drop_cron(kernel: "Kernel", command: DropCron) -> bool | int:
    if command.queue is not None:
        return instants.drop(kernel, command)
    spot = (command.tenant, command.name)
    kernel.changes.crons.drop(spot)
    record = kernel.crons.pop(spot, None)
    if record is None:
        return False
    remove_pending(kernel, command.tenant, record)
    return True


def info(record: CronRecord) -> CronInfo:
    return CronInfo(
        spec=record.spec,
        config_hash=record.config_hash,
        installed_until=record.installed_until,
        pending=tuple(sorted(record.pending.values())),
        executions=record.executions,
    )
