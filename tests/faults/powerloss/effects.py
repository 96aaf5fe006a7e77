"""What a recorded run did to the files of one directory, in the order in which it took place.

A file or directory is named by the number it got when it first appeared, never by its path: a
rename must not change whose data a later write is. The directory itself is `ROOT`.

`returned` and `entered` are instants of one clock that counts the entries and returns of calls. A
change of contents stands in the list where its call was entered, because from then on its data may
reach the disk, and so does a mark, because somebody may have read it; everything else stands where
its call returned. A sync covers what had returned before it was entered.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NewType

Inode = NewType("Inode", int)
ROOT: Final = Inode(0)
NEVER: Final = 1 << 62  # the return of a call in which its process was killed


@dataclass(frozen=True, slots=True)
class Write:
    file: Inode
    offset: int
    data: bytes
    returned: int


@dataclass(frozen=True, slots=True)
class Resize:
    """The file was cut, or grown by zeros, to a size."""

    file: Inode
    size: int
    returned: int


@dataclass(frozen=True, slots=True)
class Entry:
    """What a name in a directory means from now on; none: nothing."""

    directory: Inode
    name: str
    inode: Inode | None


@dataclass(frozen=True, slots=True)
class Rename:
    """Entries that change together or not at all: created, linked, renamed or removed."""

    entries: tuple[Entry, ...]
    created: Inode | None  # what the first of the entries brought into being
    returned: int


@dataclass(frozen=True, slots=True)
class Sync:
    """An fsync or fdatasync that succeeded; of everything if `inode` is none."""

    inode: Inode | None
    entered: int


@dataclass(frozen=True, slots=True)
class Mark:
    """A line that the run wrote for the outside world to see, such as an answer to a client."""

    line: str


Effect = Write | Resize | Rename | Sync | Mark
Change = Write | Resize  # of the contents of a file


@dataclass(frozen=True, slots=True)
class Tree:
    """Files and directories as they lay on the disk, all of it durable, when the run began."""

    files: dict[Inode, bytes]
    names: dict[tuple[Inode, str], Inode]


@dataclass(frozen=True, slots=True)
class Timeline:
    begin: Tree
    effects: Sequence[Effect]
    directories: frozenset[Inode]
