"""Instants that somebody else made up: which of them wait, and how they vanish.

The kernel keeps no record of them beside the jobs that they are. One is known by the key that it
was pushed with, `{name}/{config hash}/{instant}`, so that nothing can be left behind that no job
stands for. Finding them is one pass over the keyed jobs of their queue: 0.6 ms for 10,000, 12 ms for
100,000. A refresh nearly always does without. Each that leaves takes 5 µs more, in the same turn.

Those of a cron that the store plans (`crons.py`) may have the same name and are not among them.
"""

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from penstock.kernel import tell
from penstock.kernel.blocks import Block, Side
from penstock.kernel.codes import CANCELLED, COUNTER_OF, WAITING
from penstock.kernel.commands import DropCron, Load
from penstock.kernel.ending import end_one
from penstock.model.errors import Invalid
from penstock.model.schedule import escape_name, parse_key

if TYPE_CHECKING:
    from penstock.kernel.kernel import Kernel
    from penstock.kernel.queue import Queue


class Instant(NamedTuple):
    """One that waits, and where it lies."""

    id: int
    config: str
    place: tuple[Block, int]


def waiting(kernel: "Kernel", tenant: str, queue: str, name: str) -> list[Instant]:
    """The instants of that name that nobody has been given, by ascending id."""
    there = _queue(kernel, tenant, queue)
    if there is None:
        return []
    begin = escape_name(name) + "/"
    found: list[Instant] = []
    for block in there.blocks.values():
        for offset, side in block.sides.items():
            if side.keys and side.keys[0].key.startswith(begin) and _waits(block, offset, side):
                try:
                    config = parse_key(side.keys[0].key)[1]
                except Invalid:
                    continue  # a key that only begins like one
                found.append(Instant(block.base + offset, config, (block, offset)))
    found.sort(key=itemgetter(0))  # sides lie as they came about
    return found


def one_waits(kernel: "Kernel", tenant: str, loads: Sequence[Load]) -> bool:
    """Whether one of these instants is there already and nobody has been given it."""
    for load in loads:
        there = _queue(kernel, tenant, load.queue)
        if there is None:
            continue
        for claim, *_ in load.keys or ():
            record = there.keys.find(claim.key, kernel.now)
            found = kernel.locate(tenant, record.id) if record is not None else None
            side = found[0].sides.get(found[1]) if found is not None else None
            if found is not None and side is not None and _waits(*found, side):
                return True
    return False


def _queue(kernel: "Kernel", tenant: str, queue: str) -> "Queue | None":
    owner = kernel.tenants.get(tenant)
    return owner.queues.get(queue) if owner is not None else None


def _waits(block: Block, offset: int, side: Side) -> bool:
    """One that was redriven does not: it died, mostly in somebody's hands, and is wanted again."""
    given = side.claimed or side.no_ttl
    return not given and side.cron is None and COUNTER_OF[block.codes[offset]] in WAITING


def vanish(kernel: "Kernel", leaving: Iterable[tuple[Block, int]]) -> None:
    """Instants that no worker has started are gone, keys too: they may be installed again."""
    for block, offset in leaving:
        for claim in block.sides[offset].keys:
            known = block.queue.keys.records.get(claim.key)
            if known is not None and known.id == block.base + offset:
                block.queue.keys.strike(claim.key)
        if kernel.events is not None:
            tell.one(kernel, "cancelled", block, offset, kernel.now)
        end_one(kernel, block, offset, CANCELLED, kernel.now, forget_now=True)


def drop(kernel: "Kernel", command: DropCron) -> int:
    """Those of one config, or of all; answers how many there were."""
    assert command.queue is not None
    known = waiting(kernel, command.tenant, command.queue, command.name)
    gone = [each.place for each in known if command.config_hash in (None, each.config)]
    vanish(kernel, gone)
    return len(gone)
