"""The journal: what an embedded store asks of a disk, as one small interface.

A journal keeps four things: the log (groups of records, in order), payload chunks, checkpoint rows
(the state at one position of the log, object by object), and a few facts about itself. It knows
nothing of jobs. Everything that one `write` is given becomes durable together or not at all.

`write`, `open` and `close` are called by one thread at a time; `chunk` by one other.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.kernel import records

KINDS: Final = ("meta", *(kind.name for kind in records.KINDS))  # of checkpoint rows


class Group(msgspec.Struct, frozen=True, gc=False):
    """Records of one commit, end to end; see frames.py."""

    first: int  # position of the first record
    last: int
    data: bytes


class Row(msgspec.Struct, frozen=True, gc=False):
    """An object of the state in one checkpoint; without data: it was gone by then."""

    kind: str
    key: bytes
    checkpoint: int
    data: bytes | None


class Batch(msgspec.Struct, kw_only=True):
    """What is written in one go."""

    group: Group | None = None
    chunks: list[tuple[int, bytes]] = []
    hollow: list[tuple[int, bytes]] = []  # chunks that are there, most of them now zeros
    dropped: list[int] = []  # chunks no longer needed
    rows: list[Row] = []
    superseded: list[Row] = []  # older rows of these objects go, and they themselves if gone
    truncate: int | None = None  # some groups that end at or before this position go
    facts: dict[str, Any] = {}
    sync: bool = False  # reaches stable storage, not only the operating system

    @property
    def empty(self) -> bool:
        return not (
            self.group
            or self.chunks
            or self.hollow
            or self.dropped
            or self.rows
            or self.superseded
            or self.truncate is not None
            or self.facts
        )


class JournalError(Exception):
    """The journal cannot go on, or cannot be opened; the message says why."""


class Full(JournalError):
    """There is no room for what was to be written; nothing of it was."""


def nothing() -> None:
    pass


class Journal(ABC):
    scheme: str

    @property
    def untidy(self) -> bool:
        """Whether `tidy` may give back room; asked by the thread that writes."""
        return False

    def tidy(self) -> None:  # noqa: B027 -- a journal need not
        """Give back to the file system some of the room that is needed no more. Called by the thread
        that writes, when it has nothing to write; what takes long is done beside it."""

    @abstractmethod
    def open(self, *, read_only: bool = False) -> dict[str, Any]:
        """The facts written last; nothing for a journal that has just been made."""

    @abstractmethod
    def rows(self, checkpoint: int) -> Iterator[Row]:
        """The newest row of every object that belongs to that checkpoint or an older one."""

    @abstractmethod
    def groups(self, after: int) -> Generator[Group, None, None]:
        """The log's groups that reach beyond that position, in order."""

    @abstractmethod
    def chunk_ids(self, least: int) -> Iterable[int]:
        """The chunks that are there, from that number on."""

    @abstractmethod
    def chunk(self, chunk: int) -> bytes:
        """The bytes of a chunk; KeyError if it is not there, JournalError if they are damaged."""

    def stage(self, chunk: int, data: bytes) -> None:  # noqa: B027 -- a journal need not
        """The next batch will be synced and has this chunk: begin with it. Nothing is there before
        that batch is written, and a chunk that is not in it after all never was."""

    @abstractmethod
    def write(self, batch: Batch, ready: Callable[[], None] = nothing) -> bool:
        """All of it, or nothing and an error. True while older log groups are left to truncate.
        `ready` is called when only the disk is left to wait for."""

    @abstractmethod
    def forget_after(self, checkpoint: int) -> None:
        """Rows of checkpoints beyond this one were never finished: they go."""

    @abstractmethod
    def backup(self, target: Path) -> None:
        """A consistent copy in an empty directory, taken while others write."""

    def damage(self) -> list[str]:
        """What the files themselves show, beyond what reading everything does."""
        return []

    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """Bytes on disk, by what they are for."""

    @abstractmethod
    def close(self) -> None: ...
