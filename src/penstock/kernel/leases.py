"""Leases: who holds what until when.

A lease remembers the runs it claimed and who has left it since. A job that left is no longer the
lease's own, even if it is active again under another one.

Half a million leases may live at once, so the collector does not track them (`gc=False`): a lease
and its runs point at each other, and `settle.drop` breaks that circle.
"""

from typing import TYPE_CHECKING

import msgspec

from penstock.kernel.blocks import Block
from penstock.kernel.codes import ACTIVE

if TYPE_CHECKING:
    from penstock.kernel.queue import Queue


class HeldRun(msgspec.Struct, gc=False, eq=False):
    """Jobs of one block under one lease: those from lo to hi whose byte in `mask` is 1."""

    block: Block
    lo: int
    hi: int
    mask: bytes | None = None  # as claimed; None: all
    count: int = 1  # still held
    gone: bytearray | None = None  # 1 for each that left
    lease: "LeaseRecord" = None  # type: ignore[assignment]  # set when the lease is granted

    def holds(self, offset: int) -> bool:
        index = offset - self.lo
        return (
            0 <= index < self.hi - self.lo
            and (self.mask is None or self.mask[index] == 1)
            and (self.gone is None or not self.gone[index])
            and self.count > 0
        )

    def offsets(self) -> list[int]:
        """Those still held, ascending."""
        lo, mask, gone = self.lo, self.mask, self.gone
        if not self.count:
            return []
        if mask is None and gone is None:
            return list(range(lo, self.hi))
        return [
            lo + index
            for index in range(self.hi - lo)
            if (mask is None or mask[index]) and (gone is None or not gone[index])
        ]

    def leave(self, offset: int) -> None:
        if self.gone is None:
            self.gone = bytearray(self.hi - self.lo)
        self.gone[offset - self.lo] = 1
        self.count -= 1

    def still(self) -> bytes | None:
        """The mask of those still held; None: all from lo to hi."""
        if self.gone is None:
            return self.mask
        gone = self.gone.translate(_NOT)
        if self.mask is None:
            return bytes(gone)
        return both(self.mask, gone)


class LeaseRecord(msgspec.Struct, gc=False, eq=False):
    token: str
    queue: "Queue"
    runs: list[HeldRun]  # emptied when the lease ends: runs point back, and nobody else frees them
    count: int  # jobs still held
    worker: str
    lease_ms: int
    claimed_at: int  # wall clock
    began: int  # elapsed
    expires: int  # elapsed
    first: int  # the lowest id claimed: orders leases that end at one instant
    era: int  # in which it was granted; negative: in which it last changed; see `changes.py`
    extended_at: int = 0  # wall clock: the last heartbeat; 0: none since the claim
    lost: list[int] | None = None  # taken from it, not given up by its holder
    bucket: "dict[str, LeaseRecord] | None" = None  # of the wheel, while it lies in one

    def run_of(self, block: Block, offset: int) -> HeldRun | None:
        """The run by which this lease holds that job, if it does."""
        run = block.holder_of(offset)
        return run if run is not None and run.lease is self else None


_NOT = bytes([1]) + bytes(255)


def both(one: bytes | bytearray, other: bytes | bytearray) -> bytes:
    """The bytewise conjunction of two masks, at the speed of big integers."""
    joined = int.from_bytes(one, "little") & int.from_bytes(other, "little")
    return joined.to_bytes(len(one), "little")


def trimmed(lo: int, mask: bytes) -> tuple[int, int, bytes | None]:
    """The same jobs with nothing before the first and behind the last; no mask if none is left out."""
    first, last = mask.index(1), mask.rindex(1) + 1
    mask = mask[first:last]
    return lo + first, lo + last, mask if 0 in mask else None


def by_block(lease: LeaseRecord) -> list[tuple[Block, list[HeldRun]]]:
    """What a lease holds, by ascending ids: the same however its claim was cut into runs."""
    runs = lease.runs
    if len(runs) == 1:
        return [(runs[0].block, runs)]
    blocks: dict[int, list[HeldRun]] = {}
    for run in runs:
        if run.count:
            blocks.setdefault(run.block.number, []).append(run)
    return [(held[0].block, held) for _, held in sorted(blocks.items())]


def joined(runs: list[HeldRun]) -> tuple[int, int, bytes | None, int]:
    """What several runs of one block hold together: lo, hi, mask, count."""
    if len(runs) == 1:
        run = runs[0]
        mask = run.still() if run.mask is not None or run.gone is not None else None
        if mask is None:
            return run.lo, run.hi, None, run.count
        return *trimmed(run.lo, mask), run.count
    lo, hi = min(run.lo for run in runs), max(run.hi for run in runs)
    whole = 0
    for run in runs:
        mask = run.still() or b"\x01" * (run.hi - run.lo)
        whole |= int.from_bytes(mask, "little") << 8 * (run.lo - lo)
    mask = whole.to_bytes(hi - lo, "little")
    return *trimmed(lo, mask), sum(run.count for run in runs)


def set_codes(block: "Block", lo: int, hi: int, mask: bytes | None, code: int) -> None:
    """Turn active jobs of a range (all, or by mask) into `code`, without a loop over jobs."""
    if mask is None:
        block.codes[lo:hi] = bytes([code]) * (hi - lo)
        return
    # Masked bytes are ACTIVE, others anything: adding mask × difference never carries.
    before = int.from_bytes(block.codes[lo:hi], "little")
    change = int.from_bytes(mask, "little")
    if code != ACTIVE + 1:
        change *= abs(code - ACTIVE)
    after = before + change if code >= ACTIVE else before - change
    block.codes[lo:hi] = after.to_bytes(hi - lo, "little")
