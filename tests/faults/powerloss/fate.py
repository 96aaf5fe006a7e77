"""What a power cut makes of the pending: the random part of an image."""

from collections.abc import Sequence
from random import Random
from typing import Final

from tests.faults.powerloss.disk import File, Pending, fit, put
from tests.faults.powerloss.effects import Change, Resize, Write

SECTOR: Final = 512

# Nothing of it is there, but what is durable is; all of it is, as after a kill; all up to some
# moment, because the disk kept the order; whole calls at random; single sectors at random.
NOTHING, ALL, IN_ORDER, CALLS, SECTORS = "nothing", "all", "in order", "calls", "sectors"
WEIGHTS: Final = {NOTHING: 2, ALL: 1, IN_ORDER: 3, CALLS: 4, SECTORS: 5}


class Fate:
    """Drawn anew for each image."""

    def __init__(self, rng: Random, pending: Sequence[int]) -> None:
        self.rng = rng
        self.manner = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        self.chance = rng.choice((0.1, 0.5, 0.9))  # of a call or a sector, if at random
        self.horizon = rng.choice(pending) if pending else 0  # the moment, if in order

    def keeps(self, at: int) -> bool:
        """Whether a call is there, taken as a whole."""
        if self.manner == IN_ORDER:
            return at < self.horizon
        if self.manner in {NOTHING, ALL}:
            return self.manner == ALL
        return self.rng.random() < self.chance

    def contents(self, file: File) -> bytes:
        """The file as it is found. Data and size fare separately, and so does each sector.

        A sector is found as it was at some moment: what was written to it later is not there,
        whatever else is. Where the cut of a file is not there, neither is what was written behind
        the cut later: it went to other blocks than those that were cut off.
        """
        contents, size = bytearray(file.durable), len(file.durable)
        sectors = Sectors(self, file.pending)
        size_until = self.moment(file.pending)
        for change in file.pending:
            effect = change.effect
            resized = change.durable or change.at < size_until
            if isinstance(effect, Resize):
                if resized:
                    size = effect.size
                    del contents[size:]
                else:
                    sectors.close_behind(effect.size)
                continue
            end = effect.offset + len(effect.data)
            if resized and end > size:
                size = end
            if change.durable or self.manner == ALL:
                put(contents, effect.offset, effect.data)
            else:
                sectors.put(contents, effect, change.at)
        fit(contents, size)
        return bytes(contents)

    def moment(self, pending: Sequence[Pending[Change]]) -> int:
        """Up to when changes are there, of what is found as it was at one moment."""
        if not pending or self.manner == NOTHING:
            return 0
        if self.manner == IN_ORDER:
            return self.horizon + self.rng.randint(0, 1)
        if self.manner == ALL or self.rng.random() < self.chance:
            return pending[-1].at + 1
        return self.rng.choice(pending).at


class Sectors:
    """Which sectors of one file still take what is written to them."""

    def __init__(self, fate: Fate, pending: Sequence[Pending[Change]]) -> None:
        self.fate = fate
        self.pending = pending
        self.until: dict[int, int] = {}  # the moment as of which a sector is found
        self.behind: int | None = None  # no sector that begins here or later takes anything

    def close_behind(self, size: int) -> None:
        self.behind = size if self.behind is None else min(self.behind, size)

    def put(self, contents: bytearray, write: Write, at: int) -> None:
        fate, end = self.fate, write.offset + len(write.data)
        in_whole = fate.manner == CALLS and fate.keeps(at)
        for sector in range(write.offset // SECTOR, (end - 1) // SECTOR + 1):
            begin = sector * SECTOR
            if self.behind is not None and begin >= self.behind:
                break
            until = self.until.get(sector)
            if until is None and fate.manner != CALLS:
                until = self.until[sector] = fate.moment(self.pending)
            if until is not None and at >= until:
                continue
            if fate.manner == CALLS and not in_whole:
                self.until[sector] = at
                continue
            first, last = max(begin, write.offset), min(begin + SECTOR, end)
            put(contents, first, write.data[first - write.offset : last - write.offset])
