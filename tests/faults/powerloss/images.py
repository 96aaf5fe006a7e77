"""Directories as a power cut may leave them. The package's docstring tells the failure model."""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import accumulate
from pathlib import Path
from random import Random

from tests.faults.powerloss.disk import Disk, enter
from tests.faults.powerloss.effects import ROOT, Inode, Mark, Rename, Sync, Timeline
from tests.faults.powerloss.fate import Fate


@dataclass(frozen=True, slots=True)
class Image:
    """The directory as it is found after a power cut."""

    origin: str  # what a message should say of it
    markers: Sequence[str]  # what the world outside may have seen before the cut
    files: dict[str, bytes]  # by path below the directory
    directories: Sequence[str]  # parents first

    def materialise(self, path: Path) -> Path:
        """Put it at the path, in place of whatever directory is there."""
        if path.exists():
            shutil.rmtree(path)
        path.mkdir(parents=True)
        for name in self.directories:
            (path / name).mkdir()
        for name, data in self.files.items():
            (path / name).write_bytes(data)
        return path

    def __str__(self) -> str:
        return self.origin


def images(
    timeline: Timeline, seed: int, count: int, *, strict: bool, ignored: Sequence[str]
) -> Iterator[Image]:
    """In the order of their cuts, so that one pass over the timeline serves them all."""
    marks = [effect.line for effect in timeline.effects if isinstance(effect, Mark)]
    marked = list(accumulate((isinstance(e, Mark) for e in timeline.effects), initial=0))
    disk = Disk(timeline, strict=strict)
    for number, cut in enumerate(cuts(timeline, Random(f"cuts {seed}"), count)):
        disk.advance(cut)
        fate = Fate(Random(f"{seed} {number}"), pending(disk))
        files, directories = found(disk, fate, ignored)
        of = f"image {number} of seed {seed}: {fate.manner}, {cut} of {len(timeline.effects)}"
        yield Image(of, marks[: marked[cut]], files, directories)


def cuts(timeline: Timeline, rng: Random, count: int) -> list[int]:
    """Anywhere, and more often just before and after what promises something."""
    end = len(timeline.effects)
    promising = [at for at, e in enumerate(timeline.effects) if isinstance(e, (Sync, Mark, Rename))]
    near = [at + after for at in promising for after in (0, 1)] + [end]
    return sorted(
        rng.choice(near) if rng.random() < 0.6 else rng.randint(0, end) for _ in range(count)
    )


def pending(disk: Disk) -> list[int]:
    changes = [change.at for file in disk.files.values() for change in file.pending]
    return changes + [rename.at for rename in disk.renames]


def found(disk: Disk, fate: Fate, ignored: Sequence[str]) -> tuple[dict[str, bytes], list[str]]:
    """What can be reached from the directory: files, and directories, parents first."""
    names = dict(disk.names)
    for rename in disk.renames:
        if rename.durable or fate.keeps(rename.at):
            enter(names, rename.effect.entries)
    children: dict[Inode, list[tuple[str, Inode]]] = {}
    for (directory, name), inode in sorted(names.items()):
        if not any(fnmatchcase(name, pattern) for pattern in ignored):
            children.setdefault(directory, []).append((name, inode))
    files: dict[str, bytes] = {}
    directories: list[str] = []
    contents: dict[Inode, bytes] = {}  # two names of one file show the same
    reached = [("", ROOT)]
    while reached:
        above, directory = reached.pop()
        for name, inode in children.get(directory, ()):
            if inode in disk.timeline.directories:
                directories.append(above + name)
                reached.append((f"{above}{name}/", inode))
            else:
                if inode not in contents:
                    contents[inode] = fate.contents(disk.files[inode])
                files[above + name] = contents[inode]
    return files, directories
