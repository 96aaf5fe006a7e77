"""Telling the recording what the world outside has been told, such as an answer to a client."""

import os
from typing import Final

VARIABLE: Final = "POWERLOSS_MARKERS"


class Marker:
    """For the recorded command: each line is one write, so it has its place among the others."""

    def __init__(self) -> None:
        path = os.environ.get(VARIABLE)
        if path is None:
            raise RuntimeError(f"{VARIABLE} is not set: this is no recorded run")
        self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)

    def __call__(self, line: object) -> None:
        os.write(self.descriptor, f"{line}\n".encode())
