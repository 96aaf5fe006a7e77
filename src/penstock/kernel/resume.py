"""Resume: a store goes on from where it ended, announced or not."""

from typing import TYPE_CHECKING

from penstock.kernel.commands import Resume

if TYPE_CHECKING:
    from penstock.kernel.kernel import Kernel


def resume(kernel: "Kernel", command: Resume) -> int:
    """Answers the first block that has never been reserved."""
    kernel.caps = command.caps
    if command.block is not None:
        # Ids up to the reservation may have been given out: none of them is given out again.
        for tenant in kernel.tenants.values():
            for queue in tenant.queues.values():
                queue.close_block()
        kernel.next_block = max(kernel.next_block, command.block)
    return kernel.next_block
