"""Blocks of commands on a page, run as they stand in this process."""

import re
import shlex
import time

import pytest

from tests.cli.cli import Cli


class Shell:
    """`LEASE` stands for what the last claim has printed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._cli = Cli()
        self._lease = "LEASE"

    def __call__(self, commands: str) -> str:
        """What they print, each of which has to succeed."""
        said = ""
        for line in commands.splitlines():
            program, *words = shlex.split(line)
            if program == "export":
                self._monkeypatch.setenv(*words[0].split("=", 1))
            elif program == "sleep":
                time.sleep(float(*words))
            else:
                assert program == "penstock", line
                answer = self._cli(*(self._lease if word == "LEASE" else word for word in words))
                if words[0] == "claim":
                    self._lease = answer.split()[1].rstrip(",")
                said += answer
        return said


def check_shown(block: str, said: str) -> None:
    """The words of each line that a page shows were printed, in that order, on one line."""
    for line in block.splitlines():
        words = re.sub(r"\d+[smh] ago", " ", line).split()
        assert re.search(".*".join(map(re.escape, words)), said), (line, said)
