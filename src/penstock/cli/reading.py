"""What commands read: arguments out of files, and standard input.

A read lasts for as long as whoever writes takes their time, and nothing can end it. So a thread does
it that nobody waits for: meanwhile the loop serves whoever else uses the path, which may be this
process's, and a Ctrl-C ends the command.
"""

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import Future
from io import UnsupportedOperation
from pathlib import Path
from threading import Thread
from typing import BinaryIO, TypeVar

from penstock.model.errors import Invalid

T = TypeVar("T")


async def content(said: str) -> bytes:
    """What an argument stands for: itself, @file for what is in a file, - for standard input."""
    if said == "-":
        return await beside(standard_input().read)
    if not said.startswith("@"):
        return said.encode("utf-8", "surrogateescape")
    try:
        return await beside(Path(said[1:]).read_bytes)
    except OSError as error:
        raise Invalid(f"{said[1:]} cannot be read: {error.strerror}") from None


def standard_input() -> BinaryIO:
    """A reader of its own: the end of the process wants the lock of that of `sys`, and a thread that
    is left behind has it."""
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except UnsupportedOperation:  # not a file: somebody has put it there
        return sys.stdin.buffer


async def beside(read: Callable[[], T]) -> T:
    """In a thread that is left behind if we are cancelled, and if the process ends."""
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()

    def work() -> None:
        try:
            found = read()
        except Exception as error:  # noqa: BLE001 -- whoever waits for it is told
            done.set_exception(error)
        else:
            done.set_result(found)

    Thread(target=work, daemon=True).start()
    return await asyncio.wrap_future(done)
