"""How a lake of this machine is doing, for `penstock doctor`. Starts no Spark, and imports nothing of it.

What it reads beside the lake's own manifest is the checkpoint of the stream that fills it: the log of
the segments that its source has seen, and how far the steps came that are done.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from penstock.events.segment import sealed_in
from penstock.model.errors import Invalid

LEVELS: Final = ("bronze", "silver", "gold")


def state_of(root: str) -> tuple[dict[str, Any], list[str]]:
    """What is there, and a sentence for each thing that is wrong with it."""
    if "://" in root:
        raise Invalid(f"{root} is no directory of this machine, so it cannot be looked at", "lake")
    lake = Path(root)
    if not lake.is_dir():
        raise Invalid(f"there is no directory {root}: penstock pipeline run makes one", "lake")
    manifest = _manifest(lake)
    steps = [each for each in manifest.get("steps", ()) if "lines" in each]
    seen = _Seen(lake / "_checkpoint")
    found = {
        "directory": root,
        "version": manifest.get("version"),
        "days": len(list((lake / "bronze" / "events").glob("day=*"))),
        "bytes": {level: _bytes(lake / level) for level in LEVELS},
        "last_step": steps[-1] if steps else None,
        "cut_short": seen.cut_short,
        "bad_lines": _bad_lines(lake / "bronze" / "bad"),
        **_lag(seen),
    }
    return found, list(_problems(seen))


class _Seen:
    """Which segments Spark's checkpoint knows: those of steps that are done, and of one that is not."""

    def __init__(self, checkpoint: Path) -> None:
        begun, over = _last(checkpoint / "offsets"), _last(checkpoint / "commits")
        self.cut_short = begun > over
        done = _log_offset(checkpoint / "offsets", over)
        begun_to = _log_offset(checkpoint / "offsets", begun)
        self.done: set[Path] = set()
        self.pending: set[Path] = set()
        self.directories: set[Path] = set()
        for path, number in _entries(checkpoint / "sources" / "0"):
            self.directories.add(path.parent)
            if number <= done:
                self.done.add(path)
            elif number <= begun_to:
                self.pending.add(path)


def _lag(seen: _Seen) -> dict[str, Any]:
    """What is sealed and in no step that is done: how much, and since when. None: not known."""
    here = [each for each in sorted(seen.directories) if each.is_dir()]
    if not here:
        return {"events": None, "unread": None, "behind_s": None}
    unread = [
        path.stat()
        for directory in here
        for _, path in sealed_in(directory)
        if path not in seen.done
    ]
    since = min((each.st_mtime for each in unread), default=None)
    return {
        "events": [str(each) for each in here],
        "unread": {"segments": len(unread), "bytes": sum(each.st_size for each in unread)},
        "behind_s": 0 if since is None else max(round(time.time() - since), 0),
    }


def _problems(seen: _Seen) -> Iterator[str]:
    gone = [path for path in sorted(seen.pending) if not path.exists()]
    if gone:
        yield (
            f"a step was cut short, and {len(gone)} of the segments that it would be done again"
            f" with are gone, {gone[0]} among them: build another lake, or put them back"
        )


def _manifest(lake: Path) -> dict[str, Any]:
    """The fresh one, where a run was killed between taking the old one away and putting it in place."""
    for name in ("manifest.json", "_manifest.json"):
        try:
            return json.loads((lake / name).read_bytes())  # type: ignore[no-any-return]
        except FileNotFoundError:
            continue
        except ValueError:
            raise Invalid(f"{lake / name} is no manifest of a lake", "lake") from None
    return {}


def _last(log: Path) -> int:
    """The number of the last entry of one of Spark's logs, which are files; -1: there is none."""
    if not log.is_dir():
        return -1
    return max((int(each.name) for each in log.iterdir() if each.name.isdigit()), default=-1)


def _log_offset(offsets: Path, number: int) -> int:
    """How far the log of the source was read when that step was planned."""
    if number < 0:
        return -1
    last = (offsets / str(number)).read_text().splitlines()[-1]
    return int(json.loads(last)["logOffset"])


def _entries(log: Path) -> Iterator[tuple[Path, int]]:
    """Segments, and where in the log of the source each is. Every tenth file repeats those before."""
    for file in sorted(log.glob("[0-9]*")) if log.is_dir() else ():
        for line in file.read_text().splitlines()[1:]:
            entry = json.loads(line)
            yield Path(unquote(urlsplit(entry["path"]).path)), int(entry["batchId"])


def _bad_lines(table: Path) -> int | None:
    """How many are kept apart; None where nothing can read them."""
    files = list(table.glob("batch=*/*.parquet"))
    try:
        from pyarrow.parquet import read_metadata
    except ModuleNotFoundError:
        return None if files else 0
    return sum(int(read_metadata(each).num_rows) for each in files)


def _bytes(directory: Path) -> int:
    return sum(each.stat().st_size for each in directory.rglob("*.parquet"))
