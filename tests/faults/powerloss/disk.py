"""What of a directory is durable, and what is pending, at one place of the timeline.

Durable data is kept whole and pending changes as a list behind it, so following a run costs one
step for each effect, and an image costs what is pending and not what was ever written.
"""

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tests.faults.powerloss.effects import (
    Change,
    Effect,
    Entry,
    Inode,
    Mark,
    Rename,
    Resize,
    Sync,
    Timeline,
    Write,
)

T = TypeVar("T", Change, Rename)
Names = dict[tuple[Inode, str], Inode]


@dataclass(slots=True)
class Pending(Generic[T]):
    effect: T
    at: int  # in the timeline
    durable: bool = False  # but behind something that is not


@dataclass(slots=True)
class File:
    durable: bytearray
    pending: list[Pending[Change]] = field(default_factory=list)

    def sync(self, entered: int) -> None:
        """What had returned is durable; as far as nothing else is before it, it is folded in."""
        for change in self.pending:
            if change.effect.returned < entered:
                change.durable = True
        count = next((i for i, c in enumerate(self.pending) if not c.durable), len(self.pending))
        for change in self.pending[:count]:
            if isinstance(change.effect, Write):
                put(self.durable, change.effect.offset, change.effect.data)
            else:
                fit(self.durable, change.effect.size)
        del self.pending[:count]


class Disk:
    """Followed along the timeline.

    A sync of a file also makes durable that it exists, in all the new directories above it, as on
    ext4; `strict` asks for a sync of each directory instead, as POSIX does.
    """

    def __init__(self, timeline: Timeline, *, strict: bool) -> None:
        self.timeline = timeline
        self.strict = strict
        self.at = 0
        self.files = {inode: File(bytearray(data)) for inode, data in timeline.begin.files.items()}
        self.names: Names = dict(timeline.begin.names)
        self.renames: list[Pending[Rename]] = []

    def advance(self, cut: int) -> None:
        for at in range(self.at, cut):
            self.follow(self.timeline.effects[at], at)
        self.at = cut

    def follow(self, effect: Effect, at: int) -> None:
        match effect:
            case Write() | Resize():
                self.files[effect.file].pending.append(Pending(effect, at))
            case Rename():
                self.renames.append(Pending(effect, at))
                if effect.created is not None and effect.created not in self.timeline.directories:
                    self.files[effect.created] = File(bytearray())
            case Sync():
                self.sync(effect)
            case Mark():
                pass

    def sync(self, sync: Sync) -> None:
        for inode in self.files if sync.inode is None else [sync.inode]:
            if inode in self.files:
                self.files[inode].sync(sync.entered)
        made = set() if sync.inode is None or self.strict else self.made_for(sync.inode)
        for rename in self.renames:
            if rename.effect.returned < sync.entered and self.covers(sync, rename.effect, made):
                rename.durable = True
        while self.renames and self.renames[0].durable:
            enter(self.names, self.renames.pop(0).effect.entries)

    def covers(self, sync: Sync, rename: Rename, made: set[Inode]) -> bool:
        directories = {entry.directory for entry in rename.entries}
        if sync.inode is None or directories == {sync.inode} or rename.created in made:
            return True
        return sync.inode in directories and not self.strict

    def made_for(self, inode: Inode) -> set[Inode]:
        """What had to be made before the inode could be found: itself and directories above."""
        above = {
            rename.effect.created: rename.effect.entries[0].directory
            for rename in self.renames
            if rename.effect.created is not None
        }
        made: set[Inode] = set()
        while inode in above:
            made.add(inode)
            inode = above[inode]
        return made


def enter(names: Names, entries: tuple[Entry, ...]) -> None:
    for entry in entries:
        if entry.inode is None:
            names.pop((entry.directory, entry.name), None)
        else:
            names[entry.directory, entry.name] = entry.inode


def put(contents: bytearray, offset: int, data: bytes) -> None:
    if offset > len(contents):
        contents.extend(bytes(offset - len(contents)))
    contents[offset : offset + len(data)] = data


def fit(contents: bytearray, size: int) -> None:
    if size < len(contents):
        del contents[size:]
    else:
        contents.extend(bytes(size - len(contents)))
