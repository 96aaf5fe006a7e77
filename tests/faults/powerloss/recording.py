"""Running a command so that its power cuts can be told afterwards."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.faults.powerloss.calls import RecordingFailed, read_calls, strace
from tests.faults.powerloss.effects import Mark, Timeline
from tests.faults.powerloss.images import Image, images
from tests.faults.powerloss.marker import VARIABLE
from tests.faults.powerloss.timeline import Reader

# SQLite's index of its log is a shared mapping that recovery builds anew.
REBUILT: Final = ("*-shm",)


@dataclass(frozen=True, slots=True)
class Recording:
    timeline: Timeline
    status: int  # the command's; negative: the signal that ended it
    ignored: Sequence[str]

    @property
    def markers(self) -> list[str]:
        return [effect.line for effect in self.timeline.effects if isinstance(effect, Mark)]

    def images(self, seed: int, count: int, *, strict: bool = False) -> Iterator[Image]:
        """What power cuts leave of the run: the same for the same seed, in the order of the cuts.

        `strict` asks for a sync of the directory before a new file is sure to be found.
        """
        return images(self.timeline, seed, count, strict=strict, ignored=self.ignored)


def record(
    argv: Sequence[str],
    directory: Path,
    log: Path,
    *,
    markers: Path | None = None,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    ignored: Sequence[str] = REBUILT,
    status: int | None = 0,
    timeout_s: float = 120,
) -> Recording:
    """Run the command and everything it starts to the end, and read what was done to the directory.

    The directory has to exist; what is in it counts as durable. `markers` is the file whose lines
    become markers, by default one beside the log: the command finds its path in the environment.
    It has to lie outside of the directory. An exit status other than the expected one is an error,
    unless none is expected. Files named like one of the patterns in `ignored` are in no image.
    """
    directory, log = directory.resolve(strict=True), log.resolve()
    markers = log.with_suffix(".markers") if markers is None else markers.resolve()
    cwd = Path.cwd() if cwd is None else cwd.resolve()
    for outside in (log, markers):
        if outside.is_relative_to(directory):
            raise RecordingFailed(f"{outside} lies in {directory}, which is recorded")
    reader = Reader(directory, markers, cwd, ignored)
    given = dict(os.environ if environment is None else environment)
    given[VARIABLE] = str(markers)
    ended = strace(argv, log, cwd=cwd, environment=given, timeout_s=timeout_s)
    if status is not None and ended != status:
        said = log.with_suffix(".output").read_text(errors="replace")[-2_000:]
        raise RecordingFailed(f"{argv} ended with status {ended}, not {status}:\n{said}")
    timeline = reader.timeline(read_calls(log))
    reader.check()
    return Recording(timeline, ended, ignored)
