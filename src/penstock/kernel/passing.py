"""One plain job that passes through: pushed, and given in the same turn to a claim that waits.

Most jobs of a queue whose workers are idle do. What becomes of them hangs on little, and can be
said before anything is changed: so whoever waits may be told first. This decides and changes
nothing; push and claim do what is said here, and come to the same.
"""

from typing import TYPE_CHECKING

from penstock.kernel.blocks import SIZE
from penstock.kernel.codes import FIRST_CLASS, READY
from penstock.kernel.commands import Claim
from penstock.model.job import JobOptions
from penstock.model.store import Number

if TYPE_CHECKING:
    from penstock.kernel.kernel import Kernel
    from penstock.kernel.queue import Tenant


def passing(
    kernel: "Kernel",
    claim: Claim,
    name: str,
    options: JobOptions,
    number: Number,
    now: int,
    elapsed: int,
) -> int:
    """The id that one plain job would get, if it were pushed into that queue at that instant, and
    with which this claim, the first in line there, would be given it. 0: that is not known.

    Not to know costs a little time, a wrong id would give out what is not there. So wherever there
    is more than a plain job in a queue that holds no other, it is not known.
    """
    if now >= kernel.wall_due or elapsed >= kernel.elapsed_due:
        return 0  # something else comes first
    tenant = kernel.tenants.get(claim.tenant)
    queue = None if tenant is None else tenant.queues.get(name)
    if (
        queue is None
        or queue.counts[READY]
        or queue.limited
        or queue.bounded
        or queue.groups
        or now < queue.ready_clock
    ):
        return 0
    block = queue.open
    if block is None or block.commits:
        return 0
    index = block.last_index
    if options is not block.last_options:
        index = block.option_index.get(options, -1)
        if index < 0:
            return 0
    if block.code_of[index] < FIRST_CLASS:
        return 0
    producer, sequence, _ = number
    if producer is not None:
        known = kernel.producers.get((claim.tenant, producer))
        if known is None or sequence != known.next:
            return 0  # a repeat, or refused
    if claim.queues[0] != name and _may_have_others(queue.tenant, claim, name):
        return 0
    position = len(block.codes)
    return block.base + position if position < SIZE else 0


def _may_have_others(tenant: "Tenant", claim: Claim, name: str) -> bool:
    """Whether jobs lie in a queue that the claim names before this one: what held them back until
    now, a limit as a rule, may be over."""
    before = claim.queues[: claim.queues.index(name)]
    return any(other in tenant.queues and tenant.queues[other].counts[READY] for other in before)
