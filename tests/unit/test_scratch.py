"""Directories for what is not whole yet: ours while we live, and nobody's afterwards."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from penstock.stores.scratch import scratch

_KILLED = """
import os, sys
from pathlib import Path
from penstock.stores.scratch import scratch

with scratch(".made-", Path(sys.argv[1])) as place:
    (place / "below").mkdir()
    (place / "below" / "half").write_text("half")
    os.kill(os.getpid(), 9)
"""


def test_a_scratch_directory_goes_with_all_that_is_in_it(tmp_path: Path) -> None:
    with scratch(".made-", tmp_path) as place:
        assert place.parent == tmp_path
        assert place.stat().st_mode & 0o777 == 0o700
        (place / "below").mkdir()
        (place / "below" / "half").touch()
    assert list(tmp_path.iterdir()) == []


def test_what_the_killed_have_left_goes_and_what_the_living_have_stays(tmp_path: Path) -> None:
    (tmp_path / ".made-by-hand").write_text("a file is none of ours")
    (tmp_path / "other").mkdir()
    with scratch(".made-", tmp_path) as mine:
        subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path)], check=False)
        (left,) = tmp_path.glob(".made-*/*")
        with scratch(".made-", tmp_path) as another:
            assert not left.exists()
            assert mine.exists()
            assert another != mine
    assert sorted(path.name for path in tmp_path.iterdir()) == [".made-by-hand", "other"]


def test_many_at_once_do_not_delete_each_others(tmp_path: Path) -> None:
    def once(number: int) -> None:
        for _ in range(50):
            with scratch(".made-", tmp_path) as place:
                (place / "mine").write_text(str(number))
                assert (place / "mine").read_text() == str(number)

    with ThreadPoolExecutor(8) as many:
        list(many.map(once, range(8)))
    assert list(tmp_path.iterdir()) == []
