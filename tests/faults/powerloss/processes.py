"""Who runs and what each has open, as the kernel keeps it.

Only descriptors of interest are kept: those of the recorded directory and of the markers.
"""

from dataclasses import dataclass, field

from tests.faults.powerloss.effects import Inode


@dataclass(slots=True, eq=False)
class Description:
    """An open file description: shared by duplicated and inherited descriptors."""

    inode: Inode | None  # unset: the file of markers
    append: bool
    position: int = 0


@dataclass(slots=True)
class Descriptor:
    of: Description
    closed_by_exec: bool


@dataclass(slots=True)
class Process:
    cwd: str
    descriptors: dict[int, Descriptor] = field(default_factory=dict)

    def forked(self) -> "Process":
        copies = {n: Descriptor(d.of, d.closed_by_exec) for n, d in self.descriptors.items()}
        return Process(self.cwd, copies)
